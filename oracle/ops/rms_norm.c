#include "oracle/ops/rms_norm.h"

#include <math.h>
#include <string.h>

void assay_rms_norm_forward(const assay_context *ctx, double *y, double *rstd, const double *x, const double *scale,
                            int64_t rows, int64_t dim, double epsilon) {
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const double *in = x + row * dim;
        double *out = y + row * dim;
        double squares = 0.0;
        for (int64_t i = 0; i < dim; i++)
            squares = fma(in[i], in[i], squares);
        double r = 1.0 / sqrt(squares / (double)dim + epsilon);
        for (int64_t i = 0; i < dim; i++)
            out[i] = in[i] * r * scale[i];
        rstd[row] = r;
    }
}

void assay_rms_norm_backward(const assay_context *ctx, double *dx, double *dscale, const double *dy, const double *x,
                             const double *scale, const double *rstd, int64_t rows, int64_t dim) {
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const double *in = x + row * dim, *up = dy + row * dim;
        double r = rstd[row], product = 0.0;
        for (int64_t i = 0; i < dim; i++)
            product = fma(up[i] * scale[i], in[i], product);
        double mean = product / (double)dim;
        for (int64_t i = 0; i < dim; i++)
            dx[row * dim + i] = r * (up[i] * scale[i] - in[i] * (r * r * mean));
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < dim; i++) {
        double sum = 0.0;
        for (int64_t row = 0; row < rows; row++)
            sum = fma(dy[row * dim + i], x[row * dim + i] * rstd[row], sum);
        dscale[i] = sum;
    }
}

static double square(double x) {
    return x * x;
}

/* Relative error of rstd: the sum of squares, and the root. */
static double rstd_error(const assay_precision *p, int64_t dim) {
    return 0.5 * sqrt((double)dim) * p->accumulate + p->elementary;
}

static void gauge_row(const assay_precision *p, double *variance_dx, const double *dy, const double *x,
                      const double *scale, double r, int64_t dim) {
    double sum = 0.0, absolute = 0.0, squares = 0.0;
    for (int64_t i = 0; i < dim; i++) {
        double term = dy[i] * scale[i] * x[i];
        sum += term;
        absolute += fabs(term);
        squares += term * term;
    }
    double mean = sum / (double)dim, error = rstd_error(p, dim);
    double mean_variance =
        square(sqrt((double)dim) * p->accumulate * absolute / (double)dim) + square(p->storage / (double)dim) * squares;
    for (int64_t i = 0; i < dim; i++) {
        double direct = r * dy[i] * scale[i], through = x[i] * r * r * r;
        variance_dx[i] = square(direct * (p->storage + error)) + square(through) * mean_variance +
                         square(through * mean * (p->storage + 3.0 * error));
    }
}

assay_status assay_rms_norm_gauge(assay_context *ctx, const assay_precision *p, double *variance_y, double *variance_dx,
                                  double *variance_dscale, const double *dy, const double *x, const double *scale,
                                  const double *rstd, int64_t rows, int64_t dim) {
    double error = rstd_error(p, dim);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const double *in = x + row * dim;
        for (int64_t i = 0; variance_y != NULL && i < dim; i++) {
            /* x * rstd may be stored before it is scaled */
            variance_y[row * dim + i] = square(in[i] * rstd[row] * scale[i] * (error + p->storage));
        }
        if (variance_dx != NULL) {
            gauge_row(p, variance_dx + row * dim, dy + row * dim, in, scale, rstd[row], dim);
        }
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < (variance_dscale != NULL ? dim : 0); i++) {
        double absolute = 0.0, variance = 0.0;
        for (int64_t row = 0; row < rows; row++) {
            double term = dy[row * dim + i] * x[row * dim + i] * rstd[row];
            absolute += fabs(term);
            variance += square(term * (error + p->storage));
        }
        variance_dscale[i] = variance + (double)rows * square(p->accumulate * absolute);
    }
    return ASSAY_OK;
}
