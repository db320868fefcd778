/* The gradient of MLA: from y back to the query, the key and the value, then each path to x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/mla_steps.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

/* What one call works with; gradients of intermediates come and go, since they are as large as those. */
typedef struct backward {
    mla_call call;
    mla_sizes s;
    assay_rope_table table;
    double *attention_out, *query, *key, *value; /* gradients, [T,N,...] */
    double *mla_kv, *key_rope, *kv_wa;           /* [T,Lkv], [T,Dr], [T,Lkv+Dr] */
    double *x;                                   /* through key and value */
} backward;

static void backward_free(backward *b)
{
    assay_rope_table_free(&b->table);
    free(b->attention_out);
    free(b->query);
    free(b->key);
    free(b->value);
    free(b->mla_kv);
    free(b->key_rope);
    free(b->kv_wa);
    free(b->x);
}

static void drop(double **values)
{
    free(*values);
    *values = NULL;
}

assay_status mla_weight_gradient(assay_context *ctx, double *dw, const double *x, int64_t n_x, const double *dy,
                                 int64_t n_dy, int64_t tokens)
{
    assay_matmul_args args = assay_product_atb(dw, x, dy, n_x, n_dy, tokens);
    args.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    return dw == NULL ? ASSAY_OK : assay_matmul(ctx, &args);
}

assay_status mla_input_gradient(assay_context *ctx, double *dx, const double *dy, int64_t n_dy, const double *w,
                                int64_t n_x, int64_t tokens)
{
    assay_matmul_args args = assay_product_abt(dx, dy, w, tokens, n_x, n_dy);
    args.kind = ASSAY_PRODUCT_LINEAR;
    assay_status status = assay_matmul(ctx, &args);
    if (status == ASSAY_OK) assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * n_x, dx);
    return status;
}

/* dw and dx [T,k] (NULL: skipped) of a linear layer of n columns. */
static assay_status linear_backward(assay_context *ctx, double *dx, double *dw, assay_recipe_given given, int64_t k,
                                    int64_t n, const assay_mla_config *config)
{
    assay_status status;
    const int64_t tokens = config->batch * config->sequence;
    assay_recipe_operands o = {0};
    TRY(mla_operands(ctx, &o, given, k, n, config));
    TRY(mla_weight_gradient(ctx, dw, o.dw_x, k, o.dw_dy, n, tokens));
    if (dx != NULL) TRY(mla_input_gradient(ctx, dx, o.dx_dy, n, o.dx_w, k, tokens));
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

/* A gradient that a recipe quantises, to whoever asked for it. */
static assay_status show(assay_context *ctx, const mla_call *call, assay_mla_tensor gradient, double *values)
{
    const bool asked = call->g->take != NULL && call->config->recipe.recipe != NULL;
    return asked ? call->g->take(ctx, call->g->self, gradient, values) : ASSAY_OK;
}

/* From dy to the gradients of query, key and value. */
static assay_status through_attention(assay_context *ctx, backward *b, const double *dy, const int32_t *segment_ids)
{
    assay_status status = ASSAY_OK;
    const mla_sizes *s = &b->s;
    const assay_mla_residuals *r = b->call.r;
    const int64_t wide = s->heads * s->value, qk_count = s->tokens * s->heads * s->qk;
    const double *out = r->values[ASSAY_MLA_ATTENTION_OUT];
    const assay_attention_config attention = mla_attention_config(b->call.config);
    const assay_attention_inputs inputs = {.query = r->values[ASSAY_MLA_QUERY_PROJ],
                                           .key = r->values[ASSAY_MLA_KEY_PROJ],
                                           .value = r->values[ASSAY_MLA_VALUE_PROJ],
                                           .segment_ids = segment_ids};
    const assay_recipe_given to_y = {
        .x = out, .w = b->call.w->w[ASSAY_MLA_OUT], .dy = dy, .x_spread = r->spread[ASSAY_MLA_ATTENTION_OUT]};
    TRY(assay_alloc_f64(ctx, "gradient of attention_out", s->tokens * wide, &b->attention_out));
    TRY(linear_backward(ctx, b->attention_out, b->call.g->g[ASSAY_MLA_OUT], to_y, wide, s->dim, b->call.config));
    TRY(assay_alloc_f64(ctx, "gradient of query_proj", qk_count, &b->query));
    TRY(assay_alloc_f64(ctx, "gradient of key_proj", qk_count, &b->key));
    TRY(assay_alloc_f64(ctx, "gradient of value_proj", s->tokens * wide, &b->value));
    const assay_attention_gradients gradients = {.dquery = b->query, .dkey = b->key, .dvalue = b->value};
    TRY(assay_attention_backward(ctx, &gradients, b->attention_out, NULL, out, r->lse, &inputs, &attention));
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

assay_status mla_query_backward(assay_context *ctx, const mla_call *call, double *dx, const double *dquery)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(call->config);
    const int64_t width = s.heads * s.qk;
    const latent_norm norm = {.rank = s.q_rank,
                              .width = s.q_rank,
                              .x = call->r->values[ASSAY_MLA_QUERY_WA_PROJ],
                              .scale = call->w->w[ASSAY_MLA_Q_NORM]};
    const double *const *spread = call->r->spread;
    double *mla_q = NULL, *query_wa = NULL; /* gradients */
    assay_recipe_given up = {.dy = dquery, .dy_spread = spread[ASSAY_MLA_Q_GRADIENT]};
    if (s.q_rank == 0) {
        up.x = call->x;
        up.w = call->w->w[ASSAY_MLA_QUERY];
        TRY(linear_backward(ctx, dx, call->g->g[ASSAY_MLA_QUERY], up, s.dim, width, call->config));
        goto cleanup;
    }
    up.x = call->r->values[ASSAY_MLA_MLA_Q];
    up.x_spread = spread[ASSAY_MLA_MLA_Q];
    up.w = call->w->w[ASSAY_MLA_WQ_B];
    TRY(assay_alloc_f64(ctx, "gradient of mla_q", s.tokens * s.q_rank, &mla_q));
    TRY(linear_backward(ctx, mla_q, call->g->g[ASSAY_MLA_WQ_B], up, s.q_rank, width, call->config));
    TRY(assay_alloc_f64(ctx, "gradient of query_wa_proj", s.tokens * s.q_rank, &query_wa));
    TRY(through_latent(ctx, query_wa, call->g->g[ASSAY_MLA_Q_NORM], mla_q, &norm, call->config));
    TRY(show(ctx, call, ASSAY_MLA_QUERY_WA_GRADIENT, query_wa));
    const assay_recipe_given down = {.x = call->x,
                                     .w = call->w->w[ASSAY_MLA_WQ_A],
                                     .dy = query_wa,
                                     .dy_spread = spread[ASSAY_MLA_QUERY_WA_GRADIENT]};
    TRY(linear_backward(ctx, dx, call->g->g[ASSAY_MLA_WQ_A], down, s.dim, s.q_rank, call->config));
cleanup:
    free(mla_q);
    free(query_wa);
    return status;
}

/* The query's way to x: the first part of dx. */
static assay_status through_query(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const int64_t count = b->s.tokens * b->s.heads * b->s.qk;
    const assay_rope_rows rows = mla_query_rows(b->query, &b->s);
    mla_scale_query(ctx, b->query, b->call.config);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->query);
    assay_rope_backward(ctx, &rows, &b->table, &b->call.config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->query);
    TRY(show(ctx, &b->call, ASSAY_MLA_Q_GRADIENT, b->query));
    TRY(mla_query_backward(ctx, &b->call, b->call.g->dx, b->query));
    drop(&b->query);
cleanup:
    return status;
}

/* k_pe is one for all heads: its gradients add up, heads ascending. */
static void sum_heads(const assay_context *ctx, const mla_key_value_gradients *d, const double *dkey,
                      const mla_sizes *s)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < s->tokens; t++) {
        double *sum = d->key_rope + t * s->rope;
        const double *key = dkey + t * s->heads * s->qk + s->nope;
        memcpy(sum, key, (size_t)s->rope * sizeof *sum);
        for (int64_t head = 1; head < s->heads; head++) {
            assay_add_scaled(ctx, s->rope, 1, key + head * s->qk, sum);
        }
        assay_round(ctx, ASSAY_ROUND_STORAGE, s->rope, sum);
    }
}

/* The gradients of k_nope and value side by side, as wkv_b has them. */
static void join_kv(const assay_context *ctx, double *kv, const double *dkey, const double *dvalue, const mla_sizes *s)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        double *to = kv + row * s->kv;
        memcpy(to, dkey + row * s->qk, (size_t)s->nope * sizeof *to);
        memcpy(to + s->nope, dvalue + row * s->value, (size_t)s->value * sizeof *to);
    }
}

/* mla_kv and wkv_b are x and w of `given`; call: NULL where there is no recipe. */
static assay_status key_value_backward(assay_context *ctx, const mla_call *call, const mla_key_value_gradients *d,
                                       const double *dkey, const double *dvalue, assay_recipe_given given,
                                       const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.kv;
    double *kv = NULL;
    sum_heads(ctx, d, dkey, &s);
    TRY(assay_alloc_f64(ctx, "gradient of k_nope and value", s.tokens * width, &kv));
    join_kv(ctx, kv, dkey, dvalue, &s);
    if (call != NULL) TRY(show(ctx, call, ASSAY_MLA_KV_GRADIENT, kv));
    given.dy = kv;
    TRY(linear_backward(ctx, d->mla_kv, d->wkv_b, given, s.kv_rank, width, config));
cleanup:
    free(kv);
    return status;
}

assay_status mla_key_value_backward(assay_context *ctx, const mla_key_value_gradients *d, const double *dkey,
                                    const double *dvalue, const double *mla_kv, const double *wkv_b,
                                    const assay_mla_config *config)
{
    const assay_recipe_given given = {.x = mla_kv, .w = wkv_b};
    return key_value_backward(ctx, NULL, d, dkey, dvalue, given, config);
}

assay_status mla_kv_latent_backward(assay_context *ctx, const mla_call *call, double *dx, double *d_kv_wa,
                                    const double *d_mla_kv)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(call->config);
    const latent_norm norm = {.rank = s.kv_rank,
                              .width = s.kv_wa,
                              .x = call->r->values[ASSAY_MLA_KV_WA_PROJ],
                              .scale = call->w->w[ASSAY_MLA_KV_NORM]};
    for (int64_t t = 0; t < s.tokens; t++)
        assay_round(ctx, ASSAY_ROUND_STORAGE, s.rope, d_kv_wa + t * s.kv_wa + s.kv_rank);
    TRY(through_latent(ctx, d_kv_wa, call->g->g[ASSAY_MLA_KV_NORM], d_mla_kv, &norm, call->config));
    TRY(show(ctx, call, ASSAY_MLA_KV_WA_GRADIENT, d_kv_wa));
    const assay_recipe_given down = {.x = call->x,
                                     .w = call->w->w[ASSAY_MLA_WKV_A],
                                     .dy = d_kv_wa,
                                     .dy_spread = call->r->spread[ASSAY_MLA_KV_WA_GRADIENT]};
    TRY(linear_backward(ctx, dx, call->g->g[ASSAY_MLA_WKV_A], down, s.dim, s.kv_wa, call->config));
cleanup:
    return status;
}

/* The way of key and value to x: the second part of dx. */
static assay_status through_key_value(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    const mla_sizes *s = &b->s;
    const mla_call *call = &b->call;
    const int64_t count = s->tokens * s->dim;
    double *dx = call->g->dx;
    TRY(assay_alloc_f64(ctx, "gradient of kv_wa_proj", s->tokens * s->kv_wa, &b->kv_wa));
    TRY(assay_alloc_f64(ctx, "gradient of mla_kv", s->tokens * s->kv_rank, &b->mla_kv));
    TRY(assay_alloc_f64(ctx, "gradient of the rotated key", s->tokens * s->rope, &b->key_rope));
    const mla_key_value_gradients d = {b->mla_kv, b->key_rope, call->g->g[ASSAY_MLA_WKV_B]};
    const assay_rope_rows rows = mla_key_gradient_rows(b->kv_wa, b->key_rope, s);
    const assay_recipe_given up = {.x = call->r->values[ASSAY_MLA_MLA_KV],
                                   .w = call->w->w[ASSAY_MLA_WKV_B],
                                   .x_spread = call->r->spread[ASSAY_MLA_MLA_KV],
                                   .dy_spread = call->r->spread[ASSAY_MLA_KV_GRADIENT]};
    TRY(key_value_backward(ctx, call, &d, b->key, b->value, up, call->config));
    drop(&b->key);
    drop(&b->value);
    assay_rope_backward(ctx, &rows, &b->table, &call->config->rope);
    if (dx != NULL) TRY(assay_alloc_f64(ctx, "gradient through key and value", count, &b->x));
    TRY(mla_kv_latent_backward(ctx, call, b->x, b->kv_wa, b->mla_kv));
    if (dx == NULL) goto cleanup;
    assay_add(ctx, count, b->x, dx);
cleanup:
    return status;
}

assay_status assay_mla_backward(assay_context *ctx, const assay_mla_gradients *g, const double *dy,
                                const assay_mla_residuals *r, const assay_mla_inputs *in, const assay_mla_weights *w,
                                const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    backward b = {.call = {.g = g, .r = r, .x = in->x, .w = w, .config = config}, .s = mla_sizes_of(config)};
    TRY(assay_rope_table_make(ctx, &b.table, in->positions, b.s.tokens, &config->rope));
    TRY(through_attention(ctx, &b, dy, in->segment_ids));
    TRY(through_query(ctx, &b));
    TRY(through_key_value(ctx, &b));
cleanup:
    backward_free(&b);
    return status;
}
