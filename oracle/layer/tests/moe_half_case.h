/* The MoE half of a batch-split layer on a small mesh, for tests: weights, inputs and cotangents of all shards, and the
 * plain block's results for the same numbers. */
#ifndef ASSAY_LAYER_TESTS_MOE_HALF_CASE_H
#define ASSAY_LAYER_TESTS_MOE_HALF_CASE_H

#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/tests/layer_case.h"

enum { MOE_HALF_LAYER = 1 }; /* of two, the first of which is dense */

typedef struct moe_half_shape {
    int64_t data, fsdp, expert, factor;
    int64_t rows, sequence; /* of one shard's microbatch */
    int64_t experts, per_token;
    int64_t groups, groups_kept; /* 0: none */
} moe_half_shape;

typedef struct moe_half {
    layer_case layer;
    test_tensors out;
    assay_source in;
    assay_sink sink;
    stack_run stack;
    bs_run run;
    bs_weights w, g; /* of the MoE half; g is filled with NaN */
    int64_t count;   /* numbers of one microbatch [M,b,S,D] */
    double *xs[ASSAY_MOST_MICROBATCHES], *dxs[ASSAY_MOST_MICROBATCHES];
} moe_half;

/* moe_inputs are the source's inputs/x, cotangents its cotangents/y. Pointers into itself: it must stay where it is. */
void moe_half_open(moe_half *c, const moe_half_shape *shape);
void moe_half_close(moe_half *c);
/* xs, dxs, w and g as the source has them now: after a test has changed that. */
void moe_half_load(moe_half *c);

/* Everything, forward and backward; the last microbatch's unroute as well. xs become the outputs, dxs the gradients. */
assay_status moe_half_run(assay_context *ctx, moe_half *c);

double *moe_half_alloc(int64_t count); /* filled with NaN */
double *moe_half_random(uint64_t *seed, int64_t count);

/* The second half of the plain layer on the whole batch, h + moe(rms_norm(h)): outputs/y, gradients/inputs/x, and what
 * the stack calls its gradients, routing and checkpoints. */
void moe_half_plain(assay_context *ctx, moe_half *c, test_tensors *plain);

/* Of a bs_weights: its name in the layer; NULL in the attention half. */
const char *moe_half_weight_name(int weight);
bool moe_half_is_routed(int weight); /* split over the expert axis */

#endif
