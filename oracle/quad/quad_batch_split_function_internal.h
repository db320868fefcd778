/* What the files quad_batch_split_function*.c share: one call of a forward function, and what several topics compute.
 * In shapes M is the number of shards, f of microbatches; T is a shard's tokens of one microbatch, K their choices each,
 * R = c->s.copies the choices of all P shards of its expert axis, E the experts, D the width of the model. */
#ifndef ASSAY_QUAD_SPEC_BATCH_SPLIT_FUNCTION_INTERNAL_H
#define ASSAY_QUAD_SPEC_BATCH_SPLIT_FUNCTION_INTERNAL_H

#include "oracle/quad/quad_internal.h"

/* One forward function with its tensors: weights as each shard has them, [M,...]. */
typedef struct quad_call {
    assay_context *ctx;
    const assay_function_view *view;
    const assay_function_config *config;
    const assay_mla_config *mla;         /* config's */
    const assay_routing_config *routing; /* config's */
    assay_batch_split_sizes s;
    int64_t factor;
    quad_tensors in, out; /* its own */
    quad *scratch;   /* its own: a few rows */
} quad_call;

/* c: its context, view and config are set, all else is zero. Of `in`, what the view has -> c->in; c->out has room. */
assay_status quad_call_open(quad_call *c, const quad_tensors *in);
void quad_call_close(quad_call *c); /* safe on one that did not open */

/* The values of a tensor [M,...] of c->in; of integers its indices. */
quad *quad_given(const quad_call *c, const char *path);
const int32_t *quad_given_indices(const quad_call *c, const char *path);
/* Of a tensor [M,parts,...] what one part of one shard has; of [M,...] what one shard has. */
quad *quad_part_of(const quad_call *c, const quad_tensor *tensor, int64_t shard, int64_t part, int64_t parts);
const quad *quad_in_part(const quad_call *c, const char *path, int64_t shard, int64_t part, int64_t parts);
const quad *quad_in_shard(const quad_call *c, const char *path, int64_t shard);
quad *quad_out_part(const quad_call *c, const char *path, int64_t shard, int64_t part, int64_t parts);
quad *quad_out_shard(const quad_call *c, const char *path, int64_t shard);
int32_t *quad_out_indices(const quad_call *c, const char *path, int64_t shard);

/* values [count] of a shard's microbatch i, plus how far the residual that was given lies from that of the forward
 * function: a _bwd is taken where its residuals are. */
void quad_add_offset(const quad_call *c, const char *name, int64_t shard, int64_t i, int64_t count, quad *values);

/* Forward functions by their names; the last name is NULL. */
typedef struct quad_named_function {
    const char *name;
    assay_status (*evaluate)(quad_call *c); /* c->in -> c->out */
} quad_named_function;
/* A function by its recipe, or its _bwd, from what was given to it: gradients too, which are none of the function's. */
assay_status quad_quantised_function(quad_call *c, const quad_tensors *in, quad_tensors *out);

extern const quad_named_function quad_weight_functions[], quad_mla_functions[], quad_routing_functions[],
    quad_moe_functions[];

/* y [T,D]: the RMS norm of a shard's x [T,D], with the weight `scale` [D]. */
void quad_normalise(const quad_call *c, const char *scale, int64_t shard, const quad *x, quad *y);
/* inputs/inputs [M,f,T,D] -> outputs/mla_out likewise, attn_out and lse. */
assay_status quad_mla_with_norms(quad_call *c);

/* Of one shard's x [T,D]: selected and weights [T,K]; `kernel` and `bias` name the router. */
assay_status quad_select_rows(quad_call *c, int64_t shard, const char *kernel, const char *bias, const quad *x,
                              int32_t *selected, quad *weights);
/* The same from its logits [T,E]. */
assay_status quad_select_by_logits(quad_call *c, int64_t shard, const char *bias, const quad *logits,
                                   int32_t *selected, quad *weights);
/* sizes [groups]: how many of `ids` [count] are of each; others may be of none. */
void quad_count_groups(int64_t count, const int32_t *ids, int64_t groups, int32_t *sizes);
/* What route gives of all shards: x [M,R,D], weights [M,R], the rolled choices [M,R], and sizes [M,E/P] of the experts
 * of each shard. */
typedef struct quad_routed {
    quad *x, *weights;
    int32_t *rolled, *sizes;
} quad_routed;
quad_routed quad_routed_outputs(const quad_call *c); /* outputs/ of a function that gives these */
/* From rows [M,T,D], choices [M,T*K] and weights [M,T*K]. */
assay_status quad_route_rows(quad_call *c, const quad *rows, const int32_t *choices, const quad *weights,
                             const quad_routed *to);
/* rows [M,T,D] from sorted [M,R,D] and rolled [M,R]: every copy of a token on every shard, added. */
assay_status quad_unsort_rows(quad_call *c, const int32_t *rolled, const quad *sorted, quad *rows);

#endif
