/* The order of the data flow: that in which an operation describes its tensors. */
#include "harness/tests/harness_test.h"

/* -1: there is none. */
static int place_of(const assay_tensor_list *list, const char *path)
{
    const assay_tensor_entry *found = assay_tensor_list_find(list, path);
    return found == NULL ? -1 : (int)(found - list->entries);
}

/* Of each pair the first is used or computed before the second. Paths without layers/N/, and without the block of a
 * layer's weights. */
static const char *const pairs[][2] = {
    {"weights/pre_self_attention_layer_norm/scale", "weights/wq_a/kernel"},
    {"checkpoints/decoder_layer_input", "checkpoints/query_wa_proj"},
    {"weights/wq_a/kernel", "checkpoints/query_wa_proj"},
    {"checkpoints/query_wa_proj", "checkpoints/mla_q"},
    {"weights/q_norm/scale", "checkpoints/mla_q"},
    {"weights/wkv_a/kernel", "checkpoints/kv_wa_proj"},
    {"checkpoints/kv_wa_proj", "checkpoints/mla_kv"},
    {"weights/kv_norm/scale", "checkpoints/mla_kv"},
    {"weights/wkv_a/kernel", "weights/kv_norm/scale"},
    {"weights/kv_norm/scale", "weights/wkv_b/kernel"},
    {"weights/q_norm/scale", "weights/wq_b/kernel"},
    {"weights/wq_b/kernel", "checkpoints/query_proj"},
    {"weights/query/kernel", "checkpoints/query_proj"},
    {"weights/wkv_b/kernel", "checkpoints/key_proj"},
    {"weights/wkv_b/kernel", "weights/out/kernel"},
    {"checkpoints/value_proj", "checkpoints/attention_out"},
    {"checkpoints/lse", "checkpoints/attention_out"},
    {"checkpoints/attention_out", "checkpoints/mla_out"},
    {"checkpoints/attention_out", "checkpoints/out_proj"},
    {"weights/out/kernel", "checkpoints/out_proj"},
    {"weights/out/kernel", "weights/post_self_attention_layer_norm/scale"},
    {"checkpoints/out_proj", "routing/selected_experts"},
    {"checkpoints/mla_out", "routing/selected_experts"},
    {"checkpoints/out_proj", "checkpoints/mlpwi_0"},
    {"weights/post_self_attention_layer_norm/scale", "weights/gate/kernel"},
    {"weights/post_self_attention_layer_norm/scale", "weights/wi_0/kernel"},
    {"weights/gate/kernel", "routing/selected_experts"},
    {"weights/gate/bias", "routing/selected_experts"},
    {"weights/per_expert_scale", "routing/weights"},
    {"routing/selected_experts", "routing/weights"},
    {"routing/selected_experts", "outputs/weights"},
    {"routing/selected_experts", "routing/group_sizes"},
    {"routing/group_sizes", "outputs/lb_loss"},
    {"routing/group_sizes", "routing/sorted_selected_experts"},
    {"outputs/z_loss", "routing/sorted_selected_experts"},
    {"outputs/bias_updates", "routing/sorted_selected_experts"},
    {"routing/sorted_selected_experts", "routing/combine_mask"},
    {"routing/combine_mask", "checkpoints/moe_mlpwi_0"},
    {"routing/sorted_selected_experts", "routing/expert_shard_id"},
    {"routing/expert_shard_id", "routing/reshaped_group_sizes"},
    {"routing/reshaped_group_sizes", "routing/local_group_sizes"},
    {"routing/all_shards_group_sizes", "routing/local_group_sizes"},
    {"routing/local_group_sizes", "routing/local_sorted_indices"},
    {"routing/local_sorted_indices", "checkpoints/moe_mlpwi_0"},
    {"routing/group_sizes", "checkpoints/moe_mlpwi_0"},
    {"routing/sorted_selected_experts", "checkpoints/moe_mlpwi"},
    {"weights/gate/kernel", "weights/wi_0"},
    {"weights/wi_1", "checkpoints/moe_mlpwi_1"},
    {"weights/wi_1_bias", "weights/wo"},
    {"weights/wo", "weights/wo_bias"},
    {"checkpoints/moe_mlpwi", "checkpoints/moe_mlpwo"},
    {"checkpoints/moe_mlpwi_1", "checkpoints/moe_intermediate"},
    {"checkpoints/moe_intermediate", "checkpoints/moe_mlpwo"},
    {"weights/wo", "weights/shared_experts/wi_0/kernel"},
    {"checkpoints/moe_mlpwo", "checkpoints/mlpwi_0"},
    {"weights/wi_1/bias", "weights/wo/kernel"},
    {"weights/wo/kernel", "weights/wo/bias"},
    {"weights/wi/kernel", "checkpoints/mlpwi"},
    {"checkpoints/mlpwi", "checkpoints/mlpwo"},
    {"checkpoints/mlpwi_1", "checkpoints/mlp_intermediate"},
    {"checkpoints/mlp_intermediate", "checkpoints/mlpwo"},
    {"outputs/lse", "outputs/attention_out"},
    {"outputs/group_sizes", "outputs/sorted_selected_experts"},
    {"outputs/sorted_selected_experts", "outputs/sorted_inputs"},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* Of "FOLDER/layers/3/BLOCK/NAME" "FOLDER/NAME"; the layer, or 0. */
static int plain_path(const char *path, char plain[ASSAY_PATH_SIZE])
{
    static const char *const blocks[] = {"self_attention/", "moe/", "mlp/"};
    int layer = 0, length = 0;
    const char *name = strchr(path, '/') + 1;
    const size_t folder = (size_t)(name - path);
    if (sscanf(name, "layers/%d/%n", &layer, &length) == 1) name += length;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (strncmp(name, blocks[i], strlen(blocks[i])) == 0) name += strlen(blocks[i]);
    }
    snprintf(plain, ASSAY_PATH_SIZE, "%.*s%s", (int)folder, path, name);
    return layer;
}

typedef struct disorder {
    bool used[PAIRS];               /* the pairs of which an operation has both */
    char said[3 * ASSAY_PATH_SIZE]; /* what stands out of order first; "": nothing */
} disorder;

static void note(disorder *d, const char *path, const char *where, const char *of)
{
    if (d->said[0] == '\0') snprintf(d->said, sizeof d->said, "%s is %s%s", path, where, of);
}

/* What is given or forward: inputs before results, in the order of layers, outputs/y behind all but its cotangent, no
 * gradient before. */
static void check_forward(disorder *d, const assay_tensor_list *list)
{
    char plain[ASSAY_PATH_SIZE];
    int layer = 0;
    bool gradients = false, results = false, y = false;
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        gradients |= spec->role == ASSAY_ROLE_GRADIENT;
        if (spec->role == ASSAY_ROLE_GRADIENT) continue;
        const bool compared = assay_role_is_compared(spec->role);
        if (gradients) note(d, spec->path, "behind gradients", "");
        if ((compared || spec->role == ASSAY_ROLE_WEIGHT) && y) note(d, spec->path, "behind y", "");
        if (spec->role == ASSAY_ROLE_INPUT && results) note(d, spec->path, "behind results", "");
        results |= compared;
        y |= strcmp(spec->path, "outputs/y") == 0;
        if (y || (!compared && spec->role != ASSAY_ROLE_WEIGHT)) continue;
        const int of_layer = plain_path(spec->path, plain);
        if (of_layer < layer) note(d, spec->path, "behind a later layer", "");
        layer = of_layer;
    }
}

/* From the output back: the reverse of what they are gradients of. */
static void check_gradients(disorder *d, const assay_tensor_list *list)
{
    int place = list->count;
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        if (spec->role != ASSAY_ROLE_GRADIENT) continue;
        const int of = place_of(list, strchr(spec->path, '/') + 1);
        /* a layer's input is listed behind the norm that reads it */
        const bool boundary = strncmp(spec->path, "gradients/checkpoints/", strlen("gradients/checkpoints/")) == 0;
        if (of < 0 || (of >= place && !boundary)) note(d, spec->path, "not from the output back", "");
        if (!boundary) place = of;
    }
}

static void check_layer_pairs(disorder *d, const assay_tensor_list *list, int layer)
{
    char plain[ASSAY_PATH_SIZE];
    int places[PAIRS][2]; /* -1: there is none */
    memset(places, -1, sizeof places);
    for (int i = 0; i < list->count; i++) {
        if (plain_path(list->entries[i].spec.path, plain) != layer) continue;
        for (int p = 0; p < PAIRS; p++) {
            for (int k = 0; k < 2; k++) places[p][k] = strcmp(pairs[p][k], plain) == 0 ? i : places[p][k];
        }
    }
    for (int p = 0; p < PAIRS; p++) {
        const int first = places[p][0], second = places[p][1];
        if (first < 0 || second < 0) continue;
        d->used[p] = true;
        if (first > second) note(d, list->entries[first].spec.path, "behind ", list->entries[second].spec.path);
    }
}

static void check_pairs(disorder *d, const assay_tensor_list *list)
{
    char plain[ASSAY_PATH_SIZE];
    int layers = 1;
    for (int i = 0; i < list->count; i++) {
        const int layer = plain_path(list->entries[i].spec.path, plain);
        if (layer >= layers) layers = layer + 1;
    }
    for (int layer = 0; layer < layers; layer++) check_layer_pairs(d, list, layer);
}

static void find_disorder(disorder *d, const assay_tensor_list *list)
{
    check_forward(d, list);
    check_gradients(d, list);
    check_pairs(d, list);
}

TEST(every_case_is_in_order)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    disorder d = {0};
    for (int i = 0; i < count; i++) {
        cases[i].sketch_above = 0; /* of the whole gradients, in whose places sketches are */
        OWNED_BY(assay_tensor_list_free) assay_tensor_list list = tensors_of(&cases[i]);
        find_disorder(&d, &list);
        if (d.said[0] != '\0') fail_msg("%s (op %s): %s", cases[i].name, cases[i].op, d.said);
    }
    for (int p = 0; p < PAIRS; p++) {
        if (!d.used[p]) fail_msg("no case has %s and %s", pairs[p][0], pairs[p][1]);
    }
    assay_cases_free(cases, count);
}

/* Two that are exchanged are named. */
TEST(disorder_is_named)
{
    static const struct {
        const char *name, *one, *other, *said;
    } table[] = {
        {"mla/checkpoints", "checkpoints/mla_kv", "checkpoints/kv_wa_proj", "kv_wa_proj is behind checkpoints/mla_kv"},
        {"mla/checkpoints", "checkpoints/mla_kv", "outputs/y", "is behind y"},
        {"mla/checkpoints", "outputs/y", "gradients/inputs/x", "is behind gradients"},
        {"rms_norm/deepseek", "weights/scale", "outputs/y", "weights/scale is behind y"},
        {"attention/batch", "inputs/value", "outputs/lse", "inputs/value is behind results"},
        {"moe/small", "gradients/weights/wo", "gradients/weights/wi_0", "is not from the output back"},
        {"deepseek_stack/tiny-4-layers", "checkpoints/layers/0/mla_kv", "checkpoints/layers/2/mla_kv",
         "is behind a later layer"},
        {"deepseek_layer/moe", "weights/moe/gate/kernel", "routing/selected_experts",
         "gate/kernel is not from the output back"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        disorder d = {0};
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, NULL);
        OWNED_BY(assay_tensor_list_free) assay_tensor_list list = tensors_of(c);
        const int one = place_of(&list, table[i].one), other = place_of(&list, table[i].other);
        assert_true(one >= 0 && other >= 0);
        const assay_tensor_entry kept = list.entries[one];
        list.entries[one] = list.entries[other];
        list.entries[other] = kept;
        find_disorder(&d, &list);
        if (strstr(d.said, table[i].said) == NULL) fail_msg("%s: %s", table[i].name, d.said);
    }
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
     {"checkpoints/mlpwi", "checkpoints/mlp_intermediate", "checkpoints/mlpwo", "outputs/y",
      "gradients/weights/wo/bias", "gradients/weights/wo/kernel", "gradients/weights/wi_1/bias",
      "gradients/weights/wi_0/bias", "gradients/weights/wi/kernel", "gradients/inputs/x"}},
    {"moe/small",
     {"routing/selected_experts",
      "routing/weights",
      "routing/margin",
      "routing/group_sizes",
      "routing/sorted_selected_experts",
      "checkpoints/moe_mlpwi_0",
      "checkpoints/moe_mlpwi_1",
      "checkpoints/moe_intermediate",
      "checkpoints/moe_mlpwo",
      "checkpoints/mlpwi_0",
      "checkpoints/mlpwi_1",
      "checkpoints/mlp_intermediate",
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
        OWNED_BY(free_case) assay_case *c = case_named(chains[i].name, NULL);
        OWNED_BY(assay_tensor_list_free) assay_tensor_list list = tensors_of(c);
        int k = 0;
        for (int at = 0; at < list.count && k < MOST && chains[i].order[k] != NULL; at++) {
            if (!assay_role_is_compared(list.entries[at].spec.role)) continue;
            assert_string_equal(list.entries[at].spec.path, chains[i].order[k++]);
        }
        assert_true(k == MOST || chains[i].order[k] == NULL);
    }
}
