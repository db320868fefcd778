/* The kernels of the product with chains in float32 with AVX2 and FMA (only such files are compiled for them). */
#include "oracle/arithmetic/matmul_avx2.h"

typedef float number;
#define FMA _mm256_fmadd_ps

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_squares.inc"

const assay_matmul_kernels assay_matmul_kernels_float32_avx2 = {MATMUL_KERNELS, .add_squares_a = add_squares_a,
                                                                .add_squares_b = add_squares_b};
