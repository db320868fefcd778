/* All microbatches through the MoE half, forward. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"

assay_status bs_read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_given *given)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = run->stack->in;
    const int64_t width = run->mla.sequence * run->routing.num_experts_per_tok;
    char prefix[LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE], held[ASSAY_PATH_SIZE];
    int32_t *all = NULL;
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, sizeof path, "inputs/%sselected_experts", prefix);
    given->is_input = in->has(in->self, path);
    snprintf(held, sizeof held, "routing/%sselected_experts", prefix);
    if (in->has(in->self, held)) memcpy(path, held, sizeof path);
    if (!in->has(in->self, path)) return ASSAY_OK;
    TRY(bs_alloc_shards_i32(ctx, run, path, run->factor * run->sizes.rows, width, &all));
    TRY(in->read_i32(ctx, in->self, path, 0, run->sizes.shards * run->factor * run->sizes.rows * width, all));
    for (int64_t i = 0; i < run->factor; i++)
        TRY(bs_alloc_shards_i32(ctx, run, path, run->sizes.rows, width, &given->choices[i]));
    bs_split_i32(given->choices, all, run, width);
cleanup:
    free(all);
    return status;
}

void bs_given_free(bs_given *given)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(given->choices[i]);
    *given = (bs_given){0};
}

/* One layer's microbatches between stages. */
typedef struct microbatches {
    bs_routed routed[ASSAY_MOST_MICROBATCHES];
    bs_gating gating[ASSAY_MOST_MICROBATCHES]; /* while the sink wants it */
    double *routed_out[ASSAY_MOST_MICROBATCHES];
} microbatches;

static void microbatches_free(microbatches *m, const bs_run *run)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        bs_routed_free(&m->routed[i], run);
        bs_gating_free(&m->gating[i]);
        free(m->routed_out[i]);
    }
}

static assay_status route(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs, microbatches *m,
                          const bs_moe_layer *at)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->sizes.shards * run->sizes.tokens * run->mla.emb_dim;
    bs_given given = {0};
    TRY(bs_read_given(ctx, run, layer, &given));
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_shared_expert_and_route(ctx, at, &m->routed[i], xs[i], given.choices[i]));
        for (int64_t t = 0; given.is_input && t < run->sizes.shards * run->sizes.tokens; t++)
            m->routed[i].selection.routing.margin[t] = INFINITY;
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, m->routed[i].shared_out);
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_ROUTE, layer, i));
    }
cleanup:
    bs_given_free(&given);
    return status;
}

static assay_status write_choices(assay_context *ctx, const bs_run *run, int64_t layer, const int32_t *const *parts)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t width = run->mla.sequence * run->routing.num_experts_per_tok;
    char path[ASSAY_PATH_SIZE];
    int32_t *merged = NULL;
    if (!bs_wants(run, layer, "routing", "selected_experts", path)) return ASSAY_OK;
    TRY(bs_alloc_shards_i32(ctx, run, path, run->factor * run->sizes.rows, width, &merged));
    bs_merge_i32(merged, parts, run, width);
    TRY(out->write_i32(ctx, out->self, path, run->sizes.shards * run->factor * run->sizes.rows * width, merged));
cleanup:
    free(merged);
    return status;
}

/* [M,f,E/P] */
static assay_status write_group_sizes(assay_context *ctx, const bs_run *run, int64_t layer, const microbatches *m)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t experts = run->sizes.local_experts;
    char path[ASSAY_PATH_SIZE];
    if (!bs_wants(run, layer, "routing", "group_sizes", path)) return ASSAY_OK;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        for (int64_t i = 0; i < run->factor; i++)
            TRY(out->write_i32(ctx, out->self, path, experts, m->routed[i].group_sizes + shard * experts));
    }
cleanup:
    return status;
}

/* What experts are chosen by; in no fixture. */
static assay_status write_biased_scores(assay_context *ctx, const bs_run *run, int64_t layer, const microbatches *m,
                                        const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = run->routing.num_experts;
    double *parts[ASSAY_MOST_MICROBATCHES] = {NULL};
    char path[ASSAY_PATH_SIZE];
    if (!bs_wants(run, layer, "routing", "biased_scores", path)) return ASSAY_OK;
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_alloc_shards(ctx, run, path, run->sizes.tokens, experts, &parts[i]));
        TRY(bs_biased_scores(ctx, run, parts[i], &m->routed[i].selection, w));
    }
    TRY(bs_write_merged(ctx, run, layer, "routing", "biased_scores", parts, run->mla.sequence * experts));
cleanup:
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(parts[i]);
    return status;
}

static assay_status write_routing(assay_context *ctx, const bs_run *run, int64_t layer, const microbatches *m)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->mla.sequence, choices = tokens * run->routing.num_experts_per_tok;
    double *weights[ASSAY_MOST_MICROBATCHES], *margins[ASSAY_MOST_MICROBATCHES];
    const int32_t *chosen[ASSAY_MOST_MICROBATCHES];
    for (int64_t i = 0; i < run->factor; i++) {
        const assay_routing *routing = &m->routed[i].selection.routing;
        chosen[i] = routing->selected_experts;
        weights[i] = routing->weights;
        margins[i] = routing->margin;
    }
    TRY(write_choices(ctx, run, layer, chosen));
    TRY(bs_write_merged(ctx, run, layer, "routing", "weights", weights, choices));
    TRY(bs_write_merged(ctx, run, layer, "routing", "margin", margins, tokens));
    TRY(write_group_sizes(ctx, run, layer, m));
cleanup:
    return status;
}

/* The rows of each shard that backward has room for. */
static assay_status keep(assay_context *ctx, const bs_run *run, double **residual, const double *values)
{
    const int64_t width = run->stack->config->moe.moe_mlp_dim, held = run->sizes.capacity * width;
    const assay_status status =
        bs_alloc_shards(ctx, run, "mlpwi kept for backward", run->sizes.capacity, width, residual);
    for (int64_t shard = 0; status == ASSAY_OK && shard < run->sizes.shards; shard++) {
        memcpy(*residual + shard * held, values + shard * run->sizes.copies * width, (size_t)held * sizeof *values);
    }
    return status;
}

/* moe_mlpwi_0 and moe_mlpwi_1 [M,f,R,H]. */
static assay_status write_gating(assay_context *ctx, const bs_run *run, int64_t layer, const microbatches *m)
{
    static const char *const names[] = {"moe_mlpwi_0", "moe_mlpwi_1"};
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t count = run->sizes.copies * run->stack->config->moe.moe_mlp_dim, parts = run->sizes.shards;
    for (int up = 0; up < 2; up++) {
        char path[ASSAY_PATH_SIZE];
        if (!bs_wants(run, layer, "checkpoints", names[up], path)) continue;
        for (int64_t part = 0; part < parts * run->factor; part++) {
            const bs_gating *gating = &m->gating[part % run->factor];
            const double *values = up ? gating->layer_w1 : gating->layer_w0;
            TRY(out->write(ctx, out->self, path, count, values + part / run->factor * count));
        }
    }
cleanup:
    return status;
}

static assay_status compute(assay_context *ctx, bs_run *run, int64_t layer, microbatches *m, bs_residuals *residuals,
                            const bs_moe_layer *at)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->sizes.shards * run->sizes.copies * run->mla.emb_dim;
    char path[ASSAY_PATH_SIZE];
    const bool written = bs_wants(run, layer, "checkpoints", "moe_mlpwi_0", path) ||
                         bs_wants(run, layer, "checkpoints", "moe_mlpwi_1", path);
    for (int64_t i = 0; i < run->factor; i++) {
        bs_gating *gating = &m->gating[i];
        TRY(bs_gating_alloc(ctx, run, gating));
        TRY(bs_alloc_shards(ctx, run, "output of the routed experts", run->sizes.copies, run->mla.emb_dim,
                            &m->routed_out[i]));
        TRY(bs_compute(ctx, at, m->routed_out[i], gating, &m->routed[i]));
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, m->routed_out[i]);
        if (residuals != NULL) TRY(keep(ctx, run, &residuals->mlpwi_0[i], gating->layer_w0));
        if (residuals != NULL) TRY(keep(ctx, run, &residuals->mlpwi_1[i], gating->layer_w1));
        if (!written) bs_gating_free(gating);
        free(m->routed[i].x);
        m->routed[i].x = NULL;
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_COMPUTE, layer, i));
    }
    TRY(write_gating(ctx, run, layer, m));
cleanup:
    return status;
}

/* What the last microbatch is before its unroute. */
static assay_status defer(assay_context *ctx, const bs_run *run, const double *x, microbatches *m, bs_deferred *last,
                          bs_residuals *residuals)
{
    assay_status status = ASSAY_OK;
    const int64_t end = run->factor - 1, chosen = run->routing.num_experts_per_tok, shards = run->sizes.shards;
    bs_routed *routed = &m->routed[end];
    if (residuals != NULL) {
        TRY(bs_alloc_shards_i32(ctx, run, "selected_experts", run->sizes.gathered, chosen,
                                &residuals->selected_experts));
        memcpy(residuals->selected_experts, routed->selected_experts,
               (size_t)(shards * run->sizes.copies) * sizeof *routed->selected_experts);
    }
    TRY(bs_alloc_shards(ctx, run, "moe_inputs", run->sizes.tokens, run->mla.emb_dim, &last->moe_inputs));
    memcpy(last->moe_inputs, x, (size_t)(shards * run->sizes.tokens * run->mla.emb_dim) * sizeof *x);
    last->routed_out = m->routed_out[end];
    last->shared_out = routed->shared_out;
    last->selected_experts = routed->selected_experts;
    m->routed_out[end] = routed->shared_out = NULL;
    routed->selected_experts = NULL;
cleanup:
    return status;
}

assay_status bs_moe(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs, bs_deferred *last,
                    bs_residuals *residuals, const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    const bs_moe_layer at = {.run = run, .w = w};
    microbatches m = {0};
    TRY(route(ctx, run, layer, xs, &m, &at));
    TRY(write_routing(ctx, run, layer, &m));
    TRY(write_biased_scores(ctx, run, layer, &m, w));
    TRY(compute(ctx, run, layer, &m, residuals, &at));
    for (int64_t i = 0; i < run->factor - 1; i++) {
        const bs_deferred routed = {xs[i], m.routed_out[i], m.routed[i].shared_out, m.routed[i].selected_experts};
        TRY(bs_unroute_ubatch(ctx, run, xs[i], &routed));
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_UNROUTE, layer, i));
    }
    TRY(defer(ctx, run, xs[run->factor - 1], &m, last, residuals));
cleanup:
    microbatches_free(&m, run);
    return status;
}
