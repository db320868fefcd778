/* Grouped-query attention as a graph, and what its configuration says: sizes and refusals. */
#include "oracle/blocks/gqa.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/base/memory.h"

typedef struct entry {
    assay_tensor_form form;
    enum { ALWAYS, FUSED, SPLIT } when;
    enum { ANY, BIASED, NORMED, SINKING } only;
} entry;

static const entry weights[ASSAY_GQA_WEIGHTS] = {
    [ASSAY_GQA_QKV] = {{"qkv_proj/kernel", ASSAY_KERNEL, "DQz", 1}, FUSED, ANY},
    [ASSAY_GQA_QKV_BIAS] = {{"qkv_proj/bias", ASSAY_PROJECTION_BIAS, "Qz", 0}, FUSED, BIASED},
    [ASSAY_GQA_QUERY] = {{"query/kernel", ASSAY_KERNEL, "DNz", 1}, SPLIT, ANY},
    [ASSAY_GQA_QUERY_BIAS] = {{"query/bias", ASSAY_PROJECTION_BIAS, "Nz", 0}, SPLIT, BIASED},
    [ASSAY_GQA_QUERY_NORM] = {{"query_norm/scale", ASSAY_NORM_SCALE, "z", 0}, ALWAYS, NORMED},
    [ASSAY_GQA_KEY] = {{"key/kernel", ASSAY_KERNEL, "Dgz", 1}, SPLIT, ANY},
    [ASSAY_GQA_KEY_BIAS] = {{"key/bias", ASSAY_PROJECTION_BIAS, "gz", 0}, SPLIT, BIASED},
    [ASSAY_GQA_KEY_NORM] = {{"key_norm/scale", ASSAY_NORM_SCALE, "z", 0}, ALWAYS, NORMED},
    [ASSAY_GQA_VALUE] = {{"value/kernel", ASSAY_KERNEL, "Dgz", 1}, SPLIT, ANY},
    [ASSAY_GQA_VALUE_BIAS] = {{"value/bias", ASSAY_PROJECTION_BIAS, "gz", 0}, SPLIT, BIASED},
    [ASSAY_GQA_SINKS] = {{"sinks", ASSAY_SINK, "N", 0}, ALWAYS, SINKING},
    [ASSAY_GQA_OUT] = {{"out/kernel", ASSAY_KERNEL, "NzD", 2}, ALWAYS, ANY},
    [ASSAY_GQA_OUT_BIAS] = {{"out/bias", ASSAY_PROJECTION_BIAS, "D", 0}, ALWAYS, BIASED},
};

static int64_t axis_size(const void *self, char axis)
{
    const assay_gqa_config *config = self;
    if (axis == 'B') return config->batch;
    if (axis == 'S') return config->sequence;
    if (axis == 'D') return config->emb_dim;
    if (axis == 'N') return config->heads;
    if (axis == 'g') return config->kv_heads;
    if (axis == 'Q') return config->heads + 2 * config->kv_heads;
    return config->head_dim; /* 'z' */
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

static assay_attention_config attention_of(const assay_gqa_config *config)
{
    return (assay_attention_config){.batch = config->batch,
                                    .sequence = config->sequence,
                                    .heads = config->heads,
                                    .kv_heads = config->kv_heads,
                                    .qk_dim = config->head_dim,
                                    .v_dim = config->head_dim,
                                    .window = config->window,
                                    .mask_padding = config->mask_padding,
                                    .soft_cap = config->soft_cap,
                                    .variant = config->variant};
}

/* Heads of query, key or value: a projection of x, or columns of that of all three; then each head's norm. */
typedef struct projection {
    const char *axes, *gradient;
    int kernel, bias, norm; /* norm -1: it has none */
    int64_t first;          /* head */
} projection;

static int project(graph *g, const assay_gqa_config *config, int x, int qkv, const projection *p, const int *w)
{
    const bool normed = config->qk_norm && p->norm >= 0;
    const int heads = qkv == 0 ? graph_linear(g, p->axes, x, w[p->kernel], w[p->bias], &config->recipe)
                               : graph_slice(g, p->axes, qkv, 'Q', p->first);
    if (qkv == 0) graph_quantised(g, p->gradient, p->axes, heads);
    return normed ? graph_rms_norm(g, heads, w[p->norm], config->epsilon) : heads;
}

int assay_gqa_steps(graph *g, const assay_gqa_config *config, const assay_attention_operands *in, const int *w)
{
    const int64_t heads = config->heads, kv_heads = config->kv_heads;
    const projection of_query = {"BSNz", "query_gradient", ASSAY_GQA_QUERY, ASSAY_GQA_QUERY_BIAS, ASSAY_GQA_QUERY_NORM,
                                 0},
                     of_key = {"BSgz", "key_gradient", ASSAY_GQA_KEY, ASSAY_GQA_KEY_BIAS, ASSAY_GQA_KEY_NORM, heads},
                     of_value = {"BSgz", "value_gradient", ASSAY_GQA_VALUE, ASSAY_GQA_VALUE_BIAS, -1, heads + kv_heads};
    const assay_attention_config attention = attention_of(config);
    int qkv = 0;
    graph_within(g, config, axis_size);
    const graph_turns turns = graph_rotations(g, in->positions, &config->rope);

    if (config->fused_qkv) {
        qkv = graph_linear(g, "BSQz", in->x, w[ASSAY_GQA_QKV], w[ASSAY_GQA_QKV_BIAS], &config->recipe);
        graph_quantised(g, "qkv_proj_gradient", "BSQz", graph_named(g, "qkv_proj", qkv));
    }
    const int q = graph_rope(g, project(g, config, in->x, qkv, &of_query, w), 0, &turns);
    const int query = graph_named(g, "query_proj", graph_scale(g, q, config->query_scale));
    const int k = graph_rope(g, project(g, config, in->x, qkv, &of_key, w), 0, &turns);
    const int key = graph_named(g, "key_proj", k);
    const int value = graph_named(g, "value_proj", project(g, config, in->x, qkv, &of_value, w));

    const int out = graph_attention(g, "BSNz", query, key, value, in->segment_ids, w[ASSAY_GQA_SINKS], &attention);
    const int y = graph_linear(g, "BSD", out, w[ASSAY_GQA_OUT], w[ASSAY_GQA_OUT_BIAS], &config->recipe);
    return graph_named(g, "out_proj", y);
}

void assay_gqa_graph(graph *g, const assay_gqa_config *config)
{
    int w[ASSAY_GQA_WEIGHTS];
    graph_begin(g, config, axis_size);
    const assay_attention_operands in = assay_attention_inputs_of(g);
    for (int i = 0; i < ASSAY_GQA_WEIGHTS; i++) w[i] = graph_weight(g, assay_gqa_weight_row(config, i));
    graph_end(g, assay_gqa_steps(g, config, &in, w), GRAPH_LEFT);
}

/* Every tensor is at most as large as one of these. */
static assay_status check_counts(assay_context *ctx, const assay_gqa_config *config)
{
    const int64_t b = config->batch, s = config->sequence, n = config->heads, d = config->emb_dim;
    const struct {
        const char *name;
        int64_t dims[5];
    } tensors[] = {{"inputs/x", {b, s, d, 1, 1}},
                   {"heads", {b, s, 3, n, config->head_dim}},
                   {"query/kernel", {d, 3, n, config->head_dim, 1}}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        MUST(assay_checked_count(ctx, tensors[i].name, 5, tensors[i].dims, &count));
    return ASSAY_OK;
}

assay_status assay_gqa_check(assay_context *ctx, const assay_gqa_config *config)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", config->batch},
                 {"sequence", config->sequence},
                 {"base_emb_dim", config->emb_dim},
                 {"base_num_query_heads", config->heads},
                 {"base_num_kv_heads", config->kv_heads},
                 {"head_dim", config->head_dim}};
    const assay_attention_config attention = attention_of(config);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= 1) continue;
        return assay_refuse(ctx, "%s is %" PRId64 ", expected 1 or more", sizes[i].name, sizes[i].value);
    }
    MUST(assay_attention_check(ctx, &attention));
    if (!(config->epsilon >= 0)) {
        return assay_refuse(ctx, "normalization_layer_epsilon is %g, expected 0 or more", config->epsilon);
    }
    if (!(config->query_scale > 0) || !isfinite(config->query_scale)) {
        return assay_refuse(ctx, "query_pre_attn_scalar is %g, expected a number above 0", config->query_scale);
    }
    MUST(assay_rope_check(ctx, &config->rope));
    return check_counts(ctx, config);
}
