/* The gradient of grouped-query attention: from y back to query, key and value, then each path to x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/gqa_internal.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

enum { PROJECTIONS = 3 };
static const assay_gqa_tensor PROJECTED[PROJECTIONS] = {ASSAY_GQA_QUERY_PROJ, ASSAY_GQA_KEY_PROJ, ASSAY_GQA_VALUE_PROJ};

/* What one call works with. */
typedef struct backward {
    const assay_gqa_gradients *g;
    const assay_gqa_residuals *r;
    const assay_gqa_inputs *in;
    const assay_gqa_weights *w;
    const assay_gqa_config *config;
    int64_t tokens;
    assay_rope_table table;
    double *heads[PROJECTIONS]; /* gradients of query, key and value, [T,N,Dh] and [T,Nkv,Dh] */
    double *attention_out;      /* gradient */
} backward;

static void backward_free(backward *b)
{
    assay_rope_table_free(&b->table);
    for (int i = 0; i < PROJECTIONS; i++) free(b->heads[i]);
    free(b->attention_out);
}

/* What a product c = a w + bias gives back; dx or what is NULL of dw and dbias is skipped. */
typedef struct linear {
    double *da, *dw, *dbias;
    const double *a, *w;
    int64_t rows, n, k; /* of c, and of the sum */
} linear;

static assay_status linear_backward(assay_context *ctx, const linear *l, const double *dc)
{
    assay_status status = ASSAY_OK;
    double *ones = NULL;
    assay_matmul_args to_weight = assay_product_atb(l->dw, l->a, dc, l->k, l->n, l->rows);
    assay_matmul_args to_input = assay_product_abt(l->da, dc, l->w, l->rows, l->k, l->n);
    to_weight.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    to_input.kind = ASSAY_PRODUCT_LINEAR;
    if (l->dw != NULL) TRY(assay_matmul(ctx, &to_weight));
    if (l->dbias != NULL) {
        TRY(assay_alloc_f64(ctx, "ones", l->rows, &ones));
        for (int64_t row = 0; row < l->rows; row++) ones[row] = 1;
        const assay_matmul_args to_bias = assay_product_ab(l->dbias, ones, dc, 1, l->n, l->rows);
        TRY(assay_matmul(ctx, &to_bias));
    }
    if (l->da == NULL) goto cleanup;
    TRY(assay_matmul(ctx, &to_input));
    assay_round(ctx, ASSAY_ROUND_STORAGE, l->rows * l->k, l->da);
cleanup:
    free(ones);
    return status;
}

/* From dy to the gradients of query, key and value. */
static assay_status through_attention(assay_context *ctx, backward *b, const double *dy)
{
    assay_status status = ASSAY_OK;
    const assay_gqa_config *config = b->config;
    const int64_t width = config->heads * config->head_dim, count = b->tokens * width;
    const double *out = b->r->values[ASSAY_GQA_ATTENTION_OUT];
    const assay_attention_config attention = gqa_attention_config(config);
    const assay_attention_inputs inputs = gqa_attention_inputs(b->r, b->in, b->w);
    TRY(assay_alloc_f64(ctx, "gradient of attention_out", count, &b->attention_out));
    const linear projection = {.da = b->attention_out,
                               .dw = b->g->g[ASSAY_GQA_OUT],
                               .dbias = b->g->g[ASSAY_GQA_OUT_BIAS],
                               .a = out,
                               .w = b->w->w[ASSAY_GQA_OUT],
                               .rows = b->tokens,
                               .n = config->emb_dim,
                               .k = width};
    TRY(linear_backward(ctx, &projection, dy));
    for (int i = 0; i < PROJECTIONS; i++) {
        const assay_tensor_row row = assay_gqa_tensor_row(config, PROJECTED[i]);
        TRY(assay_alloc_f64(ctx, row.name, assay_tensor_row_count(&row), &b->heads[i]));
    }
    const assay_attention_gradients gradients = {b->heads[0], b->heads[1], b->heads[2], b->g->g[ASSAY_GQA_SINKS]};
    TRY(assay_attention_backward(ctx, &gradients, b->attention_out, NULL, out, b->r->lse, &inputs, &attention));
    for (int i = 0; i < PROJECTIONS; i++)
        assay_round(ctx, ASSAY_ROUND_STORAGE, assay_gqa_tensor_count(config, PROJECTED[i]), b->heads[i]);
cleanup:
    return status;
}

/* What the norm was given is computed again. */
static assay_status through_norm(assay_context *ctx, backward *b, int i)
{
    assay_status status = ASSAY_OK;
    const gqa_heads h = gqa_heads_of(b->config, PROJECTED[i]);
    const int64_t heads = b->tokens * h.count, dim = b->config->head_dim;
    const double *scale = b->w->w[h.norm];
    double *x = NULL, *rstd = NULL, *dx = NULL;
    TRY(assay_alloc_f64(ctx, "heads before their norm", heads * dim, &x));
    TRY(assay_alloc_f64(ctx, "1/rms", heads, &rstd));
    TRY(assay_alloc_f64(ctx, "gradient of heads before their norm", heads * dim, &dx));
    TRY(gqa_project(ctx, x, PROJECTED[i], b->r->values[ASSAY_GQA_QKV_PROJ], b->in->x, b->w, b->config));
    assay_round(ctx, ASSAY_ROUND_STORAGE, heads * dim, x);
    assay_rms_norm_forward(ctx, NULL, rstd, x, scale, heads, dim, b->config->epsilon);
    assay_rms_norm_backward(ctx, dx, b->g->g[h.norm], b->heads[i], x, scale, rstd, heads, dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, heads * dim, dx);
    free(b->heads[i]);
    b->heads[i] = dx;
    dx = NULL;
cleanup:
    free(x);
    free(rstd);
    free(dx);
    return status;
}

/* Query and key back to what the projections gave. */
static assay_status through_rotation(assay_context *ctx, backward *b, int i)
{
    const gqa_heads h = gqa_heads_of(b->config, PROJECTED[i]);
    const int64_t count = b->tokens * h.count * b->config->head_dim;
    const assay_rope_rows rows = gqa_rope_rows(b->heads[i], h.count, b->config);
    if (PROJECTED[i] == ASSAY_GQA_QUERY_PROJ) {
        gqa_scale_query(ctx, b->heads[i], b->config);
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->heads[i]);
    }
    assay_rope_backward(ctx, &rows, &b->table, &b->config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->heads[i]);
    return b->config->qk_norm ? through_norm(ctx, b, i) : ASSAY_OK;
}

static linear projection_of(const backward *b, assay_gqa_tensor tensor, double *dx)
{
    const gqa_heads h = gqa_heads_of(b->config, tensor);
    return (linear){.da = dx,
                    .dw = b->g->g[h.kernel],
                    .dbias = b->g->g[h.bias],
                    .a = b->in->x,
                    .w = b->w->w[h.kernel],
                    .rows = b->tokens,
                    .n = h.count * b->config->head_dim,
                    .k = b->config->emb_dim};
}

/* The heads of all three side by side, and one product. */
static assay_status through_fused(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const linear projection = projection_of(b, ASSAY_GQA_QKV_PROJ, b->g->dx);
    double *qkv = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of qkv_proj", b->tokens * projection.n, &qkv));
    for (int i = 0; i < PROJECTIONS; i++) {
        const gqa_heads h = gqa_heads_of(b->config, PROJECTED[i]);
        const int64_t width = h.count * b->config->head_dim, first = h.first * b->config->head_dim;
        for (int64_t t = 0; t < b->tokens; t++)
            memcpy(qkv + t * projection.n + first, b->heads[i] + t * width, (size_t)width * sizeof *qkv);
    }
    TRY(linear_backward(ctx, &projection, qkv));
cleanup:
    free(qkv);
    return status;
}

/* dx is the sum of three, query first. */
static assay_status through_projections(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const int64_t count = b->tokens * b->config->emb_dim;
    double *part = NULL, *dx = b->g->dx;
    if (dx != NULL) TRY(assay_alloc_f64(ctx, "part of the gradient of x", count, &part));
    for (int i = 0; i < PROJECTIONS; i++) {
        const linear projection = projection_of(b, PROJECTED[i], i == 0 ? dx : part);
        TRY(linear_backward(ctx, &projection, b->heads[i]));
        if (i == 0 || dx == NULL) continue;
        assay_add(ctx, count, part, dx);
        if (i + 1 < PROJECTIONS) assay_round(ctx, ASSAY_ROUND_STORAGE, count, dx);
    }
cleanup:
    free(part);
    return status;
}

assay_status assay_gqa_backward(assay_context *ctx, const assay_gqa_gradients *g, const double *dy,
                                const assay_gqa_residuals *r, const assay_gqa_inputs *in, const assay_gqa_weights *w,
                                const assay_gqa_config *config)
{
    assay_status status = ASSAY_OK;
    backward b = {.g = g, .r = r, .in = in, .w = w, .config = config, .tokens = config->batch * config->sequence};
    TRY(assay_rope_table_make(ctx, &b.table, in->positions, b.tokens, &config->rope));
    TRY(through_attention(ctx, &b, dy));
    TRY(through_rotation(ctx, &b, 0));
    TRY(through_rotation(ctx, &b, 1));
    TRY(config->fused_qkv ? through_fused(ctx, &b) : through_projections(ctx, &b));
cleanup:
    backward_free(&b);
    return status;
}
