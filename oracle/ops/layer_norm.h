/* Layer normalisation over the last axis (Ba et al. 2016; torch.nn.functional.layer_norm, flax LayerNorm).
 *
 * x [rows,D], scale [D], bias [D] -> y [rows,D]:
 *   mean and variance of a row (divided by D); n = (x - mean) rstd with rstd = 1 / sqrt(variance + epsilon);  y = n scale + bias
 *   dx = rstd (g - mean(g) - n mean(g n)) with g = dy scale;  dscale = sum over rows of dy n;  dbias = sum over rows of dy
 * Nothing is refused here: D >= 1 is the caller's to check. NULL results of backward are skipped. */
#pragma once

#include "oracle/base/status.h"

void assay_layer_norm_forward(const assay_context *ctx, double *y, const double *x, const double *scale,
                              const double *bias, int64_t rows, int64_t dim, double epsilon);
/* n [rows,D] is scratch. */
void assay_layer_norm_backward(const assay_context *ctx, double *dx, double *dscale, double *dbias, double *n,
                               const double *dy, const double *x, const double *scale, int64_t rows, int64_t dim,
                               double epsilon);
