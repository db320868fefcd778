/* The tensors of MLA: names, axes and sizes. */
#include "oracle/ops/mla.h"

static const assay_tensor_form weights[ASSAY_MLA_WEIGHTS] = {
    [ASSAY_MLA_WQ_A] = {"wq_a/kernel", ASSAY_KERNEL, "DL", 1},
    [ASSAY_MLA_Q_NORM] = {"q_norm/scale", ASSAY_NORM_SCALE, "L", 0},
    [ASSAY_MLA_WKV_A] = {"wkv_a/kernel", ASSAY_KERNEL, "Dw", 1},
    [ASSAY_MLA_KV_NORM] = {"kv_norm/scale", ASSAY_NORM_SCALE, "l", 0},
    [ASSAY_MLA_WQ_B] = {"wq_b/kernel", ASSAY_KERNEL, "LNq", 1},
    [ASSAY_MLA_QUERY] = {"query/kernel", ASSAY_KERNEL, "DNq", 1},
    [ASSAY_MLA_WKV_B] = {"wkv_b/kernel", ASSAY_KERNEL, "lNu", 1},
    [ASSAY_MLA_OUT] = {"out/kernel", ASSAY_KERNEL, "NvD", 2},
};

static const assay_tensor_form tensors[ASSAY_MLA_ROWS] = {
    [ASSAY_MLA_QUERY_WA_PROJ] = {"query_wa_proj", ASSAY_CHECKPOINT, "BSL", 0},
    [ASSAY_MLA_MLA_Q] = {"mla_q", ASSAY_CHECKPOINT, "BSL", 0},
    [ASSAY_MLA_KV_WA_PROJ] = {"kv_wa_proj", ASSAY_CHECKPOINT, "BSw", 0},
    [ASSAY_MLA_MLA_KV] = {"mla_kv", ASSAY_CHECKPOINT, "BSl", 0},
    [ASSAY_MLA_QUERY_PROJ] = {"query_proj", ASSAY_CHECKPOINT, "BSNq", 0},
    [ASSAY_MLA_KEY_PROJ] = {"key_proj", ASSAY_CHECKPOINT, "BSNq", 0},
    [ASSAY_MLA_VALUE_PROJ] = {"value_proj", ASSAY_CHECKPOINT, "BSNv", 0},
    [ASSAY_MLA_ATTENTION_OUT] = {"attention_out", ASSAY_CHECKPOINT, "BSNv", 0},
    [ASSAY_MLA_OUT_PROJ] = {"out_proj", ASSAY_CHECKPOINT, "BSD", 0},
    [ASSAY_MLA_LSE] = {"lse", ASSAY_CHECKPOINT, "BNS", 0},
    [ASSAY_MLA_Q_GRADIENT] = {"q_gradient", ASSAY_CHECKPOINT, "BSNq", 0},
    [ASSAY_MLA_QUERY_WA_GRADIENT] = {"query_wa_proj_gradient", ASSAY_CHECKPOINT, "BSL", 0},
    [ASSAY_MLA_KV_GRADIENT] = {"kv_gradient", ASSAY_CHECKPOINT, "BSNu", 0},
    [ASSAY_MLA_KV_WA_GRADIENT] = {"kv_wa_proj_gradient", ASSAY_CHECKPOINT, "BSw", 0},
};

static int64_t axis_size(const void *self, char axis)
{
    const assay_mla_config *config = self;
    switch (axis) {
    case 'B':
        return config->batch;
    case 'S':
        return config->sequence;
    case 'D':
        return config->emb_dim;
    case 'N':
        return config->heads;
    case 'L':
        return config->q_lora_rank;
    case 'l':
        return config->kv_lora_rank;
    case 'w':
        return config->kv_lora_rank + config->rope.dim;
    case 'q':
        return config->qk_nope_head_dim + config->rope.dim;
    case 'u':
        return config->qk_nope_head_dim + config->v_head_dim;
    default: /* 'v' */
        return config->v_head_dim;
    }
}

/* Without query compression there is nothing along Lq. */
static assay_tensor_row row_of(const assay_tensor_form *form, const assay_mla_config *config)
{
    const assay_tensor_row row = assay_tensor_row_of(form, config, axis_size);
    return assay_shape_count(&row.shape) > 0 ? row : (assay_tensor_row){0};
}

assay_tensor_row assay_mla_weight_row(const assay_mla_config *config, int weight)
{
    if (weight == ASSAY_MLA_QUERY && config->q_lora_rank > 0) return (assay_tensor_row){0};
    return row_of(&weights[weight], config);
}

assay_tensor_table assay_mla_weight_table(const assay_mla_config *config)
{
    assay_tensor_table table = {.count = ASSAY_MLA_WEIGHTS};
    for (int weight = 0; weight < table.count; weight++) table.rows[weight] = assay_mla_weight_row(config, weight);
    return table;
}

assay_tensor_row assay_mla_tensor_row(const assay_mla_config *config, assay_mla_tensor tensor)
{
    if (tensor > ASSAY_MLA_LSE && config->recipe.recipe == NULL) return (assay_tensor_row){0};
    return row_of(&tensors[tensor], config);
}

int64_t assay_mla_tensor_count(const assay_mla_config *config, assay_mla_tensor tensor)
{
    const assay_tensor_row row = assay_mla_tensor_row(config, tensor);
    return assay_tensor_row_count(&row);
}
