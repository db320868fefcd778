/* One layer: its two halves, with one reading of its weights each way. */
#include <stdlib.h>

#include "oracle/layer/layer_internal.h"

assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x)
{
    assay_status status = ASSAY_OK;
    layer_weights w = {0};
    double *h = NULL;
    TRY(layer_weights_read(ctx, run, layer, &w));
    TRY(attention_half_forward(ctx, run, layer, &w, x, &h));
    TRY(mlp_half_forward(ctx, run, layer, &w, h));
    *x = h;
    h = NULL;
cleanup:
    layer_weights_free(&w);
    free(h);
    return status;
}

assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy)
{
    assay_status status = ASSAY_OK;
    layer_weights w = {0}, g = {0};
    attention_half half = {0};
    TRY(layer_weights_read(ctx, run, layer, &w));
    TRY(assay_gradients_alloc(ctx, run->out, w.prefix, &w.table, w.values, g.values));
    TRY(attention_half_refill(ctx, run, layer, &w, &half));
    TRY(mlp_half_backward(ctx, run, layer, &w, &g, half.h, dy));
    TRY(attention_half_backward(ctx, run, &w, &g, &half, dy));
    TRY(assay_gradients_write(ctx, run->out, w.prefix, &w.table, g.values));
cleanup:
    layer_weights_free(&w);
    layer_weights_free(&g);
    attention_half_free(&half);
    return status;
}
