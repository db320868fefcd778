/* The first half of a layer: h = x + mla(rms_norm(x)). */
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
    assay_mla_residuals_free(&half->mla);
    *half = (attention_half){0};
}

static assay_mla_inputs mla_inputs(const stack_run *run, const attention_half *half)
{
    return (assay_mla_inputs){.x = half->x_norm, .positions = run->positions, .segment_ids = run->segment_ids};
}

static int slot_of(int tensor)
{
    return ASSAY_REMAT_QUERY_WA_PROJ + tensor;
}

static assay_status normalise(assay_context *ctx, const stack_run *run, const layer_weights *w, attention_half *half)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = run->config->mla.emb_dim;
    TRY(assay_alloc_f64(ctx, "normalised input", run->size, &half->x_norm));
    TRY(assay_alloc_f64(ctx, "normalised input", run->tokens, &half->rstd));
    assay_rms_norm_forward(ctx, half->x_norm, half->rstd, half->x, w->values[LAYER_PRE_NORM], run->tokens, dim,
                           run->config->epsilon);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, half->x_norm);
cleanup:
    return status;
}

static assay_status add_residual(assay_context *ctx, const stack_run *run, attention_half *half)
{
    double *y = half->mla.values[ASSAY_MLA_OUT_PROJ];
    assay_status status = assay_alloc_f64(ctx, "first half of the layer", run->size, &half->h);
    if (status != ASSAY_OK) return status;
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, y);
    layer_add(ctx, half->h, half->x, y, run->size);
    return ASSAY_OK;
}

/* Intermediates that nothing after `tensor` in forward reads. */
static const int last_use[ASSAY_MLA_TENSORS] = {
    [ASSAY_MLA_QUERY_WA_PROJ] = ASSAY_MLA_MLA_Q,      [ASSAY_MLA_MLA_Q] = ASSAY_MLA_QUERY_PROJ,
    [ASSAY_MLA_KV_WA_PROJ] = ASSAY_MLA_KEY_PROJ,      [ASSAY_MLA_MLA_KV] = ASSAY_MLA_VALUE_PROJ,
    [ASSAY_MLA_QUERY_PROJ] = ASSAY_MLA_ATTENTION_OUT, [ASSAY_MLA_KEY_PROJ] = ASSAY_MLA_ATTENTION_OUT,
    [ASSAY_MLA_VALUE_PROJ] = ASSAY_MLA_ATTENTION_OUT, [ASSAY_MLA_ATTENTION_OUT] = ASSAY_MLA_OUT_PROJ,
    [ASSAY_MLA_OUT_PROJ] = ASSAY_MLA_TENSORS,
};

static assay_status release_after(assay_context *ctx, const stack_run *run, int64_t layer, attention_half *half,
                                  int tensor)
{
    assay_status status = ASSAY_OK;
    for (int earlier = 0; earlier < ASSAY_MLA_TENSORS; earlier++) {
        if (last_use[earlier] == tensor)
            TRY(layer_release(ctx, run, layer, slot_of(earlier), &half->mla.values[earlier]));
    }
    if (tensor == ASSAY_MLA_OUT_PROJ) TRY(layer_release(ctx, run, layer, ASSAY_REMAT_LSE, &half->mla.lse));
cleanup:
    return status;
}

assay_status attention_half_forward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                    double **x, double **h)
{
    assay_status status = ASSAY_OK;
    const assay_mla_weights weights = assay_mla_weights_of(w->values + LAYER_MLA);
    attention_half half = {.x = *x};
    *x = NULL;
    TRY(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, half.x));
    TRY(normalise(ctx, run, w, &half));
    const assay_mla_inputs inputs = mla_inputs(run, &half);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        TRY(assay_mla_compute(ctx, &half.mla, (assay_mla_tensor)tensor, &inputs, &weights, &run->config->mla));
        TRY(layer_write_checkpoint(ctx, run, layer, slot_of(tensor), half.mla.values[tensor]));
        if (tensor == ASSAY_MLA_ATTENTION_OUT) {
            TRY(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_LSE, half.mla.lse));
        }
        TRY(release_after(ctx, run, layer, &half, tensor));
    }
    TRY(add_residual(ctx, run, &half));
    TRY(release_after(ctx, run, layer, &half, ASSAY_MLA_TENSORS));
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
    const assay_mla_config *config = &run->config->mla;
    const assay_mla_weights weights = assay_mla_weights_of(w->values + LAYER_MLA);
    *half = (attention_half){0};
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &half->x));
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_LSE, &half->mla.lse));
    TRY(normalise(ctx, run, w, half));
    const assay_mla_inputs inputs = mla_inputs(run, half);
    for (int i = 0; i < ASSAY_MLA_TENSORS; i++) {
        const assay_mla_tensor tensor = (assay_mla_tensor)i;
        TRY(assay_remat_take(ctx, run->store, layer, slot_of(i), &half->mla.values[i]));
        if (half->mla.values[i] != NULL || assay_mla_tensor_count(config, tensor) == 0) continue;
        TRY(assay_mla_compute(ctx, &half->mla, tensor, &inputs, &weights, config));
        assay_remat_recomputed(run->store, assay_mla_tensor_flops(config, tensor));
    }
    TRY(add_residual(ctx, run, half));
    free(half->mla.values[ASSAY_MLA_OUT_PROJ]);
    half->mla.values[ASSAY_MLA_OUT_PROJ] = NULL;
cleanup:
    return status;
}

assay_status attention_half_backward(assay_context *ctx, const stack_run *run, const layer_weights *w,
                                     const layer_weights *g, attention_half *half, double *dh)
{
    assay_status status = ASSAY_OK;
    const assay_mla_weights weights = assay_mla_weights_of(w->values + LAYER_MLA);
    const assay_mla_inputs inputs = mla_inputs(run, half);
    double *dx_norm = NULL, *dx = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", run->size, &dx_norm));
    const assay_mla_gradients gradients = assay_mla_gradients_of(dx_norm, g->values + LAYER_MLA);
    TRY(assay_mla_backward(ctx, &gradients, dh, &half->mla, &inputs, &weights, &run->config->mla));
    assay_mla_residuals_free(&half->mla);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dx_norm);
    TRY(assay_alloc_f64(ctx, "gradient of the layer's input", run->size, &dx));
    assay_rms_norm_backward(ctx, dx, g->values[LAYER_PRE_NORM], dx_norm, half->x, w->values[LAYER_PRE_NORM], half->rstd,
                            run->tokens, run->config->mla.emb_dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dx);
    layer_add(ctx, dh, dh, dx, run->size);
cleanup:
    free(dx_norm);
    free(dx);
    return status;
}
