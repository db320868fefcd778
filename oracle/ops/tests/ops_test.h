/* What the tests of this folder share: numbers from a seed, and binary128 functions for formulas written out anew. */
#ifndef ASSAY_OPS_TESTS_OPS_TEST_H
#define ASSAY_OPS_TESTS_OPS_TEST_H

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/dtype.h"
#include "tests/support/assay_test.h"

/* The RMS relative error of a rounding just above a power of two: what precision.h takes. */
#define RMS(unit_roundoff) ((unit_roundoff)*0.57735026918962576451)

typedef __float128 quad;

/* Of libquadmath; declared here because quadmath.h is GCC's own header, which other compilers do not find. */
quad expq(quad x);
quad erfcq(quad x);
quad sqrtq(quad x);
quad fabsq(quad x);

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

/* Errors of an implementation against a scale: RMS and largest of |error| / sigma, where sigma^2 = variance + the
 * square of what storing as `storage` may lose. Where sigma is 0 the error must be. */
typedef struct test_ratio {
    double rms, largest;
} test_ratio;
test_ratio test_ratio_of(int64_t count, const double *candidate, const double *golden, const double *variance,
                         assay_dtype storage);

#endif
