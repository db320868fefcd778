/* The kernels of the product with chains in float32 for every processor. */
#include "oracle/arithmetic/matmul_scalar.h"

typedef float number;
#define FMA_OF_ONE __builtin_fmaf

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_squares.inc"

const assay_matmul_kernels assay_matmul_kernels_float32_scalar = {MATMUL_KERNELS, .add_squares_a = add_squares_a,
                                                                  .add_squares_b = add_squares_b};
