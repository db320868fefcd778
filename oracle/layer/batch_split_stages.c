/* The stages of the MoE half, of one microbatch on all shards: route, compute, unroute. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

void bs_routed_free(bs_routed *routed, const bs_run *run)
{
    free(routed->x_norm);
    free(routed->rstd);
    free(routed->shared_out);
    bs_shared_free(routed->shared, run);
    bs_selection_free(&routed->selection);
    free(routed->selected_experts);
    free(routed->weights);
    free(routed->group_sizes);
    free(routed->x);
    *routed = (bs_routed){0};
}

/* Numbers of an activation [M,b,S,D]. */
static int64_t activation_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.tokens * run->mla.emb_dim;
}

static assay_status alloc_activation(assay_context *ctx, const bs_run *run, const char *what, double **out)
{
    return bs_alloc_shards(ctx, run, what, run->sizes.tokens, run->mla.emb_dim, out);
}

/* x_norm and rstd. */
static assay_status normalise(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed, const double *x)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, dim = run->mla.emb_dim;
    TRY(bs_alloc_shards(ctx, run, "normalised input", tokens, dim, &routed->x_norm));
    TRY(bs_alloc_shards(ctx, run, "normalised input", tokens, 1, &routed->rstd));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * tokens;
        assay_rms_norm_forward(ctx, routed->x_norm + first * dim, routed->rstd + first, x + first * dim,
                               bs_weight_of(run, at->w, BS_POST_NORM, shard), tokens, dim, run->stack->config->epsilon);
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * tokens * dim, routed->x_norm);
cleanup:
    return status;
}

/* Everything but the shared expert. */
static assay_status normalise_and_route(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed,
                                        const double *moe_inputs, const int32_t *given)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t choices = run->sizes.shards * run->sizes.tokens * run->routing.num_experts_per_tok;
    TRY(normalise(ctx, at, routed, moe_inputs));
    TRY(bs_expert_selection(ctx, at, &routed->selection, routed->x_norm, given));
    assay_round(ctx, ASSAY_ROUND_ROUTER, choices, routed->selection.routing.weights);
    TRY(bs_route(ctx, run, routed));
cleanup:
    return status;
}

assay_status bs_shared_expert_and_route(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed,
                                        const double *moe_inputs, const int32_t *given)
{
    assay_status status = ASSAY_OK;
    TRY(normalise_and_route(ctx, at, routed, moe_inputs, given));
    TRY(alloc_activation(ctx, at->run, "output of the shared expert", &routed->shared_out));
    TRY(bs_shared_expert(ctx, at, routed->shared_out, routed->x_norm));
cleanup:
    return status;
}

static double gate_flops(const bs_run *run)
{
    return 2 * (double)activation_count(run) * (double)run->routing.num_experts;
}

double bs_moe_remat_flops(const bs_run *run)
{
    return gate_flops(run) + bs_shared_expert_flops(run);
}

assay_status bs_shared_expert_and_route_remat(assay_context *ctx, const bs_moe_layer *at, bs_routed *routed,
                                              const double *moe_inputs, const int32_t *given)
{
    assay_status status = ASSAY_OK;
    TRY(normalise_and_route(ctx, at, routed, moe_inputs, given));
    assay_remat_recomputed(at->run->stack->store, gate_flops(at->run));
    TRY(bs_shared_expert_remat(ctx, at, &routed->shared, routed->x_norm));
cleanup:
    return status;
}

/* d_norm: of the normalised input, from its three uses. */
static assay_status route_and_shared_bwd(assay_context *ctx, const bs_moe_layer *at, double *d_norm,
                                         const bs_routed_gradients *gradients, const double *d_shared_out,
                                         const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t count = activation_count(run), chosen = run->routing.num_experts_per_tok;
    double *d_weights = NULL, *term = NULL;
    TRY(bs_alloc_shards(ctx, run, "gradient of routing weights", run->sizes.tokens, chosen, &d_weights));
    TRY(alloc_activation(ctx, run, "gradient of the normalised input", &term));
    TRY(bs_route_bwd(ctx, run, d_norm, d_weights, gradients, routed->selected_experts));
    assay_round(ctx, ASSAY_ROUND_ROUTER, run->sizes.shards * run->sizes.tokens * chosen, d_weights);
    TRY(bs_expert_selection_bwd(ctx, at, term, d_weights, routed->x_norm, &routed->selection));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_norm);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_add(ctx, count, term, d_norm);
    TRY(bs_shared_expert_bwd(ctx, at, term, d_shared_out, routed->shared));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_norm);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_add(ctx, count, term, d_norm);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_norm);
cleanup:
    free(d_weights);
    free(term);
    return status;
}

assay_status bs_shared_expert_and_route_bwd(assay_context *ctx, const bs_moe_layer *at, double *d_inputs,
                                            const bs_routed_gradients *gradients, const double *d_shared_out,
                                            const double *moe_inputs, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, dim = run->mla.emb_dim;
    double *d_norm = NULL;
    TRY(alloc_activation(ctx, run, "gradient of the normalised input", &d_norm));
    TRY(route_and_shared_bwd(ctx, at, d_norm, gradients, d_shared_out, routed));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * tokens;
        assay_rms_norm_backward(ctx, d_inputs + first * dim, bs_weight_of(run, at->g, BS_POST_NORM, shard),
                                d_norm + first * dim, moe_inputs + first * dim,
                                bs_weight_of(run, at->w, BS_POST_NORM, shard), routed->rstd + first, tokens, dim);
    }
    bs_sum_over_shards(ctx, run, at->g->values[BS_POST_NORM], dim);
cleanup:
    free(d_norm);
    return status;
}

assay_status bs_compute(assay_context *ctx, const bs_moe_layer *at, double *routed_out, bs_gating *gating,
                        const bs_routed *routed)
{
    const assay_status status = bs_compute_gating(ctx, at, gating, routed);
    return status != ASSAY_OK ? status : bs_compute_linear(ctx, at, routed_out, gating, routed);
}

assay_status bs_compute_remat(assay_context *ctx, const bs_moe_layer *at, bs_gating *gating, const bs_routed *routed,
                              const bs_residuals *residuals, int64_t i)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim, local = run->sizes.local_experts;
    const size_t size = (size_t)(run->sizes.copies * width), held = (size_t)(run->sizes.capacity * width);
    bs_routed again = {.x = routed->x}; /* the shards with too many rows; elsewhere gating becomes 0 */
    TRY(bs_alloc_shards_i32(ctx, run, "group_sizes", local, 1, &again.group_sizes));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const bool too_many = bs_rows_of(run, routed->group_sizes, shard) > run->sizes.capacity;
        for (int64_t e = shard * local; e < (shard + 1) * local; e++)
            again.group_sizes[e] = too_many ? routed->group_sizes[e] : 0;
        const int64_t rows = bs_rows_of(run, again.group_sizes, shard);
        assay_remat_recomputed(run->stack->store, 4 * (double)rows * (double)(run->mla.emb_dim * width));
    }
    TRY(bs_compute_gating(ctx, at, gating, &again));
    for (size_t shard = 0; shard < (size_t)run->sizes.shards; shard++) {
        if (bs_rows_of(run, again.group_sizes, (int64_t)shard) > 0) continue;
        memcpy(gating->layer_w0 + shard * size, residuals->mlpwi_0[i] + shard * held, held * sizeof(double));
        memcpy(gating->layer_w1 + shard * size, residuals->mlpwi_1[i] + shard * held, held * sizeof(double));
    }
cleanup:
    free(again.group_sizes);
    return status;
}

assay_status bs_compute_bwd(assay_context *ctx, const bs_moe_layer *at, const bs_routed_gradients *gradients,
                            const double *d_routed_out, const bs_gating *gating, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t rows = run->sizes.shards * run->sizes.copies, width = run->stack->config->moe.moe_mlp_dim;
    bs_gating d_gating = {0};
    TRY(bs_gating_alloc(ctx, run, &d_gating));
    TRY(bs_compute_linear_bwd(ctx, at, &d_gating, gradients->weights, d_routed_out, gating, routed));
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, d_gating.layer_w0);
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, d_gating.layer_w1);
    TRY(bs_compute_gating_bwd(ctx, at, gradients->x, &d_gating, routed));
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * run->mla.emb_dim, gradients->x);
cleanup:
    bs_gating_free(&d_gating);
    return status;
}

assay_status bs_unroute_ubatch(assay_context *ctx, const bs_run *run, double *out, const bs_deferred *deferred)
{
    assay_status status = ASSAY_OK;
    const int64_t count = activation_count(run);
    double *experts = NULL;
    TRY(alloc_activation(ctx, run, "output of the experts", &experts));
    TRY(bs_unroute(ctx, run, experts, deferred->routed_out, deferred->selected_experts));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, experts);
    layer_add(ctx, experts, experts, deferred->shared_out, count);
    layer_add(ctx, out, deferred->moe_inputs, experts, count);
cleanup:
    free(experts);
    return status;
}

assay_status bs_unroute_ubatch_remat_and_bwd(assay_context *ctx, const bs_run *run, bs_deferred *gradients,
                                             const int32_t *selected_experts, const double *dout)
{
    assay_status status = ASSAY_OK;
    const size_t size = (size_t)activation_count(run) * sizeof *dout;
    TRY(alloc_activation(ctx, run, "gradient of moe_inputs", &gradients->moe_inputs));
    TRY(alloc_activation(ctx, run, "gradient of the shared expert's output", &gradients->shared_out));
    TRY(bs_alloc_shards(ctx, run, "gradient of the routed output", run->sizes.copies, run->mla.emb_dim,
                        &gradients->routed_out));
    memcpy(gradients->moe_inputs, dout, size);
    memcpy(gradients->shared_out, dout, size);
    TRY(bs_unroute_bwd(ctx, run, gradients->routed_out, dout, selected_experts));
cleanup:
    return status;
}
