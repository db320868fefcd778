/* What the layers of the schedule share with the scan over them. Private to the schedule. */
#pragma once

#include "oracle/layer/batch_split_internal.h"

/* staggered_call: a function for microbatch 0, 1, ... of so many, each recorded as an event of the layer. */
typedef struct bs_stage {
    assay_stage name;
    int64_t layer, count;
    bool backward;
} bs_stage;
assay_status bs_staggered_call(assay_context *ctx, bs_run *run, bs_stage stage, bs_function *f, const bs_layer *at,
                               bs_microbatch *b);
/* A _bwd; the gradients of weights from `first` to before `end`, at->g, are sums over microbatches (sum_grads). */
assay_status bs_staggered_bwd(assay_context *ctx, bs_run *run, bs_stage stage, bs_function_bwd *f, const bs_layer *at,
                              bs_microbatch *b, bs_microbatch *d, int first, int end);

/* Residuals to the store, those that are offloaded to its file unless `offload` is false; and back. The rolled ids of the last
 * microbatch stay with the caller. */
assay_status bs_keep(assay_context *ctx, const bs_run *run, int64_t layer, bool offload, bs_microbatch *b);
assay_status bs_take(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b);
/* What that costs, and what backward computes again of the attention half. */
assay_remat_report bs_layer_model(const bs_run *run, bool offload);

/* From a configuration; the angles of rotation are not in it. */
void bs_run_of(bs_run *run, const stack_run *stack);
