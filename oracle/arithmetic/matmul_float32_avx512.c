/* The kernels of the product with chains in float32 with AVX-512 (only such files are compiled for it). */
#include "oracle/arithmetic/matmul_avx512.h"

typedef float number;
#define FMA _mm512_fmadd_ps

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_squares.inc"

const assay_matmul_kernels assay_matmul_kernels_float32_avx512 = {MATMUL_KERNELS, .add_squares_a = add_squares_a,
                                                                  .add_squares_b = add_squares_b};
