#include "oracle/ops/rms_norm.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/vector_sums.h"

/* 1 / sqrt(mean of squares + epsilon). A sum of `dim` squares has, besides the errors of its partial sums, one of dim / 48
 * roundings of its final value that all go one way (rstd_variance). */
static double root(const assay_context *ctx, double squares, int64_t dim, double epsilon)
{
    const bool rounds = ctx->arithmetic->round != NULL;
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

/* Columns that x rstd is rounded for at a time. */
enum { BLOCK = 256 };

static int64_t block_size(int64_t dim, int64_t first)
{
    return dim - first < BLOCK ? dim - first : BLOCK;
}

/* x rstd as a kernel that keeps it has it. */
static void normalise(const assay_context *ctx, double *normalised, const double *x, double rstd, int64_t count)
{
    for (int64_t i = 0; i < count; i++) normalised[i] = x[i] * rstd;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, normalised);
}

/* Emulated: some runs keep x rstd, rounded, for dx and for the terms of dscale, the others take x. To nearest it is kept: without it
 * all errors of dscale's terms go one way where rstd is so near 1 that each x rstd is x again. */
static bool keeps_normalised(const assay_context *ctx)
{
    return assay_uses_second_form(ctx) || (ctx->emulation != NULL && ctx->emulation->nearest);
}

/* dx holds g = dy * scale; rstd (g - n mean(g n)) with n = x rstd, rounded. */
static void backward_normalised(const assay_context *ctx, double *dx, const double *x, double rstd, int64_t dim)
{
    double n[BLOCK], mean = 0.0;
    for (int64_t first = 0; first < dim; first += BLOCK) {
        const int64_t count = block_size(dim, first);
        normalise(ctx, n, x + first, rstd, count);
        mean += assay_dot(ctx, count, dx + first, n) / (double)dim;
    }
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &mean);
    for (int64_t first = 0; first < dim; first += BLOCK) {
        const int64_t count = block_size(dim, first);
        normalise(ctx, n, x + first, rstd, count);
        for (int64_t i = 0; i < count; i++) dx[first + i] = rstd * (dx[first + i] - n[i] * mean);
    }
}

/* g = dy * scale is put in dx first. */
static void backward_row(const assay_context *ctx, double *dx, const double *dy, const double *x, const double *scale,
                         double rstd, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) dx[i] = dy[i] * scale[i];
    assay_round(ctx, ASSAY_ROUND_STORAGE, dim, dx);
    if (keeps_normalised(ctx)) {
        backward_normalised(ctx, dx, x, rstd, dim);
        return;
    }
    double mean = assay_dot(ctx, dim, dx, x) / (double)dim;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &mean);
    const double factor = rstd * rstd * mean;
    for (int64_t i = 0; i < dim; i++) dx[i] = rstd * (dx[i] - x[i] * factor);
}

/* Columns [first, first + count) of dscale. */
static void scale_gradient(const assay_context *ctx, double *dscale, const double *dy, const double *x,
                           const double *rstd, int64_t rows, int64_t dim, int64_t first, int64_t count)
{
    double product[BLOCK];
    const bool normalised = keeps_normalised(ctx);
    memset(dscale + first, 0, (size_t)count * sizeof *dscale);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * dim + first;
        if (normalised) {
            normalise(ctx, product, x + at, rstd[row], count);
            for (int64_t i = 0; i < count; i++) product[i] *= dy[at + i];
        } else {
            for (int64_t i = 0; i < count; i++) product[i] = dy[at + i] * x[at + i];
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, product);
        }
        assay_add_scaled(ctx, count, normalised ? 1 : rstd[row], product, dscale + first);
    }
}

void assay_rms_norm_backward(const assay_context *ctx, double *dx, double *dscale, const double *dy, const double *x,
                             const double *scale, const double *rstd, int64_t rows, int64_t dim)
{
    if (dx != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t at = row * dim;
            backward_row(ctx, dx + at, dy + at, x + at, scale, rstd[row], dim);
        }
    }
    if (dscale != NULL) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t first = 0; first < dim; first += BLOCK)
            scale_gradient(ctx, dscale, dy, x, rstd, rows, dim, first, block_size(dim, first));
    }
}
