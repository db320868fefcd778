/* The MoE half of a batch-split layer on a small mesh, for tests: weights, inputs and cotangents of all shards, and the
 * plain block's results for the same numbers. */
#ifndef ASSAY_LAYER_TESTS_MOE_HALF_CASE_H
#define ASSAY_LAYER_TESTS_MOE_HALF_CASE_H

#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/tests/layer_case.h"
#include "oracle/quad/quad.h"

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
double moe_half_inner(const double *a, const double *b, int64_t count);

/* The second form as the reference: gives it a tensor [...,width], and holds numbers against a result of it. */
void moe_half_give(quad_tensors *in, const char *path, int64_t count, int64_t width, const double *values);
void moe_half_assert_near(const quad_tensors *out, const char *path, const double *actual, int64_t count);

/* The sum of dy [count] times what `forward` fills. */
typedef struct moe_half_loss {
    void (*forward)(void *self, double *y);
    void *self;
    const double *dy;
    int64_t count;
} moe_half_loss;
/* The gradient is its central difference by each value; exactly 0 where nothing comes of a value. */
void moe_half_assert_gradient(const moe_half_loss *loss, double *values, const double *gradient, int64_t count);

/* The second half of the plain layer on the whole batch, h + moe(rms_norm(h)): outputs/y, gradients/inputs/x, and what
 * the stack calls its gradients, routing and checkpoints. */
void moe_half_plain(assay_context *ctx, moe_half *c, test_tensors *plain);

/* Of a bs_weights: its name in the layer; NULL in the attention half. */
const char *moe_half_weight_name(int weight);
bool moe_half_is_routed(int weight); /* split over the expert axis */

#endif
