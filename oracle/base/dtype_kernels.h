/* A grid of at most 32 bits, and the three loops over elements that take the time, for each instruction set. Private to
 * dtype*.c and their tests. All instruction sets give the same bits. */
#pragma once

#include "oracle/base/dtype.h"

/* What the loops need of a type. Codes are without the sign. */
typedef struct assay_dtype_grid {
    int bytes, fraction_bits, sign_bit;
    int unused_bits;                  /* low bits of the stored form that are 0 (tfloat32) */
    double least_normal, limit;       /* limit: 2^(largest exponent + 1) */
    double rounding_scale;            /* c = leading power * spread */
    double max, beyond;               /* what lies above max becomes `beyond` */
    int64_t first_nan_code, nan_code; /* nan_code: the one that is written */
} assay_dtype_grid;

/* Not for float64, int32 and e8m0, which need none. */
assay_dtype_grid assay_dtype_grid_of(assay_dtype type);

typedef struct assay_dtype_kernels {
    void (*round)(const assay_dtype_grid *grid, int64_t count, const double *x, double *y); /* y may be x */
    void (*encode)(const assay_dtype_grid *grid, int64_t count, const double *x, void *bytes);
    void (*decode)(const assay_dtype_grid *grid, int64_t count, const void *bytes, double *x);
    void (*decode_past)(const assay_dtype_grid *grid, int64_t count, const void *bytes, double *x); /* the caches */
} assay_dtype_kernels;

extern const assay_dtype_kernels assay_dtype_scalar; /* for every machine */
extern const assay_dtype_kernels assay_dtype_avx2, assay_dtype_avx512;
