/* oneDNN's primitives as functions of arrays, for the operations of onednn.c.
 *
 * Every array is of the type that the backend computes in (ASSAY_ONEDNN_TYPE: bf16, f16 or f32), or float32. */
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include "../support/support.h"

#pragma GCC visibility push(hidden)

typedef struct onednn {
    const assay_backend_request *request;
    memory memory;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_data_type_t type;
    assay_backend_type stored; /* the same, as assay names it */
    int code;                  /* what the call returns when it ended early */
    jmp_buf ended;
} onednn;

/* Four dimensions at most, by strides in elements; absent where data is NULL. */
typedef struct array {
    void *data;
    dnnl_memory_desc_t desc;
} array;

/* The call ends here, with that code. */
void end(onednn *o, int code, const char *message) __attribute__((noreturn));

/* ---- arrays ---- */

array make(onednn *o, dnnl_data_type_t type, int rank, const int64_t *dims); /* zeros, row-major */
array like(onednn *o, const array *a, dnnl_data_type_t type);                /* zeros, of a's shape, row-major */
array view(const array *a, int rank, const int64_t *dims, const int64_t *strides, int64_t first);
array swapped(const array *a, int axis, int other);
array rows_of(const array *a, int64_t first, int64_t count); /* along the first axis of a row-major array */
/* A tensor of the request in that type, or an absent array. */
array given(onednn *o, const char *path, dnnl_data_type_t type);
array converted(onednn *o, const array *a, dnnl_data_type_t type); /* of a row-major array */
/* In the type that it has; row-major. */
void store(const onednn *o, const char *path, const array *a);
void write_numbers(array *a, const float *values);
void read_numbers(float *values, const array *a);

/* ---- primitives ---- */

/* out = a b, or a b + bias; ranks equal, batches in front. Nothing where one is empty. */
void matmul(onednn *o, array *out, const array *a, const array *b, const array *bias);
void eltwise(onednn *o, array *out, const array *x, dnnl_alg_kind_t kind, float alpha, float beta);
void eltwise_backward(onednn *o, array *dx, const array *dy, const array *x, dnnl_alg_kind_t kind, float alpha,
                      float beta);
/* Axes of b of size 1 are repeated. */
void binary(onednn *o, array *out, dnnl_alg_kind_t kind, const array *a, const array *b);
void reduce(onednn *o, array *out, dnnl_alg_kind_t kind, const array *x);
/* Along the last axis. */
void softmax(onednn *o, array *out, const array *x, bool logarithm);
void softmax_backward(onednn *o, array *dx, const array *dy, const array *y);
/* Rows of x times the reciprocal root of variance + epsilon, times scale [columns]; mean (zeros), variance [rows] float32. */
typedef struct norm {
    array mean, variance, scale;
    float epsilon;
} norm;
void normalize(onednn *o, array *out, const array *x, const norm *n);
/* As if variance did not depend on x. */
void normalize_backward(onednn *o, array *dx, array *d_scale, const array *dy, const array *x, const norm *n);

#pragma GCC visibility pop
