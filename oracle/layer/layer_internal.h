/* What the files of the layer share; decoder_stack.h is the contract.
 *
 * A layer is a graph (layer_graph.c): h = x + attention(rms_norm(x)), y = h + mlp(rms_norm(h)), where a block of experts is one step
 * (layer_moe.c). decoder_layer.c runs one layer, decoder_stack.c layer after layer. */
#pragma once

#include "oracle/graph/graph_kind.h"
#include "oracle/layer/decoder_stack.h"

/* Of layers: dense ones and others, and where windows come in turn, even and odd ones. */
enum { LAYER_GRAPHS = 4 };

typedef struct stack_run {
    const assay_stack_config *config;
    const assay_source *in;
    const assay_sink *out;
    int64_t tokens, size; /* B*S, and that times D */
    int32_t *positions, *segment_ids;
    bool *cleared; /* [B*S]: tokens of padding whose x is not finite and counts as 0; NULL: there is no padding */
    assay_remat_store *store; /* NULL: no backward follows */
    graph *graphs[LAYER_GRAPHS];
} stack_run;

enum { LAYER_PRE_NORM, LAYER_POST_NORM };
#define LAYER_H "first half of the layer" /* as the graph has it */
#define LAYER_SUM "layer_sum"

/* LAYER_PRE_NORM or LAYER_POST_NORM. */
assay_tensor_row layer_norm_row(const assay_stack_config *config, int norm);
/* Layers from here on are under the batch-split schedule. */
int64_t layer_plain_end(const assay_stack_config *config);
/* Graphs of those that are not. */
assay_status layer_graphs_make(assay_context *ctx, stack_run *run);
const graph *layer_graph(const stack_run *run, int64_t layer);
/* Whether the sink wants a gradient of the layer. */
bool layer_wants_gradient(const stack_run *run, int64_t layer);
/* Of its input in a stack without the batch-split schedule, at this path. */
bool layer_wants_boundary(const stack_run *run, const char *path);
/* sum = a + b, which may be stored; sum may be a or b. */
void layer_add(const assay_context *ctx, double *sum, const double *a, const double *b, int64_t count);

/* Slots of the attention's checkpoints, in the order of the data flow; ASSAY_REMAT_LSE is one more. */
enum { ATTENTION_FIRST = ASSAY_REMAT_QUERY_WA_PROJ, ATTENTION_LAST = ASSAY_REMAT_OUT_PROJ };
/* The tensor of a layer's graph at a slot, its input among them; 0: it has none. And back; -1: it has none. */
int layer_tensor(const graph *g, int slot);
int layer_slot(const graph *g, int tensor);
/* Whether backward computes it again where it was not kept; operations of all that. */
bool layer_recomputes(const graph *g, int slot);
double layer_recomputed(const assay_stack_config *config, const graph *g, const bool kept[ASSAY_REMAT_SLOTS]);
/* The block of experts by itself: of a layer with this prefix. */
bool layer_moe_wants_gradient(const stack_run *run, const char *prefix);
double layer_moe_recomputed(const assay_stack_config *config, const bool kept[ASSAY_REMAT_SLOTS]);

/* *x becomes the layer's output. */
assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x);
/* dy becomes dx. */
assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy);
