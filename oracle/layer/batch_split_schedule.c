/* One layer under the schedule: its stages for one microbatch after the other, and what it keeps for backward. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/batch_split_mla.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_scan.h"
#include "oracle/layer/batch_split_steps.h"

static assay_status write_checkpoints(assay_context *ctx, const bs_run *run, int64_t layer, const bs_microbatch *b)
{
    MUST(bs_write_tensor(ctx, run, layer, "checkpoints", "decoder_layer_input", b, MB_LAYER_INPUTS));
    MUST(bs_write_tensor(ctx, run, layer, "checkpoints", "attention_out", b, MB_ATTN_OUT));
    MUST(bs_write_tensor(ctx, run, layer, "checkpoints", "lse", b, MB_LSE));
    return bs_write_tensor(ctx, run, layer, "checkpoints", "mla_out", b, MB_MLA_OUT);
}

typedef struct layer_room {
    bs_shown shown;
    bs_steps steps[BS_STEPS_KINDS];
} layer_room;

static void layer_close(layer_room *room)
{
    bs_shown_close(&room->shown);
}

static bs_layer begin(const assay_context *ctx, layer_room *room, const bs_run *run, int64_t layer, bs_microbatch *b,
                      bool backward)
{
    bs_steps_open(room->steps, ctx, run, bs_recipe_of(run), false);
    for (int64_t m = 0; m < run->factor; m++) {
        if (run->yarn_freqs[m] != NULL) bs_lend(&b[m], MB_ANGLES, run->yarn_freqs[m]);
        b[m].number = m;
    }
    return (bs_layer){.run = run,
                      .layer = layer,
                      .steps = room->steps,
                      .recipe = bs_recipe_of(run),
                      .made = bs_shown_open(&room->shown, run, layer, backward),
                      .keeps = run->stack->store != NULL};
}

assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                     const bs_weights *w)
{
    OWNED_BY(layer_close) layer_room room = {0};
    bs_layer at = begin(ctx, &room, run, layer, b, false);
    const bs_stage attention = {ASSAY_STAGE_MLA_WITH_NORMS, layer, run->factor, false};
    at.w = w;
    if (b->values[MB_LAYER_INPUTS] != NULL) {
        MUST(bs_staggered_call(ctx, run, attention, bs_mla_with_norms, &at, b));
        MUST(write_checkpoints(ctx, run, layer, b));
    }
    return bs_moe(ctx, run, &at, b);
}

assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                         bs_microbatch *d, const bs_weights *w, const bs_weights *g)
{
    OWNED_BY(layer_close) layer_room room = {0};
    bs_layer at = begin(ctx, &room, run, layer, b, true);
    const bs_stage again = {ASSAY_STAGE_MLA_WITH_NORMS_REMAT, layer, run->factor, true};
    const bs_stage attention = {ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer, run->factor, true};
    const bool half = b->values[MB_LAYER_INPUTS] == NULL;
    at.w = w;
    at.g = g;
    if (!half) MUST(bs_staggered_call(ctx, run, again, bs_mla_with_norms_remat, &at, b));
    MUST(bs_moe_bwd(ctx, run, &at, b, d));
    if (half) return ASSAY_OK;
    return bs_staggered_bwd(ctx, run, attention, bs_mla_with_norms_bwd, &at, b, d, BS_PRE_NORM, BS_POST_NORM);
}

/* --- residuals between forward and backward --- */

/* Where a residual lies in the store, and whether it is offloaded. */
static const struct {
    bs_tensor tensor;
    int slot;
    bool offloaded;
} residuals[] = {
    {MB_LAYER_INPUTS, ASSAY_REMAT_DECODER_LAYER_INPUT, true},
    {MB_MLA_OUT, ASSAY_REMAT_OUT_PROJ, false}, /* with the residual addition */
    {MB_ATTN_OUT, ASSAY_REMAT_ATTENTION_OUT, true},
    {MB_LSE, ASSAY_REMAT_LSE, false},
    {MB_MLPWI_0, ASSAY_REMAT_MOE_MLPWI_0, true},
    {MB_MLPWI_1, ASSAY_REMAT_MOE_MLPWI_1, true},
};
enum { RESIDUALS = sizeof residuals / sizeof *residuals };

static int64_t rolled_bytes(const bs_run *run)
{
    return bs_count(run, MB_ROLLED) * (int64_t)sizeof(int32_t);
}

assay_status bs_keep(assay_context *ctx, const bs_run *run, int64_t layer, bool offload, bs_microbatch *b)
{
    assay_remat_store *store = run->stack->store;
    for (int i = 0; i < RESIDUALS; i++) {
        const bs_tensor tensor = residuals[i].tensor;
        const assay_remat_action action = offload && residuals[i].offloaded ? ASSAY_OFFLOAD : ASSAY_DEVICE;
        for (int64_t m = 0; m < run->factor; m++) {
            MUST(assay_remat_hold(ctx, store, layer * run->factor + m, residuals[i].slot, action, bs_count(run, tensor),
                                  &b[m].values[tensor]));
        }
    }
    assay_remat_kept(store, rolled_bytes(run));
    return ASSAY_OK;
}

assay_status bs_take(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b)
{
    for (int i = 0; i < RESIDUALS; i++) {
        for (int64_t m = 0; m < run->factor; m++) {
            MUST(assay_remat_take(ctx, run->stack->store, layer * run->factor + m, residuals[i].slot,
                                  &b[m].values[residuals[i].tensor]));
        }
    }
    return ASSAY_OK;
}

assay_remat_report bs_layer_model(const bs_run *run, bool offload)
{
    assay_remat_report report = {0};
    for (int i = 0; i < RESIDUALS; i++) {
        const int64_t bytes = run->factor * bs_count(run, residuals[i].tensor) * (int64_t)sizeof(double);
        if (offload && residuals[i].offloaded) {
            report.bytes_offloaded += bytes;
        } else {
            report.bytes_kept += bytes;
        }
    }
    report.bytes_kept += rolled_bytes(run);
    report.operations_recomputed = (double)run->factor * (bs_mla_remat_flops(run) + bs_moe_remat_flops(run));
    return report;
}
