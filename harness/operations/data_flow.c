#include "harness/operations/data_flow.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
const char *const assay_data_flow[] = {
    "schedule/events",
    "inputs/x", "inputs/logits", "inputs/lhs", "inputs/sorted", "inputs/weights",
    "inputs/query", "inputs/key", "inputs/value",
    "weights/scale", "weights/rhs",
    /* attention */
    "checkpoints/decoder_layer_input", "weights/pre_self_attention_layer_norm/scale",
    "weights/wq_a/kernel", "checkpoints/query_wa_proj",
    "weights/q_norm/scale", "checkpoints/mla_q",
    "weights/wkv_a/kernel", "checkpoints/kv_wa_proj",
    "weights/kv_norm/scale", "checkpoints/mla_kv",
    "weights/query/kernel", "weights/wq_b/kernel", "checkpoints/query_proj",
    "weights/wkv_b/kernel", "checkpoints/key_proj", "checkpoints/value_proj",
    "checkpoints/lse", "outputs/lse", "checkpoints/attention_out", "outputs/attention_out",
    "weights/out/kernel", "checkpoints/out_proj", "checkpoints/mla_out",
    "weights/post_self_attention_layer_norm/scale",
    /* router */
    "weights/gate/kernel", "weights/gate/bias", "routing/selected_experts",
    "weights/per_expert_scale", "routing/weights", "outputs/weights", "routing/margin",
    "routing/group_sizes", "outputs/group_sizes", "outputs/lb_loss", "outputs/bias_updates",
    /* dispatch */
    "routing/sorted_selected_experts", "outputs/sorted_selected_experts", "outputs/sorted_inputs",
    "routing/combine_mask", "routing/dispatch_mask",
    "routing/expert_shard_id", "routing/reshaped_group_sizes", "routing/all_shards_group_sizes",
    "routing/local_group_sizes", "routing/local_sorted_indices",
    /* routed experts */
    "weights/wi", "weights/wi_0", "weights/wi_1", "weights/wi_0_bias", "weights/wi_1_bias",
    "checkpoints/moe_mlpwi", "checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_1",
    "weights/wo", "weights/wo_bias", "checkpoints/moe_mlpwo",
    /* shared experts, or a dense layer */
    "weights/shared_experts/wi_0/kernel", "weights/shared_experts/wi_1/kernel",
    "weights/wi/kernel", "weights/wi_0/kernel", "weights/wi_1/kernel", "weights/wi_0/bias", "weights/wi_1/bias",
    "checkpoints/mlpwi", "checkpoints/mlpwi_0", "checkpoints/mlpwi_1",
    "weights/shared_experts/wo/kernel", "weights/wo/kernel", "weights/wo/bias", "checkpoints/mlpwo",
    "outputs/y",
    NULL,
};
/* clang-format on */

enum { STEPS = sizeof assay_data_flow / sizeof *assay_data_flow };
#define MOST_LAYERS INT64_C(1000000)
/* Behind all layers: what a stack gives as a whole. */
#define BEHIND (MOST_LAYERS * STEPS)

/* Behind the text where the path begins with it, else NULL. */
static const char *behind(const char *path, const char *text)
{
    const size_t length = strlen(text);
    return strncmp(path, text, length) == 0 ? path + length : NULL;
}

/* Of "layers/N/BLOCK/NAME" `*name` becomes NAME, as the table has it; N, 0 where there is none. */
static int64_t layer_of(const char **name)
{
    static const char *const blocks[] = {"self_attention/", "moe/", "mlp/"};
    int64_t layer = 0;
    const char *number = behind(*name, "layers/"), *rest = number == NULL ? NULL : strchr(number, '/');
    if (rest != NULL) {
        layer = strtoll(number, NULL, 10);
        *name = rest + 1;
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        rest = behind(*name, blocks[i]);
        if (rest != NULL) *name = rest;
    }
    return layer;
}

static int64_t forward_rank(const char *path)
{
    const char *slash = strchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    const size_t folder = (size_t)(name - path);
    const int64_t layer = layer_of(&name);
    if (strcmp(path, "outputs/y") == 0) return BEHIND;
    for (int i = 0; assay_data_flow[i] != NULL && layer >= 0 && layer < MOST_LAYERS; i++) {
        const char *step = assay_data_flow[i];
        if (strncmp(step, path, folder) == 0 && strcmp(step + folder, name) == 0) return layer * STEPS + i;
    }
    return INT64_MAX;
}

int64_t assay_data_flow_rank(const char *path)
{
    const char *of = behind(path, "gradients/");
    const int64_t rank = forward_rank(of == NULL ? path : of);
    return of == NULL || rank == INT64_MAX ? rank : 2 * BEHIND - rank;
}
