#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/propagate/propagate_ops.h"

static double given(const assay_precision *precision, double value)
{
    return assay_propagate_given(precision->given, value);
}

/* Variance of the relative error of rstd: half that of a sum of `dim` positive terms, and the root's. Squares of
 * numbers of few bits leave remainders that do not average out: m^2 mod 8 is 0, 1 or 4. Term by term that is up to an
 * eighth of half a unit in the last place each time, in one direction: five deviations of dim / 48. */
static double rstd_variance(const assay_precision *precision, int64_t dim)
{
    return assay_square(precision->elementary) +
           assay_square(precision->accumulate) * ((double)dim / 12 + 1 + assay_square((double)dim / 96));
}

/* Likewise of the rounding of x, which moves rstd by -rstd^3 mean(x dx). Here and below x comes times rstd: of numbers of 1e-100 the
 * cube of rstd is beyond float64. */
static double rstd_variance_of_x(const assay_precision *precision, const double *x, double rstd, int64_t dim)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += assay_square(x[i] * rstd) * (assay_square(rstd) * given(precision, x[i]));
    return sum / assay_square((double)dim);
}

/* x rstd may be stored before it is scaled. */
static void propagate_y(const assay_precision *precision, double *variance, const double *x, const double *scale,
                        double rstd, double relative, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) {
        const double n = x[i] * rstd,
                     of_n = assay_propagate_stored(precision, n) + assay_square(rstd) * given(precision, x[i]);
        variance[i] =
            assay_square(scale[i]) * (relative * assay_square(n) + of_n) + assay_square(n) * given(precision, scale[i]);
    }
}

/* Of g = dy scale, which may be stored. */
static double g_variance(const assay_precision *precision, double dy, double scale)
{
    return assay_propagate_stored(precision, dy * scale) + assay_square(scale) * given(precision, dy) +
           assay_square(dy) * given(precision, scale);
}

/* dx = rstd (g - n m), n = rstd x, m = mean(g n); rstd is an error that both terms share. */
static void propagate_dx(const assay_precision *precision, double *variance, const double *dy, const double *x,
                         const double *scale, double rstd, double relative, int64_t dim)
{
    double *g = variance, operands = 0, mean = 0;
    for (int64_t i = 0; i < dim; i++) {
        g[i] = dy[i] * scale[i];
        operands += g_variance(precision, dy[i], scale[i]) * assay_square(x[i] * rstd) +
                    assay_square(g[i]) * (assay_square(rstd) * given(precision, x[i]));
        mean += g[i] * (x[i] * rstd);
    }
    mean /= (double)dim;
    assay_precision sum = *precision;
    sum.multiply = 0;
    const double mean_variance =
        (assay_square(rstd) * assay_propagate_dot(&sum, dim, g, x) + operands) / assay_square((double)dim);
    for (int64_t i = 0; i < dim; i++) {
        const double direct = rstd * g[i], through = rstd * (x[i] * rstd);
        const double rounded = assay_square(direct) + assay_square(through * mean);
        variance[i] = assay_square(rstd) * g_variance(precision, dy[i], scale[i]) +
                      assay_square(through) * mean_variance + relative * assay_square(direct - 3 * through * mean) +
                      assay_square(rstd * mean) * (assay_square(rstd) * given(precision, x[i])) +
                      2 * assay_square(precision->accumulate) * rounded;
    }
}

/* The terms dy * (x rstd) or (dy * x) rstd of a column, of which both products may be stored, and their sum.
 * of_x [rows]: what rstd has of the rounding of x. */
static double propagate_dscale(const assay_precision *precision, const double *dy, const double *x, const double *rstd,
                               const double *of_x, int64_t rows, int64_t dim, int64_t column)
{
    double sum = 0, partial = 0, squares = 0, rounded = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double d = dy[row * dim + column], value = x[row * dim + column], term = d * value * rstd[row];
        rounded += assay_square(d) * assay_propagate_stored(precision, value * rstd[row]) +
                   fmax(assay_propagate_stored(precision, term),
                        assay_square(rstd[row]) * assay_propagate_stored(precision, d * value)) +
                   assay_square(rstd[row]) *
                       (assay_square(d) * given(precision, value) + assay_square(value) * given(precision, d)) +
                   of_x[row] * assay_square(term);
        sum += term;
        partial += sum * sum;
        squares += term * term;
    }
    return rounded + rstd_variance(precision, dim) * squares +
           assay_square(precision->accumulate) * (partial + squares);
}

assay_status assay_propagate_rms_norm(assay_context *ctx, const assay_precision *precision,
                                      const assay_rms_norm_variances *v, const assay_rms_norm_run *run)
{
    const int64_t rows = run->rows, dim = run->dim;
    const double *dy = run->dy, *x = run->x, *scale = run->scale, *rstd = run->rstd;
    double *of_x = NULL;
    MUST(assay_alloc_f64(ctx, "variance of rstd", rows, &of_x));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim;
        of_x[row] = rstd_variance_of_x(precision, x + at, rstd[row], dim);
        const double relative = rstd_variance(precision, dim) + of_x[row];
        if (v->y != NULL) propagate_y(precision, v->y + at, x + at, scale, rstd[row], relative, dim);
        if (v->dx != NULL) propagate_dx(precision, v->dx + at, dy + at, x + at, scale, rstd[row], relative, dim);
    }
    if (v->dscale != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t i = 0; i < dim; i++) v->dscale[i] = propagate_dscale(precision, dy, x, rstd, of_x, rows, dim, i);
    }
    free(of_x);
    return ASSAY_OK;
}
