/* What the tests of the second form share: a case with named tensors in binary128, and the same numbers in float64. */
#ifndef ASSAY_SPEC_TESTS_SPEC_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_CASE_H

#include "oracle/spec/certify.h"
#include "tests/support/assay_test.h"

#define SPEC_CASE_BUFFERS 160

typedef struct spec_case {
    assay_context ctx;
    spec_tensors in, out; /* what the second form reads and gives */
    spec_tensors results; /* what is to be certified */
    uint64_t random;
    void *buffers[SPEC_CASE_BUFFERS]; /* copies of inputs */
    int buffer_count;
} spec_case;

void case_start(spec_case *c, uint64_t seed);
void case_end(spec_case *c);

assay_shape dims(int rank, const int64_t *sizes);
#define DIMS(...) dims((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* An input: random numbers in (-scale, scale), or the given ones. Returns the float64 copy, which
 * lives until case_end. */
double *case_random(spec_case *c, const char *path, double scale, assay_shape shape);
double *case_values(spec_case *c, const char *path, const double *values, assay_shape shape);
int32_t *case_indices(spec_case *c, const char *path, const int32_t *values, assay_shape shape);
double case_draw(spec_case *c); /* in (-1, 1) */

/* The second form's result as float64. */
double result_at(const spec_case *c, const char *path, int64_t index);
int32_t index_at(const spec_case *c, const char *path, int64_t index);
/* Elements of a result against numbers. */
void assert_result(const spec_case *c, const char *path, int64_t count, const double *expected, double tolerance);
void assert_indices(const spec_case *c, const char *path, int64_t count, const int32_t *expected);

#endif
