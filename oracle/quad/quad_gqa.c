#include <quadmath.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"

/* Weights as in gqa.h; the intermediates are tensors of `parts`. */
typedef struct gqa {
    const assay_gqa_config *config;
    int64_t tokens;
    const quad *x, *w[ASSAY_GQA_WEIGHTS];
    const int32_t *positions, *segment_ids;
    quad *turns, *heads;                /* its own; the latter is scratch for heads of all tokens */
    quad *parts[ASSAY_GQA_TENSORS + 1]; /* with lse */
} gqa;

static assay_status read_inputs(assay_context *ctx, const quad_tensors *in, gqa *g)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_table weights = assay_gqa_weight_table(g->config);
    TRY(quad_read(ctx, in, "inputs/x", g->tokens * g->config->emb_dim, &g->x));
    TRY(quad_read_indices(ctx, in, "inputs/positions", g->tokens, &g->positions));
    TRY(quad_read_optional_indices(ctx, in, "inputs/segment_ids", g->tokens, &g->segment_ids));
    TRY(quad_read_weights(ctx, &weights, in, 1, g->w, NULL));
cleanup:
    return status;
}

static assay_status add_parts(assay_context *ctx, gqa *g, quad_tensors *parts)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_GQA_TENSORS; i++) {
        const assay_tensor_row row = assay_gqa_tensor_row(g->config, (assay_gqa_tensor)i);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        assay_tensor_path("checkpoints/", "", &row, path);
        TRY(quad_tensors_add(ctx, parts, path, &row.shape, &g->parts[i]));
    }
cleanup:
    return status;
}

/* Columns [column, column + n) of x [T,k] times the kernel, whose rows have `ldw` columns, plus the bias: y [T,n]. */
static assay_status project(assay_context *ctx, const gqa *g, const quad *x, int64_t k, int kernel, int bias,
                            int64_t column, int64_t ldw, int64_t n, quad *y)
{
    quad_product product = quad_product_xw(y, x, g->w[kernel] + column, g->tokens, n, k);
    product.ldw = ldw;
    const assay_status status = quad_multiply(ctx, &product);
    for (int64_t i = 0; status == ASSAY_OK && g->w[bias] != NULL && i < g->tokens * n; i++) {
        y[i] += g->w[bias][column + i % n];
    }
    return status;
}

/* `heads` heads of query, key or value as the weights give them: their own kernel, or those from number `fused` on of the
 * fused one. */
static assay_status project_heads(assay_context *ctx, const gqa *g, int kernel, int64_t heads, int64_t fused,
                                  quad *y)
{
    const assay_gqa_config *config = g->config;
    const int64_t d = config->emb_dim, dim = config->head_dim, all = config->heads + 2 * config->kv_heads;
    if (config->fused_qkv) {
        return project(ctx, g, g->x, d, ASSAY_GQA_QKV, ASSAY_GQA_QKV_BIAS, fused * dim, all * dim, heads * dim, y);
    }
    return project(ctx, g, g->x, d, kernel, kernel + 1, 0, heads * dim, heads * dim,
                   y); /* its bias is the next weight */
}

/* g->heads [T,heads,dim] -> to, times `factor`. */
static void norm_and_rotate(const gqa *g, int64_t heads, const quad *scale, quad factor, quad *to)
{
    const int64_t dim = g->config->head_dim;
    for (int64_t i = 0; i < g->tokens * heads; i++) {
        quad *from = g->heads + i * dim, *y = to + i * dim;
        if (g->config->qk_norm) {
            quad_rms_norm_rows(1, dim, g->config->epsilon, from, dim, scale, y);
            for (int64_t j = 0; j < dim; j++) from[j] = y[j];
        }
        quad_rotate(&g->config->rope, g->turns + i / heads * dim, from, y);
        for (int64_t j = 0; j < dim; j++) y[j] *= factor;
    }
}

static assay_status make_heads(assay_context *ctx, const gqa *g)
{
    assay_status status;
    const assay_gqa_config *config = g->config;
    const int64_t n = config->heads, kv = config->kv_heads;
    TRY(project_heads(ctx, g, ASSAY_GQA_QUERY, n, 0, g->heads));
    norm_and_rotate(g, n, g->w[ASSAY_GQA_QUERY_NORM], config->query_scale, g->parts[ASSAY_GQA_QUERY_PROJ]);
    TRY(project_heads(ctx, g, ASSAY_GQA_KEY, kv, n, g->heads));
    norm_and_rotate(g, kv, g->w[ASSAY_GQA_KEY_NORM], 1, g->parts[ASSAY_GQA_KEY_PROJ]);
    TRY(project_heads(ctx, g, ASSAY_GQA_VALUE, kv, n + kv, g->parts[ASSAY_GQA_VALUE_PROJ]));
    if (config->fused_qkv) TRY(project_heads(ctx, g, ASSAY_GQA_QKV, n + 2 * kv, 0, g->parts[ASSAY_GQA_QKV_PROJ]));
cleanup:
    return status;
}

assay_status quad_gqa_parts(assay_context *ctx, const assay_gqa_config *config, const quad_tensors *in,
                            quad_tensors *parts)
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
    TRY(quad_rope_turns(ctx, &config->rope, g.tokens, g.positions, &g.turns));
    const int64_t most = config->heads > config->kv_heads ? config->heads : config->kv_heads;
    TRY(quad_alloc(ctx, g.tokens * most * config->head_dim, &g.heads));
    TRY(make_heads(ctx, &g));
    TRY(quad_attend(ctx, &(quad_attention_problem){.config = &attention,
                                                   .query = g.parts[ASSAY_GQA_QUERY_PROJ],
                                                   .key = g.parts[ASSAY_GQA_KEY_PROJ],
                                                   .value = g.parts[ASSAY_GQA_VALUE_PROJ],
                                                   .sinks = g.w[ASSAY_GQA_SINKS],
                                                   .segment_ids = g.segment_ids,
                                                   .attention_out = g.parts[ASSAY_GQA_ATTENTION_OUT],
                                                   .lse = g.parts[ASSAY_GQA_LSE]}));
    TRY(project(ctx, &g, g.parts[ASSAY_GQA_ATTENTION_OUT], config->heads * config->head_dim, ASSAY_GQA_OUT,
                ASSAY_GQA_OUT_BIAS, 0, config->emb_dim, config->emb_dim, g.parts[ASSAY_GQA_OUT_PROJ]));
cleanup:
    free(g.turns);
    free(g.heads);
    return status;
}

assay_status quad_gqa(assay_context *ctx, const assay_gqa_config *config, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    quad_tensors parts = {0};
    quad *y = NULL;
    TRY(quad_gqa_parts(ctx, config, in, &parts));
    const quad_tensor *result = quad_tensors_find(&parts, "checkpoints/out_proj");
    TRY(quad_tensors_add(ctx, out, "outputs/y", &result->shape, &y));
    for (int64_t i = 0; i < assay_shape_count(&result->shape); i++) y[i] = result->values[i];
cleanup:
    quad_tensors_free(&parts);
    return status;
}
