/* The matrices of a product: random normal numbers, between whose rows lies NaN. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"

enum { A_TRANSPOSED = 1, B_TRANSPOSED = 2, ACCUMULATED = 4 }; /* a form is a sum of these */

typedef struct matrices {
    assay_matmul_args args; /* into c, which is NaN, or numbers where the product is accumulated */
    double *a, *b, *c;
    double *expected; /* as c is */
    int64_t a_size, b_size, c_size;
} matrices;

/* Rows lie `padding` further apart than they are long. `mean`: of the numbers of a and b. */
matrices matrices_make(int64_t m, int64_t n, int64_t k, int form, double mean, int64_t padding);
void matrices_free(matrices *x);

double matrices_a(const assay_matmul_args *x, int64_t i, int64_t p); /* as if nothing were transposed */
double matrices_b(const assay_matmul_args *x, int64_t p, int64_t j);
