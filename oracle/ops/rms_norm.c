#include "oracle/ops/rms_norm.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/vector_sums.h"

/* 1 / sqrt(mean of squares + epsilon). A sum of `dim` squares that is rounded after every term has the error of dim / 3
 * roundings of its final value, and one of dim / 48 of them that all go one way (rstd_variance). */
static double root(const assay_context *ctx, double squares, int64_t dim, double epsilon)
{
    const bool rounds = ctx->arithmetic->round != NULL;
    assay_round_sums(ctx, ceil((double)dim / 3), 1, &squares);
    double rounded = squares;
    if (rounds) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &rounded);
    squares += (rounded - squares) * ((double)dim / 48);
    double rstd = 1 / sqrt(squares / (double)dim + epsilon);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rstd);
    return rstd;
}

void assay_rms_norm_forward(const assay_context *ctx, double *y, double *rstd, const double *x, const double *scale,
                            int64_t rows, int64_t dim, double epsilon)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const double *x_row = x + row * dim;
        const double r = root(ctx, assay_dot(ctx, dim, x_row, x_row), dim, epsilon);
        rstd[row] = r;
        if (y == NULL) continue;
        double *y_row = y + row * dim;
        for (int64_t i = 0; i < dim; i++) y_row[i] = x_row[i] * r;
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, y_row);
        for (int64_t i = 0; i < dim; i++) y_row[i] *= scale[i];
    }
}

/* g = dy * scale is put in dx first. */
static void backward_row(const assay_context *ctx, double *dx, const double *dy, const double *x, const double *scale,
                         double rstd, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) dx[i] = dy[i] * scale[i];
    assay_round(ctx, ASSAY_ROUND_STORAGE, dim, dx);
    double mean = assay_dot(ctx, dim, dx, x) / (double)dim;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &mean);
    const double factor = rstd * rstd * mean;
    for (int64_t i = 0; i < dim; i++) dx[i] = rstd * (dx[i] - x[i] * factor);
}

/* Columns [first, first + count) of dscale. */
static void scale_gradient(const assay_context *ctx, double *dscale, const double *dy, const double *x,
                           const double *rstd, int64_t rows, int64_t dim, int64_t first, int64_t count)
{
    double product[256];
    memset(dscale + first, 0, (size_t)count * sizeof *dscale);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim + first;
        for (int64_t i = 0; i < count; i++) product[i] = dy[at + i] * x[at + i];
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, product);
        assay_add_scaled(ctx, count, rstd[row], product, dscale + first);
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, count, dscale + first);
    }
}

void assay_rms_norm_backward(const assay_context *ctx, double *dx, double *dscale, const double *dy, const double *x,
                             const double *scale, const double *rstd, int64_t rows, int64_t dim)
{
    enum { BLOCK = 256 };
    if (dx != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t at = row * dim;
            backward_row(ctx, dx + at, dy + at, x + at, scale, rstd[row], dim);
        }
    }
    if (dscale != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t first = 0; first < dim; first += BLOCK) {
            scale_gradient(ctx, dscale, dy, x, rstd, rows, dim, first, dim - first < BLOCK ? dim - first : BLOCK);
        }
    }
}

static double square(double x)
{
    return x * x;
}

static double given(const assay_precision *precision, double value)
{
    return assay_gauge_given(precision->given, value);
}

/* Variance of the relative error of rstd: half that of a sum of `dim` positive terms, and the root's. Squares of
 * numbers of few bits leave remainders that do not average out: m^2 mod 8 is 0, 1 or 4. Term by term that is up to an
 * eighth of half a unit in the last place each time, in one direction: five deviations of dim / 48. */
static double rstd_variance(const assay_precision *precision, int64_t dim)
{
    return square(precision->elementary) +
           square(precision->accumulate) * ((double)dim / 12 + 1 + square((double)dim / 96));
}

/* Likewise of the rounding of x, which moves rstd by -rstd^3 mean(x dx). */
static double rstd_variance_of_x(const assay_precision *precision, const double *x, double rstd, int64_t dim)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += square(x[i]) * given(precision, x[i]);
    return square(rstd * rstd / (double)dim) * sum;
}

static double stored(const assay_precision *precision, double value)
{
    return assay_gauge_rounding(precision->storage, precision->least, value);
}

/* x rstd may be stored before it is scaled. */
static void gauge_y(const assay_precision *precision, double *variance, const double *x, const double *scale,
                    double rstd, double relative, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) {
        const double n = x[i] * rstd, of_n = stored(precision, n) + square(rstd) * given(precision, x[i]);
        variance[i] = square(scale[i]) * (relative * square(n) + of_n) + square(n) * given(precision, scale[i]);
    }
}

/* Of g = dy scale, which may be stored. */
static double g_variance(const assay_precision *precision, double dy, double scale)
{
    return stored(precision, dy * scale) + square(scale) * given(precision, dy) + square(dy) * given(precision, scale);
}

/* dx = rstd g - rstd^3 x m, m = mean(g x); rstd is an error that both terms share. */
static void gauge_dx(const assay_precision *precision, double *variance, const double *dy, const double *x,
                     const double *scale, double rstd, double relative, int64_t dim)
{
    double *g = variance, operands = 0, mean = 0;
    for (int64_t i = 0; i < dim; i++) {
        g[i] = dy[i] * scale[i];
        operands += g_variance(precision, dy[i], scale[i]) * square(x[i]) + square(g[i]) * given(precision, x[i]);
        mean += g[i] * x[i];
    }
    mean /= (double)dim;
    assay_precision sum = *precision;
    sum.multiply = 0;
    const double mean_variance = (assay_gauge_dot(&sum, dim, g, x) + operands) / square((double)dim);
    for (int64_t i = 0; i < dim; i++) {
        const double direct = rstd * g[i], through = rstd * rstd * rstd * x[i];
        const double rounded = square(direct) + square(through * mean);
        variance[i] = square(rstd) * g_variance(precision, dy[i], scale[i]) + square(through) * mean_variance +
                      relative * square(direct - 3 * through * mean) +
                      square(rstd * rstd * rstd * mean) * given(precision, x[i]) +
                      2 * square(precision->accumulate) * rounded;
    }
}

/* The terms dy * (x rstd) or (dy * x) rstd of a column, of which both products may be stored, and their sum.
 * of_x [rows]: what rstd has of the rounding of x. */
static double gauge_dscale(const assay_precision *precision, const double *dy, const double *x, const double *rstd,
                           const double *of_x, int64_t rows, int64_t dim, int64_t column)
{
    double sum = 0, partial = 0, squares = 0, rounded = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double d = dy[row * dim + column], value = x[row * dim + column], term = d * value * rstd[row];
        rounded += square(d) * stored(precision, value * rstd[row]) +
                   fmax(stored(precision, term), square(rstd[row]) * stored(precision, d * value)) +
                   square(rstd[row]) * (square(d) * given(precision, value) + square(value) * given(precision, d)) +
                   of_x[row] * square(term);
        sum += term;
        partial += sum * sum;
        squares += term * term;
    }
    return rounded + rstd_variance(precision, dim) * squares + square(precision->accumulate) * (partial + squares);
}

assay_status assay_rms_norm_gauge(assay_context *ctx, const assay_precision *precision, double *variance_y,
                                  double *variance_dx, double *variance_dscale, const double *dy, const double *x,
                                  const double *scale, const double *rstd, int64_t rows, int64_t dim)
{
    double *of_x = NULL;
    assay_status status = assay_alloc_f64(ctx, "variance of rstd", rows, &of_x);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim;
        of_x[row] = rstd_variance_of_x(precision, x + at, rstd[row], dim);
        const double relative = rstd_variance(precision, dim) + of_x[row];
        if (variance_y != NULL) gauge_y(precision, variance_y + at, x + at, scale, rstd[row], relative, dim);
        if (variance_dx != NULL)
            gauge_dx(precision, variance_dx + at, dy + at, x + at, scale, rstd[row], relative, dim);
    }
    if (variance_dscale != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t i = 0; i < dim; i++) variance_dscale[i] = gauge_dscale(precision, dy, x, rstd, of_x, rows, dim, i);
    }
    free(of_x);
    return ASSAY_OK;
}
