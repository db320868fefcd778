/* assay_exp_many, once for each instruction set. */
#ifndef ASSAY_ARITHMETIC_ELEMENTARY_VECTORS_H
#define ASSAY_ARITHMETIC_ELEMENTARY_VECTORS_H

#include <stdint.h>

void assay_exp_many_avx2(int64_t count, const double *x, double *y);
void assay_exp_many_avx512(int64_t count, const double *x, double *y);

#endif
