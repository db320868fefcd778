/* The batch-split schedule (docs/expert-parallelism.md; MaxText models/deepseek_batchsplit.py): the MoE layers of a stack over a virtual
 * mesh, each batch in microbatches that go through the stages in turn. This header is what decoder_stack.c calls; the
 * functions, each with MaxText's name, are in batch_split_weights.h, batch_split_mla.h and batch_split_moe.h, and can be
 * had one by one (batch_split_function.h).
 *
 * Tokens are split over all axes of the mesh, then row r of a shard goes to microbatch r mod factor. Weights lie
 * scattered over fsdp (experts over expert as well), are gathered one layer ahead, and their gradients are
 * reduce-scattered one layer behind and all-reduced over data two behind.
 *
 * Results beside those of decoder_stack.h: schedule/events int32 [events,4] (schedule_events.h),
 * schedule/groups [events], schedule/barriers [barriers,2] (schedule_groups.h). Per layer routing/P:
 * selected_experts, weights [B,S,K], margin [B,S], group_sizes [M,f,E/P] (what a shard's experts get of a microbatch).
 * Checkpoints P: decoder_layer_input, mla_out [B,S,D], attention_out, lse as in mla.h, moe_mlpwi_0 and moe_mlpwi_1
 * [M,f,R,H], R the gathered copies of a microbatch, 0 beyond the shard's rows. There are no lb_loss, bias_updates and
 * segment_ids. The policy of rematerialisation is the schedule's own. */
#pragma once

#include "oracle/layer/decoder_stack.h"
#include "oracle/layer/schedule_events.h"

enum { ASSAY_MOST_MICROBATCHES = 16 };

/* Refused, each with its keys: a batch that shards * batch_split_factor does not divide, fewer than 4 layers for the
 * scan (one alone is batch_split_layer), experts that the expert axis does not divide, dims that fsdp does not divide,
 * and what the model of that file does not have: no query compression, routing other than DeepSeek-V3's with sigmoid,
 * bias and groups that may be off, rope that is not pairwise, no shared expert, fused or clamped or biased experts,
 * another activation than silu, a load balance loss, chunks, the ring as an option (the schedule is one), a
 * ragged_buffer_factor. */
assay_status assay_batch_split_check(assay_context *ctx, const assay_stack_config *config);

/* One shard's microbatch. */
typedef struct assay_batch_split_sizes {
    int64_t shards, expert_shards; /* M, P */
    int64_t rows, tokens;          /* of the batch; times S */
    int64_t gathered, copies;      /* tokens of the expert axis; times K */
    int64_t capacity;              /* rows of mlpwi_0 and mlpwi_1 that are kept: int(copies / P * kept_capacity) */
    int64_t local_experts;         /* E / P */
} assay_batch_split_sizes;
assay_batch_split_sizes assay_batch_split_sizes_of(const assay_stack_config *config);

struct stack_run; /* layer_internal.h */

/* Between forward and backward. */
typedef struct assay_batch_split assay_batch_split;

/* The layers from config->dense_layers on. *x, the input of the first of them, becomes the output of the last. */
assay_status assay_batch_split_forward(assay_context *ctx, const struct stack_run *run, assay_batch_split **split,
                                       double **x);
/* dy becomes the gradient of that input; writes the gradients of the weights, and the events. */
assay_status assay_batch_split_backward(assay_context *ctx, const struct stack_run *run, assay_batch_split *split,
                                        double *dy);
void assay_batch_split_close(assay_batch_split *split); /* NULL is safe */

/* The report that backward gives (remat.h), from the sizes alone, but for the rows beyond capacity, which depend on
 * routing. */
assay_remat_report assay_batch_split_model(const assay_stack_config *config);
int64_t assay_batch_split_memory(const assay_stack_config *config);
