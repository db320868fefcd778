/* All microbatches through the MoE half, backward: what forward did not keep is made again first. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"

typedef struct backward {
    bs_run *run;
    int64_t layer;
    const bs_residuals *residuals;
    bs_moe_layer at;
    bs_routed routed[ASSAY_MOST_MICROBATCHES];
    bs_gating gating[ASSAY_MOST_MICROBATCHES];
    bs_deferred outputs[ASSAY_MOST_MICROBATCHES]; /* gradients of what unroute takes; not of the last microbatch */
    bs_routed_gradients gradients[ASSAY_MOST_MICROBATCHES];
} backward;

static void backward_free(backward *b)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        bs_routed_free(&b->routed[i], b->run);
        bs_gating_free(&b->gating[i]);
        bs_deferred_free(&b->outputs[i]);
        bs_routed_gradients_free(&b->gradients[i]);
    }
}

static assay_status add_event(assay_context *ctx, backward *b, assay_stage stage, int64_t i)
{
    return assay_schedule_add(ctx, &b->run->schedule, true, stage, b->layer, i);
}

static assay_status remat(assay_context *ctx, backward *b)
{
    assay_status status = ASSAY_OK;
    bs_given given = {0};
    TRY(bs_read_given(ctx, b->run, b->layer, &given));
    for (int64_t i = 0; i < b->run->factor; i++) {
        TRY(bs_shared_expert_and_route_remat(ctx, &b->at, &b->routed[i], b->residuals->mla_out[i], given.choices[i]));
        TRY(add_event(ctx, b, ASSAY_STAGE_ROUTE_REMAT, i));
    }
    for (int64_t i = 0; i < b->run->factor; i++) {
        TRY(bs_gating_alloc(ctx, b->run, &b->gating[i]));
        TRY(bs_compute_remat(ctx, &b->at, &b->gating[i], &b->routed[i], b->residuals, i));
        TRY(add_event(ctx, b, ASSAY_STAGE_COMPUTE_REMAT, i));
    }
cleanup:
    bs_given_free(&given);
    return status;
}

/* d_last of the last microbatch, else what unroute_bwd made. */
static const bs_deferred *d_outputs(const backward *b, const bs_deferred *d_last, int64_t i)
{
    return i == b->run->factor - 1 ? d_last : &b->outputs[i];
}

static assay_status compute_bwd(assay_context *ctx, backward *b, const bs_deferred *d_last, const bs_weights *g)
{
    assay_status status = ASSAY_OK;
    bs_gradient_sums sums = {0};
    TRY(bs_gradient_sums_open(ctx, b->run, &sums, g, BS_ROUTED, BS_WEIGHTS));
    for (int64_t i = 0; i < b->run->factor; i++) {
        b->at.g = bs_gradients_of(&sums, i);
        TRY(bs_routed_gradients_alloc(ctx, b->run, &b->gradients[i]));
        TRY(bs_compute_bwd(ctx, &b->at, &b->gradients[i], d_outputs(b, d_last, i)->routed_out, &b->gating[i],
                           &b->routed[i]));
        bs_add_gradients(ctx, b->run, &sums, i);
        bs_gating_free(&b->gating[i]);
        TRY(add_event(ctx, b, ASSAY_STAGE_COMPUTE_BWD, i));
    }
cleanup:
    bs_gradient_sums_close(&sums);
    return status;
}

static assay_status route_bwd(assay_context *ctx, backward *b, double *const *dxs, const bs_deferred *d_last,
                              const bs_weights *g)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = b->run;
    const int64_t count = run->sizes.shards * run->sizes.tokens * run->mla.emb_dim;
    bs_gradient_sums sums = {0};
    double *d_inputs = NULL;
    TRY(bs_gradient_sums_open(ctx, run, &sums, g, BS_POST_NORM, BS_ROUTED));
    TRY(bs_alloc_shards(ctx, run, "gradient of moe_inputs", run->sizes.tokens, run->mla.emb_dim, &d_inputs));
    for (int64_t i = 0; i < run->factor; i++) {
        const bs_deferred *d = d_outputs(b, d_last, i);
        b->at.g = bs_gradients_of(&sums, i);
        TRY(bs_shared_expert_and_route_bwd(ctx, &b->at, d_inputs, &b->gradients[i], d->shared_out,
                                           b->residuals->mla_out[i], &b->routed[i]));
        bs_add_gradients(ctx, run, &sums, i);
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_inputs);
        layer_add(ctx, dxs[i], d->moe_inputs, d_inputs, count);
        TRY(add_event(ctx, b, ASSAY_STAGE_ROUTE_BWD, i));
    }
cleanup:
    bs_gradient_sums_close(&sums);
    free(d_inputs);
    return status;
}

assay_status bs_moe_bwd(assay_context *ctx, bs_run *run, int64_t layer, double *const *dxs, const bs_deferred *d_last,
                        const bs_residuals *residuals, const bs_weights *w, const bs_weights *g)
{
    assay_status status = ASSAY_OK;
    backward b = {.run = run, .layer = layer, .residuals = residuals, .at = {.run = run, .w = w}};
    TRY(remat(ctx, &b));
    for (int64_t i = 0; i < run->factor - 1; i++) {
        TRY(bs_unroute_ubatch_remat_and_bwd(ctx, run, &b.outputs[i], b.routed[i].selected_experts, dxs[i]));
        TRY(add_event(ctx, &b, ASSAY_STAGE_UNROUTE_BWD, i));
    }
    TRY(compute_bwd(ctx, &b, d_last, g));
    TRY(route_bwd(ctx, &b, dxs, d_last, g));
cleanup:
    backward_free(&b);
    return status;
}
