/* The attention half of the batch-split schedule (MaxText deepseek_batchsplit.py: mla_with_norms, its _remat and its _bwd). Each
 * shard attends within its own rows of the batch: its half is a graph, with given angles and without segments, so that a shard's
 * rows have the bits that they have in the plain layer.
 *
 * One microbatch on all shards, of b rows of S tokens each; weights gathered, N heads. All results are overwritten. */
#pragma once

#include "oracle/layer/batch_split_internal.h"

/* A layer of experts, of one shard's microbatch: its half is what makes LAYER_H. Its weights are the first ones of bs_weights. */
void bs_attention_graph(graph *g, const bs_run *run, const assay_quant_recipe_config *recipe);
int bs_normalised_input(const graph *g); /* of attention */
/* The half of one shard, with angles [M,b,S,Dr/2] and weights. */
assay_status bs_open_attention(assay_context *ctx, graph_run *r, const graph *g, const bs_run *run,
                               const double *angles, const bs_weights *w, int64_t shard);
/* Where its gradients of weights go; and those that are summed over all shards, after the last one. */
void bs_want_attention_gradients(graph_run *r, const bs_run *run, const bs_weights *g, int64_t shard);
void bs_sum_attention_gradients(const assay_context *ctx, const bs_run *run, const bs_weights *g);

/* layer_inputs, angles -> mla_out = x + mla(rms_norm(x)), attn_out, lse; _remat: attention, with query_proj, key_proj, value_proj and
 * what they are made of, which _bwd uses up; counts the operations. */
bs_function bs_mla_with_norms, bs_mla_with_norms_remat;
/* The norms' scales are summed over all shards. */
bs_function_bwd bs_mla_with_norms_bwd;
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);
