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
    if (!assay_rounds_sums_once(ctx)) assay_round_terms(ctx, dim, 1, &squares, &sum);
    return sum / (double)dim;
}

/* What a variance is off by that a kernel takes as mean(x^2) - mean^2, each of which it rounds at its own size; `mean` is the
 * kernel's. */
static double error_of_squares(const assay_context *ctx, const double *x, int64_t dim, double mean)
{
    double squares = 0, powers = 0, exact = 0;
    for (int64_t i = 0; i < dim; i++) {
        exact += x[i] / (double)dim;
        squares += x[i] * x[i];
        powers += x[i] * x[i] * (x[i] * x[i]);
    }
    double sum = squares;
    if (!assay_rounds_sums_once(ctx)) assay_round_terms(ctx, dim, 1, &powers, &sum);
    double parts[] = {sum / (double)dim, mean * mean};
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 2, parts);
    return (parts[0] - squares / (double)dim) - (parts[1] - exact * exact);
}

/* n = (x - mean) rstd; gives rstd. */
static double normalise(const assay_context *ctx, double *n, const double *x, int64_t dim, double epsilon, int64_t row)
{
    double mean = mean_of(ctx, x, dim);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &mean);
    for (int64_t i = 0; i < dim; i++) n[i] = x[i] - mean;
    double variance = assay_dot(ctx, dim, n, n) / (double)dim;
    /* A kernel that goes on from a running mean (Welford 1962), or merges parts (Chan et al. 1979), rounds each: its variance is off by 0.7 of
     * such an error times the deviation, as measured for rows of 2 to 1024 numbers. */
    variance += 0.7 * sqrt(variance) * assay_moved_by(ctx, mean);
    if (assay_uses_inaccurate_form_at(ctx, row)) variance += error_of_squares(ctx, x, dim, mean);
    double rstd = 1 / sqrt((variance > 0 ? variance : 0) + epsilon);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rstd);
    for (int64_t i = 0; i < dim; i++) n[i] *= rstd;
    return rstd;
}

void assay_layer_norm_forward(const assay_context *ctx, double *y, const double *x, const double *scale,
                              const double *bias, int64_t rows, int64_t dim, double epsilon)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        double *y_row = y + row * dim;
        normalise(ctx, y_row, x + row * dim, dim, epsilon, row);
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, y_row);
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
    for (int64_t i = 0; i < dim; i++) { /* a row of two has a gradient of nothing else but what is rounded here */
        double terms[] = {dx[i] - means[0], n[i] * means[1]};
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 2, terms);
        dx[i] = rstd * (terms[0] - terms[1]);
    }
}

void assay_layer_norm_backward(const assay_context *ctx, double *dx, double *dscale, double *dbias, double *n,
                               const double *dy, const double *x, const double *scale, int64_t rows, int64_t dim,
                               double epsilon)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim;
        const double rstd = normalise(ctx, n + at, x + at, dim, epsilon, row);
        /* Where the gradient of x cancels, as of two numbers, an error of n shows that is lost once n is stored. */
        const bool kept = assay_uses_second_form(ctx);
        if (!kept) assay_round(ctx, ASSAY_ROUND_STORAGE, dim, n + at);
        if (dx != NULL) backward_row(ctx, dx + at, dy + at, n + at, scale, rstd, dim);
        if (kept) assay_round(ctx, ASSAY_ROUND_STORAGE, dim, n + at);
        for (int64_t i = 0; i < dim; i++) n[at + i] *= dy[at + i];
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, dim, n + at);
    }
    if (dscale != NULL) assay_column_sums(ctx, dscale, rows, dim, dim, n);
    if (dbias != NULL) assay_column_sums(ctx, dbias, rows, dim, dim, dy);
}
