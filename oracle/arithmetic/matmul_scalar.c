/* The product's kernels for every processor. */
#include "oracle/arithmetic/matmul_scalar.h"

typedef double number;
#define FMA_OF_ONE __builtin_fma

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_stream.inc"

const assay_matmul_kernels assay_matmul_kernels_scalar = {MATMUL_KERNELS, .stream = stream};
