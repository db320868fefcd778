/* All microbatches through the MoE half, forward. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"

assay_status bs_read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b, bool *is_input)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = run->stack->in;
    const int64_t width = run->mla.sequence * run->routing.num_experts_per_tok;
    char prefix[LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE], held[ASSAY_PATH_SIZE];
    int32_t *all = NULL, *choices[ASSAY_MOST_MICROBATCHES];
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, sizeof path, "inputs/%sselected_experts", prefix);
    *is_input = in->has(in->self, path);
    snprintf(held, sizeof held, "routing/%sselected_experts", prefix);
    if (in->has(in->self, held)) memcpy(path, held, sizeof path);
    if (!in->has(in->self, path)) return ASSAY_OK;
    TRY(bs_alloc_shards_i32(ctx, run, path, run->factor * run->sizes.rows, width, &all));
    TRY(in->read_i32(ctx, in->self, path, 0, run->sizes.shards * run->factor * run->sizes.rows * width, all));
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_make(ctx, run, &b[i], MB_GIVEN));
        choices[i] = b[i].indices[MB_GIVEN];
    }
    bs_split_i32(choices, all, run, width);
cleanup:
    free(all);
    return status;
}

static assay_status route(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b, const bs_moe_layer *at)
{
    assay_status status;
    bool is_input = false;
    TRY(bs_read_given(ctx, run, layer, b, &is_input));
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_shared_expert_and_route(ctx, at, &b[i]));
        for (int64_t t = 0; is_input && t < run->sizes.shards * run->sizes.tokens; t++)
            b[i].routing.margin[t] = INFINITY;
        assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_SHARED_OUT), b[i].values[MB_SHARED_OUT]);
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_ROUTE, layer, i));
    }
cleanup:
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
static assay_status write_group_sizes(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t experts = run->sizes.local_experts;
    char path[ASSAY_PATH_SIZE];
    if (!bs_wants(run, layer, "routing", "group_sizes", path)) return ASSAY_OK;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        for (int64_t i = 0; i < run->factor; i++)
            TRY(out->write_i32(ctx, out->self, path, experts, b[i].indices[MB_OWN_COUNTS] + shard * experts));
    }
cleanup:
    return status;
}

/* What experts are chosen by; in no fixture. */
static assay_status write_biased_scores(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b,
                                        const bs_moe_layer *at)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = run->routing.num_experts;
    double *parts[ASSAY_MOST_MICROBATCHES] = {NULL};
    char path[ASSAY_PATH_SIZE];
    if (!bs_wants(run, layer, "routing", "biased_scores", path)) return ASSAY_OK;
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_alloc_shards(ctx, run, path, run->sizes.tokens, experts, &parts[i]));
        TRY(bs_biased_scores(ctx, at, parts[i], &b[i]));
    }
    TRY(bs_write_merged(ctx, run, layer, "routing", "biased_scores", parts, run->mla.sequence * experts));
cleanup:
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(parts[i]);
    return status;
}

static assay_status write_routing(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->mla.sequence, choices = tokens * run->routing.num_experts_per_tok;
    double *weights[ASSAY_MOST_MICROBATCHES], *margins[ASSAY_MOST_MICROBATCHES];
    const int32_t *chosen[ASSAY_MOST_MICROBATCHES];
    for (int64_t i = 0; i < run->factor; i++) {
        chosen[i] = b[i].indices[MB_CHOICES];
        weights[i] = b[i].values[MB_CHOICE_WEIGHTS];
        margins[i] = b[i].routing.margin;
    }
    TRY(write_choices(ctx, run, layer, chosen));
    TRY(bs_write_merged(ctx, run, layer, "routing", "weights", weights, choices));
    TRY(bs_write_merged(ctx, run, layer, "routing", "margin", margins, tokens));
    TRY(write_group_sizes(ctx, run, layer, b));
cleanup:
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
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    const int64_t parts = run->sizes.shards;
    for (int k = 0; k < 2; k++) {
        const int64_t count = bs_count(run, gatings[k].tensor) / parts;
        char path[ASSAY_PATH_SIZE];
        if (!bs_wants(run, layer, "checkpoints", gatings[k].name, path)) continue;
        for (int64_t part = 0; part < parts * run->factor; part++) {
            const double *values = b[part % run->factor].values[gatings[k].tensor];
            TRY(out->write(ctx, out->self, path, count, values + part / run->factor * count));
        }
    }
cleanup:
    return status;
}

static assay_status compute(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b, bool keeps,
                            const bs_moe_layer *at)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    const bool written = bs_wants(run, layer, "checkpoints", gatings[0].name, path) ||
                         bs_wants(run, layer, "checkpoints", gatings[1].name, path);
    for (int64_t i = 0; i < run->factor; i++) {
        TRY(bs_compute_gating(ctx, at, &b[i]));
        TRY(bs_compute_linear(ctx, at, &b[i]));
        assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_ROUTED_OUT), b[i].values[MB_ROUTED_OUT]);
        if (keeps) TRY(keep(ctx, run, &b[i], MB_MLPWI_0, MB_GATE));
        if (keeps) TRY(keep(ctx, run, &b[i], MB_MLPWI_1, MB_UP));
        for (int k = 0; k < 2 && !written; k++) bs_drop(&b[i], gatings[k].tensor);
        bs_drop(&b[i], MB_ROWS);
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_COMPUTE, layer, i));
    }
    TRY(write_gating(ctx, run, layer, b));
    for (int64_t i = 0; i < run->factor; i++)
        for (int k = 0; k < 2; k++) bs_drop(&b[i], gatings[k].tensor);
cleanup:
    return status;
}

assay_status bs_moe(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b, bool keeps, const bs_weights *w)
{
    assay_status status;
    const int64_t last = run->factor - 1;
    const bs_moe_layer at = {.run = run, .w = w};
    TRY(route(ctx, run, layer, b, &at));
    TRY(write_routing(ctx, run, layer, b));
    TRY(write_biased_scores(ctx, run, layer, b, &at));
    TRY(compute(ctx, run, layer, b, keeps, &at));
    for (int64_t i = 0; i < last; i++) {
        bs_lend(&b[i], MB_MOE_INPUTS, b[i].values[MB_MLA_OUT]);
        TRY(bs_unroute_ubatch(ctx, &at, &b[i]));
        TRY(assay_schedule_add(ctx, &run->schedule, false, ASSAY_STAGE_UNROUTE, layer, i));
    }
    TRY(bs_copy(ctx, run, &b[last], MB_MOE_INPUTS, &b[last], MB_MLA_OUT));
cleanup:
    return status;
}
