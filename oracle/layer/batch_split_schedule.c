/* One layer under the schedule: its stages for one microbatch after the other, and what it keeps for backward. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/batch_split_mla.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_scan.h"

assay_status bs_staggered_call(assay_context *ctx, bs_run *run, int64_t layer, const bs_stage *stage)
{
    assay_status status = ASSAY_OK;
    for (int64_t microbatch = 0; microbatch < run->factor; microbatch++) {
        TRY(assay_schedule_add(ctx, &run->schedule, stage->backward, stage->name, layer, microbatch));
        TRY(stage->call(ctx, stage->self, microbatch));
    }
cleanup:
    return status;
}

/* What both directions of the attention half work on. */
typedef struct layer_call {
    bs_run *run;
    int64_t layer;
    const bs_weights *w;
    bs_microbatch *b, *d;
    bs_mla_state states[ASSAY_MOST_MICROBATCHES];
    bs_gradient_sums sums;
} layer_call;

static assay_status attend(assay_context *ctx, void *self, int64_t m)
{
    static const bs_tensor made[] = {MB_MLA_OUT, MB_ATTN_OUT, MB_LSE};
    assay_status status = ASSAY_OK;
    const layer_call *call = self;
    double **values = call->b[m].values;
    for (int i = 0; i < 3; i++) TRY(bs_make(ctx, call->run, &call->b[m], made[i]));
    TRY(bs_mla_with_norms(ctx, call->run, m, values[MB_MLA_OUT], values[MB_ATTN_OUT], values[MB_LSE],
                          values[MB_LAYER_INPUTS], call->w));
cleanup:
    return status;
}

static assay_status write_checkpoints(assay_context *ctx, const layer_call *call)
{
    static const struct {
        const char *name;
        bs_tensor tensor;
    } checkpoints[] = {{"decoder_layer_input", MB_LAYER_INPUTS},
                       {"attention_out", MB_ATTN_OUT},
                       {"lse", MB_LSE},
                       {"mla_out", MB_MLA_OUT}};
    assay_status status = ASSAY_OK;
    const bs_run *run = call->run;
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) {
        double *parts[ASSAY_MOST_MICROBATCHES];
        const bs_tensor tensor = checkpoints[i].tensor;
        for (int64_t m = 0; m < run->factor; m++) parts[m] = call->b[m].values[tensor];
        TRY(bs_write_merged(ctx, run, call->layer, "checkpoints", checkpoints[i].name, parts,
                            bs_count(run, tensor) / (run->sizes.shards * run->sizes.rows)));
    }
cleanup:
    return status;
}

assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                     const bs_weights *w)
{
    assay_status status;
    layer_call call = {.run = run, .layer = layer, .w = w, .b = b};
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){false, ASSAY_STAGE_MLA_WITH_NORMS, attend, &call}));
    TRY(write_checkpoints(ctx, &call));
    TRY(bs_moe(ctx, run, layer, b, run->stack->store != NULL, w));
cleanup:
    return status;
}

static assay_status remat(assay_context *ctx, void *self, int64_t m)
{
    layer_call *call = self;
    assay_remat_recomputed(call->run->stack->store, bs_mla_remat_flops(call->run));
    return bs_mla_with_norms_remat(ctx, call->run, m, &call->states[m], call->b[m].values[MB_LAYER_INPUTS], call->w);
}

static assay_status attend_bwd(assay_context *ctx, void *self, int64_t m)
{
    layer_call *call = self;
    assay_status status;
    const bs_run *run = call->run;
    bs_microbatch *b = &call->b[m], *d = &call->d[m];
    TRY(bs_make(ctx, run, d, MB_LAYER_INPUTS));
    TRY(bs_mla_with_norms_bwd(ctx, run, d->values[MB_LAYER_INPUTS], bs_gradients_of(&call->sums, m),
                              d->values[MB_MLA_OUT], b->values[MB_ATTN_OUT], b->values[MB_LSE], &call->states[m]));
    bs_add_gradients(ctx, run, &call->sums, m);
    bs_mla_state_free(&call->states[m], run);
cleanup:
    return status;
}

assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                         bs_microbatch *d, const bs_weights *w, const bs_weights *g)
{
    assay_status status;
    layer_call call = {.run = run, .layer = layer, .w = w, .b = b, .d = d};
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){true, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, remat, &call}));
    TRY(bs_moe_bwd(ctx, run, layer, b, d, w, g));
    TRY(bs_gradient_sums_open(ctx, run, &call.sums, g, BS_PRE_NORM, BS_POST_NORM));
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){true, ASSAY_STAGE_MLA_WITH_NORMS_BWD, attend_bwd, &call}));
cleanup:
    for (int64_t m = 0; m < run->factor; m++) bs_mla_state_free(&call.states[m], run);
    bs_gradient_sums_close(&call.sums);
    return status;
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
    assay_status status = ASSAY_OK;
    assay_remat_store *store = run->stack->store;
    for (int i = 0; i < RESIDUALS; i++) {
        const bs_tensor tensor = residuals[i].tensor;
        const assay_remat_action action = offload && residuals[i].offloaded ? ASSAY_OFFLOAD : ASSAY_DEVICE;
        for (int64_t m = 0; m < run->factor; m++) {
            TRY(assay_remat_hold(ctx, store, layer * run->factor + m, residuals[i].slot, action, bs_count(run, tensor),
                                 &b[m].values[tensor]));
        }
    }
    assay_remat_kept(store, rolled_bytes(run));
cleanup:
    return status;
}

assay_status bs_take(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < RESIDUALS; i++) {
        for (int64_t m = 0; m < run->factor; m++) {
            TRY(assay_remat_take(ctx, run->stack->store, layer * run->factor + m, residuals[i].slot,
                                 &b[m].values[residuals[i].tensor]));
        }
    }
cleanup:
    return status;
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
