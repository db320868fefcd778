/* What the files of the layer share; deepseek_stack.h is the contract.
 *
 * A layer has two halves, each a norm, a block and a residual addition: h = x + attention(rms_norm(x)) (layer_attention.c) and
 * y = h + mlp(rms_norm(h)) (layer_mlp.c). deepseek_layer.c joins them, deepseek_stack.c runs layer after layer. */
#ifndef ASSAY_LAYER_LAYER_INTERNAL_H
#define ASSAY_LAYER_LAYER_INTERNAL_H

#include "oracle/layer/deepseek_stack.h"
#include "oracle/ops/ops_shares.h"

typedef struct stack_run {
    const assay_stack_config *config;
    const assay_source *in;
    const assay_sink *out;
    int64_t tokens, size; /* B*S, and that times D */
    int32_t *positions, *segment_ids;
    assay_remat_store *store; /* NULL: no backward follows */
} stack_run;

/* "layers/3/", or "" for the single layer. */
enum { LAYER_PREFIX_SIZE = 32 };
void layer_prefix(const stack_run *run, int64_t layer, char prefix[LAYER_PREFIX_SIZE]);
bool layer_is_dense(const assay_stack_config *config, int64_t layer);

/* Every weight of a layer but those of its MoE block, which come one expert at a time. */
enum {
    LAYER_PRE_NORM,
    LAYER_POST_NORM,
    LAYER_ATTENTION,                                      /* in the order of its kind */
    LAYER_MLP = LAYER_ATTENTION + (int)ASSAY_GQA_WEIGHTS, /* ASSAY_MLP_WI ... of a dense layer */
    LAYER_WEIGHTS = LAYER_MLP + ASSAY_MLP_WEIGHTS,
};

/* Weights, or gradients of them. NULL: the layer has no such weight, or nobody wants its gradient. */
typedef struct layer_weights {
    char prefix[LAYER_PREFIX_SIZE];
    assay_tensor_table table;
    double *values[LAYER_WEIGHTS];
} layer_weights;

/* LAYER_PRE_NORM or LAYER_POST_NORM. */
assay_tensor_row layer_norm_row(const assay_stack_config *config, int norm);
assay_tensor_table layer_weight_table(const assay_stack_config *config, int64_t layer);
assay_status layer_weights_read(assay_context *ctx, const stack_run *run, int64_t layer, layer_weights *w);
void layer_weights_free(layer_weights *w);
/* Whether the sink wants the gradient of any weight of the layer. */
bool layer_wants_gradient(const stack_run *run, int64_t layer);

/* Numbers in a checkpoint of the layer, lse included; 0 where it has none. */
int64_t layer_checkpoint_count(const assay_stack_config *config, int64_t layer, int slot);
/* Writes checkpoints/PREFIXname where it is wanted. */
assay_status layer_write_checkpoint(assay_context *ctx, const stack_run *run, int64_t layer, int slot,
                                    const double *values);
/* A run stage by stage goes on from what the source has in its place; no stage begins with lse. */
assay_status layer_go_on(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double *values);
/* Likewise of a dense layer: checkpoints/PREFIXmlp_intermediate. */
assay_status layer_write_intermediate(assay_context *ctx, const stack_run *run, int64_t layer, const double *h);
assay_status layer_go_on_intermediate(assay_context *ctx, const stack_run *run, int64_t layer, double *h);
/* Forward is done with it: to the store as its policy says, else freed. */
assay_status layer_release(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double **values);
/* A copy of what another allocation holds, to the store; nothing where its policy is remat. */
assay_status layer_release_copy(assay_context *ctx, const stack_run *run, int64_t layer, int slot,
                                const double *values);

/* sum = a + b, which may be stored; sum may be a or b. */
void layer_add(const assay_context *ctx, double *sum, const double *a, const double *b, int64_t count);

/* Slots of the attention's checkpoints, in the order of the data flow; ASSAY_REMAT_LSE is one more. */
enum { ATTENTION_FIRST = ASSAY_REMAT_QUERY_WA_PROJ, ATTENTION_LAST = ASSAY_REMAT_OUT_PROJ };
/* The attention of a layer. */
void stack_attention_graph(const assay_stack_config *config, int64_t layer, graph *g);
/* Its tensor at a slot; 0: it has none. */
int attention_tensor(const graph *g, int slot);

/* The first half, as backward finds it again: everything but out_proj, and h. It stays where it is: its run points to its graph. */
typedef struct attention_half {
    graph graph;
    graph_run run;
    int64_t layer;
    double *x, *x_norm, *rstd;
    double *h;
} attention_half;
void attention_half_free(attention_half *half); /* safe on a zeroed struct */

/* h [T,D] is allocated; x goes to the store, or is freed. */
assay_status attention_half_forward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                    double **x, double **h);
assay_status attention_half_refill(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                                   attention_half *half);
/* dh becomes dx. */
assay_status attention_half_backward(assay_context *ctx, const stack_run *run, const layer_weights *w,
                                     const layer_weights *g, attention_half *half, double *dh);

/* h becomes y. */
assay_status mlp_half_forward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                              double *h);
/* dy becomes dh. */
assay_status mlp_half_backward(assay_context *ctx, const stack_run *run, int64_t layer, const layer_weights *w,
                               const layer_weights *g, const double *h, double *dy);
/* Operations of what backward computes again of the second half. */
double layer_mlp_recomputed(const assay_stack_config *config, int64_t layer, const bool kept[ASSAY_REMAT_SLOTS]);

/* What ranks share of the MoE block of a layer, forward alone or both ways. */
void layer_moe_shares(assay_run_shares *shares, double least, const stack_run *run, int64_t layer, bool backward);
/* Whether the sink wants any gradient of the stack. */
bool stack_wants_backward(const stack_run *run);
/* Layers that are not under the batch-split schedule: the first ones. */
int64_t stack_plain_layers(const assay_stack_config *config);

/* gradients/checkpoints/Pdecoder_layer_input, where it is wanted; a run stage by stage goes on from another one. */
assay_status layer_write_boundary(assay_context *ctx, const stack_run *run, int64_t layer, double *dx);

/* *x becomes the layer's output. */
assay_status layer_forward(assay_context *ctx, const stack_run *run, int64_t layer, double **x);
/* dy becomes dx. */
assay_status layer_backward(assay_context *ctx, const stack_run *run, int64_t layer, double *dy);

#endif
