/* RMS normalisation over the last axis (Zhang and Sennrich 2019; MaxText layers/normalizations.py RMSNorm).
 *
 * x [rows,D], scale [D] -> y [rows,D]; keeps rstd [rows].
 *   y = x * rstd * scale,  rstd = 1 / sqrt(mean(x^2) + epsilon)
 *   dx = rstd * (g - x * rstd^2 * mean(g * x)) with g = dy * scale;  dscale = sum over rows of dy * x * rstd
 * Epsilon is inside the root, added to the mean. Nothing is refused here: D >= 1 is the caller's to check.
 * A NULL y (only rstd is wanted) and NULL results of backward are skipped. */
#pragma once

#include "oracle/base/status.h"

void assay_rms_norm_forward(const assay_context *ctx, double *y, double *rstd, const double *x, const double *scale,
                            int64_t rows, int64_t dim, double epsilon);

void assay_rms_norm_backward(const assay_context *ctx, double *dx, double *dscale, const double *dy, const double *x,
                             const double *scale, const double *rstd, int64_t rows, int64_t dim);
