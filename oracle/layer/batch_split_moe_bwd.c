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

/* A stage's weights, from the first to before the end, whose gradients are made for each microbatch apart and then added (sum_grads). */
typedef struct stage_gradients {
    const bs_weights *sums;
    int first, end;
    bs_weights each; /* room for those of one microbatch */
} stage_gradients;

/* The first microbatch's go where the sum will be; more than one need room. */
static assay_status open_gradients(assay_context *ctx, const bs_run *run, stage_gradients *s)
{
    assay_status status = ASSAY_OK;
    for (int weight = s->first; weight < s->end && run->factor > 1; weight++) {
        if (s->sums->values[weight] == NULL) continue;
        TRY(bs_alloc_shards(ctx, run, "gradient of a microbatch", bs_weight_count(run, weight, true), 1,
                            &s->each.values[weight]));
    }
cleanup:
    return status;
}

/* After microbatch i. What is not the sum of all yet may be stored. */
static void add_gradients(const assay_context *ctx, const bs_run *run, const stage_gradients *s, int64_t i)
{
    for (int weight = s->first; weight < s->end; weight++) {
        double *sum = s->sums->values[weight], *each = s->each.values[weight];
        if (sum == NULL) continue;
        const int64_t count = run->sizes.shards * bs_weight_count(run, weight, true);
        if (i > 0) {
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, each);
            bs_accumulate(ctx, sum, each, count);
        }
        if (i < run->factor - 1) assay_round(ctx, ASSAY_ROUND_STORAGE, count, sum);
    }
}

/* d_last of the last microbatch, else what unroute_bwd made. */
static const bs_deferred *d_outputs(const backward *b, const bs_deferred *d_last, int64_t i)
{
    return i == b->run->factor - 1 ? d_last : &b->outputs[i];
}

static assay_status compute_bwd(assay_context *ctx, backward *b, const bs_deferred *d_last, const bs_weights *g)
{
    assay_status status = ASSAY_OK;
    stage_gradients sums = {.sums = g, .first = BS_ROUTED, .end = BS_WEIGHTS};
    TRY(open_gradients(ctx, b->run, &sums));
    for (int64_t i = 0; i < b->run->factor; i++) {
        b->at.g = i == 0 ? g : &sums.each;
        TRY(bs_routed_gradients_alloc(ctx, b->run, &b->gradients[i]));
        TRY(bs_compute_bwd(ctx, &b->at, &b->gradients[i], d_outputs(b, d_last, i)->routed_out, &b->gating[i],
                           &b->routed[i]));
        add_gradients(ctx, b->run, &sums, i);
        bs_gating_free(&b->gating[i]);
        TRY(add_event(ctx, b, ASSAY_STAGE_COMPUTE_BWD, i));
    }
cleanup:
    bs_weights_free(&sums.each);
    return status;
}

static assay_status route_bwd(assay_context *ctx, backward *b, double *const *dxs, const bs_deferred *d_last,
                              const bs_weights *g)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = b->run;
    const int64_t count = run->sizes.shards * run->sizes.tokens * run->mla.emb_dim;
    stage_gradients sums = {.sums = g, .first = BS_POST_NORM, .end = BS_ROUTED};
    double *d_inputs = NULL;
    TRY(open_gradients(ctx, run, &sums));
    TRY(bs_alloc_shards(ctx, run, "gradient of moe_inputs", run->sizes.tokens, run->mla.emb_dim, &d_inputs));
    for (int64_t i = 0; i < run->factor; i++) {
        const bs_deferred *d = d_outputs(b, d_last, i);
        b->at.g = i == 0 ? g : &sums.each;
        TRY(bs_shared_expert_and_route_bwd(ctx, &b->at, d_inputs, &b->gradients[i], d->shared_out,
                                           b->residuals->mla_out[i], &b->routed[i]));
        add_gradients(ctx, run, &sums, i);
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_inputs);
        layer_add(ctx, dxs[i], d->moe_inputs, d_inputs, count);
        TRY(add_event(ctx, b, ASSAY_STAGE_ROUTE_BWD, i));
    }
cleanup:
    bs_weights_free(&sums.each);
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
