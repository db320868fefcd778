/* One call of a function of the batch-split module, shard after shard. In shapes M is the number of shards, f of microbatches; T is a shard's
 * tokens of one microbatch, K their choices each, R = c->s.copies the choices of all P shards of its expert axis, E the
 * experts, D the width of the model. */
#pragma once

#include "oracle/quad/quad_blocks.h"

/* A tensor of the forward function: what was given (of a weight as each shard has it, [M,..]), or the pieces of a result. */
typedef struct quad_argument {
    quad_node node, whole; /* whole: of a weight, as it was given */
    const int32_t *indices;
    int32_t *made;
    quad_node *pieces;
    int64_t count;
} quad_argument;

/* A result of a function on all weights from what was given of that weight. */
struct quad_call;
typedef quad_node quad_of_weight(struct quad_call *c, const assay_function_tensor *whole,
                                 const assay_function_tensor *result);

typedef struct quad_call {
    quad_tape *t;
    const assay_function_view *view;
    const assay_function_config *config;
    const assay_mla_config *mla;             /* config's */
    const assay_routing_config *routing;     /* config's */
    const assay_quant_recipe_config *recipe; /* config's */
    assay_batch_split_sizes s;
    int64_t factor;
    quad_of_weight *of_weight;                       /* of the function; NULL: it is none on all weights */
    quad_argument arguments[ASSAY_FUNCTION_TENSORS]; /* of view->forward */
} quad_call;

/* Arguments from what was given; and results, or, of a NAME_bwd, gradients of what stands for its arguments. */
void quad_take(quad_call *c);
void quad_finish(quad_call *c);

/* What was given: of a tensor [M,parts,..] what one part of one shard has, in rows of so many columns; all of it. */
quad_node quad_in(quad_call *c, const char *path, int64_t shard, int64_t columns);
quad_node quad_in_part(quad_call *c, const char *path, int64_t shard, int64_t part, int64_t columns); /* of f */
quad_node quad_in_all(quad_call *c, const char *path, int64_t columns);
const int32_t *quad_in_indices(quad_call *c, const char *path);
bool quad_gives(const quad_call *c, const char *path); /* whether the function has that argument or result */
/* A result's piece, of `pieces` that follow one another; with integers, all of it to be filled. */
void quad_give(quad_call *c, const char *path, int64_t piece, int64_t pieces, quad_node y);
int32_t *quad_give_indices(quad_call *c, const char *path);
/* `name` of a shard's microbatch i, or the residual that was given for it: a _bwd is taken where its residuals are. */
quad_node quad_at_residual(quad_call *c, const char *name, int64_t shard, int64_t i, quad_node y);

/* y of a shard's rows: x times a weight that has so many columns, by the recipe where there is one. */
quad_node quad_times_weight(quad_call *c, quad_node x, const char *weight, int64_t shard, int64_t columns);
quad_node quad_normed(quad_call *c, const char *scale, int64_t shard, quad_node x);

/* Forward functions by their names; the last name is NULL. */
typedef struct quad_named_function {
    const char *name;
    void (*evaluate)(quad_call *c);
    quad_of_weight *of_weight;
} quad_named_function;
extern const quad_named_function quad_weight_functions[], quad_attention_functions[], quad_expert_functions[];

/* inputs [M,f,T,D] -> outputs/mla_out likewise, attn_out and lse; the nodes of mla_out, [M*f], where there is one. */
quad_node *quad_attention_half(quad_call *c, const char *inputs);
