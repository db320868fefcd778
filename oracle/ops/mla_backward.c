/* The gradient of MLA: from y back to the query, the key and the value, then each path to x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/mla_internal.h"
#include "oracle/ops/rms_norm.h"

/* What one call works with; gradients of intermediates come and go, since they are as large as those. */
typedef struct backward {
    const assay_mla_gradients *g;
    const assay_mla_residuals *r;
    const assay_mla_inputs *in;
    const assay_mla_weights *w;
    const assay_mla_config *config;
    mla_sizes s;
    assay_rope_table table;
    double *attention_out, *query, *key, *value; /* gradients, [T,N,...] */
    double *kv;                                  /* [T,N,Dn+Dv]: of k_nope and value */
    double *mla_q, *query_wa, *mla_kv, *kv_wa;   /* [T,Lq] twice, [T,Lkv], [T,Lkv+Dr] */
    double *x;                                   /* through key and value */
} backward;

static void backward_free(backward *b)
{
    assay_rope_table_free(&b->table);
    free(b->attention_out);
    free(b->query);
    free(b->key);
    free(b->value);
    free(b->kv);
    free(b->mla_q);
    free(b->query_wa);
    free(b->mla_kv);
    free(b->kv_wa);
    free(b->x);
}

static void drop(double **values)
{
    free(*values);
    *values = NULL;
}

/* dw [n_x,n_dy] = x^T dy over the tokens. A dw that is NULL is skipped. */
static assay_status weight_gradient(assay_context *ctx, double *dw, const double *x, int64_t n_x, const double *dy,
                                    int64_t n_dy, int64_t tokens)
{
    const assay_matmul_args args = {.c = dw,
                                    .ldc = n_dy,
                                    .a = x,
                                    .lda = n_x,
                                    .transpose_a = true,
                                    .b = dy,
                                    .ldb = n_dy,
                                    .m = n_x,
                                    .n = n_dy,
                                    .k = tokens};
    return dw == NULL ? ASSAY_OK : assay_matmul(ctx, &args);
}

/* dx [tokens,n_x] = dy w^T, which may be stored. */
static assay_status input_gradient(assay_context *ctx, double *dx, const double *dy, int64_t n_dy, const double *w,
                                   int64_t n_x, int64_t tokens)
{
    const assay_matmul_args args = {.c = dx,
                                    .ldc = n_x,
                                    .a = dy,
                                    .lda = n_dy,
                                    .b = w,
                                    .ldb = n_dy,
                                    .transpose_b = true,
                                    .m = tokens,
                                    .n = n_x,
                                    .k = n_dy};
    assay_status status = assay_matmul(ctx, &args);
    if (status == ASSAY_OK) assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * n_x, dx);
    return status;
}

/* From dy to the gradients of query, key and value. */
static assay_status through_attention(assay_context *ctx, backward *b, const double *dy)
{
    assay_status status = ASSAY_OK;
    const mla_sizes *s = &b->s;
    const int64_t wide = s->heads * s->value, qk_count = s->tokens * s->heads * s->qk;
    const double *out = b->r->values[ASSAY_MLA_ATTENTION_OUT];
    const assay_attention_config attention = mla_attention_config(b->config);
    const assay_attention_inputs inputs = {.query = b->r->values[ASSAY_MLA_QUERY_PROJ],
                                           .key = b->r->values[ASSAY_MLA_KEY_PROJ],
                                           .value = b->r->values[ASSAY_MLA_VALUE_PROJ],
                                           .segment_ids = b->in->segment_ids};
    TRY(weight_gradient(ctx, b->g->dout, out, wide, dy, s->dim, s->tokens));
    TRY(assay_alloc_f64(ctx, "gradient of attention_out", s->tokens * wide, &b->attention_out));
    TRY(input_gradient(ctx, b->attention_out, dy, s->dim, b->w->out, wide, s->tokens));
    TRY(assay_alloc_f64(ctx, "gradient of query_proj", qk_count, &b->query));
    TRY(assay_alloc_f64(ctx, "gradient of key_proj", qk_count, &b->key));
    TRY(assay_alloc_f64(ctx, "gradient of value_proj", s->tokens * wide, &b->value));
    const assay_attention_gradients gradients = {.dquery = b->query, .dkey = b->key, .dvalue = b->value};
    TRY(assay_attention_backward(ctx, &gradients, b->attention_out, NULL, out, b->r->lse, &inputs, &attention));
    assay_round(ctx, ASSAY_ROUND_STORAGE, qk_count, b->query);
    assay_round(ctx, ASSAY_ROUND_STORAGE, qk_count, b->key);
    assay_round(ctx, ASSAY_ROUND_STORAGE, s->tokens * wide, b->value);
    drop(&b->attention_out);
cleanup:
    return status;
}

/* The norm of a latent, which is the first `rank` numbers of rows of `width`, as its gradient is. */
typedef struct latent_norm {
    int64_t rank, width;
    const double *x, *scale;
} latent_norm;

static assay_status through_latent(assay_context *ctx, double *dx, double *dscale, const double *dy,
                                   const latent_norm *norm, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = config->batch * config->sequence, rank = norm->rank;
    const size_t bytes = (size_t)rank * sizeof(double);
    double *x = NULL, *rstd = NULL, *d = NULL;
    TRY(assay_alloc_f64(ctx, "latent", tokens * rank, &x));
    TRY(assay_alloc_f64(ctx, "1/rms", tokens, &rstd));
    TRY(assay_alloc_f64(ctx, "gradient of the latent", tokens * rank, &d));
    for (int64_t t = 0; t < tokens; t++) memcpy(x + t * rank, norm->x + t * norm->width, bytes);
    assay_rms_norm_forward(ctx, NULL, rstd, x, norm->scale, tokens, rank, config->epsilon);
    assay_rms_norm_backward(ctx, d, dscale, dy, x, norm->scale, rstd, tokens, rank);
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * rank, d);
    for (int64_t t = 0; t < tokens; t++) memcpy(dx + t * norm->width, d + t * rank, bytes);
cleanup:
    free(x);
    free(rstd);
    free(d);
    return status;
}

/* From the gradient of query_proj to that of the product that the query comes from, in place. */
static void through_rotation(const assay_context *ctx, backward *b)
{
    const int64_t count = b->s.tokens * b->s.heads * b->s.qk;
    const assay_rope_rows rows = mla_query_rows(b->query, &b->s);
    const double scale = assay_mla_softmax_scale(b->config);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) b->query[i] *= scale;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->query);
    assay_rope_backward(ctx, &rows, &b->table, &b->config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->query);
}

/* The query's way to x: the first part of dx. */
static assay_status through_query(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const mla_sizes *s = &b->s;
    const int64_t width = s->heads * s->qk;
    const latent_norm norm = {
        .rank = s->q_rank, .width = s->q_rank, .x = b->r->values[ASSAY_MLA_QUERY_WA_PROJ], .scale = b->w->q_norm};
    through_rotation(ctx, b);
    if (s->q_rank == 0) {
        TRY(weight_gradient(ctx, b->g->dquery, b->in->x, s->dim, b->query, width, s->tokens));
        if (b->g->dx != NULL) TRY(input_gradient(ctx, b->g->dx, b->query, width, b->w->query, s->dim, s->tokens));
        drop(&b->query);
        goto cleanup;
    }
    TRY(weight_gradient(ctx, b->g->dwq_b, b->r->values[ASSAY_MLA_MLA_Q], s->q_rank, b->query, width, s->tokens));
    TRY(assay_alloc_f64(ctx, "gradient of mla_q", s->tokens * s->q_rank, &b->mla_q));
    TRY(input_gradient(ctx, b->mla_q, b->query, width, b->w->wq_b, s->q_rank, s->tokens));
    drop(&b->query);
    TRY(assay_alloc_f64(ctx, "gradient of query_wa_proj", s->tokens * s->q_rank, &b->query_wa));
    TRY(through_latent(ctx, b->query_wa, b->g->dq_norm, b->mla_q, &norm, b->config));
    drop(&b->mla_q);
    TRY(weight_gradient(ctx, b->g->dwq_a, b->in->x, s->dim, b->query_wa, s->q_rank, s->tokens));
    if (b->g->dx != NULL) TRY(input_gradient(ctx, b->g->dx, b->query_wa, s->q_rank, b->w->wq_a, s->dim, s->tokens));
    drop(&b->query_wa);
cleanup:
    return status;
}

/* k_pe is one for all heads: its gradients add up, heads ascending, and are rotated back into the last columns of
 * kv_wa. */
static void through_shared_key(const assay_context *ctx, backward *b)
{
    const mla_sizes *s = &b->s;
    double *pe = b->kv_wa + s->kv_rank;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < s->tokens; t++) {
        double *sum = pe + t * s->kv_wa;
        const double *key = b->key + t * s->heads * s->qk + s->nope;
        memcpy(sum, key, (size_t)s->rope * sizeof *sum);
        for (int64_t head = 1; head < s->heads; head++) {
            for (int64_t i = 0; i < s->rope; i++) sum[i] += key[head * s->qk + i];
            assay_round(ctx, ASSAY_ROUND_ACCUMULATE, s->rope, sum);
        }
        assay_round(ctx, ASSAY_ROUND_STORAGE, s->rope, sum);
    }
    const assay_rope_rows rows = {.y = pe, .y_token_stride = s->kv_wa, .x = pe, .x_token_stride = s->kv_wa, .heads = 1};
    assay_rope_backward(ctx, &rows, &b->table, &b->config->rope);
    for (int64_t t = 0; t < s->tokens; t++) assay_round(ctx, ASSAY_ROUND_STORAGE, s->rope, pe + t * s->kv_wa);
}

/* The gradients of k_nope and value side by side, as wkv_b has them. */
static void join_kv(const assay_context *ctx, backward *b)
{
    const mla_sizes *s = &b->s;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        double *to = b->kv + row * s->kv;
        memcpy(to, b->key + row * s->qk, (size_t)s->nope * sizeof *to);
        memcpy(to + s->nope, b->value + row * s->value, (size_t)s->value * sizeof *to);
    }
}

/* From the gradients of key and value to that of kv_wa_proj. */
static assay_status through_key_value(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const mla_sizes *s = &b->s;
    const int64_t width = s->heads * s->kv;
    const latent_norm norm = {
        .rank = s->kv_rank, .width = s->kv_wa, .x = b->r->values[ASSAY_MLA_KV_WA_PROJ], .scale = b->w->kv_norm};
    TRY(assay_alloc_f64(ctx, "gradient of kv_wa_proj", s->tokens * s->kv_wa, &b->kv_wa));
    through_shared_key(ctx, b);
    TRY(assay_alloc_f64(ctx, "gradient of k_nope and value", s->tokens * width, &b->kv));
    join_kv(ctx, b);
    drop(&b->key);
    drop(&b->value);
    TRY(weight_gradient(ctx, b->g->dwkv_b, b->r->values[ASSAY_MLA_MLA_KV], s->kv_rank, b->kv, width, s->tokens));
    TRY(assay_alloc_f64(ctx, "gradient of mla_kv", s->tokens * s->kv_rank, &b->mla_kv));
    TRY(input_gradient(ctx, b->mla_kv, b->kv, width, b->w->wkv_b, s->kv_rank, s->tokens));
    drop(&b->kv);
    TRY(through_latent(ctx, b->kv_wa, b->g->dkv_norm, b->mla_kv, &norm, b->config));
    drop(&b->mla_kv);
    TRY(weight_gradient(ctx, b->g->dwkv_a, b->in->x, s->dim, b->kv_wa, s->kv_wa, s->tokens));
cleanup:
    return status;
}

/* dx has what came through the query: plus what comes through key and value. */
static assay_status add_key_value(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const int64_t count = b->s.tokens * b->s.dim;
    double *dx = b->g->dx;
    TRY(assay_alloc_f64(ctx, "gradient through key and value", count, &b->x));
    TRY(input_gradient(ctx, b->x, b->kv_wa, b->s.kv_wa, b->w->wkv_a, b->s.dim, b->s.tokens));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) dx[i] += b->x[i];
cleanup:
    return status;
}

assay_status assay_mla_backward(assay_context *ctx, const assay_mla_gradients *g, const double *dy,
                                const assay_mla_residuals *r, const assay_mla_inputs *in, const assay_mla_weights *w,
                                const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    backward b = {.g = g, .r = r, .in = in, .w = w, .config = config, .s = mla_sizes_of(config)};
    TRY(assay_rope_table_make(ctx, &b.table, in->positions, b.s.tokens, &config->rope));
    TRY(through_attention(ctx, &b, dy));
    TRY(through_query(ctx, &b));
    TRY(through_key_value(ctx, &b));
    if (g->dx != NULL) TRY(add_key_value(ctx, &b));
cleanup:
    backward_free(&b);
    return status;
}
