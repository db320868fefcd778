/* What the tests of this folder share. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/dtype.h"
#include "tests/support/assay_test.h"

/* The RMS relative error of a rounding just above a power of two: what precision.h takes. */
#define RMS(unit_roundoff) ((unit_roundoff)*0.57735026918962576451)

/* `count` normal numbers times `scale`, rounded to `grid`; never exactly 0. */
void test_fill(uint64_t *seed, double scale, assay_dtype grid, int64_t count, double *out);
/* The same, allocated. */
double *test_normals(uint64_t *seed, double scale, assay_dtype grid, int64_t count);
double *test_nans(int64_t count); /* allocated */

/* Calls `check` for each number of threads and each instruction set of this processor; the first call is the plainest.
 */
void test_each_context(void (*check)(assay_context *ctx, void *data), void *data);

/* The reference counts in the place of an emulation that changes nothing. */
typedef struct test_operations {
    assay_emulation none;
    double count;
} test_operations;

/* From here on the reference adds the operations of its products to `operations`. */
void test_count_operations(assay_context *ctx, test_operations *operations);
