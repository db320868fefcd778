/* One call of a function of the batch-split module. A function goes from some tensors of the layer to others (bs_tensor): what is
 * asked for is made of what is there, of all shards of a microbatch at once. In shapes M is the number of shards, f of microbatches; T
 * is a shard's tokens of one microbatch, K their choices each, R = c->s.copies the choices of all P shards of its expert axis, E the
 * experts, D the width of the model. */
#pragma once

#include "oracle/quad/quad_blocks.h"

static inline bool quad_is_of_layer(const assay_function_tensor *tensor)
{
    return tensor->tensor != MB_NONE && tensor->tensor < MB_OTHER_IN;
}

struct quad_call;
/* Makes what is asked for, by quad_set or in `integers`; or refuses. */
typedef void quad_maker(struct quad_call *c, bs_tensor tensor, int64_t i);

typedef struct quad_call {
    quad_tape *t;
    const assay_function_view *view;
    const assay_function_config *config;
    const assay_mla_config *mla;             /* config's */
    const assay_routing_config *routing;     /* config's */
    const assay_quant_recipe_config *recipe; /* config's */
    assay_batch_split_sizes s;
    int64_t factor, parts; /* microbatches of the schedule; that the function has */
    int64_t layer;         /* inputs/layer_idx */
    quad_maker *make;
    quad_node
        arguments[ASSAY_FUNCTION_TENSORS]; /* of view->forward: given, a kernel as each shard has it, [M,..]; or made */
    quad_node made[MB_TENSORS][ASSAY_MOST_MICROBATCHES];    /* [M*rows,columns]; 0: not yet */
    int32_t *integers[MB_TENSORS][ASSAY_MOST_MICROBATCHES]; /* [M,..]; NULL: not yet */
} quad_call;

/* Takes what is given; gives the results, or of a NAME_bwd the gradients of what stands for its arguments. */
void quad_call_run(quad_call *c);
void quad_finish(quad_call *c);

/* Of functions by themselves: arguments and results by their paths. */
quad_node quad_in(quad_call *c, const char *path, int64_t columns); /* all of it, in rows of so many */
void quad_give(quad_call *c, const char *path, quad_node y);
int32_t *quad_give_indices(quad_call *c, const char *path); /* to be filled */

/* A shard's rows of what all have. */
quad_node quad_of_shard(quad_call *c, quad_node all, int64_t shard);
/* What was given of a weight (BS_...), in rows of so many: of a kernel [M*rows,columns]; 0: the function has none. */
quad_node quad_weight(quad_call *c, int weight, int64_t columns);
/* A tensor of microbatch i, made where it is not there. */
quad_node quad_at(quad_call *c, bs_tensor tensor, int64_t i);
const int32_t *quad_integers_at(quad_call *c, bs_tensor tensor, int64_t i);
/* It is made. A _bwd goes on from the residual that it is given in its place. */
void quad_set(quad_call *c, bs_tensor tensor, int64_t i, quad_node y);
/* The residual of a shard's microbatch; NULL: none was given. */
const quad *quad_residual(quad_call *c, bs_tensor tensor, int64_t shard, int64_t i);
quad_maker quad_make;

/* The experts of each row by `biased` [rows,E] -> selected [rows,K], and their weights [rows,K] from `scores`. */
quad_node quad_choose(quad_call *c, quad_node biased, quad_node scores, int32_t *selected);
/* Pairs of neighbours of x [tokens,heads*Dr], by the angle [tokens,Dr] that both have: y = x cos + (x mask) sin. */
quad_node quad_turned(quad_call *c, quad_node x, quad_node angles);

/* What no layer computes: of functions on all weights or the batch, and by name. */
void quad_move(quad_call *c);
bool quad_others(quad_call *c); /* false: there is no such function */
