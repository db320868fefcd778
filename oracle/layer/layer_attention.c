/* The first half of a layer: h = x + attention(rms_norm(x)). */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"
#include "oracle/ops/rms_norm.h"

static int slot_of(const graph *g, int tensor)
{
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++)
        if (attention_tensor(g, slot) == tensor) return slot;
    return ASSAY_REMAT_LSE;
}

void attention_half_free(attention_half *half)
{
    free(half->x);
    free(half->x_norm);
    free(half->rstd);
    free(half->h);
    if (half->run.graph != NULL) graph_close(&half->run);
    half->x = half->x_norm = half->rstd = half->h = NULL;
}

/* x_norm and rstd, and the graph that goes on from there. */
static assay_status begin(assay_context *ctx, const stack_run *run, const layer_weights *w, attention_half *half)
{
    assay_status status = ASSAY_OK;
    graph_run *r = &half->run;
    stack_attention_graph(run->config, half->layer, &half->graph);
    graph_open(r, &half->graph);
    r->in = run->in;
    r->out = run->out;
    r->prefix = w->prefix;
    TRY(assay_alloc_f64(ctx, "normalised input", run->size, &half->x_norm));
    TRY(assay_alloc_f64(ctx, "normalised input", run->tokens, &half->rstd));
    assay_rms_norm_forward(ctx, half->x_norm, half->rstd, half->x, w->values[LAYER_PRE_NORM], run->tokens,
                           assay_stack_sizes_of(run->config).emb_dim, run->config->epsilon);
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, half->x_norm);
    graph_lend(r, graph_find(r->graph, "inputs/x"), half->x_norm);
    r->indices[graph_find(r->graph, "inputs/positions")] = run->positions;
    r->indices[graph_find(r->graph, "inputs/segment_ids")] = run->segment_ids;
    graph_lend_weights(r, w->values + LAYER_ATTENTION);
cleanup:
    return status;
}

/* h = x + out_proj, which goes. */
static assay_status add_residual(assay_context *ctx, const stack_run *run, attention_half *half, double *y)
{
    assay_status status = assay_alloc_f64(ctx, "first half of the layer", run->size, &half->h);
    if (status != ASSAY_OK) return status;
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, y);
    layer_add(ctx, half->h, half->x, y, run->size);
    return ASSAY_OK;
}

/* To the store, as the policy says. */
typedef struct releaser {
    const stack_run *run;
    const attention_half *half;
} releaser;

static assay_status release(assay_context *ctx, void *self, int tensor, double **values)
{
    const releaser *to = self;
    return layer_release(ctx, to->run, to->half->layer, slot_of(&to->half->graph, tensor), values);
}

assay_status attention_half_forward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                    double **x, double **h)
{
    assay_status status = ASSAY_OK;
    attention_half half = {.layer = layer, .x = *x};
    releaser to = {run, &half};
    double *y = NULL;
    *x = NULL;
    TRY(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, half.x));
    TRY(layer_go_on(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, half.x));
    TRY(begin(ctx, run, w, &half));
    half.run.release = release;
    half.run.self = &to;
    TRY(graph_forward(ctx, &half.run));
    y = graph_take(&half.run, half.graph.result);
    TRY(add_residual(ctx, run, &half, y));
    TRY(layer_release(ctx, run, layer, ASSAY_REMAT_OUT_PROJ, &y));
    TRY(layer_release(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &half.x));
    *h = half.h;
    half.h = NULL;
cleanup:
    free(y);
    attention_half_free(&half);
    return status;
}

/* What the store has, and then all the rest computed again: a step may give two of them, and none takes another's place. */
assay_status attention_half_refill(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                   attention_half *half)
{
    assay_status status = ASSAY_OK;
    graph_run *r = &half->run;
    bool again[ASSAY_REMAT_SLOTS] = {false};
    double *y = NULL;
    *half = (attention_half){.layer = layer};
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &half->x));
    TRY(begin(ctx, run, w, half));
    TRY(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_LSE,
                         &r->value[attention_tensor(r->graph, ASSAY_REMAT_LSE)]));
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++) {
        const int tensor = attention_tensor(r->graph, slot);
        if (tensor == 0) continue;
        TRY(assay_remat_take(ctx, run->store, layer, slot, &r->value[tensor]));
        again[slot] = r->value[tensor] == NULL;
    }
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++) {
        if (!again[slot]) continue;
        TRY(graph_require(ctx, r, attention_tensor(r->graph, slot)));
        assay_remat_recomputed(run->store, graph_operations(r->graph, attention_tensor(r->graph, slot)));
    }
    graph_drop_within(r);
    y = graph_take(r, r->graph->result);
    TRY(add_residual(ctx, run, half, y));
cleanup:
    free(y);
    return status;
}

assay_status attention_half_backward(assay_context *ctx, const stack_run *run, const layer_weights *w,
                                     const layer_weights *g, attention_half *half, double *dh)
{
    assay_status status = ASSAY_OK;
    graph_run *r = &half->run;
    double *dx_norm = NULL, *dx = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", run->size, &dx_norm));
    graph_lend_gradient(r, r->graph->result, dh);
    graph_want_gradient(r, graph_find(r->graph, "inputs/x"), dx_norm);
    graph_want_weight_gradients(r, g->values + LAYER_ATTENTION);
    TRY(graph_backward(ctx, r));
    graph_close(r);
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
