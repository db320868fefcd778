/* One layer: its graph, and behind it the block of experts where it has one. With one reading of its weights each way. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"

/* It stays where it is: its run points to its graph. */
typedef struct layer_run {
    const stack_run *stack;
    int64_t layer;
    layer_weights w, g;
    graph graph;
    graph_run run;
    int in, h; /* tensors */
    double *x; /* [T,D] */
} layer_run;

static void close_layer(layer_run *l)
{
    if (l->run.graph != NULL) graph_close(&l->run);
    layer_weights_free(&l->w);
    layer_weights_free(&l->g);
    free(l->x);
}

static assay_status open_layer(assay_context *ctx, layer_run *l)
{
    graph_run *r = &l->run;
    MUST(layer_weights_read(ctx, l->stack, l->layer, &l->w));
    assay_layer_graph(&l->graph, l->stack->config, l->layer);
    MUST(graph_open(ctx, r, &l->graph));
    l->in = graph_find(r->graph, "inputs/x");
    l->h = graph_find(r->graph, LAYER_H);
    r->in = l->stack->in;
    r->out = l->stack->out;
    r->prefix = l->w.prefix;
    graph_lend(r, l->in, l->x);
    r->indices[graph_find(r->graph, "inputs/positions")] = l->stack->positions;
    r->indices[graph_find(r->graph, "inputs/segment_ids")] = l->stack->segment_ids;
    graph_lend_weights(r, l->w.values);
    return graph_read_spreads(ctx, r);
}

/* To the store, as the policy says; what has no policy goes. */
static assay_status release(assay_context *ctx, void *self, int tensor, double **values)
{
    const layer_run *l = self;
    const int slot = layer_slot(&l->graph, tensor);
    return slot < 0 ? graph_let_go(ctx, NULL, tensor, values) : layer_release(ctx, l->stack, l->layer, slot, values);
}

assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x)
{
    const bool dense = layer_is_dense(run->config, layer);
    OWNED_BY(close_layer) layer_run l = {.stack = run, .layer = layer, .x = *x};
    OWNED double *h = NULL, *y = NULL, *moe = NULL;
    *x = NULL;
    MUST(layer_write_checkpoint(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, l.x));
    MUST(layer_go_on(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, l.x));
    MUST(open_layer(ctx, &l));
    l.run.release = release;
    l.run.self = &l;
    if (!dense) MUST(assay_alloc_f64(ctx, "first half of the layer", run->size, &h));
    l.run.room[l.h] = h;
    MUST(graph_forward(ctx, &l.run));
    y = graph_take(&l.run, l.graph.result);
    MUST(layer_release(ctx, run, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &l.x));
    if (!dense) {
        MUST(layer_moe_forward(ctx, run, layer, y, &moe));
        assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, moe);
        layer_add_block(ctx, h, h, moe, run->size);
    }
    *x = dense ? y : h;
    *(dense ? &y : &h) = NULL;
    return ASSAY_OK;
}

/* What the store has, and what it has not computed again. */
static assay_status refill(assay_context *ctx, layer_run *l)
{
    graph_run *r = &l->run;
    assay_remat_store *store = l->stack->store;
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++) {
        const int tensor = layer_tensor(r->graph, slot);
        if (tensor == 0) continue;
        MUST(assay_remat_take(ctx, store, l->layer, slot, &r->value[tensor]));
        if (layer_recomputes(r->graph, slot) && r->value[tensor] == NULL)
            assay_remat_recomputed(store, graph_operations(r->graph, tensor));
    }
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++)
        if (layer_recomputes(r->graph, slot)) MUST(graph_require(ctx, r, layer_tensor(r->graph, slot)));
    graph_drop_within(r);
    return ASSAY_OK;
}

/* From the gradient of what the block of experts gives to that of what it is given. */
static assay_status back_through_experts(assay_context *ctx, layer_run *l, double *dy, double **dh_norm)
{
    graph_run *r = &l->run;
    const int h_norm = r->graph->result;
    MUST(graph_require(ctx, r, h_norm));
    MUST(layer_moe_backward(ctx, l->stack, l->layer, r->value[h_norm], dy, dh_norm));
    assay_round(ctx, ASSAY_ROUND_STORAGE, l->stack->size, *dh_norm);
    graph_lend_gradient(r, h_norm, *dh_norm);
    if (layer_adds_block(ctx)) graph_lend_gradient(r, l->h, dy);
    return ASSAY_OK;
}

assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy)
{
    OWNED double *dx = NULL, *dh_norm = NULL;
    OWNED_BY(close_layer) layer_run l = {.stack = run, .layer = layer};
    MUST(assay_remat_take(ctx, run->store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, &l.x));
    MUST(open_layer(ctx, &l));
    MUST(assay_gradients_alloc(ctx, run->out, l.w.prefix, &l.w.table, l.w.values, l.g.values));
    MUST(refill(ctx, &l));
    if (layer_is_dense(run->config, layer)) {
        graph_lend_gradient(&l.run, l.graph.result, dy);
    } else {
        MUST(back_through_experts(ctx, &l, dy, &dh_norm));
    }
    MUST(assay_alloc_f64(ctx, "gradient of the layer's input", run->size, &dx));
    graph_want_gradient(&l.run, l.in, dx);
    graph_want_weight_gradients(&l.run, l.g.values);
    MUST(graph_backward(ctx, &l.run));
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dx);
    memcpy(dy, dx, (size_t)run->size * sizeof *dy);
    return assay_gradients_write(ctx, run->out, l.w.prefix, &l.w.table, l.g.values);
}
