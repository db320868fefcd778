/* A call of one function of the batch-split module; batch_split_function.h is the contract. */
#pragma once

#include "oracle/layer/batch_split_function.h"
#include "oracle/layer/batch_split_moe.h"

enum { BS_MOST_ARGUMENTS = 12, BS_MOST_INTERMEDIATES = 4 };

/* Its tensors are those of microbatches, whatever their order outside; of a function on one of them, the first one's. */
typedef struct bs_call {
    assay_function_config config;   /* with the function that is called: a function, or its _bwd */
    assay_function_tensors tensors; /* of that */
    bs_run run;
    stack_run stack;       /* of the run: nothing is read from it, and nobody wants anything */
    int64_t parts;         /* microbatches that the function works on */
    bs_weights w, g;       /* gathered; all gradients that the function has */
    bs_weights bundles[3]; /* of functions on all weights: those that it takes, then the one that it gives */
    bs_intermediates made; /* where what it computes and quantises by the recipe goes */
    bs_microbatch b[ASSAY_MOST_MICROBATCHES], d[ASSAY_MOST_MICROBATCHES]; /* d: gradients */
} bs_call;

typedef struct bs_tensor_form {
    const char *name, *axes;
    assay_function_holds holds;
    bs_tensor tensor; /* MB_NONE: no layer has it */
    const char *of;   /* the forward function's name for it, where that has another */
    bool constant;    /* it has no gradient */
} bs_tensor_form;

typedef struct bs_weight_form {
    int weight; /* BS_... */
    const char *name;
} bs_weight_form;

/* All weights of a layer. */
typedef enum bs_lying { BS_NO_BUNDLE, BS_STACKED, BS_WHOLE, BS_SCATTERED, BS_GATHERED } bs_lying;
typedef struct bs_bundle_form {
    const char *name;
    bs_lying lying;
    bool sums; /* each shard has a sum of its own; else shards that differ in axes that do not split it have the same */
} bs_bundle_form;

/* The row of a NAME_bwd says what it takes; what it gives, and the rest, follow from NAME's. */
struct assay_batch_split_function {
    const char *name;
    const bs_weight_form *weights;
    bs_tensor_form in[BS_MOST_ARGUMENTS], out[BS_MOST_ARGUMENTS]; /* of a _bwd without axes: as NAME has it */
    bs_bundle_form bundles[3];
    const char *products; /* axes of each product, " " between them; NULL: there are none */
    bool quantises;       /* it has fp8_full */
    /* What it computes and then quantises; a _bwd: beside what its forward function does, and makes again. */
    bs_tensor_form made[BS_MOST_INTERMEDIATES];
    /* Of each microbatch, which bs_call_cut calls: a range of steps, or what is none. */
    bs_steps_kind steps;
    bs_function *run, *remat;
    bs_function_bwd *back;
    assay_status (*call)(assay_context *ctx, bs_call *c); /* NULL: a _bwd has NAME's; that is a cut */
};

/* All weights, as gather_weights and its neighbours unpack them. */
enum { BS_BUNDLE = 17 };
extern const bs_weight_form bs_bundle[BS_BUNDLE];

/* The row that has what a NAME_bwd shares with NAME. */
const assay_batch_split_function *bs_row_of(const assay_batch_split_function *f);
/* Whether the name ends so; `of` becomes what stands before that. */
bool bs_ends_with(const char *name, const char *end, char of[ASSAY_PATH_SIZE]);
assay_status bs_call_function(assay_context *ctx, bs_call *c);

/* The rows' functions. */
typedef assay_status bs_function_call(assay_context *ctx, bs_call *c);
bs_function_call bs_call_split, bs_call_merge, bs_call_fetch_weights, bs_call_extract_layer_weights,
    bs_call_insert_layer_ws_grad, bs_call_gather_weights, bs_call_reduce_scatter_ws_grad,
    bs_call_all_reduce_ws_grad_dcn;
bs_function_call bs_call_initialize_yarn_mask, bs_call_initialize_yarn_freqs, bs_call_yarn;
bs_function_call bs_call_cut, bs_call_expert_group_mask, bs_call_expert_indices_and_weights,
    bs_call_expert_indices_and_weights_bwd, bs_call_quantized_psum_scatter, bs_call_layer;
