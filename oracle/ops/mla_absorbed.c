/* The absorbed form of MLA, one head at a time: wkv_b's key half goes into the query, its value half onto the output.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/mla_steps.h"

typedef struct absorbed {
    double *query;  /* [T,Lkv+Dr]: the head's query in latent space, then q_pe */
    double *key;    /* [T,Lkv+Dr]: mla_kv, then k_pe; every head's */
    double *latent; /* [T,Lkv]: the head's attention over mla_kv */
    double *lse;
    double *out; /* [T,N,Dv] */
} absorbed;

/* The latent and the rotated part of the key, without the key itself. */
static assay_status make_key(assay_context *ctx, double *key, const assay_mla_residuals *r, const assay_mla_inputs *in,
                             const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    assay_rope_table table = {0};
    const assay_rope_rows rows = {.y = key + s.kv_rank,
                                  .y_token_stride = s.kv_wa,
                                  .x = r->values[ASSAY_MLA_KV_WA_PROJ] + s.kv_rank,
                                  .x_token_stride = s.kv_wa,
                                  .heads = 1};
    assay_status status = assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope);
    if (status != ASSAY_OK) return status;
    for (int64_t t = 0; t < s.tokens; t++)
        memcpy(key + t * s.kv_wa, r->values[ASSAY_MLA_MLA_KV] + t * s.kv_rank, (size_t)s.kv_rank * sizeof *key);
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    for (int64_t t = 0; t < s.tokens; t++) assay_round(ctx, ASSAY_ROUND_STORAGE, s.rope, key + t * s.kv_wa + s.kv_rank);
    assay_rope_table_free(&table);
    return ASSAY_OK;
}

static assay_status one_head(assay_context *ctx, const absorbed *a, int64_t head, const assay_mla_residuals *r,
                             const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const double *query = r->values[ASSAY_MLA_QUERY_PROJ] + head * s.qk;
    const double *up = w->w[ASSAY_MLA_WKV_B] + head * s.kv; /* [Lkv,Dn+Dv] of this head, rows N (Dn+Dv) apart */
    assay_attention_config attention = mla_attention_config(config);
    attention.heads = 1;
    attention.qk_dim = s.kv_wa;
    attention.v_dim = s.kv_rank;
    assay_matmul_args absorb = assay_product_abt(a->query, query, up, s.tokens, s.kv_rank, s.nope);
    absorb.ldc = s.kv_wa;
    absorb.lda = s.heads * s.qk;
    absorb.ldb = s.heads * s.kv;
    absorb.kind = ASSAY_PRODUCT_LINEAR;
    assay_matmul_args release =
        assay_product_ab(a->out + head * s.value, a->latent, up + s.nope, s.tokens, s.value, s.kv_rank);
    release.ldc = s.heads * s.value;
    release.ldb = s.heads * s.kv;
    release.kind = ASSAY_PRODUCT_LINEAR;
    const assay_attention_inputs inputs = {
        .query = a->query, .key = a->key, .value = r->values[ASSAY_MLA_MLA_KV], .segment_ids = in->segment_ids};
    TRY(assay_matmul(ctx, &absorb));
    for (int64_t t = 0; t < s.tokens; t++) {
        double *row = a->query + t * s.kv_wa;
        assay_round(ctx, ASSAY_ROUND_STORAGE, s.kv_rank, row);
        memcpy(row + s.kv_rank, query + t * s.heads * s.qk + s.nope, (size_t)s.rope * sizeof *row);
    }
    TRY(assay_attention_forward(ctx, a->latent, a->lse, &inputs, &attention));
    assay_round(ctx, ASSAY_ROUND_STORAGE, s.tokens * s.kv_rank, a->latent);
    TRY(assay_matmul(ctx, &release));
cleanup:
    return status;
}

assay_status assay_mla_absorbed_forward(assay_context *ctx, double *y, const assay_mla_inputs *in,
                                        const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    assay_mla_residuals r = {0};
    absorbed a = {0};
    for (int tensor = 0; tensor <= ASSAY_MLA_QUERY_PROJ; tensor++) {
        TRY(assay_mla_compute(ctx, &r, (assay_mla_tensor)tensor, in, w, config));
    }
    TRY(assay_alloc_f64(ctx, "absorbed query", s.tokens * s.kv_wa, &a.query));
    TRY(assay_alloc_f64(ctx, "latent key", s.tokens * s.kv_wa, &a.key));
    TRY(assay_alloc_f64(ctx, "latent output", s.tokens * s.kv_rank, &a.latent));
    TRY(assay_alloc_f64(ctx, "lse", s.tokens, &a.lse));
    TRY(assay_alloc_f64(ctx, "attention_out", s.tokens * s.heads * s.value, &a.out));
    TRY(make_key(ctx, a.key, &r, in, config));
    for (int64_t head = 0; head < s.heads; head++) TRY(one_head(ctx, &a, head, &r, in, w, config));
    assay_round(ctx, ASSAY_ROUND_STORAGE, s.tokens * s.heads * s.value, a.out);
    TRY(mla_product(ctx, y, a.out, w->w[ASSAY_MLA_OUT], s.tokens, s.dim, s.heads * s.value));
cleanup:
    assay_mla_residuals_free(&r);
    free(a.query);
    free(a.key);
    free(a.latent);
    free(a.lse);
    free(a.out);
    return status;
}
