/* The attention half of the batch-split schedule (MaxText deepseek_batchsplit.py: mla_with_norms, its _remat and its _bwd). Each
 * shard attends within its own rows of the batch: its half is a graph, with given angles and without segments, so that a shard's
 * rows have the bits that they have in the plain layer.
 *
 * One microbatch on all shards, of b rows of S tokens each; weights gathered, N heads. All results are overwritten. */
#ifndef ASSAY_LAYER_BATCH_SPLIT_MLA_H
#define ASSAY_LAYER_BATCH_SPLIT_MLA_H

#include "oracle/layer/batch_split_internal.h"

#define BS_X_NORM "normalised input" /* as the graph has it; its result is LAYER_H */

/* x + mla(rms_norm(x)) of one shard's microbatch; its weights are the first ones of bs_weights. */
void bs_attention_graph(graph *g, const bs_run *run, const assay_recipe_config *recipe);
/* The half of one shard, with angles and weights. */
void bs_open_attention(graph_run *r, const graph *g, const bs_run *run, int64_t microbatch, const bs_weights *w,
                       int64_t shard);
/* Where its gradients of weights go; and those that are summed over all shards, after the last one. */
void bs_want_attention_gradients(graph_run *r, const bs_run *run, const bs_weights *g, int64_t shard);
void bs_sum_attention_gradients(const assay_context *ctx, const bs_run *run, const bs_weights *g);

/* out = x + mla(rms_norm(x)) [M,b,S,D], attn_out [M,b,S,N,Dv], lse [M,b,N,S]. */
assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w);

/* What backward needs: of each shard query_proj, key_proj and value_proj, and what they are made of. */
typedef struct bs_mla_state {
    graph_run *shards; /* [M] */
} bs_mla_state;
void bs_mla_state_free(bs_mla_state *state, const bs_run *run); /* safe on a zeroed struct */

/* x must stay as long as the state. */
assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const bs_weights *w);
/* dx [M,b,S,D] from dout, with what forward kept; the state is used up. Of `g` (gathered) the attention's weights as each shard
 * has them, and the norms' scales summed over all shards. */
assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, double *dx, const bs_weights *g,
                                   const double *dout, const double *attn_out, const double *lse,
                                   const bs_mla_state *state);
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);

#endif
