/* The gradient of MLA: from y back to the query, the key and the value, then each path to x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/mla_internal.h"
#include "oracle/ops/rms_norm.h"

/* dw [n_x,n_dy] = x^T dy over the tokens; rows of dy are contiguous, those of x `ld_x` apart. NULL: skipped. */
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

/* Gradients between the parts. */
typedef struct flow {
    double *out;                /* of attention_out */
    double *query, *key, *value;
    double *mla_q, *q_wa;       /* [T,Lq] */
    double *kv, *mla_kv, *kv_wa; /* [T,N,Dn+Dv], [T,Lkv], [T,Lkv+Dr] */
    double *latent, *x, *rstd;
} flow;

static void free_flow(flow *f)
{
    free(f->out);
    free(f->query);
    free(f->key);
    free(f->value);
    free(f->mla_q);
    free(f->q_wa);
    free(f->kv);
    free(f->mla_kv);
    free(f->kv_wa);
    free(f->latent);
    free(f->x);
    free(f->rstd);
}

static void drop(double **values)
{
    free(*values);
    *values = NULL;
}

/* dout's way to dquery, dkey, dvalue. */
static assay_status through_attention(assay_context *ctx, flow *f, const assay_mla_gradients *g, const double *dy,
                                      const assay_mla_residuals *r, const assay_mla_inputs *in,
                                      const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.value;
    const assay_attention_config attention = mla_attention_config(config);
    const assay_attention_inputs inputs = {.query = r->values[ASSAY_MLA_QUERY_PROJ],
                                           .key = r->values[ASSAY_MLA_KEY_PROJ],
                                           .value = r->values[ASSAY_MLA_VALUE_PROJ],
                                           .segment_ids = in->segment_ids};
    const double *out = r->values[ASSAY_MLA_ATTENTION_OUT];
    TRY(weight_gradient(ctx, g->dout, out, width, dy, s.dim, s.tokens));
    TRY(assay_alloc_f64(ctx, "gradient of attention_out", s.tokens * width, &f->out));
    TRY(input_gradient(ctx, f->out, dy, s.dim, w->out, width, s.tokens));
    TRY(assay_alloc_f64(ctx, "gradient of the query", s.tokens * s.heads * s.qk, &f->query));
    TRY(assay_alloc_f64(ctx, "gradient of the key", s.tokens * s.heads * s.qk, &f->key));
    TRY(assay_alloc_f64(ctx, "gradient of the value", s.tokens * width, &f->value));
    const assay_attention_gradients gradients = {f->query, f->key, f->value};
    TRY(assay_attention_backward(ctx, &gradients, f->out, NULL, out, r->lse, &inputs, &attention));
    assay_round(ctx, ASSAY_ROUND_STORAGE, s.tokens * s.heads * s.qk, f->query);
    assay_round(ctx, ASSAY_ROUND_STORAGE, s.tokens * s.heads * s.qk, f->key);
    assay_round(ctx, ASSAY_ROUND_STORAGE, s.tokens * width, f->value);
    drop(&f->out);
cleanup:
    return status;
}

/* d of a latent's norm, [T,rank]; its input's rows are `ld` apart. dx goes to rows `ld` apart as well. */
static assay_status through_latent(assay_context *ctx, flow *f, double *dx, double *dscale, const double *dy,
                                   const double *x, int64_t ld, const double *scale, int64_t rank,
                                   const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = config->batch * config->sequence;
    double *d = NULL;
    TRY(assay_alloc_f64(ctx, "latent", tokens * rank, &f->latent));
    TRY(assay_alloc_f64(ctx, "1/rms", tokens, &f->rstd));
    TRY(assay_alloc_f64(ctx, "gradient of the latent", tokens * rank, &d));
    for (int64_t t = 0; t < tokens; t++) memcpy(f->latent + t * rank, x + t * ld, (size_t)rank * sizeof *x);
    assay_rms_norm_forward(ctx, NULL, f->rstd, f->latent, scale, tokens, rank, config->epsilon);
    assay_rms_norm_backward(ctx, d, dscale, dy, f->latent, scale, f->rstd, tokens, rank);
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * rank, d);
    for (int64_t t = 0; t < tokens; t++) memcpy(dx + t * ld, d + t * rank, (size_t)rank * sizeof *d);
    drop(&f->latent);
    drop(&f->rstd);
cleanup:
    free(d);
    return status;
}

/* The query's way to x; f->query is that of the scaled and rotated query at first. */
static assay_status through_query(assay_context *ctx, flow *f, const assay_mla_gradients *g, double *dx,
                                  const assay_mla_residuals *r, const assay_mla_inputs *in, const assay_mla_weights *w,
                                  const assay_mla_config *config, const assay_rope_table *table)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.qk, count = s.tokens * width;
    const assay_rope_rows rows = mla_query_rows(f->query, &s);
    const double scale = assay_mla_softmax_scale(config);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) f->query[i] *= scale;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, f->query);
    assay_rope_backward(ctx, &rows, table, &config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, f->query);
    if (s.q_rank == 0) {
        TRY(weight_gradient(ctx, g->dquery, in->x, s.dim, f->query, width, s.tokens));
        TRY(input_gradient(ctx, dx, f->query, width, w->query, s.dim, s.tokens));
        goto cleanup;
    }
    TRY(weight_gradient(ctx, g->dwq_b, r->values[ASSAY_MLA_MLA_Q], s.q_rank, f->query, width, s.tokens));
    TRY(assay_alloc_f64(ctx, "gradient of mla_q", s.tokens * s.q_rank, &f->mla_q));
    TRY(input_gradient(ctx, f->mla_q, f->query, width, w->wq_b, s.q_rank, s.tokens));
    drop(&f->query);
    TRY(assay_alloc_f64(ctx, "gradient of query_wa_proj", s.tokens * s.q_rank, &f->q_wa));
    TRY(through_latent(ctx, f, f->q_wa, g->dq_norm, f->mla_q, r->values[ASSAY_MLA_QUERY_WA_PROJ], s.q_rank, w->q_norm,
                       s.q_rank, config));
    TRY(weight_gradient(ctx, g->dwq_a, in->x, s.dim, f->q_wa, s.q_rank, s.tokens));
    TRY(input_gradient(ctx, dx, f->q_wa, s.q_rank, w->wq_a, s.dim, s.tokens));
cleanup:
    return status;
}

/* k_pe is one for all heads: its gradients add up, heads ascending, and are rotated back into the last columns of
 * kv_wa. */
static void shared_key(const assay_context *ctx, flow *f, const assay_mla_config *config, const assay_rope_table *table)
{
    const mla_sizes s = mla_sizes_of(config);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < s.tokens; t++) {
        double *sum = f->kv_wa + t * s.kv_wa + s.kv_rank;
        const double *key = f->key + t * s.heads * s.qk + s.nope;
        for (int64_t i = 0; i < s.rope; i++) sum[i] = key[i];
        for (int64_t head = 1; head < s.heads; head++) {
            for (int64_t i = 0; i < s.rope; i++) sum[i] += key[head * s.qk + i];
        }
        assay_round(ctx, ASSAY_ROUND_STORAGE, s.rope, sum);
    }
    double *rope = f->kv_wa + s.kv_rank;
    const assay_rope_rows rows = {
        .y = rope, .y_token_stride = s.kv_wa, .x = rope, .x_token_stride = s.kv_wa, .heads = 1};
    assay_rope_backward(ctx, &rows, table, &config->rope);
    for (int64_t t = 0; t < s.tokens; t++) assay_round(ctx, ASSAY_ROUND_STORAGE, s.rope, rope + t * s.kv_wa);
}

/* dk_nope and dvalue of every head side by side, as wkv_b has them. */
static void join_kv(const assay_context *ctx, flow *f, const mla_sizes *s)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        memcpy(f->kv + row * s->kv, f->key + row * s->qk, (size_t)s->nope * sizeof *f->kv);
        memcpy(f->kv + row * s->kv + s->nope, f->value + row * s->value, (size_t)s->value * sizeof *f->kv);
    }
}

static assay_status through_key_value(assay_context *ctx, flow *f, const assay_mla_gradients *g,
                                      const assay_mla_residuals *r, const assay_mla_inputs *in,
                                      const assay_mla_weights *w, const assay_mla_config *config,
                                      const assay_rope_table *table)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.kv;
    TRY(assay_alloc_f64(ctx, "gradient of kv_wa_proj", s.tokens * s.kv_wa, &f->kv_wa));
    shared_key(ctx, f, config, table);
    TRY(assay_alloc_f64(ctx, "gradient of key and value", s.tokens * width, &f->kv));
    join_kv(ctx, f, &s);
    drop(&f->key);
    drop(&f->value);
    TRY(weight_gradient(ctx, g->dwkv_b, r->values[ASSAY_MLA_MLA_KV], s.kv_rank, f->kv, width, s.tokens));
    TRY(assay_alloc_f64(ctx, "gradient of mla_kv", s.tokens * s.kv_rank, &f->mla_kv));
    TRY(input_gradient(ctx, f->mla_kv, f->kv, width, w->wkv_b, s.kv_rank, s.tokens));
    drop(&f->kv);
    TRY(through_latent(ctx, f, f->kv_wa, g->dkv_norm, f->mla_kv, r->values[ASSAY_MLA_KV_WA_PROJ], s.kv_wa, w->kv_norm,
                       s.kv_rank, config));
    TRY(weight_gradient(ctx, g->dwkv_a, in->x, s.dim, f->kv_wa, s.kv_wa, s.tokens));
    if (g->dx == NULL) goto cleanup;
    TRY(assay_alloc_f64(ctx, "gradient through key and value", s.tokens * s.dim, &f->x));
    TRY(input_gradient(ctx, f->x, f->kv_wa, s.kv_wa, w->wkv_a, s.dim, s.tokens));
cleanup:
    return status;
}

assay_status assay_mla_backward(assay_context *ctx, const assay_mla_gradients *g, const double *dy,
                                const assay_mla_residuals *r, const assay_mla_inputs *in, const assay_mla_weights *w,
                                const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    assay_rope_table table = {0};
    double *dx = NULL;
    flow f = {0};
    TRY(assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope));
    if (g->dx == NULL) TRY(assay_alloc_f64(ctx, "gradient of x", s.tokens * s.dim, &dx));
    TRY(through_attention(ctx, &f, g, dy, r, in, w, config));
    TRY(through_query(ctx, &f, g, g->dx != NULL ? g->dx : dx, r, in, w, config, &table));
    TRY(through_key_value(ctx, &f, g, r, in, w, config, &table));
    for (int64_t i = 0; g->dx != NULL && i < s.tokens * s.dim; i++) g->dx[i] += f.x[i];
cleanup:
    assay_rope_table_free(&table);
    free_flow(&f);
    free(dx);
    return status;
}

double assay_mla_backward_flops(const assay_mla_config *config)
{
    const assay_attention_config attention = mla_attention_config(config);
    double sum = assay_attention_flops(&attention, true);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        if (tensor == ASSAY_MLA_ATTENTION_OUT) continue;
        sum += 2 * assay_mla_tensor_flops(config, (assay_mla_tensor)tensor);
    }
    return sum;
}
