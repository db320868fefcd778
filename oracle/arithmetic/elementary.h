/* Elementary functions, the same bits on every processor: SLEEF's deterministic functions (the family that uses no
 * fused multiply-add, so that one result serves every instruction set). Errors within 1 ulp.
 * assay_exp_many gives exactly the bits of assay_exp; y may be x. It does not use threads. */
#pragma once

#include <stdint.h>

#include "oracle/base/status.h"

double assay_exp(double x);
double assay_expm1(double x);
double assay_log(double x);
double assay_log1p(double x);
double assay_erf(double x);
double assay_erfc(double x); /* within 1.5 ulp */
double assay_tanh(double x);
double assay_sin(double x);
double assay_cos(double x);

void assay_exp_many(const assay_context *ctx, int64_t count, const double *x, double *y);
