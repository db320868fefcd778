/* What the files spec_batch_split_function*.c share: one call of a forward function, and what several topics compute.
 * In shapes M is the number of shards, f of microbatches; T is a shard's tokens of one microbatch, K their choices each,
 * R = c->s.copies the choices of all P shards of its expert axis, E the experts, D the width of the model. */
#ifndef ASSAY_SPEC_SPEC_BATCH_SPLIT_FUNCTION_INTERNAL_H
#define ASSAY_SPEC_SPEC_BATCH_SPLIT_FUNCTION_INTERNAL_H

#include "oracle/spec/spec_internal.h"

/* One forward function with its tensors: weights as each shard has them, [M,...]. */
typedef struct spec_call {
    assay_context *ctx;
    const assay_function_view *view;
    const assay_function_config *config;
    const assay_mla_config *mla;         /* config's */
    const assay_routing_config *routing; /* config's */
    assay_batch_split_sizes s;
    int64_t factor;
    spec_tensors in, out; /* its own */
    spec_quad *scratch;   /* its own: a few rows */
} spec_call;

/* c: its context, view and config are set, all else is zero. Of `in`, what the view has -> c->in; c->out has room. */
assay_status spec_call_open(spec_call *c, const spec_tensors *in);
void spec_call_close(spec_call *c); /* safe on one that did not open */

/* The values of a tensor [M,...] of c->in; of integers its indices. */
spec_quad *spec_given(const spec_call *c, const char *path);
const int32_t *spec_given_indices(const spec_call *c, const char *path);
/* Of a tensor [M,parts,...] what one part of one shard has; of [M,...] what one shard has. */
spec_quad *spec_part_of(const spec_call *c, const spec_tensor *tensor, int64_t shard, int64_t part, int64_t parts);
const spec_quad *spec_in_part(const spec_call *c, const char *path, int64_t shard, int64_t part, int64_t parts);
const spec_quad *spec_in_shard(const spec_call *c, const char *path, int64_t shard);
spec_quad *spec_out_part(const spec_call *c, const char *path, int64_t shard, int64_t part, int64_t parts);
spec_quad *spec_out_shard(const spec_call *c, const char *path, int64_t shard);
int32_t *spec_out_indices(const spec_call *c, const char *path, int64_t shard);

/* values [count] of a shard's microbatch i, plus how far the residual that was given lies from that of the forward
 * function: a _bwd is taken where its residuals are. */
void spec_add_offset(const spec_call *c, const char *name, int64_t shard, int64_t i, int64_t count, spec_quad *values);

/* Forward functions by their names; the last name is NULL. */
typedef struct spec_named_function {
    const char *name;
    assay_status (*evaluate)(spec_call *c); /* c->in -> c->out */
} spec_named_function;
/* A function by its recipe, or its _bwd, from what was given to it: gradients too, which are none of the function's. */
assay_status spec_quantised_function(spec_call *c, const spec_tensors *in, spec_tensors *out);

extern const spec_named_function spec_weight_functions[], spec_mla_functions[], spec_routing_functions[],
    spec_moe_functions[];

/* y [T,D]: the RMS norm of a shard's x [T,D], with the weight `scale` [D]. */
void spec_normalise(const spec_call *c, const char *scale, int64_t shard, const spec_quad *x, spec_quad *y);
/* inputs/inputs [M,f,T,D] -> outputs/mla_out likewise, attn_out and lse. */
assay_status spec_mla_with_norms(spec_call *c);

/* Of one shard's x [T,D]: selected and weights [T,K]; `kernel` and `bias` name the router. */
assay_status spec_select_rows(spec_call *c, int64_t shard, const char *kernel, const char *bias, const spec_quad *x,
                              int32_t *selected, spec_quad *weights);
/* The same from its logits [T,E]. */
assay_status spec_select_by_logits(spec_call *c, int64_t shard, const char *bias, const spec_quad *logits,
                                   int32_t *selected, spec_quad *weights);
/* sizes [groups]: how many of `ids` [count] are of each; others may be of none. */
void spec_count_groups(int64_t count, const int32_t *ids, int64_t groups, int32_t *sizes);
/* What route gives of all shards: x [M,R,D], weights [M,R], the rolled choices [M,R], and sizes [M,E/P] of the experts
 * of each shard. */
typedef struct spec_routed {
    spec_quad *x, *weights;
    int32_t *rolled, *sizes;
} spec_routed;
spec_routed spec_routed_outputs(const spec_call *c); /* outputs/ of a function that gives these */
/* From rows [M,T,D], choices [M,T*K] and weights [M,T*K]. */
assay_status spec_route_rows(spec_call *c, const spec_quad *rows, const int32_t *choices, const spec_quad *weights,
                             const spec_routed *to);
/* rows [M,T,D] from sorted [M,R,D] and rolled [M,R]: every copy of a token on every shard, added. */
assay_status spec_unsort_rows(spec_call *c, const int32_t *rolled, const spec_quad *sorted, spec_quad *rows);

#endif
