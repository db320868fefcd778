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
#ifndef ASSAY_LAYER_BATCH_SPLIT_MOE_H
#define ASSAY_LAYER_BATCH_SPLIT_MOE_H

#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/batch_split_made.h"
#include "oracle/ops/quant_recipe.h"

/* The weights of a layer, and in backward the gradients of them, as each shard has them; NULL ones are skipped. */
typedef struct bs_moe_layer {
    const bs_run *run;
    const bs_weights *w, *g;
    const assay_recipe_config *recipe; /* of a function by itself; NULL: none */
    const bs_made *made;               /* NULL: nobody looks */
} bs_moe_layer;

/* --- choosing experts (batch_split_selection.c) --- */

/* Of each shard's own tokens. */
typedef struct bs_selection {
    double *logits;        /* [M,T,E] */
    assay_routing routing; /* of all shards' tokens, [M,T,...] */
    int32_t *group_sizes;  /* [M,E] */
} bs_selection;
assay_status bs_selection_alloc(assay_context *ctx, const bs_run *run, bs_selection *selection);
void bs_selection_free(bs_selection *selection); /* safe on a zeroed struct */

/* Everything else of a selection from its logits; the sigmoid and the bias are in it. given [M,T,K]: the choice, or
 * NULL. */
assay_status bs_expert_indices_and_weights(assay_context *ctx, const bs_run *run, bs_selection *selection,
                                           const bs_weights *w, const int32_t *given);
/* What experts are chosen by: biased [M,T,E], from the logits of the selection. */
assay_status bs_biased_scores(assay_context *ctx, const bs_run *run, double *biased, const bs_selection *selection,
                              const bs_weights *w);
/* d_logits [M,T,E] from d_weights [M,T,K]; d_bias [E] of all tokens, exactly zero, or NULL. */
assay_status bs_expert_indices_and_weights_bwd(assay_context *ctx, const bs_run *run, double *d_logits, double *d_bias,
                                               const double *d_weights, const bs_selection *selection,
                                               const bs_weights *w);

/* The selection of x [M,T,D]. */
assay_status bs_expert_selection(assay_context *ctx, const bs_moe_layer *at, bs_selection *selection, const double *x,
                                 const int32_t *given);
/* dx, BS_GATE, and BS_GATE_BIAS summed over all shards. */
assay_status bs_expert_selection_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const double *d_weights,
                                     const double *x, const bs_selection *selection);

/* --- sorting by expert, and back (batch_split_route.c) --- */

/* One microbatch after shared_expert_and_route, or, with `shared`, after its _remat. */
typedef struct bs_routed {
    double *x_norm, *rstd; /* rms_norm of moe_inputs [M,T,D], [M,T] */
    double *shared_out;    /* [M,T,D]; _remat: NULL */
    graph_run *shared;     /* [M]: of the shared expert; only _remat */
    bs_selection selection;
    int32_t *selected_experts; /* [M,G,K] rolled */
    double *weights;           /* [M,R] sorted */
    int32_t *group_sizes;      /* [M,E/P] */
    double *x;                 /* [M,R,D] gathered and sorted */
} bs_routed;
void bs_routed_free(bs_routed *routed, const bs_run *run); /* safe on a zeroed struct */

/* The gradients of what compute takes from it. */
typedef struct bs_routed_gradients {
    double *x;       /* [M,R,D] */
    double *weights; /* [M,R] */
} bs_routed_gradients;
assay_status bs_routed_gradients_alloc(assay_context *ctx, const bs_run *run, bs_routed_gradients *gradients);
void bs_routed_gradients_free(bs_routed_gradients *gradients); /* safe on a zeroed struct */

/* The last four of `routed` from x_norm and selection. */
assay_status bs_route(assay_context *ctx, const bs_run *run, bs_routed *routed);
/* dx [M,T,D] and d_weights [M,T,K] of a shard's own tokens. */
assay_status bs_route_bwd(assay_context *ctx, const bs_run *run, double *dx, double *d_weights,
                          const bs_routed_gradients *gradients, const int32_t *selected_experts);

/* sorted [M,R,D]: x [M,T,D], gathered over the expert axis and sorted (route_impl_fwd). Its transpose, route_impl_bwd,
 * is bs_unroute. */
assay_status bs_route_impl(assay_context *ctx, const bs_run *run, double *sorted, const double *x,
                           const int32_t *selected_experts);
/* x [M,T,D]: unsorted, summed over K ascending, psum_scattered over expert (unroute_impl_fwd). */
assay_status bs_unroute(assay_context *ctx, const bs_run *run, double *x, const double *sorted,
                        const int32_t *selected_experts);
/* d_sorted [M,R,D] from dx [M,T,D], also of rows that are other shards' (unroute_impl_bwd): it is bs_route_impl. */
assay_status bs_unroute_bwd(assay_context *ctx, const bs_run *run, double *d_sorted, const double *dx,
                            const int32_t *selected_experts);

/* --- experts (batch_split_experts.c) --- */

/* y [M,T,D] of x [M,T,D]. */
assay_status bs_shared_expert(assay_context *ctx, const bs_moe_layer *at, double *y, const double *x);
/* What backward needs, [M], allocated, of an x that stays; counts the operations. */
assay_status bs_shared_expert_remat(assay_context *ctx, const bs_moe_layer *at, graph_run **shared, const double *x);
assay_status bs_shared_expert_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const double *dy,
                                  graph_run *shared);
void bs_shared_free(graph_run *shared, const bs_run *run); /* may be NULL */

typedef struct bs_gmm_args {
    const double *lhs;          /* [M,R,k] */
    const double *lhs_spread;   /* of one that a recipe quantises (quantised_spread.h); NULL: it is exact */
    const double *rhs;          /* [M,E/P,k,n] */
    const int32_t *group_sizes; /* [M,E/P] */
    int64_t k, n;
    /* NULL: none. All R rows of a shard count for its scales, those beyond the groups too (megablox_gmm_with_mask, which masks
     * results alone). */
    const assay_recipe_config *recipe;
} bs_gmm_args;
/* y [M,R,n]; rows beyond the groups are exactly 0 (ragged_dot_with_mask). */
assay_status bs_gmm(assay_context *ctx, const bs_run *run, double *y, const bs_gmm_args *args);
/* dlhs [M,R,k], 0 beyond the groups, and drhs [M,E/P,k,n] from dy; NULL ones are skipped. */
assay_status bs_gmm_bwd(assay_context *ctx, const bs_run *run, double *dlhs, double *drhs, const double *dy,
                        const bs_gmm_args *args);

/* mlpwi_0 and mlpwi_1, or the gradients of them. */
typedef struct bs_gating {
    double *layer_w0, *layer_w1; /* [M,R,H] */
} bs_gating;
assay_status bs_gating_alloc(assay_context *ctx, const bs_run *run, bs_gating *gating);
void bs_gating_free(bs_gating *gating); /* safe on a zeroed struct */

/* As they may be stored. */
assay_status bs_compute_gating(assay_context *ctx, const bs_moe_layer *at, bs_gating *gating, const bs_routed *routed);
/* dx [M,R,D], BS_ROUTED + ASSAY_MLP_WI_0 and BS_ROUTED + ASSAY_MLP_WI_1. */
assay_status bs_compute_gating_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const bs_gating *d_gating,
                                   const bs_routed *routed);

/* --- from the activations on (batch_split_linear.c) --- */

/* y [M,R,D]. */
assay_status bs_compute_linear(assay_context *ctx, const bs_moe_layer *at, double *y, const bs_gating *gating,
                               const bs_routed *routed);
/* d_gating, d_weights [M,R] and BS_ROUTED + ASSAY_MLP_WO from dy. */
assay_status bs_compute_linear_bwd(assay_context *ctx, const bs_moe_layer *at, bs_gating *d_gating, double *d_weights,
                                   const double *dy, const bs_gating *gating, const bs_routed *routed);

/* --- stages (batch_split_stages.c) --- */

assay_status bs_shared_expert_and_route(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed,
                                        const double *moe_inputs, const int32_t *given);
assay_status bs_shared_expert_and_route_remat(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed,
                                              const double *moe_inputs, const int32_t *given);
/* d_inputs [M,b,S,D] without that of the residual addition; the shared expert's weights, BS_GATE, and BS_POST_NORM and
 * BS_GATE_BIAS summed over all shards. */
assay_status bs_shared_expert_and_route_bwd(assay_context *ctx, const bs_moe_layer *at, double *d_inputs,
                                            const bs_routed_gradients *gradients, const double *d_shared_out,
                                            const double *moe_inputs, const bs_routed *routed);

/* compute_gating, then compute_linear (compute_fn). gating is allocated by the caller. */
assay_status bs_compute(assay_context *ctx, const bs_moe_layer *at, double *routed_out, bs_gating *gating,
                        const bs_routed *routed);
/* gating again, of microbatch i: from the residuals padded with 0, or computed, where a shard has more rows than were
 * kept; counts the operations. */
assay_status bs_compute_remat(assay_context *ctx, const bs_moe_layer *at, bs_gating *gating, const bs_routed *routed,
                              const bs_residuals *residuals, int64_t i);
assay_status bs_compute_bwd(assay_context *ctx, const bs_moe_layer *at, const bs_routed_gradients *gradients,
                            const double *d_routed_out, const bs_gating *gating, const bs_routed *routed);

/* out [M,b,S,D] = moe_inputs + (unroute(routed_out) + shared_out); out may be moe_inputs. */
assay_status bs_unroute_ubatch(assay_context *ctx, const bs_run *run, double *out, const bs_deferred *deferred);
/* Its gradients, allocated, from selected_experts alone: _remat has nothing to compute again. */
assay_status bs_unroute_ubatch_remat_and_bwd(assay_context *ctx, const bs_run *run, bs_deferred *gradients,
                                             const int32_t *selected_experts, const double *dout);

/* --- all microbatches (batch_split_moe.c) --- */

/* moe, route_compute_unroute: xs (in: moe_inputs of each microbatch) become the outputs of all but the last, which is
 * `last` (what xs holds of it stays). Fills mlpwi_0, mlpwi_1 and selected_experts of the residuals (NULL: no backward
 * follows); writes the routing results and checkpoints that the sink wants, and reads the given choice. */
assay_status bs_moe(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs, bs_deferred *last,
                    bs_residuals *residuals, const bs_weights *w);
/* moe_bwd, route_compute_unroute_bwd: dxs as in bs_batch_split_schedule_bwd, down to the gradients of moe_inputs
 * (residuals->mla_out). Of `g` (gathered) the MoE half's weights: microbatches summed (sum_grads), as each shard has
 * them, BS_POST_NORM and BS_GATE_BIAS summed over all shards. */
assay_status bs_moe_bwd(assay_context *ctx, bs_run *run, int64_t layer, double *const *dxs, const bs_deferred *d_last,
                        const bs_residuals *residuals, const bs_weights *w, const bs_weights *g);

/* Operations of products that backward repeats of one microbatch on all shards, rows beyond the capacity aside. */
double bs_moe_remat_flops(const bs_run *run);

#endif
