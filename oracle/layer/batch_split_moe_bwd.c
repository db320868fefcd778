/* All microbatches through the MoE half, backward: what forward did not keep is made again first. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"

typedef struct backward {
    bs_run *run;
    int64_t layer;
    bs_moe_layer at;
    bs_microbatch *b, *d;
} backward;

static assay_status add_event(assay_context *ctx, backward *c, assay_stage stage, int64_t i)
{
    return assay_schedule_add(ctx, &c->run->schedule, true, stage, c->layer, i);
}

static assay_status remat(assay_context *ctx, backward *c)
{
    assay_status status;
    bool is_input;
    TRY(bs_read_given(ctx, c->run, c->layer, c->b, &is_input));
    for (int64_t i = 0; i < c->run->factor; i++) {
        TRY(bs_shared_expert_and_route_remat(ctx, &c->at, &c->b[i]));
        TRY(add_event(ctx, c, ASSAY_STAGE_ROUTE_REMAT, i));
    }
    for (int64_t i = 0; i < c->run->factor; i++) {
        TRY(bs_compute_remat(ctx, &c->at, &c->b[i]));
        TRY(add_event(ctx, c, ASSAY_STAGE_COMPUTE_REMAT, i));
    }
cleanup:
    return status;
}

static assay_status compute_bwd(assay_context *ctx, backward *c, const bs_weights *g)
{
    assay_status status;
    bs_gradient_sums sums = {0};
    TRY(bs_gradient_sums_open(ctx, c->run, &sums, g, BS_ROUTED, BS_WEIGHTS));
    for (int64_t i = 0; i < c->run->factor; i++) {
        c->at.g = bs_gradients_of(&sums, i);
        TRY(bs_compute_bwd(ctx, &c->at, &c->b[i], &c->d[i]));
        bs_add_gradients(ctx, c->run, &sums, i);
        bs_drop(&c->b[i], MB_GATE);
        bs_drop(&c->b[i], MB_UP);
        TRY(add_event(ctx, c, ASSAY_STAGE_COMPUTE_BWD, i));
    }
cleanup:
    bs_gradient_sums_close(&sums);
    return status;
}

static assay_status route_bwd(assay_context *ctx, backward *c, const bs_weights *g)
{
    assay_status status;
    const int64_t count = bs_count(c->run, MB_MLA_OUT);
    bs_gradient_sums sums = {0};
    TRY(bs_gradient_sums_open(ctx, c->run, &sums, g, BS_POST_NORM, BS_ROUTED));
    for (int64_t i = 0; i < c->run->factor; i++) {
        bs_microbatch *d = &c->d[i];
        c->at.g = bs_gradients_of(&sums, i);
        TRY(bs_shared_expert_and_route_bwd(ctx, &c->at, &c->b[i], d));
        bs_add_gradients(ctx, c->run, &sums, i);
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, d->values[MB_MLA_OUT]);
        layer_add(ctx, d->values[MB_MLA_OUT], d->values[MB_MOE_INPUTS], d->values[MB_MLA_OUT], count);
        TRY(add_event(ctx, c, ASSAY_STAGE_ROUTE_BWD, i));
    }
cleanup:
    bs_gradient_sums_close(&sums);
    return status;
}

assay_status bs_moe_bwd(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b, bs_microbatch *d,
                        const bs_weights *w, const bs_weights *g)
{
    assay_status status;
    backward c = {.run = run, .layer = layer, .at = {.run = run, .w = w}, .b = b, .d = d};
    TRY(remat(ctx, &c));
    for (int64_t i = 0; i < run->factor - 1; i++) {
        TRY(bs_unroute_ubatch_bwd(ctx, &c.at, &b[i], &d[i]));
        TRY(add_event(ctx, &c, ASSAY_STAGE_UNROUTE_BWD, i));
    }
    TRY(compute_bwd(ctx, &c, g));
    TRY(route_bwd(ctx, &c, g));
cleanup:
    return status;
}
