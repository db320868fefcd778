/* Operations whose tensors are whole in memory: what is described is read, made room for and written, and between an
 * operation's functions find it by its path. */
#pragma once

#include "harness/operations/op_support.h"
#include "oracle/base/tensor_set.h"

struct assay_work {
    const assay_case *c;
    const void *config;
    const assay_source *in;
    const assay_sink *out;
    assay_tensor_set tensors; /* given, and results */
};

/* NULL: there is no such tensor. Functions that take a const work may change results. */
double *assay_f64(const assay_work *w, const char *path);
int32_t *assay_i32(const assay_work *w, const char *path);

/* An operation's run of forward and backward. */
assay_status assay_work_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                            const void *config, const assay_source *in, const assay_sink *out);
int64_t assay_work_memory(const assay_operation *operation, const assay_case *c, const void *config);
