#include "oracle/quad/tests/narrow_stack.h"

#include <stdio.h>

assay_stack_config narrow_stack(int64_t batch, int64_t layers, int64_t dense)
{
    const assay_rope_config rope = {
        .dim = 2, .rope_max_timescale = 10000, .max_position_embeddings = 8, .original_max_position_embeddings = 8};
    const assay_mla_config mla = {batch, 1, 1, 1, 1, 1, 0, 1, 0, 0, rope, false, {0}, 0, 0};
    const assay_routing_config routing = {.batch = batch,
                                          .sequence = 1,
                                          .num_experts = 2,
                                          .num_experts_per_tok = 1,
                                          .family = ASSAY_ROUTER_DEEPSEEK3,
                                          .score_func = ASSAY_SCORE_SIGMOID,
                                          .n_routing_groups = -1,
                                          .routed_scaling_factor = 2.5};
    return (assay_stack_config){
        .layers = layers,
        .dense_layers = dense,
        .single = layers == 1,
        .mla = mla,
        .mlp = {.rows = batch, .emb_dim = 1, .mlp_dim = 1, .activation = {ASSAY_LINEAR, ASSAY_LINEAR}},
        .moe =
            {.routing = routing, .emb_dim = 1, .moe_mlp_dim = 1, .path = ASSAY_MOE_SPARSE, .activation = ASSAY_LINEAR},
    };
}

void narrow_weight(quad_case *c, const char *prefix, const char *name, const double *values, assay_shape shape)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "weights/%s%s", prefix, name);
    case_values(c, path, values, shape);
}

void narrow_attention(quad_case *c, const char *prefix)
{
    narrow_weight(c, prefix, "pre_self_attention_layer_norm/scale", (double[]){3}, DIMS(1));
    narrow_weight(c, prefix, "self_attention/query/kernel", (double[]){1, 2, 3}, DIMS(1, 1, 3));
    narrow_weight(c, prefix, "self_attention/wkv_a/kernel", (double[]){5, 1, 1}, DIMS(1, 3));
    narrow_weight(c, prefix, "self_attention/kv_norm/scale", (double[]){4}, DIMS(1));
    narrow_weight(c, prefix, "self_attention/wkv_b/kernel", (double[]){1, 10}, DIMS(1, 1, 2));
    narrow_weight(c, prefix, "self_attention/out/kernel", (double[]){.125}, DIMS(1, 1, 1));
    narrow_weight(c, prefix, "post_self_attention_layer_norm/scale", (double[]){.5}, DIMS(1));
}

void narrow_moe(quad_case *c, const char *prefix)
{
    narrow_attention(c, prefix);
    narrow_weight(c, prefix, "moe/gate/kernel", (double[]){1, 2}, DIMS(1, 2));
    narrow_weight(c, prefix, "moe/wi_0", (double[]){2, 2}, DIMS(2, 1, 1));
    narrow_weight(c, prefix, "moe/wi_1", (double[]){8, 8}, DIMS(2, 1, 1));
    narrow_weight(c, prefix, "moe/wo", (double[]){3, 5}, DIMS(2, 1, 1));
}
