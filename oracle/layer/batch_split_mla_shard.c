/* The attention of one shard's microbatch, in MaxText's pieces. */
#include "oracle/layer/batch_split_mla.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/vector_sums.h"

void bs_initialize_yarn_freqs(const assay_context *ctx, double *yarn_freqs, const int32_t *positions,
                              const assay_mla_config *config)
{
    assay_rope_angles(ctx, yarn_freqs, positions, config->batch * config->sequence, &config->rope);
}

void bs_initialize_yarn_mask(double *mask, int64_t dims)
{
    memset(mask, 0, (size_t)(dims * dims) * sizeof *mask);
    for (int64_t first = 0; first < dims; first += 2) {
        mask[first * dims + first + 1] = 1;
        mask[(first + 1) * dims + first] = -1;
    }
}

assay_status bs_yarn(assay_context *ctx, const assay_rope_rows *rows, const double *yarn_freqs,
                     const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    assay_rope_table table = {0};
    TRY(assay_rope_table_of_angles(ctx, &table, yarn_freqs, config->batch * config->sequence, &config->rope));
    assay_rope_forward(ctx, rows, &table, &config->rope);
cleanup:
    assay_rope_table_free(&table);
    return status;
}

assay_status bs_yarn_bwd(assay_context *ctx, const assay_rope_rows *rows, const double *yarn_freqs,
                         const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    assay_rope_table table = {0};
    TRY(assay_rope_table_of_angles(ctx, &table, yarn_freqs, config->batch * config->sequence, &config->rope));
    assay_rope_backward(ctx, rows, &table, &config->rope);
cleanup:
    assay_rope_table_free(&table);
    return status;
}

static assay_status alloc_tensor(assay_context *ctx, assay_mla_residuals *r, assay_mla_tensor tensor,
                                 const assay_mla_config *config)
{
    const assay_tensor_row row = assay_mla_tensor_row(config, tensor);
    return assay_alloc_f64(ctx, row.name, assay_tensor_row_count(&row), &r->values[tensor]);
}

static void drop(assay_mla_residuals *r, assay_mla_tensor tensor)
{
    free(r->values[tensor]);
    r->values[tensor] = NULL;
}

static void round_tensor(const assay_context *ctx, double *values, assay_mla_tensor tensor,
                         const assay_mla_config *config)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, assay_mla_tensor_count(config, tensor), values);
}

assay_status bs_query_projection(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    const assay_mla_inputs in = {.x = at->x};
    TRY(assay_mla_compute(ctx, r, ASSAY_MLA_QUERY_WA_PROJ, &in, &at->w, at->config));
    TRY(assay_mla_compute(ctx, r, ASSAY_MLA_MLA_Q, &in, &at->w, at->config));
    TRY(alloc_tensor(ctx, r, ASSAY_MLA_QUERY_PROJ, at->config));
    double *query = r->values[ASSAY_MLA_QUERY_PROJ];
    const assay_rope_rows rows = mla_query_rows(query, &s);
    TRY(mla_product(ctx, query, r->values[ASSAY_MLA_MLA_Q], at->w.w[ASSAY_MLA_WQ_B], s.tokens, s.heads * s.qk,
                    s.q_rank));
    round_tensor(ctx, query, ASSAY_MLA_QUERY_PROJ, at->config);
    TRY(bs_yarn(ctx, &rows, at->yarn_freqs, at->config));
    round_tensor(ctx, query, ASSAY_MLA_QUERY_PROJ, at->config);
    mla_scale_query(ctx, query, at->config);
    round_tensor(ctx, query, ASSAY_MLA_QUERY_PROJ, at->config);
cleanup:
    return status;
}

static mla_call call_of(const bs_mla_shard *at, const assay_mla_gradients *g, const assay_mla_residuals *r)
{
    return (mla_call){.g = g, .r = r, .x = at->x, .w = &at->w, .config = at->config};
}

assay_status bs_query_projection_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g,
                                     double *dquery, const assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    const assay_rope_rows rows = mla_query_rows(dquery, &s);
    const mla_call call = call_of(at, g, r);
    mla_scale_query(ctx, dquery, at->config);
    round_tensor(ctx, dquery, ASSAY_MLA_QUERY_PROJ, at->config);
    TRY(bs_yarn_bwd(ctx, &rows, at->yarn_freqs, at->config));
    round_tensor(ctx, dquery, ASSAY_MLA_QUERY_PROJ, at->config);
    TRY(mla_query_backward(ctx, &call, g->dx, dquery));
cleanup:
    return status;
}

assay_status bs_kv_projection(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    const assay_mla_inputs in = {.x = at->x};
    double *key_rope = NULL;
    TRY(assay_mla_compute(ctx, r, ASSAY_MLA_KV_WA_PROJ, &in, &at->w, at->config));
    TRY(assay_mla_compute(ctx, r, ASSAY_MLA_MLA_KV, &in, &at->w, at->config));
    TRY(assay_alloc_f64(ctx, "rotated key", s.tokens * s.rope, &key_rope));
    const assay_rope_rows rows = mla_key_rows(key_rope, r->values[ASSAY_MLA_KV_WA_PROJ], &s);
    TRY(bs_yarn(ctx, &rows, at->yarn_freqs, at->config));
    TRY(alloc_tensor(ctx, r, ASSAY_MLA_KEY_PROJ, at->config));
    TRY(alloc_tensor(ctx, r, ASSAY_MLA_VALUE_PROJ, at->config));
    TRY(bs_get_key_value(ctx, r->values[ASSAY_MLA_KEY_PROJ], r->values[ASSAY_MLA_VALUE_PROJ],
                         r->values[ASSAY_MLA_MLA_KV], key_rope, at->w.w[ASSAY_MLA_WKV_B], at->config));
    round_tensor(ctx, r->values[ASSAY_MLA_KEY_PROJ], ASSAY_MLA_KEY_PROJ, at->config);
    round_tensor(ctx, r->values[ASSAY_MLA_VALUE_PROJ], ASSAY_MLA_VALUE_PROJ, at->config);
cleanup:
    free(key_rope);
    return status;
}

assay_status bs_kv_projection_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g,
                                  const double *dkey, const double *dvalue, const assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    const mla_call call = call_of(at, g, r);
    mla_key_value_gradients d = {.wkv_b = g->g[ASSAY_MLA_WKV_B]};
    double *kv_wa = NULL; /* gradient */
    TRY(assay_alloc_f64(ctx, "gradient of mla_kv", s.tokens * s.kv_rank, &d.mla_kv));
    TRY(assay_alloc_f64(ctx, "gradient of the rotated key", s.tokens * s.rope, &d.key_rope));
    TRY(assay_alloc_f64(ctx, "gradient of kv_wa_proj", s.tokens * s.kv_wa, &kv_wa));
    TRY(bs_get_key_value_bwd(ctx, &d, dkey, dvalue, r->values[ASSAY_MLA_MLA_KV], at->w.w[ASSAY_MLA_WKV_B], at->config));
    const assay_rope_rows rows = mla_key_gradient_rows(kv_wa, d.key_rope, &s);
    TRY(bs_yarn_bwd(ctx, &rows, at->yarn_freqs, at->config));
    TRY(mla_kv_latent_backward(ctx, &call, g->dx, kv_wa, d.mla_kv));
cleanup:
    free(d.mla_kv);
    free(d.key_rope);
    free(kv_wa);
    return status;
}

assay_status bs_get_key_value(assay_context *ctx, double *key, double *value, const double *low_rank_main,
                              const double *key_rope, const double *wkv_b, const assay_mla_config *config)
{
    const assay_status status = mla_key(ctx, key, low_rank_main, key_rope, wkv_b, config);
    return status != ASSAY_OK ? status : mla_value(ctx, value, low_rank_main, wkv_b, config);
}

assay_status bs_get_key_value_bwd(assay_context *ctx, const mla_key_value_gradients *d, const double *dkey,
                                  const double *dvalue, const double *low_rank_main, const double *wkv_b,
                                  const assay_mla_config *config)
{
    return mla_key_value_backward(ctx, d, dkey, dvalue, low_rank_main, wkv_b, config);
}

assay_status bs_flash_attention(assay_context *ctx, double *attn_out, double *lse, const assay_attention_inputs *in,
                                const assay_mla_config *config)
{
    const assay_attention_config attention = mla_attention_config(config);
    return assay_attention_forward(ctx, attn_out, lse, in, &attention);
}

assay_status bs_flash_attention_bwd(assay_context *ctx, const assay_attention_gradients *d, const double *d_attn_out,
                                    const double *attn_out, const double *lse, const assay_attention_inputs *in,
                                    const assay_mla_config *config)
{
    const assay_attention_config attention = mla_attention_config(config);
    return assay_attention_backward(ctx, d, d_attn_out, NULL, attn_out, lse, in, &attention);
}

static assay_attention_inputs attention_inputs(const assay_mla_residuals *r)
{
    return (assay_attention_inputs){.query = r->values[ASSAY_MLA_QUERY_PROJ],
                                    .key = r->values[ASSAY_MLA_KEY_PROJ],
                                    .value = r->values[ASSAY_MLA_VALUE_PROJ]};
}

assay_status bs_mla(assay_context *ctx, const bs_mla_shard *at, double *out, double *attn_out, double *lse)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    assay_mla_residuals r = {0};
    TRY(bs_query_projection(ctx, at, &r));
    drop(&r, ASSAY_MLA_QUERY_WA_PROJ);
    drop(&r, ASSAY_MLA_MLA_Q);
    TRY(bs_kv_projection(ctx, at, &r));
    drop(&r, ASSAY_MLA_KV_WA_PROJ);
    drop(&r, ASSAY_MLA_MLA_KV);
    const assay_attention_inputs in = attention_inputs(&r);
    TRY(bs_flash_attention(ctx, attn_out, lse, &in, at->config));
    round_tensor(ctx, attn_out, ASSAY_MLA_ATTENTION_OUT, at->config);
    assay_mla_residuals_free(&r);
    TRY(mla_product(ctx, out, attn_out, at->w.w[ASSAY_MLA_OUT], s.tokens, s.dim, s.heads * s.value));
cleanup:
    assay_mla_residuals_free(&r);
    return status;
}

assay_status bs_mla_remat(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r)
{
    const assay_status status = bs_query_projection(ctx, at, r);
    return status != ASSAY_OK ? status : bs_kv_projection(ctx, at, r);
}

/* From dout to the gradients of query, key and value, as they may be stored; and g->g[ASSAY_MLA_OUT]. */
static assay_status attention_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g,
                                  const assay_attention_gradients *d, const double *dout, const assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(at->config);
    const int64_t wide = s.heads * s.value;
    const assay_attention_inputs in = attention_inputs(r);
    double *d_attn_out = NULL;
    TRY(mla_weight_gradient(ctx, g->g[ASSAY_MLA_OUT], at->attn_out, wide, dout, s.dim, s.tokens));
    TRY(assay_alloc_f64(ctx, "gradient of attention_out", s.tokens * wide, &d_attn_out));
    TRY(mla_input_gradient(ctx, d_attn_out, dout, s.dim, at->w.w[ASSAY_MLA_OUT], wide, s.tokens));
    TRY(bs_flash_attention_bwd(ctx, d, d_attn_out, at->attn_out, at->lse, &in, at->config));
    round_tensor(ctx, d->dquery, ASSAY_MLA_QUERY_PROJ, at->config);
    round_tensor(ctx, d->dkey, ASSAY_MLA_KEY_PROJ, at->config);
    round_tensor(ctx, d->dvalue, ASSAY_MLA_VALUE_PROJ, at->config);
cleanup:
    free(d_attn_out);
    return status;
}

assay_status bs_mla_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g, const double *dout,
                        const assay_mla_residuals *r)
{
    assay_status status = ASSAY_OK;
    assay_mla_residuals d = {0}; /* gradients */
    assay_mla_gradients from_kv = *g;
    const int64_t count = assay_mla_tensor_count(at->config, ASSAY_MLA_OUT_PROJ);
    TRY(alloc_tensor(ctx, &d, ASSAY_MLA_QUERY_PROJ, at->config));
    TRY(alloc_tensor(ctx, &d, ASSAY_MLA_KEY_PROJ, at->config));
    TRY(alloc_tensor(ctx, &d, ASSAY_MLA_VALUE_PROJ, at->config));
    const assay_attention_gradients qkv = {.dquery = d.values[ASSAY_MLA_QUERY_PROJ],
                                           .dkey = d.values[ASSAY_MLA_KEY_PROJ],
                                           .dvalue = d.values[ASSAY_MLA_VALUE_PROJ]};
    TRY(attention_bwd(ctx, at, g, &qkv, dout, r));
    TRY(bs_query_projection_bwd(ctx, at, g, qkv.dquery, r));
    drop(&d, ASSAY_MLA_QUERY_PROJ);
    if (g->dx != NULL) TRY(alloc_tensor(ctx, &d, ASSAY_MLA_OUT_PROJ, at->config));
    from_kv.dx = d.values[ASSAY_MLA_OUT_PROJ];
    TRY(bs_kv_projection_bwd(ctx, at, &from_kv, qkv.dkey, qkv.dvalue, r));
    if (g->dx != NULL) assay_add(ctx, count, from_kv.dx, g->dx);
cleanup:
    assay_mla_residuals_free(&d);
    return status;
}
