/* The MoE block (docs/operations.md, "moe"; MaxText moe.py RoutedMoE, RoutedAndSharedMoE; tpu-inference fused_moe_func).
 *
 *   logits = x gate.kernel; routing (routing.h); y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]),
 *   plus the shared expert's gated MLP of x[t]. Paths (all the same numbers where their routing is the same):
 *   dense    every expert on every token, combined with the [T,E] weights
 *   dropping capacity per batch row; a choice beyond it has weight 0
 *   sparse   token copies grouped by expert (permute.h), a gated MLP per group, weighted unpermute
 *   fused    fused_moe_func: its own routing rule (ASSAY_ROUTER_FUSED), fused wi; T*K a multiple of 16
 *
 * Forms of serving engines, on the sparse path alone:
 *   fused_shared_experts n (sglang num_fused_shared_experts; flashinfer trtllm_fused_moe_routing_deepseek.cu): experts
 *     E to E+n-1 of weights/wi_0 [E+n,D,H] ... have every token, in slots K to K+n-1 with weight 1 (1/late_factor where
 *     there is one); routing/topk_ids and topk_weights [B,S,K+n] have the slots, and group_sizes [E+n],
 *     sorted_selected_experts and the checkpoints their copies; selected_experts and weights [B,S,K] stay the router's
 *   late_factor: the router's weights are without routed_scaling_factor, and the sum over slots is multiplied by it
 *   weight_on_input (vLLM apply_router_weight_on_input): a copy's x is multiplied by its weight, which y is then not
 *
 * Tensors come from a source and results go to a sink under the paths of docs/interface.md, so that weights and their
 * gradients are in memory one expert at a time, and are read once:
 *   inputs/x [B,S,D], inputs/input_ids [B,S] (hash), weights/gate/kernel [D,E], weights/gate/bias [E]?,
 *   weights/wi_0, wi_1 [E,D,H] or wi [E,D,2H] (fused_weights), weights/wo [E,H,D],
 *   weights/wi_0_bias [E,H]?, wi_1_bias [E,H]?, wo_bias [E,D]?, weights/per_expert_scale [E]?, weights/tid2eid [V,K]?,
 *   weights/shared_experts/{wi_0,wi_1,wo}/kernel, weights/shared_expert_gate/kernel [D,1] (shared_gate; MaxText
 *   Qwen3NextSparseMoeBlock), cotangents/y?, cotangents/{lb_loss,z_loss}?;
 *   inputs/physical_to_logical_map [P] (physical_experts);
 *   inputs/selected_experts [B,S,K], inputs/routing_weights [B,S,K]: a choice that the case gives (routing.h); with the
 *   weights nothing of the gate is read, and gradients/inputs/routing_weights is there;
 *   routing/selected_experts, when the source has it, goes before it: a run held at a backend's choice;
 *   checkpoints/ of the results below, when the source has them, are read and not computed (rematerialisation): they must
 *   be what a run of the same block gave.
 *   staged/checkpoints/ of them: after such a result was computed and written, the run goes on from the source's; codes and
 *   scales that are staged are the result.
 * Results:
 *   outputs/{y,lb_loss,z_loss,bias_updates}, gradients/{inputs,weights}/...,
 *   checkpoints/{moe_mlpwi_0,moe_mlpwi_1,moe_intermediate,moe_mlpwo} (fused_weights: moe_mlpwi [...,2H] for the first
 *   two): rows in sorted order [T*K,...]; dense [B,S,E,...]; dropping [E,B,C,...], free slots as an expert treats a row
 *   of zeros; moe_intermediate is act(a) b, before wo;
 *   checkpoints/{mlpwi_0,mlpwi_1,mlp_intermediate,mlpwo} of the shared expert before its gate, [B,S,...];
 *   with `hidden`, checkpoints/{moe,mlp}_hidden_codes and _hidden_codes_scale, in the same rows: what wo multiplies
 *   (oracle/ops/requantise.h);
 *   with `recipe`, checkpoints/{moe_,}mlpwi_0_gradient and mlpwi_1_gradient (moe_mlpwi_gradient), in the same rows, and
 *   checkpoints/moe_mlpwo_gradient, dy of the rows: what backward quantises;
 *   routing/biased_scores [T,E], what experts are chosen by: in no fixture;
 *   routing/{selected_experts,weights,margin,group_sizes,sorted_selected_experts}; with local experts the last has the
 *   rows of those, then -1, and routing/local_group_sizes counts them; dropping: routing/combine_mask and
 *   routing/dispatch_mask (int32) [B,S,E,C]; physical_experts: routing/physical_experts [B,S,K], and rows in sorted order
 *   are replica after replica.
 * What the sink does not want is not computed. An output without a cotangent is not differentiated. */
#pragma once

#include "oracle/base/tensor.h"
#include "oracle/moe/routing.h"
#include "oracle/ops/gated_mlp.h"

typedef enum assay_moe_path { ASSAY_MOE_DENSE, ASSAY_MOE_DROPPING, ASSAY_MOE_SPARSE, ASSAY_MOE_FUSED } assay_moe_path;

typedef struct assay_moe_config {
    assay_routing_config routing; /* batch, sequence, experts */
    int64_t emb_dim, moe_mlp_dim;
    assay_moe_path path;
    double capacity_factor;           /* dropping */
    assay_activation activation;      /* mlp_activations[0] */
    assay_glu glu;                    /* of the routed experts; the shared expert is never clamped */
    double limit;                     /* mlp_activations_limit */
    bool fused_weights;               /* prefuse_moe_weights: weights/wi */
    assay_quantize_config hidden;     /* of the experts and the shared one: assay_gated_mlp_config */
    assay_quant_recipe_config recipe; /* likewise, of the sparse path; all weights are in memory for scales of all */
    int64_t shared_mlp_dim;           /* 0: no shared expert */
    int64_t
        fused_shared_experts; /* num_fused_shared_experts: so many experts behind the routed ones, for every token */
    double late_factor;       /* of the sum over choices (apply_routed_scaling_factor_on_output: false); 0: 1 */
    bool weight_on_input;     /* apply_router_weight_on_input: the routing weight is on x, and 1 on y */
    bool shared_gate;         /* the shared expert's output is multiplied by sigmoid(x shared_expert_gate.kernel) */
    int64_t physical_experts; /* sparse: replicas.h; 0: every expert is there once */
    /* A rank that has only some of the experts (sparse and fused): of the others' choices it computes nothing. Experts
     * offset to offset + local - 1 are its own 0 to local - 1, or those that inputs/expert_map [E] says, -1: not here.
     * Ids stay those of all E experts; weights and their gradients are of its own. */
    int64_t local_num_experts, local_expert_offset; /* 0: it has all */
} assay_moe_config;

/* Of one expert, or of the shared one, on so many rows. */
assay_gated_mlp_config assay_moe_expert_config(const assay_moe_config *config, int64_t rows);
assay_gated_mlp_config assay_moe_shared_config(const assay_moe_config *config, int64_t rows);

/* Copies of a token, and experts with weights: those of the router, and the fused shared ones. */
int64_t assay_moe_slots(const assay_moe_config *config);
int64_t assay_moe_experts(const assay_moe_config *config);

assay_status assay_moe_check(assay_context *ctx, const assay_moe_config *config);

/* Whether the sink wants one that the block has. */
bool assay_moe_wants_gradient(const assay_moe_config *config, const assay_source *in, const assay_sink *out);

/* Floating-point operations of its products, of forward or of backward alone; a multiply and an add are 2. */
double assay_moe_flops(const assay_moe_config *config, bool backward);
