/* The batch-split schedule (docs/expert-parallelism.md; MaxText models/deepseek_batchsplit.py): the MoE layers of a stack over a virtual
 * mesh, each batch in microbatches that go through the stages in turn. This header is what decoder_stack.c calls; the
 * functions, each with MaxText's name, are in batch_split_internal.h and batch_split_moe.h, and can be
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

/* Weights of one layer. */
enum {
    BS_PRE_NORM,
    BS_MLA, /* ASSAY_MLA_WQ_A ... */
    BS_POST_NORM = BS_MLA + ASSAY_MLA_WEIGHTS,
    BS_GATE,
    BS_GATE_BIAS,
    BS_SHARED,                                 /* ASSAY_MLP_WI_0 ... */
    BS_ROUTED = BS_SHARED + ASSAY_MLP_WEIGHTS, /* likewise, of all experts */
    BS_WEIGHTS = BS_ROUTED + ASSAY_MLP_WEIGHTS,
};

/* What a layer computes of one microbatch on all shards, [M,...], in the order of the data flow: axes in batch_split_shards.c. A function
 * of the module goes from some of these to others. */
typedef enum bs_tensor {
    MB_NONE,
    MB_ANGLES, /* one of a pair */
    MB_LAYER_INPUTS,
    MB_MLA_INPUTS, /* normalised */
    MB_LOW_RANK,   /* the normalised latent of keys and values */
    MB_KEY_ROPE,   /* that all heads share */
    MB_QUERY,
    MB_KEY,
    MB_VALUE,
    MB_ATTN_OUT,
    MB_LSE,
    MB_OUT_PROJ,
    MB_MLA_OUT,
    MB_X_NORM, /* of mla_out */
    MB_SHARED_OUT,
    MB_LOGITS,
    MB_GIVEN,         /* a choice in the place of the router's; ids */
    MB_GIVEN_WEIGHTS, /* its weights: there is no gate */
    MB_CHOICES,
    MB_CHOICE_WEIGHTS,
    MB_MARGIN,
    MB_BIASED,      /* scores by which experts are chosen; in no fixture */
    MB_COUNTS,      /* of the choices, by expert */
    MB_ROLLED,      /* choices of the expert axis, ids rolled */
    MB_OWN_COUNTS,  /* what a shard's experts get */
    MB_ROWS,        /* gathered over the expert axis and sorted by rolled id */
    MB_ROW_WEIGHTS, /* likewise */
    MB_GATE,        /* mlpwi_0, mlpwi_1; 0 beyond the shard's rows */
    MB_UP,
    MB_MLPWI_0, /* the rows of these that are kept */
    MB_MLPWI_1,
    MB_ROUTED_OUT,  /* sorted, rolled; 0 beyond the shard's rows */
    MB_EXPERTS_OUT, /* of the tokens */
    MB_MOE_INPUTS,  /* mla_out, which the experts' outputs are added to */
    MB_OUTPUTS,
    MB_OTHER_IN, /* arguments and results that no layer has, in their order */
    MB_OTHER_OUT = MB_OTHER_IN + 2,
    MB_TENSORS = MB_OTHER_OUT + 2
} bs_tensor;
