/* Inputs from a seed. Element `index` (row-major) of tensor `path` is a function of (fill, seed, path, index, grid)
 * alone, so that any slice can be made again by itself, on any machine.
 *
 * Bits: Philox4x32-10 (Salmon et al. 2011; Random123), key = FNV-1a-64 of the path xor splitmix64(seed), counter =
 * index / 4, lane = index mod 4. Normal: Box-Muller on two lanes (SLEEF's deterministic log, sin and cos). What is drawn
 * is scaled, shifted and then rounded to the grid. Bell: the sum of a word's four bytes, in float32. docs/random-inputs.md has the recipe in full. */
#pragma once

#include "oracle/base/dtype.h"
#include "oracle/base/tensor.h"

#define ASSAY_DISTRIBUTION_TABLE(X)                                                                                    \
    X(ASSAY_NORMAL, "normal")             /* mean + scale * N(0,1) */                                                  \
    X(ASSAY_UNIFORM, "uniform")           /* low + (high - low) * U[0,1) */                                            \
    X(ASSAY_INTEGERS, "integers")         /* scale * a whole number from low to high inclusive, plus mean */           \
    X(ASSAY_CONSTANT, "constant")         /* mean */                                                                   \
    X(ASSAY_VALUES, "values")             /* scale * values[index mod count] + mean: a pattern along the last axes */  \
    X(ASSAY_NEAR_TIES, "near_ties")       /* mean (or 1) plus low..high ulps of the grid at that value */              \
    X(ASSAY_BLOCK_POWERS, "block_powers") /* normal times 2^(low..high), one power per 128 elements of a row */        \
    X(ASSAY_ROW_POWERS, "row_powers")     /* normal times 2^(low..high), one power per row (last axis) */              \
    X(ASSAY_CANCEL, "cancel")             /* odd elements are minus the element before, up to a 2^-10 relative part */ \
    X(ASSAY_BELL, "bell")                 /* near normal, from sums of bytes: as normal, but fast on any device */     \
    X(ASSAY_EXPERTS, "experts")           /* int32: each row (last axis) has distinct whole numbers in [0, high] */    \
    X(ASSAY_GROUP_SIZES, "group_sizes")   /* int32: random sizes adding up to `high`, at least one 0 (not if alone) */ \
    X(ASSAY_PERMUTATION, "permutation")   /* int32: a random permutation of 0..count-1 */                              \
    X(ASSAY_RAMP, "ramp")                 /* int32: mean + scale * (index along the last axis) */

typedef enum assay_distribution {
#define X(code, name) code,
    ASSAY_DISTRIBUTION_TABLE(X)
#undef X
        ASSAY_DISTRIBUTION_COUNT
} assay_distribution;

const char *assay_distribution_name(assay_distribution d);
bool assay_distribution_from_name(const char *name, assay_distribution *d);

typedef struct assay_fill {
    assay_distribution distribution;
    double scale, mean, low, high;
    const double *values; /* for "values"; not owned */
    int64_t value_count;
    bool
        passes_over; /* of integers, int32: a quarter of them are `over` instead, at least one of several and never all */
    double over;
} assay_fill;

/* A tensor of floats whose elements are drawn one by one: with its path, shape and type that is all there is to it. */
typedef struct assay_random_recipe {
    assay_fill fill;
    uint64_t seed;
} assay_random_recipe;

/* Elements [first, first + count) of the tensor, rounded to `grid`. `shape` is the whole tensor's. Uses ctx->threads;
 * the same bits for any number of them. Refuses a fill that does not fit (experts with high + 1 < last axis, "values"
 * without values, low > high). */
assay_status assay_random_fill(assay_context *ctx, const assay_fill *fill, uint64_t seed, const char *path,
                               const assay_shape *shape, assay_dtype grid, int64_t first, int64_t count, double *out);

/* The integer distributions (integers, constant, values, experts, group_sizes, permutation, ramp); whole tensor at once. */
assay_status assay_random_fill_i32(assay_context *ctx, const assay_fill *fill, uint64_t seed, const char *path,
                                   const assay_shape *shape, int32_t *out);

/* 64 random bits for (seed, path, index): for whatever else needs a draw. */
uint64_t assay_random_bits(uint64_t seed, const char *path, uint64_t index);
