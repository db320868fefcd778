/* What the files of the layer share; decoder_stack.h is the contract.
 *
 * A layer is a graph (layer_graph.c): h = x + attention(rms_norm(x)), y = h + mlp(rms_norm(h)); one of experts ends before its
 * block (layer_moe.c). decoder_layer.c runs one layer, decoder_stack.c layer after layer. */
#pragma once

#include "oracle/layer/decoder_stack.h"

typedef struct stack_run {
    const assay_stack_config *config;
    const assay_source *in;
    const assay_sink *out;
    int64_t tokens, size; /* B*S, and that times D */
    int32_t *positions, *segment_ids;
    bool *cleared; /* [B*S]: tokens of padding whose x is not finite and counts as 0; NULL: there is no padding */
    assay_remat_store *store; /* NULL: no backward follows */
} stack_run;

/* "layers/3/", or "" for the single layer. */
enum { LAYER_PREFIX_SIZE = 32 };
void layer_prefix(const stack_run *run, int64_t layer, char prefix[LAYER_PREFIX_SIZE]);
bool layer_is_dense(const assay_stack_config *config, int64_t layer);

enum { LAYER_PRE_NORM, LAYER_POST_NORM };
#define LAYER_H "first half of the layer" /* as the graph has it */
#define LAYER_SUM "layer_sum"

/* Weights of a layer's graph, or gradients of them. NULL: the layer has no such weight, or nobody wants its gradient. */
typedef struct layer_weights {
    char prefix[LAYER_PREFIX_SIZE];
    assay_tensor_table table;
    double *values[ASSAY_MOST_ROWS];
} layer_weights;

/* LAYER_PRE_NORM or LAYER_POST_NORM. */
assay_tensor_row layer_norm_row(const assay_stack_config *config, int norm);
assay_tensor_table layer_weight_table(const assay_stack_config *config, int64_t layer);
assay_status layer_weights_read(assay_context *ctx, const stack_run *run, int64_t layer, layer_weights *w);
void layer_weights_free(layer_weights *w);
/* Whether the sink wants a gradient of the layer, the block of experts aside. */
bool layer_wants_gradient(const stack_run *run, int64_t layer);

/* Numbers in a checkpoint of the layer, lse included; 0 where it has none. */
int64_t layer_checkpoint_count(const assay_stack_config *config, int64_t layer, int slot);
/* Writes checkpoints/PREFIXname where it is wanted. */
assay_status layer_write_checkpoint(assay_context *ctx, const stack_run *run, int64_t layer, int slot,
                                    const double *values);
/* A run stage by stage goes on from what the source has in its place; no stage begins with lse. */
assay_status layer_go_on(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double *values);
/* Forward is done with it: to the store as its policy says, else freed. */
assay_status layer_release(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double **values);
/* sum = a + b, which may be stored; sum may be a or b. */
void layer_add(const assay_context *ctx, double *sum, const double *a, const double *b, int64_t count);
/* The second addition of a layer, where the block is none of its graph; whether there is one, which a mutant leaves out. */
void layer_add_block(const assay_context *ctx, double *sum, const double *h, const double *block, int64_t count);
bool layer_adds_block(const assay_context *ctx);

/* Slots of the attention's checkpoints, in the order of the data flow; ASSAY_REMAT_LSE is one more. */
enum { ATTENTION_FIRST = ASSAY_REMAT_QUERY_WA_PROJ, ATTENTION_LAST = ASSAY_REMAT_OUT_PROJ };
/* The tensor of a layer's graph at a slot; 0: it has none. And back; -1: it has none. */
int layer_tensor(const graph *g, int slot);
int layer_slot(const graph *g, int tensor);
/* Whether backward computes it again where it was not kept. */
bool layer_recomputes(const graph *g, int slot);

/* The block of experts: whether the sink wants a gradient of it; y, or the gradient of h_norm, is allocated. */
bool layer_moe_wants_gradient(const stack_run *run, int64_t layer);
assay_status layer_moe_forward(assay_context *ctx, const stack_run *run, int64_t layer, const double *h_norm,
                               double **y);
assay_status layer_moe_backward(assay_context *ctx, const stack_run *run, int64_t layer, const double *h_norm,
                                const double *dy, double **dh_norm);
/* Operations of what backward computes again of it. */
double layer_moe_recomputed(const assay_stack_config *config, const bool kept[ASSAY_REMAT_SLOTS]);

/* gradients/checkpoints/Pdecoder_layer_input, where it is wanted; a run stage by stage goes on from another one. */
assay_status layer_write_boundary(assay_context *ctx, const stack_run *run, int64_t layer, double *dx);

/* *x becomes the layer's output. */
assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x);
/* dy becomes dx. */
assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy);
