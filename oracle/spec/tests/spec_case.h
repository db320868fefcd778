/* What the tests of the second form share: a case with named tensors in binary128, and the same numbers in float64 for
 * the operation under test. */
#ifndef ASSAY_SPEC_TESTS_SPEC_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_CASE_H

#include "oracle/spec/certify.h"
#include "tests/support/assay_test.h"

#define SPEC_CASE_BUFFERS 160

typedef struct spec_case {
    assay_context ctx;
    spec_tensors in, out; /* what the second form reads and gives */
    spec_tensors results; /* paths and shapes of what the operation under test is to give */
    uint64_t random;
    spec_budget budget;               /* 3 coordinates and a direction, unless the test says otherwise */
    void *buffers[SPEC_CASE_BUFFERS]; /* float64 copies of inputs, and the results' buffers */
    const char *result_paths[SPEC_CASE_BUFFERS];
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

/* A buffer of NaN (of -1 for indices) that the operation under test writes. */
double *case_output(spec_case *c, const char *path, assay_shape shape);
int32_t *case_index_output(spec_case *c, const char *path, assay_shape shape);

/* Certifies every result outside gradients/ to within `relative` of its scale. */
void case_certify_outputs(spec_case *c, const char *operation, const void *config, double relative);
/* Certifies every result under gradients/ to within `relative` of its scale; no probe may meet a kink. */
void case_certify_gradients(spec_case *c, const char *operation, const void *config, double relative);
/* The largest error / scale that either of these finds. */
double case_worst(spec_case *c, const char *operation, const void *config, bool gradients);
/* Every result of numbers that are not all 0 is tampered with in a few ways, down to one part in 10^10 of its largest
 * element, and none of that is certified. Returns their number. */
int case_assert_tampering_shows(spec_case *c, const char *operation, const void *config);
/* Each of the results' whole numbers but the choice is off by one at one place in turn, and that is not certified. Returns
 * their number. */
int case_assert_off_by_one_shows(spec_case *c, const char *operation, const void *config);
/* From here on the choices are those that the operation under test has made. */
void case_fix_choice(spec_case *c);

/* What the results must keep to, in an operation of a few dozen roundings. */
#define OUTPUT_LIMIT 1e-14
#define GRADIENT_LIMIT 1e-12

#endif
