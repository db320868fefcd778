/* The MoE half's functions as rows of the table call them: slots to arguments. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/mesh/quantized_psum_scatter.h"
#include "oracle/moe/routing_rule.h"

static bs_moe_layer layer_of(const bs_call *c)
{
    return (bs_moe_layer){.run = &c->run, .w = &c->w, .g = &c->g, .recipe = &c->config.recipe, .made = &c->made};
}

/* --- the shared expert --- */

assay_status bs_call_shared_expert(assay_context *ctx, bs_call *c)
{
    const bs_moe_layer at = layer_of(c);
    return bs_shared_expert(ctx, &at, c->out[0].values, c->in[0].values);
}

assay_status bs_call_shared_expert_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    graph_run *shared = NULL;
    TRY(bs_shared_expert_remat(ctx, &at, &shared, c->in[0].values));
    TRY(bs_shared_expert_bwd(ctx, &at, c->out[0].values, c->in[1].values, shared));
cleanup:
    bs_shared_free(shared, &c->run);
    return status;
}

/* --- choosing --- */

assay_status bs_call_expert_group_mask(assay_context *ctx, bs_call *c)
{
    return assay_expert_group_mask(ctx, c->out[0].values, c->in[0].values, c->run.sizes.shards * c->run.sizes.tokens,
                                   &c->run.routing);
}

/* The order of the experts of one token: the best of those that the mask leaves, the lower index first. */
static void choose(int32_t *indices, const double *logits, const double *mask, int64_t experts, int64_t chosen)
{
    for (int64_t k = 0; k < chosen; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++) {
            bool taken = mask[e] == 0;
            for (int64_t before = 0; before < k; before++) taken |= indices[before] == e;
            if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
        }
        indices[k] = best;
    }
}

static assay_status choose_all(assay_context *ctx, const bs_call *c, int32_t *indices)
{
    assay_status status;
    const int64_t experts = c->run.routing.num_experts, chosen = c->run.routing.num_experts_per_tok;
    const int64_t tokens = c->run.sizes.shards * c->run.sizes.tokens;
    double *mask = NULL;
    for (int64_t i = 0; i < tokens * experts; i++) {
        if (isfinite(c->in[0].values[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs/gate_logits: expected finite numbers");
    }
    TRY(assay_alloc_f64(ctx, "mask", tokens * experts, &mask));
    TRY(assay_expert_group_mask(ctx, mask, c->in[0].values, tokens, &c->run.routing));
    for (int64_t t = 0; t < tokens; t++)
        choose(indices + t * chosen, c->in[0].values + t * experts, mask + t * experts, experts, chosen);
cleanup:
    free(mask);
    return status;
}

/* The scores of a token's choices [K], and their sum. */
static double gather_scores(const assay_context *ctx, const bs_call *c, int64_t token, const int32_t *indices,
                            double *gathered)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    double sum = 0;
    for (int64_t k = 0; k < chosen; k++) {
        gathered[k] = c->in[1].values[token * c->run.routing.num_experts + indices[k]];
        sum += gathered[k];
        if (k > 0) assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &sum);
    }
    return sum;
}

assay_status bs_call_expert_indices_and_weights(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    TRY(choose_all(ctx, c, c->out[0].indices));
    for (int64_t t = 0; t < c->run.sizes.shards * c->run.sizes.tokens; t++) {
        double *weights = c->out[1].values + t * chosen;
        const double sum = gather_scores(ctx, c, t, c->out[0].indices + t * chosen, weights);
        for (int64_t k = 0; k < chosen; k++) weights[k] /= sum;
        assay_round(ctx, ASSAY_ROUND_ROUTER, chosen, weights);
        for (int64_t k = 0; k < chosen; k++) weights[k] *= c->run.routing.routed_scaling_factor;
    }
cleanup:
    return status;
}

assay_status bs_call_expert_indices_and_weights_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const int64_t chosen = c->run.routing.num_experts_per_tok, experts = c->run.routing.num_experts;
    const int64_t tokens = c->run.sizes.shards * c->run.sizes.tokens;
    double *gathered = NULL;
    int32_t *indices = NULL;
    assay_routing_rule rule = assay_routing_rule_of(&c->run.routing);
    TRY(assay_alloc_f64(ctx, "scores of choices", 2 * chosen, &gathered));
    TRY(assay_alloc_i32(ctx, "choices", tokens * chosen, &indices));
    TRY(choose_all(ctx, c, indices));
    memset(c->out[0].values, 0, (size_t)c->out[0].count * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        double *d = gathered + chosen, mean = 0;
        const double *d_weights = c->in[2].values + t * chosen;
        const double sum = gather_scores(ctx, c, t, indices + t * chosen, gathered);
        for (int64_t k = 0; k < chosen; k++) {
            mean = fma(gathered[k] / sum, d_weights[k], mean);
            assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
        }
        for (int64_t k = 0; k < chosen; k++) d[k] = rule.factor * (d_weights[k] - mean) / sum;
        assay_round(ctx, ASSAY_ROUND_ROUTER, chosen, d);
        for (int64_t k = 0; k < chosen; k++) c->out[0].values[t * experts + indices[t * chosen + k]] = d[k];
    }
cleanup:
    free(gathered);
    free(indices);
    return status;
}

assay_status bs_call_expert_selection(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    bs_selection selection = {0};
    TRY(bs_expert_selection(ctx, &at, &selection, c->in[0].values, NULL));
    bs_copy_indices_out(&c->out[0], selection.routing.selected_experts);
    bs_copy_out(&c->out[1], selection.routing.weights);
    bs_copy_indices_out(&c->out[2], selection.group_sizes);
cleanup:
    bs_selection_free(&selection);
    return status;
}

assay_status bs_call_expert_selection_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    bs_selection selection = {0};
    TRY(bs_expert_selection(ctx, &at, &selection, c->in[0].values, NULL));
    TRY(bs_expert_selection_bwd(ctx, &at, c->out[0].values, c->in[1].values, c->in[0].values, &selection));
cleanup:
    bs_selection_free(&selection);
    return status;
}

/* --- sorting by expert, and back --- */

static void routed_out(const bs_call *c, const bs_routed *routed)
{
    bs_copy_out(&c->out[0], routed->x);
    bs_copy_indices_out(&c->out[1], routed->selected_experts);
    bs_copy_out(&c->out[2], routed->weights);
    bs_copy_indices_out(&c->out[3], routed->group_sizes);
}

assay_status bs_call_route(assay_context *ctx, bs_call *c)
{
    assay_status status;
    /* lent by the slots */
    bs_routed routed = {.x_norm = c->in[0].values,
                        .selection = {.routing = {.selected_experts = c->in[1].indices, .weights = c->in[2].values},
                                      .group_sizes = c->in[3].indices}};
    TRY(bs_route(ctx, &c->run, &routed));
    routed_out(c, &routed);
cleanup:
    routed.x_norm = NULL;
    routed.selection = (bs_selection){0};
    bs_routed_free(&routed, &c->run);
    return status;
}

assay_status bs_call_route_bwd(assay_context *ctx, bs_call *c)
{
    const bs_routed_gradients gradients = {c->in[1].values, c->in[2].values};
    return bs_route_bwd(ctx, &c->run, c->out[0].values, c->out[1].values, &gradients, c->in[0].indices);
}

assay_status bs_call_route_impl(assay_context *ctx, bs_call *c)
{
    return bs_route_impl(ctx, &c->run, c->out[0].values, c->in[0].values, c->in[1].indices);
}

assay_status bs_call_route_impl_bwd(assay_context *ctx, bs_call *c)
{
    return bs_unroute(ctx, &c->run, c->out[0].values, c->in[1].values, c->in[0].indices);
}

assay_status bs_call_unroute(assay_context *ctx, bs_call *c)
{
    return bs_unroute(ctx, &c->run, c->out[0].values, c->in[0].values, c->in[1].indices);
}

assay_status bs_call_unroute_bwd(assay_context *ctx, bs_call *c)
{
    return bs_unroute_bwd(ctx, &c->run, c->out[0].values, c->in[1].values, c->in[0].indices);
}

/* --- a sum over shards whose gradient is quantised --- */

static assay_psum_scatter_dims psum_scatter_dims(const bs_call *c)
{
    return (assay_psum_scatter_dims){c->run.sizes.tokens, c->run.mla.emb_dim};
}

assay_status bs_call_quantized_psum_scatter(assay_context *ctx, bs_call *c)
{
    const assay_psum_scatter_dims dims = psum_scatter_dims(c);
    assay_quantized_psum_scatter_forward(ctx, c->out[0].values, c->in[0].values, &dims, c->run.mesh, ASSAY_AXIS_EXPERT);
    return ASSAY_OK;
}

assay_status bs_call_quantized_psum_scatter_bwd(assay_context *ctx, bs_call *c)
{
    const assay_psum_scatter_dims dims = psum_scatter_dims(c);
    return assay_quantized_psum_scatter_backward(ctx, c->out[0].values, c->in[0].values, &dims, c->run.mesh,
                                                 ASSAY_AXIS_EXPERT, &c->config.recipe);
}

/* --- experts --- */

static bs_gmm_args gmm_args(const bs_call *c)
{
    return (bs_gmm_args){.lhs = c->in[0].values,
                         .rhs = c->w.values[BS_ROUTED + ASSAY_MLP_WI_0],
                         .group_sizes = c->in[1].indices,
                         .k = c->run.mla.emb_dim,
                         .n = c->config.stack.moe.moe_mlp_dim,
                         .recipe = &c->config.recipe};
}

assay_status bs_call_gmm(assay_context *ctx, bs_call *c)
{
    const bs_gmm_args args = gmm_args(c);
    return bs_gmm(ctx, &c->run, c->out[0].values, &args);
}

assay_status bs_call_gmm_bwd(assay_context *ctx, bs_call *c)
{
    const bs_gmm_args args = gmm_args(c);
    return bs_gmm_bwd(ctx, &c->run, c->out[0].values, c->g.values[BS_ROUTED + ASSAY_MLP_WI_0], c->in[2].values, &args);
}

assay_status bs_call_compute_gating(assay_context *ctx, bs_call *c)
{
    const bs_moe_layer at = layer_of(c);
    const bs_routed routed = {.x = c->in[0].values, .group_sizes = c->in[1].indices};
    bs_gating gating = {c->out[0].values, c->out[1].values};
    return bs_compute_gating(ctx, &at, &gating, &routed);
}

assay_status bs_call_compute_gating_bwd(assay_context *ctx, bs_call *c)
{
    const bs_moe_layer at = layer_of(c);
    const bs_routed routed = {.x = c->in[0].values, .group_sizes = c->in[1].indices};
    const bs_gating d_gating = {c->in[2].values, c->in[3].values};
    return bs_compute_gating_bwd(ctx, &at, c->out[0].values, &d_gating, &routed);
}

assay_status bs_call_compute_linear(assay_context *ctx, bs_call *c)
{
    const bs_moe_layer at = layer_of(c);
    const bs_gating gating = {c->in[0].values, c->in[1].values};
    const bs_routed routed = {.group_sizes = c->in[2].indices, .weights = c->in[3].values};
    return bs_compute_linear(ctx, &at, c->out[0].values, &gating, &routed);
}

assay_status bs_call_compute_linear_bwd(assay_context *ctx, bs_call *c)
{
    const bs_moe_layer at = layer_of(c);
    const bs_gating gating = {c->in[0].values, c->in[1].values};
    const bs_routed routed = {.group_sizes = c->in[2].indices, .weights = c->in[3].values};
    bs_gating d_gating = {c->out[0].values, c->out[1].values};
    return bs_compute_linear_bwd(ctx, &at, &d_gating, c->out[2].values, c->in[4].values, &gating, &routed);
}

/* --- stages --- */

assay_status bs_call_shared_expert_and_route(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    bs_routed routed = {0};
    TRY(bs_shared_expert_and_route(ctx, &at, &routed, c->in[0].values, NULL));
    routed_out(c, &routed);
    bs_copy_out(&c->out[4], routed.shared_out);
cleanup:
    bs_routed_free(&routed, &c->run);
    return status;
}

assay_status bs_call_shared_expert_and_route_remat(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    bs_routed routed = {0};
    TRY(bs_shared_expert_and_route_remat(ctx, &at, &routed, c->in[0].values, NULL));
    routed_out(c, &routed);
cleanup:
    bs_routed_free(&routed, &c->run);
    return status;
}

assay_status bs_call_shared_expert_and_route_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const bs_moe_layer at = layer_of(c);
    const bs_routed_gradients gradients = {c->in[1].values, c->in[3].values};
    bs_routed routed = {0};
    TRY(bs_shared_expert_and_route_remat(ctx, &at, &routed, c->in[0].values, NULL));
    TRY(bs_shared_expert_and_route_bwd(ctx, &at, c->out[0].values, &gradients, c->in[2].values, c->in[0].values,
                                       &routed));
cleanup:
    bs_routed_free(&routed, &c->run);
    return status;
}

assay_status bs_call_unroute_ubatch(assay_context *ctx, bs_call *c)
{
    const bs_deferred deferred = {c->in[0].values, c->in[1].values, c->in[2].values, c->in[3].indices};
    bs_copy_indices_out(&c->out[1], c->in[3].indices);
    return bs_unroute_ubatch(ctx, &c->run, c->out[0].values, &deferred);
}

assay_status bs_call_unroute_ubatch_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    bs_deferred gradients = {0};
    TRY(bs_unroute_ubatch_remat_and_bwd(ctx, &c->run, &gradients, c->in[0].indices, c->in[1].values));
    bs_copy_out(&c->out[0], gradients.moe_inputs);
    bs_copy_out(&c->out[1], gradients.routed_out);
    bs_copy_out(&c->out[2], gradients.shared_out);
cleanup:
    bs_deferred_free(&gradients);
    return status;
}

/* --- all microbatches --- */

/* Copies of a list, of which the callee makes something else. */
typedef struct activations {
    double *xs[ASSAY_MOST_MICROBATCHES];
} activations;

static void activations_free(activations *a)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(a->xs[i]);
}

/* Of the list `from`, which may be shorter by one. */
static assay_status activations_open(assay_context *ctx, const bs_call *c, activations *a, const bs_slot *from,
                                     int64_t there)
{
    assay_status status = ASSAY_OK;
    const int64_t count = bs_activation_count(&c->run);
    for (int64_t i = 0; i < c->run.factor; i++) {
        TRY(assay_alloc_f64(ctx, "activations of a microbatch", count, &a->xs[i]));
        if (i < there) memcpy(a->xs[i], bs_part(from, i), (size_t)count * sizeof(double));
    }
cleanup:
    return status;
}

/* A list that the callee frees. */
static assay_status residuals_of(assay_context *ctx, const bs_call *c, const bs_slot *slot, double **list)
{
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < c->run.factor; i++) {
        TRY(assay_alloc_f64(ctx, "residuals", slot->count, &list[i]));
        memcpy(list[i], bs_part(slot, i), (size_t)slot->count * sizeof(double));
    }
cleanup:
    return status;
}

static void list_out(const bs_call *c, int place, double *const *list, int64_t microbatches)
{
    const bs_slot *slot = &c->out[place];
    for (int64_t i = 0; i < microbatches; i++) memcpy(bs_part(slot, i), list[i], (size_t)slot->count * sizeof(double));
}

/* xs but for the last, and what is deferred of that, mlpwi_0 and mlpwi_1: from the place `first` on. */
static void moe_out(const bs_call *c, int first, const activations *a, const bs_deferred *last, const bs_residuals *r)
{
    list_out(c, first, a->xs, c->run.factor - 1);
    bs_copy_out(&c->out[first + 1], last->moe_inputs);
    bs_copy_out(&c->out[first + 2], last->routed_out);
    bs_copy_out(&c->out[first + 3], last->shared_out);
    bs_copy_indices_out(&c->out[first + 4], last->selected_experts);
    list_out(c, first + 5, r->mlpwi_0, c->run.factor);
    list_out(c, first + 6, r->mlpwi_1, c->run.factor);
}

assay_status bs_call_moe(assay_context *ctx, bs_call *c)
{
    assay_status status;
    activations a = {0};
    bs_deferred last = {0};
    bs_residuals residuals = {0};
    TRY(activations_open(ctx, c, &a, &c->in[0], c->run.factor));
    TRY(bs_moe(ctx, &c->run, 0, a.xs, &last, &residuals, &c->w));
    moe_out(c, 0, &a, &last, &residuals);
cleanup:
    activations_free(&a);
    bs_deferred_free(&last);
    bs_residuals_free(&residuals);
    return status;
}

assay_status bs_call_moe_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    activations a = {0};
    bs_residuals residuals = {0};
    const bs_deferred d_last = {c->in[4].values, c->in[5].values, c->in[6].values, NULL};
    TRY(activations_open(ctx, c, &a, &c->in[3], c->run.factor - 1));
    TRY(residuals_of(ctx, c, &c->in[0], residuals.mla_out));
    TRY(residuals_of(ctx, c, &c->in[1], residuals.mlpwi_0));
    TRY(residuals_of(ctx, c, &c->in[2], residuals.mlpwi_1));
    TRY(bs_moe_bwd(ctx, &c->run, 0, a.xs, &d_last, &residuals, &c->w, &c->g));
    list_out(c, 0, a.xs, c->run.factor);
cleanup:
    activations_free(&a);
    bs_residuals_free(&residuals);
    return status;
}

assay_status bs_call_batch_split_schedule(assay_context *ctx, bs_call *c)
{
    assay_status status;
    activations a = {0};
    bs_deferred last = {0};
    bs_residuals residuals = {0};
    TRY(bs_take_angles(ctx, c));
    TRY(activations_open(ctx, c, &a, &c->in[0], c->run.factor));
    TRY(bs_batch_split_schedule(ctx, &c->run, 0, a.xs, &last, &residuals, &c->w));
    list_out(c, 0, residuals.attn_out, c->run.factor);
    list_out(c, 1, residuals.lse, c->run.factor);
    list_out(c, 2, residuals.mla_out, c->run.factor);
    moe_out(c, 3, &a, &last, &residuals);
cleanup:
    activations_free(&a);
    bs_deferred_free(&last);
    bs_residuals_free(&residuals);
    return status;
}

assay_status bs_call_batch_split_schedule_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    activations a = {0};
    bs_residuals residuals = {0};
    const bs_deferred d_last = {c->in[8].values, c->in[9].values, c->in[10].values, NULL};
    TRY(bs_take_angles(ctx, c));
    TRY(activations_open(ctx, c, &a, &c->in[7], c->run.factor - 1));
    TRY(residuals_of(ctx, c, &c->in[0], residuals.layer_inputs));
    TRY(residuals_of(ctx, c, &c->in[2], residuals.mla_out));
    TRY(residuals_of(ctx, c, &c->in[3], residuals.attn_out));
    TRY(residuals_of(ctx, c, &c->in[4], residuals.lse));
    TRY(residuals_of(ctx, c, &c->in[5], residuals.mlpwi_0));
    TRY(residuals_of(ctx, c, &c->in[6], residuals.mlpwi_1));
    TRY(bs_batch_split_schedule_bwd(ctx, &c->run, 0, a.xs, &d_last, &residuals, &c->w, &c->g));
    list_out(c, 0, a.xs, c->run.factor);
cleanup:
    activations_free(&a);
    bs_residuals_free(&residuals);
    return status;
}
