/* Vectors whose elements share errors, to first order: for chains such as a softmax and its gradient, where the error of
 * one element reaches all of them, and may come back on more than one way.
 *
 * All errors are combinations of independent sources, which come n at a time, one for each element: a rounding of a
 * vector is one kind of source. The error of element i is a combination of source i of each kind, and of the sums: errors
 * that all elements have in common, since they are one number's, and which themselves combine all sources. Every rule
 * is linear in these coefficients, so that what cancels cancels; variances are taken at the end.
 *
 * Values are the caller's: he sets `value` of a vector, and the rules its errors, but where a rule says otherwise.
 * A result may be one of the operands. One space is for one thread. */
#pragma once

#include <stdint.h>

enum { ASSAY_ERROR_KINDS = 9, ASSAY_ERROR_SUMS = 7, ASSAY_ERROR_ROWS = ASSAY_ERROR_KINDS + ASSAY_ERROR_SUMS };

typedef struct assay_errors {
    int64_t n;
    int kinds, sums;                                /* so far */
    double *variance;                               /* [KINDS,n] of the sources */
    double *weight;                                 /* [SUMS,KINDS,n] of the sources in the sums */
    double own[ASSAY_ERROR_SUMS][ASSAY_ERROR_SUMS]; /* of the sums' own roundings in the sums */
    double covariance[ASSAY_ERROR_SUMS][ASSAY_ERROR_SUMS];
    double rounding[ASSAY_ERROR_SUMS]; /* variance of a sum's own roundings */
    int kinds_of_sum[ASSAY_ERROR_SUMS];
} assay_errors;

typedef struct assay_uncertain {
    double *value; /* [n] */
    double *error; /* [ROWS,n]: coefficients of the kinds, then of the sums */
    unsigned rows; /* bit r: row r is there; the others are 0 */
} assay_uncertain;

/* Doubles that a space and a vector take; each is set up on such memory, the vector without an error. */
int64_t assay_errors_size(int64_t n);
int64_t assay_uncertain_size(int64_t n);
void assay_errors_start(assay_errors *space, double *memory, int64_t n);
void assay_uncertain_start(assay_uncertain *x, double *memory, int64_t n);

/* x is rounded: a kind of source with these variances [n]. */
void assay_errors_add(assay_errors *space, assay_uncertain *x, const double *variance);
/* y has the errors of a times slope_a [n], and those of b times slope_b (b NULL: none): an elementwise function, a product,
 * a sum, a gather (slopes of 1 and 0). */
void assay_errors_combine(const assay_errors *space, assay_uncertain *y, const assay_uncertain *a,
                          const double *slope_a, const assay_uncertain *b, const double *slope_b);
/* The sum of all elements of x, and the variance of what its own terms and partial sums are rounded by. */
int assay_errors_sum(assay_errors *space, const assay_uncertain *x, double rounding);
/* x[i] gets the error of the sum times factor[i]. */
void assay_errors_add_sum(const assay_errors *space, assay_uncertain *x, int sum, const double *factor);
/* y = a (b - m) with m = the sum of a b: the gradient of a softmax; sets y's value too. */
void assay_errors_center(assay_errors *space, assay_uncertain *y, const assay_uncertain *a, const assay_uncertain *b,
                         double rounding);
/* y = softmax(x), whose values y has already. */
void assay_errors_softmax(assay_errors *space, assay_uncertain *y, const assay_uncertain *x);

void assay_errors_variance(const assay_errors *space, const assay_uncertain *x, double *variance);
