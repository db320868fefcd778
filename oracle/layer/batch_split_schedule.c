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

int64_t bs_activation_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.tokens * run->mla.emb_dim;
}

static int64_t attention_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.tokens * run->mla.heads * run->mla.v_head_dim;
}

static int64_t lse_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.tokens * run->mla.heads;
}

static int64_t hidden_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.capacity * run->stack->config->moe.moe_mlp_dim;
}

/* What both directions of the attention half work on. */
typedef struct layer_call {
    bs_run *run;
    int64_t layer;
    const bs_weights *w;
    bs_residuals *residuals;
    double *const *xs; /* forward: in and out; backward: cotangents, in and out */
    bs_mla_state states[ASSAY_MOST_MICROBATCHES];
    bs_gradient_sums sums;
} layer_call;

static assay_status attend(assay_context *ctx, void *self, int64_t m)
{
    layer_call *call = self;
    assay_status status;
    bs_residuals *r = call->residuals;
    const bs_run *run = call->run;
    const int64_t count = bs_activation_count(run);
    TRY(assay_alloc_f64(ctx, "layer_inputs", count, &r->layer_inputs[m]));
    TRY(assay_alloc_f64(ctx, "mla_out", count, &r->mla_out[m]));
    TRY(assay_alloc_f64(ctx, "attn_out", attention_count(run), &r->attn_out[m]));
    TRY(assay_alloc_f64(ctx, "lse", lse_count(run), &r->lse[m]));
    memcpy(r->layer_inputs[m], call->xs[m], (size_t)count * sizeof(double));
    TRY(bs_mla_with_norms(ctx, run, m, r->mla_out[m], r->attn_out[m], r->lse[m], r->layer_inputs[m], call->w));
    memcpy(call->xs[m], r->mla_out[m], (size_t)count * sizeof(double));
cleanup:
    return status;
}

static assay_status write_checkpoints(assay_context *ctx, const layer_call *call)
{
    assay_status status;
    const bs_run *run = call->run;
    const bs_residuals *r = call->residuals;
    const int64_t tokens = run->mla.sequence, heads = run->mla.heads;
    TRY(bs_write_merged(ctx, run, call->layer, "checkpoints", "decoder_layer_input", r->layer_inputs,
                        tokens * run->mla.emb_dim));
    TRY(bs_write_merged(ctx, run, call->layer, "checkpoints", "attention_out", r->attn_out,
                        tokens * heads * run->mla.v_head_dim));
    TRY(bs_write_merged(ctx, run, call->layer, "checkpoints", "lse", r->lse, tokens * heads));
    TRY(bs_write_merged(ctx, run, call->layer, "checkpoints", "mla_out", r->mla_out, tokens * run->mla.emb_dim));
cleanup:
    return status;
}

assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs,
                                     bs_deferred *last, bs_residuals *residuals, const bs_weights *w)
{
    assay_status status;
    layer_call call = {.run = run, .layer = layer, .w = w, .residuals = residuals, .xs = xs};
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){false, ASSAY_STAGE_MLA_WITH_NORMS, attend, &call}));
    TRY(write_checkpoints(ctx, &call));
    TRY(bs_moe(ctx, run, layer, xs, last, run->stack->store != NULL ? residuals : NULL, w));
cleanup:
    return status;
}

static assay_status remat(assay_context *ctx, void *self, int64_t m)
{
    layer_call *call = self;
    const bs_residuals *r = call->residuals;
    assay_remat_recomputed(call->run->stack->store, bs_mla_remat_flops(call->run));
    return bs_mla_with_norms_remat(ctx, call->run, m, &call->states[m], r->layer_inputs[m], call->w);
}

static assay_status attend_bwd(assay_context *ctx, void *self, int64_t m)
{
    layer_call *call = self;
    assay_status status;
    const bs_run *run = call->run;
    const int64_t count = bs_activation_count(run);
    double *dx = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the layer's input", count, &dx));
    TRY(bs_mla_with_norms_bwd(ctx, run, dx, bs_gradients_of(&call->sums, m), call->xs[m], call->residuals->attn_out[m],
                              call->residuals->lse[m], &call->states[m]));
    bs_add_gradients(ctx, run, &call->sums, m);
    memcpy(call->xs[m], dx, (size_t)count * sizeof *dx);
    bs_mla_state_free(&call->states[m], run);
cleanup:
    free(dx);
    return status;
}

assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, double *const *dxs,
                                         const bs_deferred *d_last, bs_residuals *residuals, const bs_weights *w,
                                         const bs_weights *g)
{
    assay_status status;
    layer_call call = {.run = run, .layer = layer, .w = w, .residuals = residuals, .xs = dxs};
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){true, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, remat, &call}));
    TRY(bs_moe_bwd(ctx, run, layer, dxs, d_last, residuals, w, g));
    TRY(bs_gradient_sums_open(ctx, run, &call.sums, g, BS_PRE_NORM, BS_POST_NORM));
    TRY(bs_staggered_call(ctx, run, layer, &(bs_stage){true, ASSAY_STAGE_MLA_WITH_NORMS_BWD, attend_bwd, &call}));
cleanup:
    for (int64_t m = 0; m < run->factor; m++) bs_mla_state_free(&call.states[m], run);
    bs_gradient_sums_close(&call.sums);
    bs_residuals_free(residuals);
    return status;
}

/* --- residuals between forward and backward --- */

/* Where a residual lies in the store, and whether it is offloaded. */
typedef struct residual {
    int slot;
    bool offloaded;
    double **values; /* of each microbatch */
    int64_t count;
} residual;

enum { RESIDUALS = 6 };

static void list_residuals(const bs_run *run, bs_residuals *r, residual list[RESIDUALS])
{
    const residual all[RESIDUALS] = {
        {ASSAY_REMAT_DECODER_LAYER_INPUT, true, r->layer_inputs, bs_activation_count(run)},
        {ASSAY_REMAT_OUT_PROJ, false, r->mla_out, bs_activation_count(run)}, /* with the residual addition */
        {ASSAY_REMAT_ATTENTION_OUT, true, r->attn_out, attention_count(run)},
        {ASSAY_REMAT_LSE, false, r->lse, lse_count(run)},
        {ASSAY_REMAT_MOE_MLPWI_0, true, r->mlpwi_0, hidden_count(run)},
        {ASSAY_REMAT_MOE_MLPWI_1, true, r->mlpwi_1, hidden_count(run)},
    };
    memcpy(list, all, sizeof all);
}

static int64_t selected_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.copies;
}

assay_status bs_keep(assay_context *ctx, const bs_run *run, int64_t layer, bool offload, bs_residuals *r)
{
    assay_status status = ASSAY_OK;
    assay_remat_store *store = run->stack->store;
    residual list[RESIDUALS];
    list_residuals(run, r, list);
    for (int i = 0; i < RESIDUALS; i++) {
        const assay_remat_action action = offload && list[i].offloaded ? ASSAY_OFFLOAD : ASSAY_DEVICE;
        for (int64_t m = 0; m < run->factor; m++) {
            TRY(assay_remat_hold(ctx, store, layer * run->factor + m, list[i].slot, action, list[i].count,
                                 &list[i].values[m]));
        }
    }
    assay_remat_kept(store, selected_count(run) * (int64_t)sizeof *r->selected_experts);
cleanup:
    return status;
}

assay_status bs_take(assay_context *ctx, const bs_run *run, int64_t layer, bs_residuals *r)
{
    assay_status status = ASSAY_OK;
    residual list[RESIDUALS];
    list_residuals(run, r, list);
    for (int i = 0; i < RESIDUALS; i++) {
        for (int64_t m = 0; m < run->factor; m++) {
            TRY(assay_remat_take(ctx, run->stack->store, layer * run->factor + m, list[i].slot, &list[i].values[m]));
        }
    }
cleanup:
    return status;
}

assay_remat_report bs_layer_model(const bs_run *run, bool offload)
{
    assay_remat_report report = {0};
    bs_residuals none = {0};
    residual list[RESIDUALS];
    list_residuals(run, &none, list);
    for (int i = 0; i < RESIDUALS; i++) {
        const int64_t bytes = run->factor * list[i].count * (int64_t)sizeof(double);
        if (offload && list[i].offloaded) {
            report.bytes_offloaded += bytes;
        } else {
            report.bytes_kept += bytes;
        }
    }
    report.bytes_kept += selected_count(run) * (int64_t)sizeof(int32_t);
    report.operations_recomputed = (double)run->factor * (bs_mla_remat_flops(run) + bs_moe_remat_flops(run));
    return report;
}
