/* The MoE half of the batch-split schedule on all shards (MaxText deepseek_batchsplit.py). Every function of that
 * file's MoE half stands here under its own name with the prefix bs_, forward, _remat and _bwd apart; where two of them
 * differ only in being under a shard_map (moe and route_compute_unroute, the functions of unroute_ubatch), one does for
 * both.
 *
 * Weights are gathered. M shards, P of the expert axis, b rows of a shard's microbatch, T = b*S its tokens, G = T*P
 * those of its expert axis, R = G*K copies. The routing weight multiplies h before wo. Ids are rolled so that a shard's
 * own experts come first: id becomes (id - p E/P) mod E on shard p of the expert axis. So its copies are the first rows
 * of what is sorted, and what is computed of the others is exactly 0. All results are overwritten; those in structs are
 * allocated. */
#pragma once

#include "oracle/layer/batch_split_internal.h"
#include "oracle/ops/quant_recipe.h"

/* --- choosing experts (batch_split_selection.c) --- */

/* x_norm, given -> logits, routing, choices, choice_weights, counts. The gradient of BS_GATE_BIAS is that of all tokens. */
bs_function bs_expert_selection;
bs_function_bwd bs_expert_selection_bwd;
/* choices -> counts. */
assay_status bs_count_choices(assay_context *ctx, const bs_run *run, bs_microbatch *b);
/* logits -> biased. */
bs_function bs_biased_scores;

/* --- sorting by expert, and back (batch_split_route.c) --- */

/* choices, counts -> rolled, own_counts. */
assay_status bs_gather_choices(assay_context *ctx, const bs_run *run, bs_microbatch *b);
/* x_norm, choices, choice_weights, counts -> rolled, own_counts, rows, row_weights; x_norm, rolled -> rows; routed_out, rolled ->
 * experts_out, summed over K ascending, psum_scattered over expert. Of unroute also rows that are other shards' get a gradient. */
bs_function bs_route, bs_route_impl, bs_unroute;
bs_function_bwd bs_route_bwd, bs_route_impl_bwd, bs_unroute_bwd;

/* --- stages (batch_split_stages.c) --- */

/* mla_out, given -> x_norm, what route makes, shared_out (_remat: shared). _bwd is without the gradient of the residual addition;
 * BS_POST_NORM and BS_GATE_BIAS are summed over all shards. */
bs_function bs_shared_expert_and_route, bs_shared_expert_and_route_remat;
bs_function_bwd bs_shared_expert_and_route_bwd;
/* gate and up again: from mlpwi_0 and mlpwi_1, padded with 0, or computed, where a shard has more rows than were kept; counts the
 * operations. */
bs_function bs_compute_remat;
bs_function_bwd bs_compute_bwd;
/* outputs = moe_inputs + (unroute(routed_out) + shared_out); _bwd from rolled ids alone: _remat has nothing to compute again. */
bs_function bs_unroute_ubatch;
bs_function_bwd bs_unroute_ubatch_bwd;

/* --- in the schedule (batch_split_moe.c) --- */

/* The choice that the source fixes, of each microbatch, and its weights. */
assay_status bs_read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b);
/* mla_out, given -> shared_out and what route makes; -> routed_out, where the layer keeps also mlpwi_0 and mlpwi_1; -> outputs. _bwd down
 * to the gradient of mla_out. */
bs_function bs_stage_route, bs_stage_compute, bs_stage_unroute;
bs_function_bwd bs_stage_route_bwd;
/* Of all microbatches write the routing results, and the checkpoints, that the sink wants. */
bs_function bs_after_route, bs_after_compute;

/* Operations of products that backward repeats of one microbatch on all shards, rows beyond the capacity aside. */
double bs_moe_remat_flops(const bs_run *run);
