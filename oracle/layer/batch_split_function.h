/* The functions of MaxText's models/deepseek_batchsplit.py one by one, from one table: what each takes and gives, what it
 * is the gradient of, its operations, and the C function that computes it. Names of functions, arguments and results are
 * that file's.
 *
 * Tensors are of all shards, [M,...] (mesh.h), where the function works on what each shard has: M shards, P of the expert
 * axis, b rows of the batch in one shard's microbatch, T = b*S tokens of it, G = T*P gathered over the expert axis, R =
 * G*K copies. An argument that is a list of microbatches has an axis for them behind that of the shards. Weights are
 * whole, as every shard sees them once they are gathered; their gradients are as each shard has them ("unreduced"), but
 * those of norms' scales and of the gate's bias, which are summed over all shards.
 *
 * A function NAME_bwd takes the arguments of NAME that it needs, what NAME left for it (its residuals) and the gradient
 * Y_grad of each differentiated result Y; it gives the gradient X_grad of each argument X. */
#pragma once

#include "oracle/layer/batch_split.h"
#include "oracle/ops/quant_recipe.h"

typedef struct assay_batch_split_function assay_batch_split_function;

/* What a tensor holds, and how a case fills it. Those from ASSAY_HOLDS_COUNTS on follow from the other inputs. */
typedef enum assay_function_holds {
    ASSAY_HOLDS_NUMBERS,
    ASSAY_HOLDS_QUERY,   /* numbers, by the root of the width of a head */
    ASSAY_HOLDS_WEIGHTS, /* of choices: between 0 and 1 */
    ASSAY_HOLDS_CHOICES, /* [...,K] ids of experts, distinct */
    ASSAY_HOLDS_POSITIONS,
    ASSAY_HOLDS_LAYER,    /* a number of a layer */
    ASSAY_HOLDS_INTEGERS, /* a result */
    ASSAY_HOLDS_KERNEL,
    ASSAY_HOLDS_SCALE,
    ASSAY_HOLDS_BIAS,
    ASSAY_HOLDS_COUNTS,     /* of each shard's choices inputs/selected_experts, by expert */
    ASSAY_HOLDS_ROLLED,     /* choices of the shard's expert axis, its own experts first */
    ASSAY_HOLDS_OWN_COUNTS, /* how many of those each of the shard's experts has */
    ASSAY_HOLDS_ANGLES,     /* the two numbers of a pair are equal */
    ASSAY_HOLDS_SHARED,     /* numbers, the same on shards that differ in axes over which they are not split */
    ASSAY_HOLDS_RESIDUAL,   /* what the forward function leaves */
} assay_function_holds;

typedef struct assay_function_tensor {
    char path[ASSAY_PATH_SIZE]; /* inputs/, weights/ or outputs/ */
    char of[ASSAY_PATH_SIZE];   /* of a NAME_bwd: what it is in NAME, of X_grad and Y_grad X and Y; else the path */
    bool gradient;              /* X_grad, Y_grad */
    bool result;                /* outputs/ */
    char axes[ASSAY_MAX_RANK + 1];
    assay_shape shape;
    assay_function_holds holds;
    bool integers;
    bool differentiated; /* of forward: an input or weight with a gradient, an output with a cotangent */
    int64_t fan_in;      /* of a kernel */
    unsigned same;       /* ASSAY_HOLDS_SHARED: 1 << axis of the mesh */
    int weight;          /* BS_..., which one it is, or belongs to; -1: none */
    int bundle;          /* of all weights, which of the arguments and results; -1: it is none of these */
    bs_tensor tensor;    /* which one of the layer it is */
    bool by_expert;      /* a weight whose first axis is split over expert */
} assay_function_tensor;

enum { ASSAY_FUNCTION_TENSORS = 80 };
typedef struct assay_function_tensors {
    assay_function_tensor items[ASSAY_FUNCTION_TENSORS];
    int count;
} assay_function_tensors;

/* In the order of the table, which ends with NULL; aliases are none of them. */
const assay_batch_split_function *assay_batch_split_function_at(int place);
/* NULL: there is none. A name that the module has for the same function (route_impl_fwd, moe) finds it too. */
const assay_batch_split_function *assay_batch_split_function_of(const char *name);
const char *assay_function_name(const assay_batch_split_function *f);
/* What a NAME_bwd is the gradient of; NULL: it is none. */
const assay_batch_split_function *assay_function_forward(const assay_batch_split_function *f);
const assay_batch_split_function *assay_function_backward(const assay_batch_split_function *f);
/* The names beside the function's own: the name at `place`, NULL behind the last. */
const char *assay_batch_split_alias(int place);

/* A configuration of a single layer under the schedule, which assay_stack_check has let through. */
typedef struct assay_function_config {
    assay_stack_config stack;
    const assay_batch_split_function *function;
    int64_t layers;     /* of stacked weights */
    int64_t layer_axis; /* where they are stacked */
    assay_quant_recipe_config recipe;
} assay_function_config;

/* Whether no shard reads what another one has: its results are those of one shard with all rows. */
bool assay_function_is_local(const assay_batch_split_function *f);

/* Whether it quantises by a recipe. */
bool assay_function_quantises(const assay_batch_split_function *f);

/* Refuses stacked weights whose axis a tensor does not have, and a recipe that the function has not. */
assay_status assay_function_check(assay_context *ctx, const assay_function_config *config);

/* Inputs, then weights, then outputs. */
void assay_function_tensors_of(const assay_function_config *config, assay_function_tensors *tensors);
/* checkpoints/: what it, or the function that it is the gradient of, computes and then quantises by the recipe, and what
 * backward does so beside that. A run may read "spread/checkpoints/NAME" of each (oracle/ops/quantised_deviation.h). */
void assay_function_intermediates_of(const assay_function_config *config, assay_function_tensors *made);
/* What a second form takes from the table: names and shapes, and which tensors of the layer they are. */
typedef struct assay_function_view {
    const assay_function_config *config;
    assay_batch_split_sizes sizes;
    const char *name; /* of the forward function */
    bool backward;    /* it is the _bwd of that */
    assay_function_tensors own, forward;
    assay_function_tensors whole; /* weights, as inputs of fetch_weights */
} assay_function_view;
void assay_function_view_of(const assay_function_config *config, assay_function_view *view);

/* Reads inputs and weights, writes the outputs and checkpoints that the sink wants, and of a forward function gradients/ from
 * cotangents/, where one is wanted. */
assay_status assay_function_run(assay_context *ctx, const assay_function_config *config, const assay_source *in,
                                const assay_sink *out);
/* An input that follows from the others: from `drawn`, which ASSAY_HOLDS_CHOICES has drawn as [M,T,K], numbers as the
 * tensor itself; residuals from the source. Of values and indices the one that the tensor has. */
assay_status assay_function_derive(assay_context *ctx, const assay_function_config *config,
                                   const assay_function_tensor *tensor, const assay_source *in, const int32_t *choices,
                                   double *values, int32_t *indices);

/* Of products; where a function has none, of its results. */
double assay_function_flops(const assay_function_config *config);
int64_t assay_function_memory(const assay_function_config *config);
