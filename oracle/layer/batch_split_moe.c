/* All microbatches through the MoE half, forward. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"

assay_status bs_read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_given *given)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = run->stack->in;
    const int64_t width = run->mla.sequence * run->routing.num_experts_per_tok;
    char prefix[LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE];
    int32_t *all = NULL;
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, sizeof path, "routing/%sselected_experts", prefix);
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
    double *routed_out[ASSAY_MOST_MICROBATCHES];
    bs_gating checkpoint; /* moe_mlpwi_0 and moe_mlpwi_1 [M,f,R,H], where the sink wants them */
} microbatches;

static void microbatches_free(microbatches *m, const bs_run *run)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        bs_routed_free(&m->routed[i], run);
        free(m->routed_out[i]);
    }
    bs_gating_free(&m->checkpoint);
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
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, m->routed[i].shared_out);
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_ROUTE, layer, i));
    }
cleanup:
    bs_given_free(&given);
    return status;
}

/* Whether the sink wants FOLDER/layers/i/NAME, whose path it leaves. */
static bool wants(const bs_run *run, int64_t layer, const char *folder, const char *name, char path[ASSAY_PATH_SIZE])
{
    const assay_sink *out = run->stack->out;
    char prefix[LAYER_PREFIX_SIZE];
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s%s", folder, prefix, name);
    return out->wants(out->self, path);
}

/* A result of tokens, put together from its microbatches [M,b,width]. */
static assay_status write_merged(assay_context *ctx, const bs_run *run, int64_t layer, const char *name,
                                 const double *const *parts, int64_t width)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    char path[ASSAY_PATH_SIZE];
    double *merged = NULL;
    if (!wants(run, layer, "routing", name, path)) return ASSAY_OK;
    TRY(bs_alloc_shards(ctx, run, path, run->factor * run->sizes.rows, width, &merged));
    bs_merge(merged, parts, run, width);
    TRY(out->write(ctx, out->self, path, run->sizes.shards * run->factor * run->sizes.rows * width, merged));
cleanup:
    free(merged);
    return status;
}

static assay_status write_choices(assay_context *ctx, const bs_run *run, int64_t layer, const int32_t *const *parts)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t width = run->mla.sequence * run->routing.num_experts_per_tok;
    char path[ASSAY_PATH_SIZE];
    int32_t *merged = NULL;
    if (!wants(run, layer, "routing", "selected_experts", path)) return ASSAY_OK;
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
    if (!wants(run, layer, "routing", "group_sizes", path)) return ASSAY_OK;
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
    if (!wants(run, layer, "routing", "biased_scores", path)) return ASSAY_OK;
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_alloc_shards(ctx, run, path, run->sizes.tokens, experts, &parts[i]));
        TRY(bs_biased_scores(ctx, run, parts[i], &m->routed[i].selection, w));
    }
    TRY(write_merged(ctx, run, layer, "biased_scores", (const double *const *)parts, run->mla.sequence * experts));
cleanup:
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(parts[i]);
    return status;
}

static assay_status write_routing(assay_context *ctx, const bs_run *run, int64_t layer, const microbatches *m)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->mla.sequence, choices = tokens * run->routing.num_experts_per_tok;
    const double *weights[ASSAY_MOST_MICROBATCHES], *margins[ASSAY_MOST_MICROBATCHES];
    const int32_t *chosen[ASSAY_MOST_MICROBATCHES];
    for (int64_t i = 0; i < run->factor; i++) {
        const bs_selection *selection = &m->routed[i].selection;
        chosen[i] = selection->selected_experts;
        weights[i] = selection->weights;
        margins[i] = selection->margin;
    }
    TRY(write_choices(ctx, run, layer, chosen));
    TRY(write_merged(ctx, run, layer, "weights", weights, choices));
    TRY(write_merged(ctx, run, layer, "margin", margins, tokens));
    TRY(write_group_sizes(ctx, run, layer, m));
cleanup:
    return status;
}

/* The first `rows` rows of each shard's [R,H], to places `stride` rows apart. */
static void copy_rows(double *to, const double *from, const bs_run *run, int64_t rows, int64_t stride)
{
    const int64_t width = run->stack->config->moe.moe_mlp_dim;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        memcpy(to + shard * stride * width, from + shard * run->sizes.copies * width,
               (size_t)(rows * width) * sizeof *to);
    }
}

static assay_status keep(assay_context *ctx, const bs_run *run, double **residual, const double *values)
{
    const int64_t capacity = run->sizes.capacity;
    const assay_status status =
        bs_alloc_shards(ctx, run, "mlpwi kept for backward", capacity, run->stack->config->moe.moe_mlp_dim, residual);
    if (status == ASSAY_OK) copy_rows(*residual, values, run, capacity, capacity);
    return status;
}

/* moe_mlpwi_0 and moe_mlpwi_1 of microbatch i, to where backward and the sink want them. */
static assay_status keep_gating(assay_context *ctx, const bs_run *run, int64_t i, const bs_gating *gating,
                                microbatches *m, bs_residuals *residuals)
{
    assay_status status = ASSAY_OK;
    const int64_t copies = run->sizes.copies, first = i * copies * run->stack->config->moe.moe_mlp_dim;
    if (residuals != NULL) {
        TRY(keep(ctx, run, &residuals->mlpwi_0[i], gating->layer_w0));
        TRY(keep(ctx, run, &residuals->mlpwi_1[i], gating->layer_w1));
    }
    double *const w0 = m->checkpoint.layer_w0, *const w1 = m->checkpoint.layer_w1;
    if (w0 != NULL) copy_rows(w0 + first, gating->layer_w0, run, copies, run->factor * copies);
    if (w1 != NULL) copy_rows(w1 + first, gating->layer_w1, run, copies, run->factor * copies);
cleanup:
    return status;
}

static assay_status alloc_checkpoint(assay_context *ctx, const bs_run *run, int64_t layer, const char *name,
                                     double **values)
{
    char path[ASSAY_PATH_SIZE];
    if (!wants(run, layer, "checkpoints", name, path)) return ASSAY_OK;
    return bs_alloc_shards(ctx, run, path, run->factor * run->sizes.copies, run->stack->config->moe.moe_mlp_dim,
                           values);
}

static assay_status write_checkpoint(assay_context *ctx, const bs_run *run, int64_t layer, const char *name,
                                     const double *values)
{
    const assay_sink *out = run->stack->out;
    char path[ASSAY_PATH_SIZE];
    if (!wants(run, layer, "checkpoints", name, path)) return ASSAY_OK;
    return out->write(ctx, out->self, path,
                      run->sizes.shards * run->factor * run->sizes.copies * run->stack->config->moe.moe_mlp_dim,
                      values);
}

static assay_status compute(assay_context *ctx, bs_run *run, int64_t layer, microbatches *m, bs_residuals *residuals,
                            const bs_moe_layer *at)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->sizes.shards * run->sizes.copies * run->mla.emb_dim;
    bs_gating gating = {0};
    TRY(bs_gating_alloc(ctx, run, &gating));
    TRY(alloc_checkpoint(ctx, run, layer, "moe_mlpwi_0", &m->checkpoint.layer_w0));
    TRY(alloc_checkpoint(ctx, run, layer, "moe_mlpwi_1", &m->checkpoint.layer_w1));
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_alloc_shards(ctx, run, "output of the routed experts", run->sizes.copies, run->mla.emb_dim,
                            &m->routed_out[i]));
        TRY(bs_compute(ctx, at, m->routed_out[i], &gating, &m->routed[i]));
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, m->routed_out[i]);
        TRY(keep_gating(ctx, run, i, &gating, m, residuals));
        free(m->routed[i].x);
        m->routed[i].x = NULL;
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_COMPUTE, layer, i));
    }
    TRY(write_checkpoint(ctx, run, layer, "moe_mlpwi_0", m->checkpoint.layer_w0));
    TRY(write_checkpoint(ctx, run, layer, "moe_mlpwi_1", m->checkpoint.layer_w1));
cleanup:
    bs_gating_free(&gating);
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
