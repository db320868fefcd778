#include "oracle/ops/layer_norm.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/vector_sums.h"

/* The mean of x, whose partial sums a kernel rounds. */
static double mean_of(const assay_context *ctx, const double *x, int64_t dim)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < dim; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    assay_round_terms(ctx, dim, 1, &squares, &sum);
    return sum / (double)dim;
}

/* n = (x - mean) rstd; gives rstd. Some kernels take the variance as mean(x^2) - mean^2, which loses digits: in the emulated runs
 * rows take turns. */
static double normalise(const assay_context *ctx, double *n, const double *x, int64_t dim, double epsilon, int64_t row)
{
    double mean = mean_of(ctx, x, dim), squares = 0, rounded;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &mean);
    for (int64_t i = 0; i < dim; i++) n[i] = x[i] - mean;
    double variance = assay_dot(ctx, dim, n, n) / (double)dim;
    if (assay_takes_second_form_at(ctx, row)) {
        for (int64_t i = 0; i < dim; i++) squares += x[i] * x[i];
        rounded = squares;
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &rounded);
        variance += (rounded - squares) / (double)dim;
    }
    double rstd = 1 / sqrt((variance > 0 ? variance : 0) + epsilon);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rstd);
    for (int64_t i = 0; i < dim; i++) n[i] *= rstd;
    assay_round(ctx, ASSAY_ROUND_STORAGE, dim, n);
    return rstd;
}

void assay_layer_norm_forward(const assay_context *ctx, double *y, const double *x, const double *scale,
                              const double *bias, int64_t rows, int64_t dim, double epsilon)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        double *y_row = y + row * dim;
        normalise(ctx, y_row, x + row * dim, dim, epsilon, row);
        for (int64_t i = 0; i < dim; i++) y_row[i] *= scale[i];
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, y_row);
        for (int64_t i = 0; i < dim; i++) y_row[i] += bias[i];
    }
}

/* g = dy scale is put in dx first. */
static void backward_row(const assay_context *ctx, double *dx, const double *dy, const double *n, const double *scale,
                         double rstd, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) dx[i] = dy[i] * scale[i];
    assay_round(ctx, ASSAY_ROUND_STORAGE, dim, dx);
    double means[2] = {mean_of(ctx, dx, dim), assay_dot(ctx, dim, dx, n) / (double)dim};
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 2, means);
    for (int64_t i = 0; i < dim; i++) dx[i] = rstd * (dx[i] - means[0] - n[i] * means[1]);
}

void assay_layer_norm_backward(const assay_context *ctx, double *dx, double *dscale, double *dbias, double *n,
                               const double *dy, const double *x, const double *scale, int64_t rows, int64_t dim,
                               double epsilon)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim;
        const double rstd = normalise(ctx, n + at, x + at, dim, epsilon, row);
        if (dx != NULL) backward_row(ctx, dx + at, dy + at, n + at, scale, rstd, dim);
        for (int64_t i = 0; i < dim; i++) n[at + i] *= dy[at + i];
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, dim, n + at);
    }
    if (dscale != NULL) assay_column_sums(ctx, dscale, rows, dim, dim, n);
    if (dbias != NULL) assay_column_sums(ctx, dbias, rows, dim, dim, dy);
}
