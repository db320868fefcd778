#include <math.h>

#include "oracle/arithmetic/matmul_kernels.h"

void assay_matmul_scalar(const assay_matmul_args *args, int threads)
{
    const int64_t a_row = args->transpose_a ? 1 : args->lda, a_step = args->transpose_a ? args->lda : 1;
    const int64_t b_step = args->transpose_b ? 1 : args->ldb, b_column = args->transpose_b ? args->ldb : 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            double *c = args->c + i * args->ldc + j;
            double sum = args->accumulate ? *c : 0.0;
            for (int64_t p = 0; p < args->k; p++) {
                sum = fma(args->a[i * a_row + p * a_step], args->b[p * b_step + j * b_column], sum);
            }
            *c = sum;
        }
    }
}
