/* The product's kernels with AVX2 and FMA (this file alone is compiled for them). */
#include <immintrin.h>

#include "oracle/arithmetic/matmul_kernels.h"

enum { LANES = 4 };
typedef __m256d vec;

static inline vec vec_load(const double *from)
{
    return _mm256_loadu_pd(from);
}

static inline void vec_store(double *to, vec x)
{
    _mm256_storeu_pd(to, x);
}

static inline vec vec_zero(void)
{
    return _mm256_setzero_pd();
}

static inline vec vec_broadcast(const double *from)
{
    return _mm256_broadcast_sd(from);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_pd(a, b, c);
}

static inline void vec_transpose(vec x[LANES])
{
    vec low01 = _mm256_unpacklo_pd(x[0], x[1]), high01 = _mm256_unpackhi_pd(x[0], x[1]);
    vec low23 = _mm256_unpacklo_pd(x[2], x[3]), high23 = _mm256_unpackhi_pd(x[2], x[3]);
    x[0] = _mm256_permute2f128_pd(low01, low23, 0x20);
    x[1] = _mm256_permute2f128_pd(high01, high23, 0x20);
    x[2] = _mm256_permute2f128_pd(low01, low23, 0x31);
    x[3] = _mm256_permute2f128_pd(high01, high23, 0x31);
}

#include "oracle/arithmetic/matmul_kernels.inc"

const assay_matmul_kernels assay_matmul_kernels_avx2 = {
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .stream = stream,
};
