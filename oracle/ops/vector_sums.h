/* Sums of rows and columns in ascending order, one fma a step, at the speed of the processor's own fma (ctx->isa; the
 * bits do not depend on it). In the emulated arithmetic their partial sums are rounded: every sum of the oracle that is no
 * product is one of these, or rounds its own. What a term of 0 leaves as it was, or begins a sum of plain terms, is exact. */
#pragma once

#include "oracle/base/status.h"

/* sum over i of a[i] b[i], from +0.0. Not threaded. */
double assay_dot(const assay_context *ctx, int64_t count, const double *a, const double *b);

/* y[i] = fma(factor, x[i], y[i]). Not threaded. */
void assay_add_scaled(const assay_context *ctx, int64_t count, double factor, const double *x, double *y);

/* sum[i] += term[i], split over threads. */
void assay_add(const assay_context *ctx, int64_t count, const double *term, double *sum);

/* sums [columns] = the sum over rows, from +0.0, of values [rows,columns], whose rows are `ld` apart. Columns are split
 * over threads. */
void assay_column_sums(const assay_context *ctx, double *sums, int64_t rows, int64_t columns, int64_t ld,
                       const double *values);

/* out = weights[row] times the rows of [count,width], as they may be stored; out may be rows. */
void assay_weigh_rows(const assay_context *ctx, double *out, const double *weights, const double *rows, int64_t count,
                      int64_t width);
