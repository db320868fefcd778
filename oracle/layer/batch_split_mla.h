/* The attention half of the batch-split schedule, one microbatch on all shards (MaxText deepseek_batchsplit.py
 * mla_with_norms, mla, query_projection, kv_projection, get_key_value, tpu_flash_attention, initialize_yarn_freqs, yarn; each
 * with its _remat and _bwd). x [M,b,S,D]; weights gathered. */
#ifndef ASSAY_LAYER_BATCH_SPLIT_MLA_H
#define ASSAY_LAYER_BATCH_SPLIT_MLA_H

#include "oracle/layer/batch_split_internal.h"

/* out = x + mla(rms_norm(x)) [M,b,S,D], attn_out [M,b,S,N,Dv], lse [M,b,N,S]. */
assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w);

/* What backward needs and forward did not keep. */
typedef struct bs_mla_state {
    double *x_norm, *rstd;       /* [M,b,S,D], [M,b*S] */
    assay_mla_residuals *shards; /* [M], out_proj left out */
} bs_mla_state;
void bs_mla_state_free(bs_mla_state *state, const bs_run *run); /* safe on a zeroed struct */

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const double *attn_out, const double *lse, const bs_weights *w);
/* dx [M,b,S,D] from dout. Of `g` (gathered) the attention's weights as each shard has them, and BS_PRE_NORM, BS_Q_NORM,
 * BS_KV_NORM summed over all shards; NULL ones are skipped, the others overwritten. */
assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, int64_t microbatch, double *dx,
                                   const bs_weights *g, const double *dout, const double *x,
                                   const bs_mla_state *state, const bs_weights *w);
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);

#endif
