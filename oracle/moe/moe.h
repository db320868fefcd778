/* The MoE block (SPEC 8; MaxText moe.py RoutedMoE, RoutedAndSharedMoE; tpu-inference fused_moe_func).
 *
 *   logits = x gate.kernel; routing (routing.h); y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]),
 *   plus the shared expert's gated MLP of x[t]. Paths (all the same numbers where their routing is the same):
 *   dense    every expert on every token, combined with the [T,E] weights
 *   dropping capacity per batch row; a choice beyond it has weight 0
 *   sparse   token copies grouped by expert (permute.h), a gated MLP per group, weighted unpermute
 *   fused    fused_moe_func: its own routing rule (ASSAY_ROUTER_FUSED), fused wi; T*K a multiple of 16
 *
 * Tensors come from a source and results go to a sink under the paths of INTERFACE.md, so that weights and their
 * gradients are in memory one expert at a time, and are read once:
 *   inputs/x [B,S,D], inputs/input_ids [B,S] (hash), weights/gate/kernel [D,E], weights/gate/bias [E]?,
 *   weights/wi_0, wi_1 [E,D,H] or wi [E,D,2H] (fused_weights), weights/wo [E,H,D],
 *   weights/wi_0_bias [E,H]?, wi_1_bias [E,H]?, wo_bias [E,D]?, weights/per_expert_scale [E]?, weights/tid2eid [V,K]?,
 *   weights/shared_experts/{wi_0,wi_1,wo}/kernel, cotangents/y?, cotangents/lb_loss?;
 *   routing/selected_experts, when the source has it, fixes the choice (a replay of a backend's);
 *   checkpoints/ of the results below, when the source has them, are read and not computed (rematerialisation): they must
 *   be what a run of the same block gave.
 * Results:
 *   outputs/{y,lb_loss,bias_updates}, gradients/{inputs,weights}/...,
 *   checkpoints/{moe_mlpwi_0,moe_mlpwi_1,moe_mlpwo} (fused_weights: moe_mlpwi [...,2H] for the first two): rows in sorted
 *   order [T*K,...]; dense [B,S,E,...]; dropping [E,B,C,...], free slots as an expert treats a row of zeros;
 *   checkpoints/{mlpwi_0,mlpwi_1,mlpwo} of the shared expert, [B,S,...];
 *   routing/biased_scores [T,E], what experts are chosen by: in no fixture;
 *   routing/{selected_experts,weights,margin,group_sizes,sorted_selected_experts}; dropping: routing/combine_mask and
 *   routing/dispatch_mask (int32) [B,S,E,C];
 *   and for each precision error_scale/NAME/<path of an output, gradient or checkpoint>: one standard deviation, without
 *   the rounding of the result itself.
 * What the sink does not want is not computed. An output without a cotangent is not differentiated. */
#ifndef ASSAY_MOE_MOE_H
#define ASSAY_MOE_MOE_H

#include "oracle/base/tensor.h"
#include "oracle/moe/routing.h"
#include "oracle/ops/gated_mlp.h"

typedef enum assay_moe_path { ASSAY_MOE_DENSE, ASSAY_MOE_DROPPING, ASSAY_MOE_SPARSE, ASSAY_MOE_FUSED } assay_moe_path;

typedef struct assay_moe_config {
    assay_routing_config routing; /* batch, sequence, experts */
    int64_t emb_dim, moe_mlp_dim;
    assay_moe_path path;
    double capacity_factor;      /* dropping */
    assay_activation activation; /* mlp_activations[0] */
    assay_glu glu;               /* of the routed experts; the shared expert is never clamped */
    double limit;                /* mlp_activations_limit */
    bool fused_weights;          /* prefuse_moe_weights: weights/wi */
    int64_t shared_mlp_dim;      /* 0: no shared expert */
} assay_moe_config;

/* Of one expert, or of the shared one, on so many rows. */
assay_gated_mlp_config assay_moe_expert_config(const assay_moe_config *config, int64_t rows);
assay_gated_mlp_config assay_moe_shared_config(const assay_moe_config *config, int64_t rows);

assay_status assay_moe_check(assay_context *ctx, const assay_moe_config *config);

/* Forward, then backward when the sink wants a gradient, then the error scales when it wants any. Reads from `in`,
 * writes to `out`. */
assay_status assay_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                           const assay_sink *out, const assay_precision *precisions, int precision_count);

/* An upper bound of the bytes of memory that assay_moe_run takes, with every gradient and up to eight precisions; the
 * dense path's checkpoints [B,S,E,H], which are kept whole where they are wanted, are not in it. */
int64_t assay_moe_memory(const assay_moe_config *config);
/* Floating-point operations of its products, of forward or of backward alone; a multiply and an add are 2. */
double assay_moe_flops(const assay_moe_config *config, bool backward);

#endif
