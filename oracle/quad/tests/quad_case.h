/* What the tests of the second form share: a case with named tensors in binary128. */
#pragma once

#include "oracle/quad/quad.h"
#include "tests/support/assay_test.h"

typedef struct quad_case {
    assay_context ctx;
    quad_tensors in, out; /* what the second form reads and gives */
    quad_tensors results; /* what is to be certified */
    uint64_t random;
} quad_case;

void case_start(quad_case *c, uint64_t seed);
void case_end(quad_case *c);

assay_shape dims(int rank, const int64_t *sizes);
#define DIMS(...) dims((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* An input: random numbers in (-scale, scale), or the given ones. */
void case_random(quad_case *c, const char *path, double scale, assay_shape shape);
void case_values(quad_case *c, const char *path, const double *values, assay_shape shape);
void case_indices(quad_case *c, const char *path, const int32_t *values, assay_shape shape);

/* Several inputs in one text, after semicolons: "inputs/x 1 2; inputs/positions # 0; weights/w ~ 6", where # stands before indices and ~
 * before a number of elements: element i of input k is ((7 i + 3 k) mod 13 - 6) / 8. Their shape is [COUNT]. */
void case_given(quad_case *c, const char *text);

/* Every result of the form, in the place of what c->out has; and of an operation with cotangents every gradient too. */
assay_status case_evaluate(quad_case *c, quad_form *form, const void *config);
assay_status case_differentiate(quad_case *c, quad_form *form, const void *config);

/* The second form's result as float64. */
double result_at(const quad_case *c, const char *path, int64_t index);
/* Elements of a result against numbers. */
void assert_result(const quad_case *c, const char *path, int64_t count, const double *expected, double tolerance);
void assert_indices(const quad_case *c, const char *path, int64_t count, const int32_t *expected);

/* A form's results in such a text, to 1e-13 (and of what they lack, "outputs/z -"), with gradients where there are cotangents or a gradient is computed.
 * Then every allocation fails in turn. */
void assert_by_hand(quad_form *form, const void *config, const char *given, const char *expected);
