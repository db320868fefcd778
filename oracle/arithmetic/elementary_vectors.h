/* assay_exp_many, once for each instruction set. */
#pragma once

#include <stdint.h>

void assay_exp_many_avx2(int64_t count, const double *x, double *y);
void assay_exp_many_avx512(int64_t count, const double *x, double *y);
