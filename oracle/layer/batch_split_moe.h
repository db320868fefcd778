/* The MoE half of the batch-split schedule on all shards (MaxText deepseek_batchsplit.py moe, route_compute_unroute,
 * shared_expert_and_route, expert_group_mask, expert_indices_and_weights, expert_selection, route, unroute, gmm,
 * compute_gating, compute_linear, unroute_ubatch; each with its _remat and _bwd). Weights gathered. The routing weight
 * multiplies h before wo. R = copies; a shard's experts' rows come first (ids rolled), 0 beyond them. */
#ifndef ASSAY_LAYER_BATCH_SPLIT_MOE_H
#define ASSAY_LAYER_BATCH_SPLIT_MOE_H

#include "oracle/layer/batch_split_internal.h"

/* One microbatch after shared_expert_and_route. */
typedef struct bs_routed {
    double *x_norm, *rstd;     /* rms_norm of moe_inputs [M,b,S,D], [M,b*S] */
    double *shared_out;        /* [M,b,S,D] */
    double *logits;            /* [M,b*S,E] */
    assay_routing *choices;    /* [M]: of the shard's own tokens */
    int32_t *selected_experts; /* [M,gathered,K] ids rolled */
    double *weights;           /* [M,R] sorted */
    int32_t *group_sizes;      /* [M,E/P] */
    double *x;                 /* [M,R,D] gathered and sorted */
} bs_routed;
void bs_routed_free(bs_routed *routed, const bs_run *run); /* safe on a zeroed struct */

/* moe: xs (in: moe_inputs of each microbatch) become the outputs of all but the last, which is `last`. Fills mlpwi_0, mlpwi_1
 * and selected_experts of the residuals; writes the routing results and checkpoints that the sink wants. */
assay_status bs_moe(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs, bs_deferred *last,
                    bs_residuals *residuals, const bs_weights *w);
/* dxs as in bs_batch_split_schedule_bwd, down to the gradients of moe_inputs (residuals->mla_out). Of `g` (gathered) the MoE
 * half's weights: microbatches summed, as each shard has them, BS_POST_NORM and BS_GATE_BIAS summed over all shards. */
assay_status bs_moe_bwd(assay_context *ctx, bs_run *run, int64_t layer, double *const *dxs, const bs_deferred *d_last,
                        const bs_residuals *residuals, const bs_weights *w, const bs_weights *g);

/* out [M,b,S,D] = moe_inputs + shared_out + unroute(routed_out): unsort, sum over K, psum_scatter over expert. */
assay_status bs_unroute_ubatch(assay_context *ctx, const bs_run *run, double *out, const bs_deferred *deferred);
/* Its gradients, allocated, from selected_experts alone. */
assay_status bs_unroute_ubatch_remat_and_bwd(assay_context *ctx, const bs_run *run, bs_deferred *gradients,
                                             const int32_t *selected_experts, const double *dout);

#endif
