/* Weights of the batch-split schedule, between the source, the mesh and the sink (MaxText deepseek_batchsplit.py
 * fetch_weights, extract_layer_weights, gather_weights, reduce_scatter_ws_grad, all_reduce_ws_grad_dcn,
 * insert_layer_ws_grad). All results are allocated by the caller (bs_weights_alloc). */
#pragma once

#include "oracle/layer/batch_split_internal.h"

/* Between a whole weight and what the shards have of it, scattered. */
void bs_move_parts(const bs_run *run, int weight, double *whole, double *scattered, bool to_whole);
/* The layer's weights from the source, scattered; a gate's bias that it lacks is 0. Refused: biases of experts,
 * per_expert_scale. */
assay_status bs_extract_layer_weights(assay_context *ctx, const bs_run *run, bs_weights *scattered, int64_t layer);
/* The finished gradients of a layer (scattered), put together and written. */
assay_status bs_insert_layer_ws_grad(assay_context *ctx, const bs_run *run, const bs_weights *scattered, int64_t layer);
/* all_gather over fsdp. */
void bs_gather_weights(assay_context *ctx, const bs_run *run, bs_weights *gathered, const bs_weights *scattered);
/* psum_scatter over fsdp, then psum over expert of what the experts' shards share. Norms' scales and the gate's bias
 * are complete already, and pass. What is summed may be stored before (also in `gathered`). */
assay_status bs_reduce_scatter_ws_grad(assay_context *ctx, const bs_run *run, bs_weights *scattered,
                                       const bs_weights *gathered);
/* psum over data; in place. */
assay_status bs_all_reduce_ws_grad_dcn(assay_context *ctx, const bs_run *run, bs_weights *scattered);
/* Which gradients of a layer the sink wants: those of `w` that it does not, or of weights that the source lacks, are
 * freed and NULL. */
void bs_drop_unwanted(const bs_run *run, bs_weights *w, int64_t layer);
