/* The tensors of grouped-query attention: names, axes and sizes. */
#include "oracle/ops/gqa.h"

typedef struct entry {
    assay_tensor_form form;
    enum { ALWAYS, FUSED, SPLIT } when;
    enum { ANY, BIASED, NORMED, SINKING } only;
} entry;

static const entry weights[ASSAY_GQA_WEIGHTS] = {
    [ASSAY_GQA_QKV] = {{"qkv_proj/kernel", ASSAY_KERNEL, "Dad", 1}, FUSED, ANY},
    [ASSAY_GQA_QKV_BIAS] = {{"qkv_proj/bias", ASSAY_PROJECTION_BIAS, "ad", 0}, FUSED, BIASED},
    [ASSAY_GQA_QUERY] = {{"query/kernel", ASSAY_KERNEL, "DNd", 1}, SPLIT, ANY},
    [ASSAY_GQA_QUERY_BIAS] = {{"query/bias", ASSAY_PROJECTION_BIAS, "Nd", 0}, SPLIT, BIASED},
    [ASSAY_GQA_QUERY_NORM] = {{"query_norm/scale", ASSAY_NORM_SCALE, "d", 0}, ALWAYS, NORMED},
    [ASSAY_GQA_KEY] = {{"key/kernel", ASSAY_KERNEL, "Dgd", 1}, SPLIT, ANY},
    [ASSAY_GQA_KEY_BIAS] = {{"key/bias", ASSAY_PROJECTION_BIAS, "gd", 0}, SPLIT, BIASED},
    [ASSAY_GQA_KEY_NORM] = {{"key_norm/scale", ASSAY_NORM_SCALE, "d", 0}, ALWAYS, NORMED},
    [ASSAY_GQA_VALUE] = {{"value/kernel", ASSAY_KERNEL, "Dgd", 1}, SPLIT, ANY},
    [ASSAY_GQA_VALUE_BIAS] = {{"value/bias", ASSAY_PROJECTION_BIAS, "gd", 0}, SPLIT, BIASED},
    [ASSAY_GQA_SINKS] = {{"sinks", ASSAY_SINK, "N", 0}, ALWAYS, SINKING},
    [ASSAY_GQA_OUT] = {{"out/kernel", ASSAY_KERNEL, "NdD", 2}, ALWAYS, ANY},
    [ASSAY_GQA_OUT_BIAS] = {{"out/bias", ASSAY_PROJECTION_BIAS, "D", 0}, ALWAYS, BIASED},
};

static const entry tensors[ASSAY_GQA_TENSORS + 1] = {
    [ASSAY_GQA_QKV_PROJ] = {{"qkv_proj", ASSAY_CHECKPOINT, "BSad", 0}, FUSED, ANY},
    [ASSAY_GQA_QUERY_PROJ] = {{"query_proj", ASSAY_CHECKPOINT, "BSNd", 0}, ALWAYS, ANY},
    [ASSAY_GQA_KEY_PROJ] = {{"key_proj", ASSAY_CHECKPOINT, "BSgd", 0}, ALWAYS, ANY},
    [ASSAY_GQA_VALUE_PROJ] = {{"value_proj", ASSAY_CHECKPOINT, "BSgd", 0}, ALWAYS, ANY},
    [ASSAY_GQA_ATTENTION_OUT] = {{"attention_out", ASSAY_CHECKPOINT, "BSNd", 0}, ALWAYS, ANY},
    [ASSAY_GQA_OUT_PROJ] = {{"out_proj", ASSAY_CHECKPOINT, "BSD", 0}, ALWAYS, ANY},
    [ASSAY_GQA_LSE] = {{"lse", ASSAY_CHECKPOINT, "BNS", 0}, ALWAYS, ANY},
};

static int64_t axis_size(const void *self, char axis)
{
    const assay_gqa_config *config = self;
    switch (axis) {
    case 'B':
        return config->batch;
    case 'S':
        return config->sequence;
    case 'D':
        return config->emb_dim;
    case 'N':
        return config->heads;
    case 'g':
        return config->kv_heads;
    case 'a':
        return config->heads + 2 * config->kv_heads;
    default: /* 'd' */
        return config->head_dim;
    }
}

static assay_tensor_row row_of(const entry *e, const assay_gqa_config *config)
{
    const bool has[] = {[ANY] = true, [BIASED] = config->bias, [NORMED] = config->qk_norm, [SINKING] = config->sinks};
    const bool there = has[e->only] && (e->when == ALWAYS || (e->when == FUSED) == config->fused_qkv);
    return there ? assay_tensor_row_of(&e->form, config, axis_size) : (assay_tensor_row){0};
}

/* The query's kernel is drawn smaller where it holds the softmax scale, as MaxText draws it. */
assay_tensor_row assay_gqa_weight_row(const assay_gqa_config *config, int weight)
{
    assay_tensor_row row = row_of(&weights[weight], config);
    if (weight == ASSAY_GQA_QUERY && config->query_scale == 1 && !config->qk_norm) row.fan_in *= config->head_dim;
    return row;
}

assay_tensor_table assay_gqa_weight_table(const assay_gqa_config *config)
{
    assay_tensor_table table = {.count = ASSAY_GQA_WEIGHTS};
    for (int weight = 0; weight < table.count; weight++) table.rows[weight] = assay_gqa_weight_row(config, weight);
    return table;
}

assay_tensor_row assay_gqa_tensor_row(const assay_gqa_config *config, assay_gqa_tensor tensor)
{
    return row_of(&tensors[tensor], config);
}

int64_t assay_gqa_tensor_count(const assay_gqa_config *config, assay_gqa_tensor tensor)
{
    const assay_tensor_row row = assay_gqa_tensor_row(config, tensor);
    return assay_tensor_row_count(&row);
}
