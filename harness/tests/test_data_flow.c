/* The order of the data flow: it knows every tensor of the catalogue, and is that of the computation. */
#include "harness/operations/data_flow.h"
#include "harness/operations/paths.h"
#include "harness/tests/harness_test.h"

/* What reports list of a case, in their order. */
typedef struct flow {
    char (*paths)[ASSAY_PATH_SIZE];
    int count;
} flow;

static int by_rank(const void *a, const void *b)
{
    const int64_t first = assay_data_flow_rank(a), second = assay_data_flow_rank(b);
    return first < second ? -1 : first > second;
}

static bool is_listed(const char *path)
{
    return assay_path_in(path, "schedule") || assay_path_in(path, "routing") || assay_path_in(path, "checkpoints") ||
           assay_path_in(path, "outputs") || assay_path_in(path, "gradients");
}

static flow flow_of(const assay_tensor_list *list)
{
    flow f = {.paths = calloc((size_t)list->count, sizeof *f.paths)};
    assert_non_null(f.paths);
    for (int i = 0; i < list->count; i++) {
        const char *path = list->entries[i].spec.path;
        if (is_listed(path)) memcpy(f.paths[f.count++], path, sizeof *f.paths);
    }
    qsort(f.paths, (size_t)f.count, sizeof *f.paths, by_rank);
    return f;
}

static assay_tensor_list list_of(assay_context *ctx, const assay_case *c)
{
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    assert_ok(ctx, assay_operation_prepare(ctx, c, &operation, &list));
    return list;
}

/* Of every case each tensor has a place of its own, and every step is a tensor of some case. */
TEST(every_tensor_has_a_place)
{
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    int count = 0, steps = 0, unused = 0;
    while (assay_data_flow[steps] != NULL) steps++;
    bool *used = calloc((size_t)steps, sizeof *used);
    assert_non_null(used);
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    for (int i = 0; i < count; i++) {
        assay_tensor_list list = list_of(&ctx, &cases[i]);
        const flow f = flow_of(&list);
        for (int k = 0; k < f.count; k++) {
            const int64_t rank = assay_data_flow_rank(f.paths[k]);
            if (rank == INT64_MAX) fail_msg("%s: data_flow.c does not have %s", cases[i].name, f.paths[k]);
            if (k == 0 || assay_data_flow_rank(f.paths[k - 1]) < rank) continue;
            fail_msg("%s: %s and %s have the same place", cases[i].name, f.paths[k - 1], f.paths[k]);
        }
        for (int k = 0; k < list.count; k++) {
            for (int s = 0; s < steps; s++) used[s] |= strcmp(assay_data_flow[s], list.entries[k].spec.path) == 0;
        }
        free(f.paths);
        assay_tensor_list_free(&list);
    }
    for (int s = 0; s < steps; s++) {
        if (!used[s]) print_error("data_flow.c: no case has %s\n", assay_data_flow[s]);
        unused += !used[s];
    }
    assert_int_equal(unused, 0);
    free(used);
    assay_cases_free(cases, count);
}

enum { MOST = 40 };

static const struct {
    const char *name;
    const char *order[MOST]; /* all that reports list, or the first of it */
} chains[] = {
    {"mla/checkpoints",
     {"checkpoints/query_wa_proj", "checkpoints/mla_q", "checkpoints/kv_wa_proj", "checkpoints/mla_kv",
      "checkpoints/query_proj", "checkpoints/key_proj", "checkpoints/value_proj", "checkpoints/lse",
      "checkpoints/attention_out", "checkpoints/out_proj", "outputs/y", "gradients/weights/out/kernel",
      "gradients/weights/wkv_b/kernel", "gradients/weights/wq_b/kernel", "gradients/weights/kv_norm/scale",
      "gradients/weights/wkv_a/kernel", "gradients/weights/q_norm/scale", "gradients/weights/wq_a/kernel",
      "gradients/inputs/x"}},
    {"attention/batch",
     {"outputs/lse", "outputs/attention_out", "gradients/inputs/value", "gradients/inputs/key",
      "gradients/inputs/query"}},
    {"permute/deepseek3-tiny",
     {"outputs/group_sizes", "outputs/sorted_selected_experts", "outputs/sorted_inputs", "gradients/inputs/x"}},
    {"mlp/biases-fused",
     {"checkpoints/mlpwi", "checkpoints/mlpwo", "outputs/y", "gradients/weights/wo/bias", "gradients/weights/wo/kernel",
      "gradients/weights/wi_1/bias", "gradients/weights/wi_0/bias", "gradients/weights/wi/kernel",
      "gradients/inputs/x"}},
    {"moe/small",
     {"routing/selected_experts",
      "routing/weights",
      "routing/margin",
      "routing/group_sizes",
      "routing/sorted_selected_experts",
      "checkpoints/moe_mlpwi_0",
      "checkpoints/moe_mlpwi_1",
      "checkpoints/moe_mlpwo",
      "checkpoints/mlpwi_0",
      "checkpoints/mlpwi_1",
      "checkpoints/mlpwo",
      "outputs/y",
      "gradients/weights/shared_experts/wo/kernel",
      "gradients/weights/shared_experts/wi_1/kernel",
      "gradients/weights/shared_experts/wi_0/kernel",
      "gradients/weights/wo",
      "gradients/weights/wi_1",
      "gradients/weights/wi_0",
      "gradients/weights/gate/bias",
      "gradients/weights/gate/kernel",
      "gradients/inputs/x"}},
    /* the router stands behind attention and before the experts */
    {"deepseek_layer/moe",
     {"checkpoints/decoder_layer_input", "checkpoints/query_wa_proj", "checkpoints/mla_q", "checkpoints/kv_wa_proj",
      "checkpoints/mla_kv", "checkpoints/query_proj", "checkpoints/key_proj", "checkpoints/value_proj",
      "checkpoints/lse", "checkpoints/attention_out", "checkpoints/out_proj", "routing/selected_experts",
      "routing/weights", "routing/margin", "routing/group_sizes", "routing/sorted_selected_experts",
      "checkpoints/moe_mlpwi_0"}},
};

TEST(chains_are_in_order)
{
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(&ctx, chains[i].name, NULL);
        assay_tensor_list list = list_of(&ctx, c);
        const flow f = flow_of(&list);
        for (int k = 0; k < MOST && chains[i].order[k] != NULL; k++) {
            assert_true(k < f.count);
            assert_string_equal(f.paths[k], chains[i].order[k]);
        }
        free(f.paths);
        assay_tensor_list_free(&list);
        assay_cases_free(c, 1);
    }
}

/* Of each pair the first comes before the second. */
TEST(layers_are_numbers)
{
    static const char *const pairs[][2] = {
        {"schedule/events", "checkpoints/layers/0/decoder_layer_input"},
        {"checkpoints/layers/2/query_proj", "checkpoints/layers/2/attention_out"},
        {"checkpoints/layers/2/mlpwo", "checkpoints/layers/10/decoder_layer_input"},
        {"checkpoints/layers/2/moe_mlpwo", "routing/layers/10/selected_experts"},
        {"routing/layers/2/selected_experts", "checkpoints/layers/2/moe_mlpwi_0"},
        {"outputs/layers/2/lb_loss", "checkpoints/layers/10/mla_kv"},
        {"outputs/layers/999/bias_updates", "outputs/y"},
        {"checkpoints/layers/999/mlpwo", "outputs/y"},
        {"outputs/y", "gradients/weights/layers/999/mlp/wo/kernel"},
        {"gradients/weights/layers/10/pre_self_attention_layer_norm/scale", "gradients/weights/layers/2/moe/wo"},
        {"gradients/weights/layers/2/moe/wo", "gradients/weights/layers/2/moe/gate/kernel"},
        {"gradients/weights/layers/2/moe/gate/kernel",
         "gradients/weights/layers/2/post_self_attention_layer_norm/scale"},
        {"gradients/weights/layers/2/self_attention/out/kernel",
         "gradients/weights/layers/2/self_attention/wq_a/kernel"},
        {"gradients/weights/layers/0/pre_self_attention_layer_norm/scale", "gradients/inputs/x"},
        {"gradients/inputs/x", "checkpoints/of_a_later_program"},
        {"gradients/inputs/x", "gradients/weights/layers/1000000/mlp/wo/kernel"},
        {"gradients/inputs/x", "checkpoints/layers/99999999999999999999/mlpwo"},
        {"gradients/inputs/x", "checkpoints/layers/-1/mlpwo"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (by_rank(pairs[i][0], pairs[i][1]) >= 0) fail_msg("%s is not before %s", pairs[i][0], pairs[i][1]);
    }
}
