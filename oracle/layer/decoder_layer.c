/* Runs one layer, with one reading of its weights each way. */
#include <stdio.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"

typedef struct layer_run {
    const stack_run *stack;
    int64_t layer;
    char prefix[ASSAY_LAYER_PREFIX_SIZE];
    assay_tensor_table table; /* of weights, and of gradients that are wanted */
    double *room[ASSAY_MOST_ROWS], *weights[ASSAY_MOST_ROWS], *gradients[ASSAY_MOST_ROWS];
    graph_run run;
    int x; /* tensor */
} layer_run;

static void close_layer(layer_run *l)
{
    if (l->run.graph != NULL) graph_close(&l->run);
    assay_weights_free(&l->table, l->room);
    assay_weights_free(&l->table, l->gradients);
}

static assay_status open_layer(assay_context *ctx, layer_run *l)
{
    const stack_run *stack = l->stack;
    graph_run *r = &l->run;
    const graph *g = layer_graph(stack, l->layer);
    assay_layer_prefix(stack->config, l->layer, l->prefix);
    MUST(graph_open(ctx, r, g));
    l->x = graph_find(g, "inputs/x");
    r->in = stack->in;
    r->out = stack->out;
    r->prefix = l->prefix;
    r->indices[graph_find(g, "inputs/positions")] = stack->positions;
    r->indices[graph_find(g, "inputs/segment_ids")] = stack->segment_ids;
    l->table = graph_weight_table(g);
    MUST(assay_weights_alloc(ctx, stack->in, l->prefix, &l->table, l->room));
    MUST(assay_weights_lend(ctx, stack->in, l->prefix, &l->table, 0, l->room, l->weights));
    graph_lend_weights(r, l->weights);
    return graph_read_deviations(ctx, r);
}

/* What the layer is given, or its gradient, is a checkpoint as well; a run stage by stage goes on from another one. */
static assay_status pass_boundary(assay_context *ctx, const layer_run *l, bool gradient, double *values)
{
    const stack_run *run = l->stack;
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%scheckpoints/%s%s", gradient ? "gradients/" : "", l->prefix,
             assay_remat_names[ASSAY_REMAT_DECODER_LAYER_INPUT]);
    if (!gradient || layer_wants_boundary(run, path)) MUST(assay_write_result(ctx, run->out, path, run->size, values));
    return assay_go_on_from(ctx, run->in, path, 0, run->size, values);
}

/* To the store, as the policy says; what has no policy goes. */
static assay_status release(assay_context *ctx, void *self, int tensor, double **values)
{
    const layer_run *l = self;
    const graph *g = l->run.graph;
    const int slot = layer_slot(g, tensor);
    if (slot < 0 || l->stack->store == NULL) return graph_let_go(ctx, NULL, tensor, values);
    return assay_remat_put(ctx, l->stack->store, l->layer, slot, graph_size(g, tensor), values);
}

/* What the block of experts makes has room where backward will be given it. */
static assay_status make_room(assay_context *ctx, layer_run *l)
{
    const graph *g = l->run.graph;
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS && l->stack->store != NULL; slot++) {
        const int t = layer_tensor(g, slot);
        const bool keeps = assay_remat_action_of(&l->stack->config->policy, slot) != ASSAY_REMAT;
        if (keeps && g->tensors[t].role == GRAPH_ASIDE)
            MUST(assay_alloc_f64(ctx, g->tensors[t].row.name, graph_size(g, t), &l->run.value[t]));
    }
    return ASSAY_OK;
}

assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x)
{
    OWNED_BY(close_layer) layer_run l = {.stack = run, .layer = layer};
    MUST(open_layer(ctx, &l));
    MUST(pass_boundary(ctx, &l, false, *x));
    l.run.value[l.x] = *x;
    *x = NULL;
    l.run.release = release;
    l.run.self = &l;
    MUST(make_room(ctx, &l));
    MUST(graph_forward(ctx, &l.run));
    *x = graph_release_value(&l.run, l.run.graph->result);
    return release(ctx, &l, l.x, &l.run.value[l.x]);
}

/* Operations of the gate, where the case gives the routing weights and there is none. */
static double gate_left_out(const layer_run *l)
{
    const stack_run *run = l->stack;
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%srouting_weights", l->prefix);
    if (assay_layer_is_dense(run->config, l->layer) || !run->in->has(run->in->self, path)) return 0;
    return 2 * (double)run->size * (double)run->config->moe.routing.num_experts;
}

/* What the store has, and what it has not computed again. */
static assay_status refill(assay_context *ctx, layer_run *l)
{
    graph_run *r = &l->run;
    assay_remat_store *store = l->stack->store;
    bool kept[ASSAY_REMAT_SLOTS] = {false};
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++) {
        const int tensor = layer_tensor(r->graph, slot);
        if (tensor == 0) continue;
        MUST(assay_remat_load(ctx, store, l->layer, slot, &r->value[tensor]));
        kept[slot] = r->value[tensor] != NULL;
    }
    assay_remat_recomputed(store, layer_recomputed(l->stack->config, r->graph, kept) - gate_left_out(l));
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++)
        if (layer_recomputes(r->graph, slot)) MUST(graph_require(ctx, r, layer_tensor(r->graph, slot)));
    graph_drop_within(r);
    return ASSAY_OK;
}

/* The gradient of the output is read before the first term of that of x comes: both have one place. */
assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy)
{
    OWNED_BY(close_layer) layer_run l = {.stack = run, .layer = layer};
    MUST(open_layer(ctx, &l));
    MUST(assay_gradients_alloc(ctx, run->out, l.prefix, &l.table, l.weights, l.gradients));
    MUST(refill(ctx, &l));
    graph_lend_gradient(&l.run, l.run.graph->result, dy);
    graph_want_gradient(&l.run, l.x, dy);
    graph_want_weight_gradients(&l.run, l.gradients);
    MUST(graph_backward(ctx, &l.run));
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->size, dy);
    MUST(assay_gradients_write(ctx, run->out, l.prefix, &l.table, l.gradients));
    return pass_boundary(ctx, &l, true, dy);
}
