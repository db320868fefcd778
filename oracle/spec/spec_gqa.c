#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

/* Weights as in gqa.h; the intermediates are tensors of `parts`. */
typedef struct gqa {
    const assay_gqa_config *config;
    int64_t tokens;
    const spec_quad *x, *w[ASSAY_GQA_WEIGHTS];
    const int32_t *positions, *segment_ids;
    spec_quad *turns, *head;                 /* its own; the latter is scratch for one head */
    spec_quad *parts[ASSAY_GQA_TENSORS + 1]; /* with lse */
} gqa;

static assay_status read_inputs(assay_context *ctx, const spec_tensors *in, gqa *g)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_table weights = assay_gqa_weight_table(g->config);
    TRY(spec_read(ctx, in, "inputs/x", g->tokens * g->config->emb_dim, &g->x));
    TRY(spec_read_indices(ctx, in, "inputs/positions", g->tokens, &g->positions));
    TRY(spec_read_optional_indices(ctx, in, "inputs/segment_ids", g->tokens, &g->segment_ids));
    TRY(spec_read_weights(ctx, &weights, in, 1, g->w));
cleanup:
    return status;
}

static assay_status add_parts(assay_context *ctx, gqa *g, spec_tensors *parts)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_GQA_TENSORS; i++) {
        const assay_tensor_row row = assay_gqa_tensor_row(g->config, (assay_gqa_tensor)i);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        assay_tensor_path("checkpoints/", "", &row, path);
        TRY(spec_tensors_add(ctx, parts, path, &row.shape, &g->parts[i]));
    }
cleanup:
    return status;
}

/* One head of a projection that has `heads` of them: x w[:, head] + bias[head]. */
static void project(const gqa *g, int64_t t, int kernel, int bias, int64_t heads, int64_t head, spec_quad *y)
{
    int64_t d = g->config->emb_dim, dim = g->config->head_dim;
    spec_vector_matrix(d, dim, g->x + t * d, g->w[kernel] + head * dim, heads * dim, y);
    for (int64_t i = 0; i < dim && g->w[bias] != NULL; i++) y[i] += g->w[bias][head * dim + i];
}

/* One head of query, key or value as the weights give it: its own, or number `fused` of the fused ones. */
static void project_head(const gqa *g, int64_t t, int kernel, int64_t heads, int64_t head, int64_t fused, spec_quad *y)
{
    int64_t all = g->config->heads + 2 * g->config->kv_heads;
    if (g->config->fused_qkv) {
        project(g, t, ASSAY_GQA_QKV, ASSAY_GQA_QKV_BIAS, all, fused, y);
    } else {
        project(g, t, kernel, kernel + 1, heads, head, y); /* its bias is the next weight */
    }
}

static void norm_and_rotate(const gqa *g, int64_t t, const spec_quad *scale, spec_quad *from, spec_quad *to)
{
    int64_t dim = g->config->head_dim;
    if (g->config->qk_norm) {
        spec_rms_norm_rows(1, dim, g->config->epsilon, from, dim, scale, to);
        for (int64_t i = 0; i < dim; i++) from[i] = to[i];
    }
    spec_rotate(&g->config->rope, g->turns + t * dim, from, to);
}

static void make_token(const gqa *g, int64_t t)
{
    const assay_gqa_config *config = g->config;
    int64_t n = config->heads, kv = config->kv_heads, dim = config->head_dim;
    for (int64_t head = 0; head < n; head++) {
        spec_quad *query = g->parts[ASSAY_GQA_QUERY_PROJ] + (t * n + head) * dim;
        project_head(g, t, ASSAY_GQA_QUERY, n, head, head, g->head);
        norm_and_rotate(g, t, g->w[ASSAY_GQA_QUERY_NORM], g->head, query);
        for (int64_t i = 0; i < dim; i++) query[i] *= config->query_scale;
    }
    for (int64_t head = 0; head < kv; head++) {
        project_head(g, t, ASSAY_GQA_KEY, kv, head, n + head, g->head);
        norm_and_rotate(g, t, g->w[ASSAY_GQA_KEY_NORM], g->head, g->parts[ASSAY_GQA_KEY_PROJ] + (t * kv + head) * dim);
        project_head(g, t, ASSAY_GQA_VALUE, kv, head, n + kv + head,
                     g->parts[ASSAY_GQA_VALUE_PROJ] + (t * kv + head) * dim);
    }
    for (int64_t i = 0; i < n + 2 * kv && config->fused_qkv; i++)
        project(g, t, ASSAY_GQA_QKV, ASSAY_GQA_QKV_BIAS, n + 2 * kv, i,
                g->parts[ASSAY_GQA_QKV_PROJ] + (t * (n + 2 * kv) + i) * dim);
}

static void make_y(const gqa *g, int64_t t)
{
    int64_t width = g->config->heads * g->config->head_dim, dim = g->config->emb_dim;
    spec_quad *y = g->parts[ASSAY_GQA_OUT_PROJ] + t * dim;
    spec_vector_matrix(width, dim, g->parts[ASSAY_GQA_ATTENTION_OUT] + t * width, g->w[ASSAY_GQA_OUT], dim, y);
    for (int64_t i = 0; i < dim && g->w[ASSAY_GQA_OUT_BIAS] != NULL; i++) y[i] += g->w[ASSAY_GQA_OUT_BIAS][i];
}

assay_status spec_gqa_parts(assay_context *ctx, const assay_gqa_config *config, const spec_tensors *in,
                            spec_tensors *parts)
{
    assay_status status = ASSAY_OK;
    gqa g = {.config = config, .tokens = config->batch * config->sequence};
    const assay_attention_config attention = {.batch = config->batch,
                                              .sequence = config->sequence,
                                              .heads = config->heads,
                                              .kv_heads = config->kv_heads,
                                              .qk_dim = config->head_dim,
                                              .v_dim = config->head_dim,
                                              .window = config->window,
                                              .mask_padding = config->mask_padding};
    TRY(read_inputs(ctx, in, &g));
    TRY(add_parts(ctx, &g, parts));
    TRY(spec_rope_turns(ctx, &config->rope, g.tokens, g.positions, &g.turns));
    TRY(spec_alloc(ctx, config->head_dim, &g.head));
    for (int64_t t = 0; t < g.tokens; t++) make_token(&g, t);
    TRY(spec_attend(ctx, &(spec_attention_problem){.config = &attention,
                                                   .query = g.parts[ASSAY_GQA_QUERY_PROJ],
                                                   .key = g.parts[ASSAY_GQA_KEY_PROJ],
                                                   .value = g.parts[ASSAY_GQA_VALUE_PROJ],
                                                   .sinks = g.w[ASSAY_GQA_SINKS],
                                                   .segment_ids = g.segment_ids,
                                                   .attention_out = g.parts[ASSAY_GQA_ATTENTION_OUT],
                                                   .lse = g.parts[ASSAY_GQA_LSE]}));
    for (int64_t t = 0; t < g.tokens; t++) make_y(&g, t);
cleanup:
    free(g.turns);
    free(g.head);
    return status;
}

assay_status spec_gqa(assay_context *ctx, const assay_gqa_config *config, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    spec_tensors parts = {0};
    spec_quad *y = NULL;
    TRY(spec_gqa_parts(ctx, config, in, &parts));
    const spec_tensor *result = spec_tensors_find(&parts, "checkpoints/out_proj");
    TRY(spec_tensors_add(ctx, out, "outputs/y", &result->shape, &y));
    for (int64_t i = 0; i < assay_shape_count(&result->shape); i++) y[i] = result->values[i];
cleanup:
    spec_tensors_free(&parts);
    return status;
}
