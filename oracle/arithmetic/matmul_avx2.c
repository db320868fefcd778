/* The product's kernels with AVX2 and FMA (only such files are compiled for them). */
#include "oracle/arithmetic/matmul_avx2.h"

typedef double number;
#define FMA _mm256_fmadd_pd

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_stream.inc"

const assay_matmul_kernels assay_matmul_kernels_avx2 = {MATMUL_KERNELS, .stream = stream};
