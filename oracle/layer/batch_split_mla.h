/* The attention half of the batch-split schedule (MaxText deepseek_batchsplit.py: mla_with_norms, its _remat and its _bwd). Each
 * shard attends within its own rows of the batch: its half is a graph, with given angles and without segments, so that a shard's
 * rows have the bits that they have in the plain layer.
 *
 * One microbatch on all shards, of b rows of S tokens each; weights gathered, N heads. All results are overwritten. */
#pragma once

#include "oracle/layer/batch_split_internal.h"

/* layer_inputs, angles -> mla_out = x + mla(rms_norm(x)), attn_out, lse; _remat: attention, with query_proj, key_proj, value_proj and
 * what they are made of, which _bwd uses up; counts the operations. */
bs_function bs_mla_with_norms, bs_mla_with_norms_remat;
/* The norms' scales are summed over all shards. */
bs_function_bwd bs_mla_with_norms_bwd;
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);
