/* The rules of error propagation: how the errors of a correct implementation come into being and go on.
 *
 * Every tensor carries the variance of its error, propagated to first order: errors made at different places are taken as
 * independent (Higham and Mary 2019), so variances add; terms that share an error are added before squaring
 * (shared_errors.h). An envelope: every rounding counts as one just above a power of two, where it is largest; the RMS of
 * error / sigma of a correct implementation is 0.5 to 1. See docs/comparing.md, "Error scale".
 *
 * An operation's propagation reads what its run left (values, residuals, gradients) and writes variances; NULL ones are
 * skipped. The rounding of a result itself is in none of them, unless its header says so. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"

/* A product. out_variance [m,n] = sum over k of a^2 var(b) + b^2 var(a) + 2 multiply^2 a^2 b^2, plus accumulate^2 times
 * the sum of the squares of the k partial sums, which are rounded. (sqrt(k) S with S = sum |a||b| bounds the root of that,
 * but lies above it by a factor of about 2 sqrt(k) where signs are mixed.) Partial sums are taken at the ends of up to 8
 * blocks of ascending k; what they may do between, or in another order, is covered by adding Q = sum a^2 b^2 to the
 * squares: accumulate^2 * block length * (sum over blocks of (partial sum)^2 + Q). a, b as in assay_matmul_args, whose
 * c, ldc say where the variance goes; a NULL variance means an operand that is given, whose variance is that of
 * assay_propagate_given; variances have the layout of their operands (same leading dimension, same transposition).
 * stored: the product may be stored before it is used, so assay_propagate_rounding of it is added.
 *
 * An accumulator that truncates: errors of L partial sums have one mean, and the square of their sum is up to
 * (3 L + 1) / 4 times the sum of their squares. One that takes blocks of L: partial sums are those within a block,
 * accumulate^2 * L / 2 * (sum over blocks of (block's sum)^2 + Q), where they grow from 0; then the float32 roundings
 * of the sum so far after each block; and where it truncates, the square of the mean, accumulate sqrt(3) (L + 1) / 4
 * of the whole sum, since blocks of one sign err in one direction. */
assay_status assay_propagate_product(assay_context *ctx, const assay_precision *precision, bool stored,
                                     const assay_matmul_args *args, const double *variance_a, const double *variance_b);

/* One sum of products with exact operands, likewise. */
double assay_propagate_dot(const assay_precision *precision, int64_t count, const double *a, const double *b);

static inline double assay_square(double x)
{
    return x * x;
}

/* One rounding: (unit * value)^2. Below the normal numbers of a type, which are `least` apart there, it is
 * least^2 / 12 whatever the value; near 0 it ends at least * |value|, that of rounding stochastically: to nearest such
 * a value becomes 0 and is off by itself. A 0 stays. least 0: no number is too small. */
static inline double assay_propagate_rounding(double unit, double least, double value)
{
    const double size = value < 0 ? -value : value, relative = unit * value;
    const double normal = relative * relative, subnormal = least * (size < least / 12 ? size : least / 12);
    return normal >= subnormal ? normal : subnormal;
}

/* A value is stored between kernels. */
static inline double assay_propagate_stored(const assay_precision *precision, double value)
{
    return assay_propagate_rounding(precision->storage, precision->least, value);
}

/* Many values are stored, or kept by a router: variance[i] += assay_propagate_rounding of value[i]. */
void assay_propagate_store(double unit, double least, int64_t count, const double *value, double *variance);

/* A number that is given, rounded to the type; of one that the type has, 0. */
double assay_propagate_given(assay_dtype type, double value);

/* A product of two numbers that are given. */
static inline double assay_propagate_given_product(const assay_precision *precision, double a, double b)
{
    return a * a * assay_propagate_given(precision->given, b) + b * b * assay_propagate_given(precision->given, a);
}

/* A sum of few terms that come one after the other, in whatever order. Its rounding is accumulate^2 times `squares`: of
 * all partial sums and terms. */
static inline void assay_propagate_term(double *sum, double *squares, double term)
{
    *sum += term;
    *squares += *sum * *sum + term * term;
}

/* The squares of the partial sums of `count` terms in random order, added up: what rounding each of them counts with.
 * squares: of the terms; sum: of all. */
double assay_propagate_partial_squares(int64_t count, double squares, double sum);
