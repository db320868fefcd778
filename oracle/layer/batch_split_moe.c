/* All microbatches through the MoE half. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/layer/batch_split_scan.h"
#include "oracle/layer/batch_split_steps.h"

/* The choice that the source fixes, of each microbatch, and its weights. */
static assay_status read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b)
{
    const assay_source *in = run->stack->in;
    char prefix[ASSAY_LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE], held[ASSAY_PATH_SIZE], of_weights[ASSAY_PATH_SIZE];
    assay_layer_prefix(run->stack->config, layer, prefix);
    snprintf(path, sizeof path, "inputs/%sselected_experts", prefix);
    snprintf(of_weights, sizeof of_weights, "inputs/%srouting_weights", prefix);
    snprintf(held, sizeof held, "routing/%sselected_experts", prefix);
    for (int64_t i = 0; i < run->factor; i++) b[i].choice_is_input = in->has(in->self, path);
    MUST(bs_read_tensor(ctx, run, in->has(in->self, held) ? held : path, b, MB_GIVEN));
    return b->indices[MB_GIVEN] == NULL ? ASSAY_OK : bs_read_tensor(ctx, run, of_weights, b, MB_GIVEN_WEIGHTS);
}

static assay_status route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_shared_expert_and_route(ctx, at, b));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(at->run, MB_SHARED_OUT), b->values[MB_SHARED_OUT]);
    return ASSAY_OK;
}

/* [M,f,E/P] */
static assay_status write_group_sizes(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b)
{
    const assay_sink *out = run->stack->out;
    const int64_t experts = run->sizes.local_experts;
    char path[ASSAY_PATH_SIZE];
    if (!bs_wants(run, layer, "routing", "group_sizes", path)) return ASSAY_OK;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        for (int64_t i = 0; i < run->factor; i++)
            MUST(out->write_i32(ctx, out->self, path, experts, b[i].indices[MB_OWN_COUNTS] + shard * experts));
    }
    return ASSAY_OK;
}

static assay_status write_routing(assay_context *ctx, const bs_layer *at, int64_t layer, bs_microbatch *b)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    char path[ASSAY_PATH_SIZE];
    const bool scores = bs_wants(run, layer, "routing", "biased_scores", path) && b->values[MB_LOGITS] != NULL;
    for (int64_t m = 0; scores && m < run->factor; m++) TRY(bs_biased_scores(ctx, at, &b[m]));
    TRY(bs_write_tensor(ctx, run, layer, "routing", "selected_experts", b, MB_CHOICES));
    TRY(bs_write_tensor(ctx, run, layer, "routing", "weights", b, MB_CHOICE_WEIGHTS));
    TRY(bs_write_tensor(ctx, run, layer, "routing", "margin", b, MB_MARGIN));
    if (scores) TRY(bs_write_tensor(ctx, run, layer, "routing", "biased_scores", b, MB_BIASED));
    TRY(write_group_sizes(ctx, run, layer, b));
cleanup:
    for (int64_t m = 0; m < run->factor; m++) bs_drop(&b[m], MB_BIASED);
    return status;
}

/* The rows of each shard that backward has room for. */
static assay_status keep(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor kept, bs_tensor of)
{
    const int64_t width = run->stack->config->moe.moe_mlp_dim, held = run->sizes.capacity * width;
    const assay_status status = bs_make(ctx, run, b, kept);
    for (int64_t shard = 0; status == ASSAY_OK && shard < run->sizes.shards; shard++)
        memcpy(b->values[kept] + shard * held, b->values[of] + shard * run->sizes.copies * width,
               (size_t)held * sizeof(double));
    return status;
}

static const struct {
    const char *name;
    bs_tensor tensor;
} gatings[] = {{"moe_mlpwi_0", MB_GATE}, {"moe_mlpwi_1", MB_UP}};

/* [M,f,R,H] */
static assay_status write_gating(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b)
{
    const assay_sink *out = run->stack->out;
    const int64_t parts = run->sizes.shards;
    for (int k = 0; k < 2; k++) {
        const int64_t count = bs_count(run, gatings[k].tensor) / parts;
        char path[ASSAY_PATH_SIZE];
        if (!bs_wants(run, layer, "checkpoints", gatings[k].name, path)) continue;
        for (int64_t part = 0; part < parts * run->factor; part++) {
            const double *values = b[part % run->factor].values[gatings[k].tensor];
            MUST(out->write(ctx, out->self, path, count, values + part / run->factor * count));
        }
    }
    return ASSAY_OK;
}

static assay_status compute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const bs_tensor made[] = {MB_GATE, MB_UP, MB_ROUTED_OUT, MB_NONE};
    MUST(bs_steps_forward(ctx, at, BS_STEPS_ROUTED, b, made));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(at->run, MB_ROUTED_OUT), b->values[MB_ROUTED_OUT]);
    if (at->keeps) MUST(keep(ctx, at->run, b, MB_MLPWI_0, MB_GATE));
    if (at->keeps) MUST(keep(ctx, at->run, b, MB_MLPWI_1, MB_UP));
    for (int k = 0; k < 2 && !at->shows; k++) bs_drop(b, gatings[k].tensor);
    bs_drop(b, MB_ROWS);
    return ASSAY_OK;
}

static assay_status unroute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    bs_lend(b, MB_MOE_INPUTS, b->values[MB_MLA_OUT]);
    return bs_unroute_ubatch(ctx, at, b);
}

static bool shows_gating(const bs_run *run, int64_t layer)
{
    char path[ASSAY_PATH_SIZE];
    return bs_wants(run, layer, "checkpoints", gatings[0].name, path) ||
           bs_wants(run, layer, "checkpoints", gatings[1].name, path);
}

assay_status bs_moe(assay_context *ctx, bs_run *run, const bs_layer *given, bs_microbatch *b)
{
    bs_layer at = *given;
    const int64_t last = run->factor - 1, layer = at.layer;
    at.shows = shows_gating(run, layer);
    MUST(read_given(ctx, run, layer, b));
    MUST(bs_staggered_call(ctx, run, (bs_stage){ASSAY_STAGE_ROUTE, layer, run->factor, false}, route, &at, b));
    MUST(write_routing(ctx, &at, layer, b));
    MUST(bs_staggered_call(ctx, run, (bs_stage){ASSAY_STAGE_COMPUTE, layer, run->factor, false}, compute, &at, b));
    MUST(write_gating(ctx, run, layer, b));
    for (int64_t m = 0; m < run->factor; m++)
        for (int k = 0; k < 2; k++) bs_drop(&b[m], gatings[k].tensor);
    MUST(bs_staggered_call(ctx, run, (bs_stage){ASSAY_STAGE_UNROUTE, layer, last, false}, unroute, &at, b));
    return bs_copy(ctx, run, &b[last], MB_MOE_INPUTS, &b[last], MB_MLA_OUT);
}

/* --- backward: what forward did not keep is made again first --- */

static assay_status route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const int64_t count = bs_count(at->run, MB_MLA_OUT);
    MUST(bs_shared_expert_and_route_bwd(ctx, at, b, d));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d->values[MB_MLA_OUT]);
    if (layer_adds_block(ctx))
        layer_add(ctx, d->values[MB_MLA_OUT], d->values[MB_MOE_INPUTS], d->values[MB_MLA_OUT], count);
    return ASSAY_OK;
}

assay_status bs_moe_bwd(assay_context *ctx, bs_run *run, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const int64_t layer = at->layer;
    bs_stage stage = {ASSAY_STAGE_ROUTE_REMAT, layer, run->factor, true};
    MUST(read_given(ctx, run, layer, b));
    MUST(bs_staggered_call(ctx, run, stage, bs_shared_expert_and_route_remat, at, b));
    stage.name = ASSAY_STAGE_COMPUTE_REMAT;
    MUST(bs_staggered_call(ctx, run, stage, bs_compute_remat, at, b));
    stage.name = ASSAY_STAGE_UNROUTE_BWD;
    stage.count = run->factor - 1; /* the last one's is done */
    MUST(bs_staggered_bwd(ctx, run, stage, bs_unroute_ubatch_bwd, at, b, d, 0, 0));
    stage.name = ASSAY_STAGE_COMPUTE_BWD;
    stage.count = run->factor;
    MUST(bs_staggered_bwd(ctx, run, stage, bs_compute_bwd, at, b, d, BS_ROUTED, BS_WEIGHTS));
    stage.name = ASSAY_STAGE_ROUTE_BWD;
    MUST(bs_staggered_bwd(ctx, run, stage, route_bwd, at, b, d, BS_POST_NORM, BS_ROUTED));
    if (b->values[MB_GIVEN_WEIGHTS] != NULL)
        MUST(bs_write_tensor(ctx, run, layer, "gradients/inputs", "routing_weights", d, MB_CHOICE_WEIGHTS));
    return ASSAY_OK;
}
