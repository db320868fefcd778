/* The attention half of the batch-split schedule (MaxText deepseek_batchsplit.py). Every function of that file's
 * attention stands here under its own name with the prefix bs_, forward, _remat and _bwd apart, but for rms_norm and
 * dot, which are assay_rms_norm_forward and _backward (oracle/ops/rms_norm.h) and assay_matmul. The steps are those of
 * oracle/ops/mla.h, so that a shard's rows have the bits that they have in the plain layer.
 *
 * b rows of S tokens in one shard's microbatch; config is of that (batch b); N heads. All results are overwritten; NULL
 * gradients are skipped. */
#ifndef ASSAY_LAYER_BATCH_SPLIT_MLA_H
#define ASSAY_LAYER_BATCH_SPLIT_MLA_H

#include "oracle/layer/batch_split_internal.h"
#include "oracle/ops/mla_steps.h"

/* --- rotation of one shard (batch_split_mla_shard.c) --- */

/* [b,S,Dr/2], one for each pair: positions times frequencies, less whole turns, in (-pi, pi]. */
void bs_initialize_yarn_freqs(const assay_context *ctx, double *yarn_freqs, const int32_t *positions,
                              const assay_mla_config *config);
/* mask [dims,dims]: x mask has the two numbers of each pair swapped, and the first of them negated. */
void bs_initialize_yarn_mask(double *mask, int64_t dims);
/* y = x cos(yarn_freqs) + (x mask) sin(yarn_freqs), which is assay_rope_forward with pairwise. */
assay_status bs_yarn(assay_context *ctx, const assay_rope_rows *rows, const double *yarn_freqs,
                     const assay_mla_config *config);
/* rows->y takes dx, rows->x gives dy. */
assay_status bs_yarn_bwd(assay_context *ctx, const assay_rope_rows *rows, const double *yarn_freqs,
                         const assay_mla_config *config);

/* --- one shard (batch_split_mla_shard.c) --- */

typedef struct bs_mla_shard {
    const assay_mla_config *config;
    const double *x;          /* [b,S,D], normalised */
    const double *yarn_freqs; /* [b,S,Dr/2] */
    assay_mla_weights w;
    const double *attn_out, *lse; /* as forward kept them; for bs_mla_bwd alone */
} bs_mla_shard;

/* query_wa_proj, mla_q and query_proj of r, allocated: they must not be there. */
assay_status bs_query_projection(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r);
/* dx through the query alone, dwq_a, dq_norm, dwq_b. dquery is used up. */
assay_status bs_query_projection_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g,
                                     double *dquery, const assay_mla_residuals *r);

/* kv_wa_proj, mla_kv, key_proj and value_proj of r, allocated: they must not be there. */
assay_status bs_kv_projection(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r);
/* dx through key and value alone, dwkv_a, dkv_norm, dwkv_b. */
assay_status bs_kv_projection_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g,
                                  const double *dkey, const double *dvalue, const assay_mla_residuals *r);

/* key [b,S,N,Dn+Dr] and value [b,S,N,Dv] from low_rank_main [b,S,Lkv] and key_rope [b,S,Dr]. */
assay_status bs_get_key_value(assay_context *ctx, double *key, double *value, const double *low_rank_main,
                              const double *key_rope, const double *wkv_b, const assay_mla_config *config);
/* As may be stored. */
assay_status bs_get_key_value_bwd(assay_context *ctx, const mla_key_value_gradients *d, const double *dkey,
                                  const double *dvalue, const double *low_rank_main, const double *wkv_b,
                                  const assay_mla_config *config);

/* tpu_flash_attention: assay_attention_forward and _backward of this configuration, without segments. attn_out
 * [b,S,N,Dv], lse [b,N,S]. */
assay_status bs_flash_attention(assay_context *ctx, double *attn_out, double *lse, const assay_attention_inputs *in,
                                const assay_mla_config *config);
assay_status bs_flash_attention_bwd(assay_context *ctx, const assay_attention_gradients *d, const double *d_attn_out,
                                    const double *attn_out, const double *lse, const assay_attention_inputs *in,
                                    const assay_mla_config *config);

/* out [b,S,D]; attn_out as it may be stored. */
assay_status bs_mla(assay_context *ctx, const bs_mla_shard *at, double *out, double *attn_out, double *lse);
/* What backward needs again: all of r before attention_out. r is zeroed before. */
assay_status bs_mla_remat(assay_context *ctx, const bs_mla_shard *at, assay_mla_residuals *r);
/* g is of one shard, dx [b,S,D]. */
assay_status bs_mla_bwd(assay_context *ctx, const bs_mla_shard *at, const assay_mla_gradients *g, const double *dout,
                        const assay_mla_residuals *r);

/* --- one microbatch on all shards (batch_split_mla.c); weights gathered --- */

/* out = x + mla(rms_norm(x)) [M,b,S,D], attn_out [M,b,S,N,Dv], lse [M,b,N,S]. */
assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w);

/* What backward needs. */
typedef struct bs_mla_state {
    double *x_norm, *rstd;        /* [M,b,S,D], [M,b,S] */
    assay_mla_residuals *shards;  /* [M] */
    const double *attn_out, *lse; /* the caller's, as forward kept them */
} bs_mla_state;
void bs_mla_state_free(bs_mla_state *state, const bs_run *run); /* safe on a zeroed struct */

/* attn_out and lse must stay as long as the state. */
assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const double *attn_out, const double *lse, const bs_weights *w);
/* dx [M,b,S,D] from dout. Of `g` (gathered) the attention's weights as each shard has them, and the norms' scales
 * summed over all shards. */
assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, int64_t microbatch, double *dx,
                                   const bs_weights *g, const double *dout, const double *x, const bs_mla_state *state,
                                   const bs_weights *w);
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);

#endif
