/* What the files of the batch-split schedule share; batch_split.h is the contract. Arrays are [shards, ...] (mesh.h): M
 * shards, b rows of the batch of one shard's microbatch, P shards of the expert axis, R = copies. */
#pragma once

#include "oracle/layer/batch_split.h"
#include "oracle/layer/layer_internal.h"

typedef struct bs_run {
    const stack_run *stack; /* configuration, source and sink, and the store of residuals */
    const assay_mesh *mesh;
    int64_t factor;
    assay_batch_split_sizes sizes;
    assay_mla_config mla;                        /* of one shard's microbatch: batch is b */
    graph attention;                             /* of that, in its layer */
    assay_routing_config routing;                /* of one shard's microbatch */
    double *yarn_freqs[ASSAY_MOST_MICROBATCHES]; /* [M,b,S,Dr/2] of each microbatch */
    assay_schedule schedule;
} bs_run;

/* Rows of `size` bytes between the batch [M,f*b,..] and microbatch `index` [M,b,..]: row r of a shard is in microbatch r mod f. */
void bs_move_rows(const bs_run *run, int64_t index, void *batch, void *microbatch, size_t size, bool to_batch);

/* Weights of one layer; also their gradients (NULL: nobody wants it, or the table has none). Scattered, as they lie
 * between uses: split over fsdp (and experts over expert), the same on every shard of data. Gathered: whole but for
 * experts. Shard s's part begins at values[w] + s * bs_weight_count(...). */
typedef struct bs_weights {
    double *values[BS_WEIGHTS];
} bs_weights;
void bs_weights_free(bs_weights *w); /* safe on a zeroed struct */
/* The whole tensor; without a name: there is none. */
assay_tensor_row bs_weight_row(const bs_run *run, int weight);
/* A shard's part of it. */
assay_shape bs_weight_shape(const bs_run *run, int weight, bool gathered);
/* Numbers of that; 0: there is no such weight. */
int64_t bs_weight_count(const bs_run *run, int weight, bool gathered);
/* Room for all of them; `like` NULL, or only those that `like` has. */
assay_status bs_weights_alloc(assay_context *ctx, const bs_run *run, bs_weights *w, bool gathered,
                              const bs_weights *like);

/* [M,a,b], sizes checked. */
assay_status bs_alloc_shards(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                             size_t element_size, void *out);

/* values [M,count] of each shard, or NULL: every shard gets the sum of all, ascending. */
void bs_sum_over_shards(const assay_context *ctx, const bs_run *run, double *values, int64_t count);

/* sum_grads: gradients of the weights from `first` to before `end` are made for each microbatch apart and then added. */
typedef struct bs_gradient_sums {
    bs_weights sums; /* the caller's arrays, of some weights */
    bs_weights each; /* room for those of one microbatch, when there are more */
} bs_gradient_sums;
assay_status bs_gradient_sums_open(assay_context *ctx, const bs_run *run, bs_gradient_sums *s, const bs_weights *g,
                                   int first, int end);
void bs_gradient_sums_close(bs_gradient_sums *s);
/* Where microbatch i's go: the first one's where the sum will be. */
const bs_weights *bs_gradients_of(const bs_gradient_sums *s, int64_t i);
/* After microbatch i. What is not the sum of all yet may be stored. */
void bs_add_gradients(const assay_context *ctx, const bs_run *run, const bs_gradient_sums *s, int64_t i);

/* Whether the sink wants FOLDER/layers/i/NAME, whose path it leaves. */
bool bs_wants(const bs_run *run, int64_t layer, const char *folder, const char *name, char path[ASSAY_PATH_SIZE]);
/* Graphs of what is computed within a shard (batch_split_steps.h). */
typedef enum bs_steps_kind {
    BS_STEPS_NONE,
    BS_STEPS_SUM,       /* moe_inputs, experts_out -> outputs: the second addition of a layer */
    BS_STEPS_ATTENTION, /* layer_inputs, angles -> mla_out, attn_out, lse: a layer up to its second norm */
    BS_STEPS_GATE,      /* x_norm -> logits */
    BS_STEPS_NORM,      /* mla_out -> x_norm */
    BS_STEPS_SHARED,    /* x_norm -> shared_out */
    BS_STEPS_ROUTED,    /* rows, row_weights -> gate, up, routed_out; rows beyond a shard's own give 0 */
    BS_STEPS_GMM,       /* rows -> gate, as a function by itself gives it */
    BS_STEPS_KINDS
} bs_steps_kind;

/* These, or gradients of them. Starts zeroed. */
typedef struct bs_microbatch {
    double *values[MB_TENSORS];
    int32_t *indices[MB_TENSORS];
    bool lent[MB_TENSORS];           /* its owner's */
    assay_routing routing;           /* of all shards' tokens */
    bool choice_is_input;            /* MB_GIVEN is the case's own */
    int64_t number;                  /* of the layer's microbatches this one's */
    graph_run *runs[BS_STEPS_KINDS]; /* [M]: of bs_steps_remat */
} bs_microbatch;
void bs_microbatch_free(bs_microbatch *b, const bs_run *run);
/* The size of an axis, by its letter: m shards, j microbatches, o those but the last, d rows of a shard's batch, a of its
 * microbatch, h half of R, S, T, G, r = R copies, y of them that are kept, e = E/P; the others as everywhere (harness/operations/op_support.c). */
int64_t bs_axis_size(const bs_run *run, char axis);
int64_t bs_count(const bs_run *run, bs_tensor tensor); /* numbers on all shards */
/* Room for it, unless it is there. */
assay_status bs_make(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor tensor);
void bs_lend(bs_microbatch *b, bs_tensor tensor, double *values);
void bs_lend_indices(bs_microbatch *b, bs_tensor tensor, const int32_t *indices); /* which nobody writes to */
void bs_drop(bs_microbatch *b, bs_tensor tensor);
void bs_move(bs_microbatch *to, bs_microbatch *from, bs_tensor tensor);
/* `tensor` becomes a copy of another one, numbers that are there. */
assay_status bs_copy(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor tensor, bs_tensor of);
/* Writes FOLDER/layers/i/NAME of the whole batch, where it is wanted. */
assay_status bs_write_tensor(assay_context *ctx, const bs_run *run, int64_t layer, const char *folder, const char *name,
                             const bs_microbatch *b, bs_tensor tensor);
/* Reads PATH of the whole batch, where the source has it. */
assay_status bs_read_tensor(assay_context *ctx, const bs_run *run, const char *path, bs_microbatch *b,
                            bs_tensor tensor);

/* Where numbers go that a function of the module computes and then quantises by a recipe (oracle/ops/quantised_deviation.h): they are
 * checkpoints, and an emulated run is given one standard deviation of each. */
typedef struct bs_intermediates {
    const assay_source *in; /* perhaps with "spread/checkpoints/NAME" */
    const assay_sink *out;
    const char *prefix; /* of NAME: "layers/3/", or "" */
    bool after_forward; /* the gradient of a call that has shown what the forward function makes */
} bs_intermediates;

/* The weights of a layer, and in backward the gradients of them, as each shard has them; NULL ones are skipped. */
typedef struct bs_layer {
    const bs_run *run;
    int64_t layer;
    const bs_weights *w, *g;
    const struct bs_steps *steps;            /* [BS_STEPS_KINDS] */
    const assay_quant_recipe_config *recipe; /* NULL: none */
    const bs_intermediates *made;            /* NULL: nobody looks */
    bool keeps;                              /* gate and up, for backward */
} bs_layer;

/* Of a layer, tensors of the whole batch in parts: shard s of microbatch m makes part m M + s, parts come in this order, and lie in
 * rows that alternate between the microbatches. Row i of n in a part is row ((s n + i) f + m) of the tensor; n is rows of the
 * batch, or 1 where the tensor has an axis of microbatches. It stays where it is. */
enum { BS_MOST_GATHERED = 24 };
typedef struct bs_gathered {
    char path[ASSAY_PATH_SIZE];
    double *values; /* of the whole batch; NULL: written */
    int64_t parts;  /* that have come */
} bs_gathered;
typedef struct bs_shown {
    assay_wrapped wrapped;
    const bs_run *run;
    bs_intermediates made;
    char prefix[ASSAY_LAYER_PREFIX_SIZE];
    bs_gathered tensors[BS_MOST_GATHERED];
    int count;
    assay_source source; /* of parts */
    assay_sink sink;
} bs_shown;
/* NULL: the layer has no recipe. */
const bs_intermediates *bs_shown_open(bs_shown *s, const bs_run *run, int64_t layer, bool backward);
void bs_shown_close(bs_shown *s); /* safe on a zeroed struct */
/* Of the layer: NULL or without one there is none. */
const assay_quant_recipe_config *bs_recipe_of(const bs_run *run);
/* A run of one shard of a microbatch, whose checkpoints are shown and spreads read. */
assay_status bs_show_run(assay_context *ctx, graph_run *r, const bs_layer *at, const bs_microbatch *b, int64_t shard);

/* A function makes its results of what is there of the microbatch; its _bwd makes gradients of its arguments (d) of those of its
 * results, of arguments (b), of what _remat made, and gradients of weights. */
typedef assay_status bs_function(assay_context *ctx, const bs_layer *at, bs_microbatch *b);
typedef assay_status bs_function_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d);

/* The attention half: each shard attends within its own rows of the batch, with given angles and without segments, so that a shard's rows
 * have the bits that they have in the plain layer. */
/* layer_inputs, angles -> mla_out = x + mla(rms_norm(x)), attn_out, lse; _remat: attention, with query_proj, key_proj, value_proj and
 * what they are made of, which _bwd uses up; counts the operations. */
bs_function bs_mla_with_norms, bs_mla_with_norms_remat;
/* The norms' scales are summed over all shards. */
bs_function_bwd bs_mla_with_norms_bwd;
/* Operations of products that _remat repeats, on all shards. */
double bs_mla_remat_flops(const bs_run *run);

/* batch_split_schedule: from layer_inputs of each microbatch, or without these from mla_out, to the outputs of all but the last, of which there are moe_inputs,
 * routed_out, shared_out and rolled ids: its unroute comes in the next layer. What backward needs is there besides. */
assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                     const bs_weights *w);
/* From gradients of these (d) to those of layer_inputs, which may be lent the room of outputs; `g` [gathered] the gradients of the
 * weights as each shard has them, norms' scales and the gate's bias summed over all shards. */
assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                         bs_microbatch *d, const bs_weights *w, const bs_weights *g);

/* --- between the layers of the schedule and the scan over them --- */

/* Residuals to the store, those that are offloaded to its file unless `offload` is false; and back. The rolled ids of the last
 * microbatch stay with the caller. */
assay_status bs_keep(assay_context *ctx, const bs_run *run, int64_t layer, bool offload, bs_microbatch *b);
assay_status bs_restore(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b);
/* What that costs, and what backward computes again of the attention half. */
assay_remat_report bs_layer_model(const bs_run *run, bool offload);

/* From a configuration; the angles of rotation are not in it. */
void bs_run_of(bs_run *run, const stack_run *stack);

/* --- weights, between the source, the mesh and the sink; all results are allocated by the caller (bs_weights_alloc) --- */

/* Between a whole weight and what the shards have of it, scattered. */
void bs_move_parts(const bs_run *run, int weight, double *whole, double *scattered, bool to_whole);
/* The layer's weights from the source, scattered; a gate's bias that it lacks is 0. Refused: biases of experts,
 * per_expert_scale. */
assay_status bs_extract_layer_weights(assay_context *ctx, const bs_run *run, bs_weights *scattered, int64_t layer);
/* The finished gradients of a layer (scattered), put together and written. */
assay_status bs_insert_layer_ws_grad(assay_context *ctx, const bs_run *run, const bs_weights *scattered, int64_t layer);
/* all_gather over fsdp. */
void bs_gather_weights(const bs_run *run, bs_weights *gathered, const bs_weights *scattered);
/* psum_scatter over fsdp, then psum over expert of what the experts' shards share. Norms' scales and the gate's bias
 * are complete already, and pass. What is summed may be stored before (also in `gathered`). */
assay_status bs_reduce_scatter_ws_grad(assay_context *ctx, const bs_run *run, bs_weights *scattered,
                                       const bs_weights *gathered);
/* psum over data; in place. */
assay_status bs_all_reduce_ws_grad_dcn(assay_context *ctx, const bs_run *run, bs_weights *scattered);
/* Which gradients of a layer the sink wants: those of `w` that it does not, or of weights that the source lacks, are
 * freed and NULL. */
void bs_drop_unwanted(const bs_run *run, bs_weights *w, int64_t layer);
