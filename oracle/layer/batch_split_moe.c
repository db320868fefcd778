/* The stages of the MoE half in the schedule, and what is written after them. */
#include <stdio.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_steps.h"

assay_status bs_read_given(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b)
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

assay_status bs_stage_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
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

assay_status bs_after_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const int64_t layer = at->layer;
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
assay_status bs_after_compute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const assay_sink *out = run->stack->out;
    const int64_t parts = run->sizes.shards;
    for (int k = 0; k < 2; k++) {
        const int64_t count = bs_count(run, gatings[k].tensor) / parts;
        char path[ASSAY_PATH_SIZE];
        if (!bs_wants(run, at->layer, "checkpoints", gatings[k].name, path)) continue;
        for (int64_t part = 0; part < parts * run->factor; part++) {
            const double *values = b[part % run->factor].values[gatings[k].tensor];
            MUST(out->write(ctx, out->self, path, count, values + part / run->factor * count));
        }
        for (int64_t m = 0; m < run->factor; m++) bs_drop(&b[m], gatings[k].tensor);
    }
    return ASSAY_OK;
}

assay_status bs_stage_compute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    char path[ASSAY_PATH_SIZE];
    static const bs_tensor made[] = {MB_GATE, MB_UP, MB_ROUTED_OUT, MB_NONE};
    MUST(bs_steps_forward(ctx, at, BS_STEPS_ROUTED, b, made));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(at->run, MB_ROUTED_OUT), b->values[MB_ROUTED_OUT]);
    if (at->keeps) MUST(keep(ctx, at->run, b, MB_MLPWI_0, MB_GATE));
    if (at->keeps) MUST(keep(ctx, at->run, b, MB_MLPWI_1, MB_UP));
    for (int k = 0; k < 2; k++)
        if (!bs_wants(at->run, at->layer, "checkpoints", gatings[k].name, path)) bs_drop(b, gatings[k].tensor);
    bs_drop(b, MB_ROWS);
    return ASSAY_OK;
}

assay_status bs_stage_unroute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    bs_lend(b, MB_MOE_INPUTS, b->values[MB_MLA_OUT]);
    return bs_unroute_ubatch(ctx, at, b);
}

assay_status bs_stage_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const int64_t count = bs_count(at->run, MB_MLA_OUT);
    MUST(bs_shared_expert_and_route_bwd(ctx, at, b, d));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d->values[MB_MLA_OUT]);
    layer_add(ctx, d->values[MB_MLA_OUT], d->values[MB_MOE_INPUTS], d->values[MB_MLA_OUT], count);
    return ASSAY_OK;
}
