/* The first half of a layer: h = x + attention(rms_norm(x)). */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"
#include "oracle/ops/rms_norm.h"

void attention_half_free(attention_half *half)
{
    free(half->x);
    free(half->x_norm);
    free(half->rstd);
    free(half->h);
    if (half->kind != NULL) half->kind->free(&half->residuals);
    *half = (attention_half){0};
}

static attention_call call_of(const stack_run *run, const layer_weights *w, const attention_half *half)
{
    return (attention_call){.config = run->config,
                            .layer = half->layer,
                            .x = half->x_norm,
                            .positions = run->positions,
                            .segment_ids = run->segment_ids,
                            .weights = w->values + LAYER_ATTENTION};
}

static bool has_slot(const stack_run *run, int slot)
{
    return assay_stack_attention_row(run->config, slot).name != NULL;
}

static double **value_of(attention_half *half, int slot)
{
    return half->kind->value(&half->residuals, slot);
}

static assay_status normalise(assay_context *ctx, const stack_run *run, const layer_weights *w, attention_half *half)
{
    assay_status status = ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "normalised input", run->size, &half->x_norm));
    TRY(assay_alloc_f64(ctx, "normalised input", run->tokens, &half->rstd));
    assay_rms_norm_forward(ctx, half->x_norm, half->rstd, half->x, w->values[LAYER_PRE_NORM], run->tokens,
                           assay_stack_sizes_of(run->config).emb_dim, run->config->epsilon);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, half->x_norm);
cleanup:
    return status;
}

static assay_status add_residual(assay_context *ctx, const stack_run *run, attention_half *half)
{
    double *y = *value_of(half, ASSAY_REMAT_OUT_PROJ);
    assay_status status = assay_alloc_f64(ctx, "first half of the layer", run->size, &half->h);
    if (status != ASSAY_OK) return status;
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, y);
    layer_add(ctx, half->h, half->x, y, run->size);
    return ASSAY_OK;
}

/* Intermediates that nothing after another slot in forward reads; out_proj outlasts them all. */
enum { AFTER_ALL = ATTENTION_LAST + 1 };
static const int last_use[] = {
    [ASSAY_REMAT_QUERY_WA_PROJ] = ASSAY_REMAT_MLA_Q,    [ASSAY_REMAT_MLA_Q] = ASSAY_REMAT_QUERY_PROJ,
    [ASSAY_REMAT_KV_WA_PROJ] = ASSAY_REMAT_KEY_PROJ,    [ASSAY_REMAT_MLA_KV] = ASSAY_REMAT_VALUE_PROJ,
    [ASSAY_REMAT_QKV_PROJ] = ASSAY_REMAT_VALUE_PROJ,    [ASSAY_REMAT_QUERY_PROJ] = ASSAY_REMAT_ATTENTION_OUT,
    [ASSAY_REMAT_KEY_PROJ] = ASSAY_REMAT_ATTENTION_OUT, [ASSAY_REMAT_VALUE_PROJ] = ASSAY_REMAT_ATTENTION_OUT,
    [ASSAY_REMAT_ATTENTION_OUT] = ASSAY_REMAT_OUT_PROJ, [ASSAY_REMAT_OUT_PROJ] = AFTER_ALL,
};

static assay_status release_after(assay_context *ctx, const stack_run *run, int64_t layer, attention_half *half,
                                  int slot)
{
    assay_status status = ASSAY_OK;
    for (int earlier = ATTENTION_FIRST; earlier <= ATTENTION_LAST; earlier++) {
        if (last_use[earlier] == slot && has_slot(run, earlier))
            TRY(layer_release(ctx, run, layer, earlier, value_of(half, earlier)));
    }
    if (slot == ASSAY_REMAT_OUT_PROJ)
        TRY(layer_release(ctx, run, layer, ASSAY_REMAT_LSE, value_of(half, ASSAY_REMAT_LSE)));
cleanup:
    return status;
}

assay_status attention_half_forward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                    double **x, double **h)
{
    assay_status status = ASSAY_OK;
    attention_half half = {.kind = attention_of(run->config), .layer = layer, .x = *x};
    *x = NULL;
    TRY(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, half.x));
    TRY(layer_go_on(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, half.x));
    TRY(normalise(ctx, run, w, &half));
    const attention_call call = call_of(run, w, &half);
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++) {
        if (has_slot(run, slot)) {
            TRY(half.kind->compute(ctx, &half.residuals, slot, &call));
            TRY(layer_write_checkpoint(ctx, run, layer, slot, *value_of(&half, slot)));
            TRY(layer_go_on(ctx, run, layer, slot, *value_of(&half, slot)));
        }
        if (slot == ASSAY_REMAT_ATTENTION_OUT) {
            TRY(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_LSE, *value_of(&half, ASSAY_REMAT_LSE)));
        }
        TRY(release_after(ctx, run, layer, &half, slot));
    }
    TRY(add_residual(ctx, run, &half));
    TRY(release_after(ctx, run, layer, &half, AFTER_ALL));
    TRY(layer_release(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &half.x));
    *h = half.h;
    half.h = NULL;
cleanup:
    attention_half_free(&half);
    return status;
}

assay_status attention_half_refill(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                   attention_half *half)
{
    assay_status status = ASSAY_OK;
    *half = (attention_half){.kind = attention_of(run->config), .layer = layer};
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &half->x));
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_LSE, value_of(half, ASSAY_REMAT_LSE)));
    TRY(normalise(ctx, run, w, half));
    const attention_call call = call_of(run, w, half);
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++) {
        if (!has_slot(run, slot)) continue;
        double **value = value_of(half, slot);
        TRY(assay_remat_take(ctx, run->store, layer, slot, value));
        if (*value != NULL) continue;
        TRY(half->kind->compute(ctx, &half->residuals, slot, &call));
        TRY(layer_go_on(ctx, run, layer, slot, *value));
        assay_remat_recomputed(run->store, half->kind->tensor_flops(run->config, layer, slot));
    }
    TRY(add_residual(ctx, run, half));
    free(*value_of(half, ASSAY_REMAT_OUT_PROJ));
    *value_of(half, ASSAY_REMAT_OUT_PROJ) = NULL;
cleanup:
    return status;
}

assay_status attention_half_backward(assay_context *ctx, const stack_run *run, const layer_weights *w,
                                     const layer_weights *g, attention_half *half, double *dh)
{
    assay_status status = ASSAY_OK;
    const attention_call call = call_of(run, w, half);
    double *dx_norm = NULL, *dx = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", run->size, &dx_norm));
    TRY(half->kind->backward(ctx, dx_norm, g->values + LAYER_ATTENTION, dh, &half->residuals, &call));
    half->kind->free(&half->residuals);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dx_norm);
    TRY(assay_alloc_f64(ctx, "gradient of the layer's input", run->size, &dx));
    assay_rms_norm_backward(ctx, dx, g->values[LAYER_PRE_NORM], dx_norm, half->x, w->values[LAYER_PRE_NORM], half->rstd,
                            run->tokens, assay_stack_sizes_of(run->config).emb_dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dx);
    layer_add(ctx, dh, dh, dx, run->size);
cleanup:
    free(dx_norm);
    free(dx);
    return status;
}
