#include "oracle/ops/mla.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/mla_steps.h"
#include "oracle/ops/rms_norm.h"

assay_mla_weights assay_mla_weights_of(double *const weights[ASSAY_MLA_WEIGHTS])
{
    assay_mla_weights w;
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) w.w[i] = weights[i];
    return w;
}

assay_mla_gradients assay_mla_gradients_of(double *dx, double *const gradients[ASSAY_MLA_WEIGHTS])
{
    assay_mla_gradients g = {.dx = dx};
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) g.g[i] = gradients[i];
    return g;
}

void assay_mla_residuals_free(assay_mla_residuals *r)
{
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) free(r->values[tensor]);
    free(r->lse);
    *r = (assay_mla_residuals){0};
}

assay_status mla_product(assay_context *ctx, double *c, const double *a, const double *b, int64_t m, int64_t n,
                         int64_t k)
{
    assay_matmul_args args = assay_product_ab(c, a, b, m, n, k);
    args.kind = ASSAY_PRODUCT_LINEAR;
    return assay_matmul(ctx, &args);
}

assay_status mla_operands(assay_context *ctx, assay_recipe_operands *operands, assay_recipe_given given, int64_t k,
                          int64_t n, const assay_mla_config *config)
{
    const assay_gmm_dims dims = {.m = config->batch * config->sequence, .k = k, .n = n, .groups = 1};
    const int32_t all = (int32_t)dims.m;
    given.group_sizes = &all;
    return assay_recipe_quantise(ctx, operands, &given, &dims, &config->recipe);
}

/* out [T,n] = x [T,k] w [k,n] by the recipe. */
static assay_status project(assay_context *ctx, double *out, assay_recipe_given given, int64_t k, int64_t n,
                            const assay_mla_config *config)
{
    assay_recipe_operands o = {0};
    assay_status status = mla_operands(ctx, &o, given, k, n, config);
    if (status == ASSAY_OK) status = mla_product(ctx, out, o.x, o.w, config->batch * config->sequence, n, k);
    assay_recipe_operands_free(&o);
    return status;
}

assay_rope_rows mla_query_rows(double *query, const mla_sizes *s)
{
    return (assay_rope_rows){.y = query + s->nope,
                             .y_token_stride = s->heads * s->qk,
                             .y_head_stride = s->qk,
                             .x = query + s->nope,
                             .x_token_stride = s->heads * s->qk,
                             .x_head_stride = s->qk,
                             .heads = s->heads};
}

assay_rope_rows mla_key_rows(double *key_rope, const double *kv_wa, const mla_sizes *s)
{
    return (assay_rope_rows){
        .y = key_rope, .y_token_stride = s->rope, .x = kv_wa + s->kv_rank, .x_token_stride = s->kv_wa, .heads = 1};
}

assay_rope_rows mla_key_gradient_rows(double *d_kv_wa, const double *d_key_rope, const mla_sizes *s)
{
    return (assay_rope_rows){
        .y = d_kv_wa + s->kv_rank, .y_token_stride = s->kv_wa, .x = d_key_rope, .x_token_stride = s->rope, .heads = 1};
}

/* The latent's norm: its first `rank` numbers of rows `ld` apart. */
static assay_status latent(assay_context *ctx, double *y, const double *x, int64_t ld, const double *scale,
                           int64_t rank, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = config->batch * config->sequence;
    double *rstd = NULL;
    TRY(assay_alloc_f64(ctx, "1/rms", tokens, &rstd));
    for (int64_t t = 0; t < tokens; t++) memcpy(y + t * rank, x + t * ld, (size_t)rank * sizeof *y);
    assay_rms_norm_forward(ctx, y, rstd, y, scale, tokens, rank, config->epsilon);
cleanup:
    free(rstd);
    return status;
}

void mla_scale_query(const assay_context *ctx, double *query, const assay_mla_config *config)
{
    const int64_t count = assay_mla_tensor_count(config, ASSAY_MLA_QUERY_PROJ);
    const double scale = assay_mla_softmax_scale(config);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) query[i] *= scale;
}

static assay_status query(assay_context *ctx, double *out, const assay_mla_residuals *r, const assay_mla_inputs *in,
                          const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.qk, count = s.tokens * width;
    const bool compressed = s.q_rank > 0;
    const assay_rope_rows rows = mla_query_rows(out, &s);
    assay_rope_table table = {0};
    const assay_recipe_given of_x = {.x = in->x, .w = w->w[ASSAY_MLA_QUERY]};
    const assay_recipe_given of_mla_q = {
        .x = r->values[ASSAY_MLA_MLA_Q], .w = w->w[ASSAY_MLA_WQ_B], .x_spread = r->spread[ASSAY_MLA_MLA_Q]};
    TRY(project(ctx, out, compressed ? of_mla_q : of_x, compressed ? s.q_rank : s.dim, width, config));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
    TRY(assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope));
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
    mla_scale_query(ctx, out, config);
cleanup:
    assay_rope_table_free(&table);
    return status;
}

/* One part of every head of mla_kv wkv_b: `columns` of it from column `first`, into rows of `width`. A product for each
 * head, straight to its place, so that the key can be had without the value, and the other way round. */
typedef struct head_part {
    int64_t first, columns, width;
} head_part;

static assay_status expand(assay_context *ctx, double *out, head_part part, const double *mla_kv, const double *wkv_b,
                           const mla_sizes *s)
{
    assay_status status = ASSAY_OK;
    for (int64_t head = 0; head < s->heads; head++) {
        assay_matmul_args args = assay_product_ab(out + head * part.width, mla_kv, wkv_b + head * s->kv + part.first,
                                                  s->tokens, part.columns, s->kv_rank);
        args.ldc = s->heads * part.width;
        args.ldb = s->heads * s->kv;
        args.kind = ASSAY_PRODUCT_LINEAR;
        TRY(assay_matmul(ctx, &args));
    }
cleanup:
    return status;
}

assay_status mla_key(assay_context *ctx, double *key, const double *mla_kv, const double *key_rope, const double *wkv_b,
                     const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    const head_part nope = {.first = 0, .columns = s.nope, .width = s.qk};
    assay_status status = expand(ctx, key, nope, mla_kv, wkv_b, &s);
    if (status != ASSAY_OK) return status;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < s.tokens * s.heads; row++)
        memcpy(key + row * s.qk + s.nope, key_rope + row / s.heads * s.rope, (size_t)s.rope * sizeof *key);
    return ASSAY_OK;
}

assay_status mla_value(assay_context *ctx, double *value, const double *mla_kv, const double *wkv_b,
                       const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    return expand(ctx, value, (head_part){.first = s.nope, .columns = s.value, .width = s.value}, mla_kv, wkv_b, &s);
}

/* What the products of every head take: by a recipe mla_kv and wkv_b as one matrix each. */
static assay_status kv_operands(assay_context *ctx, assay_recipe_operands *operands, const assay_mla_residuals *r,
                                const assay_mla_weights *w, const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    const assay_recipe_given given = {
        .x = r->values[ASSAY_MLA_MLA_KV], .w = w->w[ASSAY_MLA_WKV_B], .x_spread = r->spread[ASSAY_MLA_MLA_KV]};
    return mla_operands(ctx, operands, given, s.kv_rank, s.heads * s.kv, config);
}

static assay_status key(assay_context *ctx, double *out, const assay_mla_residuals *r, const assay_mla_inputs *in,
                        const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    assay_rope_table table = {0};
    double *key_rope = NULL;
    assay_recipe_operands o = {0};
    TRY(kv_operands(ctx, &o, r, w, config));
    TRY(assay_alloc_f64(ctx, "rotated key", s.tokens * s.rope, &key_rope));
    TRY(assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope));
    const assay_rope_rows rows = mla_key_rows(key_rope, r->values[ASSAY_MLA_KV_WA_PROJ], &s);
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    TRY(mla_key(ctx, out, o.x, key_rope, o.w, config));
cleanup:
    assay_recipe_operands_free(&o);
    assay_rope_table_free(&table);
    free(key_rope);
    return status;
}

static assay_status value(assay_context *ctx, double *out, const assay_mla_residuals *r, const assay_mla_weights *w,
                          const assay_mla_config *config)
{
    assay_recipe_operands o = {0};
    assay_status status = kv_operands(ctx, &o, r, w, config);
    if (status == ASSAY_OK) status = mla_value(ctx, out, o.x, o.w, config);
    assay_recipe_operands_free(&o);
    return status;
}

static assay_status attention(assay_context *ctx, double *out, assay_mla_residuals *r, const assay_mla_inputs *in,
                              const assay_mla_config *config)
{
    const assay_attention_config attention_config = mla_attention_config(config);
    const assay_attention_inputs inputs = {.query = r->values[ASSAY_MLA_QUERY_PROJ],
                                           .key = r->values[ASSAY_MLA_KEY_PROJ],
                                           .value = r->values[ASSAY_MLA_VALUE_PROJ],
                                           .segment_ids = in->segment_ids};
    assay_status status = ASSAY_OK;
    double *lse = NULL;
    TRY(assay_alloc_f64(ctx, "lse", config->batch * config->heads * config->sequence, &lse));
    TRY(assay_attention_forward(ctx, out, lse, &inputs, &attention_config));
    free(r->lse);
    r->lse = lse;
    lse = NULL;
cleanup:
    free(lse);
    return status;
}

static assay_status compute(assay_context *ctx, double *out, assay_mla_residuals *r, assay_mla_tensor tensor,
                            const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    const assay_recipe_given to_q = {.x = in->x, .w = w->w[ASSAY_MLA_WQ_A]},
                             to_kv = {.x = in->x, .w = w->w[ASSAY_MLA_WKV_A]};
    const assay_recipe_given to_y = {.x = r->values[ASSAY_MLA_ATTENTION_OUT],
                                     .w = w->w[ASSAY_MLA_OUT],
                                     .x_spread = r->spread[ASSAY_MLA_ATTENTION_OUT]};
    switch (tensor) {
    case ASSAY_MLA_QUERY_WA_PROJ:
        return project(ctx, out, to_q, s.dim, s.q_rank, config);
    case ASSAY_MLA_MLA_Q:
        return latent(ctx, out, r->values[ASSAY_MLA_QUERY_WA_PROJ], s.q_rank, w->w[ASSAY_MLA_Q_NORM], s.q_rank, config);
    case ASSAY_MLA_KV_WA_PROJ:
        return project(ctx, out, to_kv, s.dim, s.kv_wa, config);
    case ASSAY_MLA_MLA_KV:
        return latent(ctx, out, r->values[ASSAY_MLA_KV_WA_PROJ], s.kv_wa, w->w[ASSAY_MLA_KV_NORM], s.kv_rank, config);
    case ASSAY_MLA_QUERY_PROJ:
        return query(ctx, out, r, in, w, config);
    case ASSAY_MLA_KEY_PROJ:
        return key(ctx, out, r, in, w, config);
    case ASSAY_MLA_VALUE_PROJ:
        return value(ctx, out, r, w, config);
    case ASSAY_MLA_ATTENTION_OUT:
        return attention(ctx, out, r, in, config);
    default: /* ASSAY_MLA_OUT_PROJ */
        return project(ctx, out, to_y, s.heads * s.value, s.dim, config);
    }
}

assay_status assay_mla_compute(assay_context *ctx, assay_mla_residuals *r, assay_mla_tensor tensor,
                               const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_row row = assay_mla_tensor_row(config, tensor);
    const int64_t count = assay_tensor_row_count(&row);
    double *out = NULL;
    if (r->values[tensor] != NULL || count == 0) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, row.name, count, &out));
    TRY(compute(ctx, out, r, tensor, in, w, config));
    /* y is the caller's to round. */
    if (tensor != ASSAY_MLA_OUT_PROJ) assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
    r->values[tensor] = out;
    out = NULL;
cleanup:
    free(out);
    return status;
}
