/* The product's kernels with AVX-512 (only such files are compiled for it). */
#include "oracle/arithmetic/matmul_avx512.h"

typedef double number;
#define FMA _mm512_fmadd_pd

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_stream.inc"

const assay_matmul_kernels assay_matmul_kernels_avx512 = {MATMUL_KERNELS, .stream = stream};
