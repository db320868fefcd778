/* The kernels of the product with chains in float32 with AVX2 and FMA (only such files are compiled for them). */
#include "oracle/arithmetic/matmul_avx2.h"

#include "oracle/arithmetic/matmul_kernels.h"

typedef float number;
typedef __m256 sums;
enum { SUM_LANES = 2 * LANES };

static inline void pack_store(float *to, vec x)
{
    _mm_storeu_ps(to, _mm256_cvtpd_ps(x));
}

static inline sums sums_load(const double *from)
{
    const __m128 low = _mm256_cvtpd_ps(_mm256_loadu_pd(from)), high = _mm256_cvtpd_ps(_mm256_loadu_pd(from + LANES));
    return _mm256_set_m128(high, low);
}

static inline void sums_store(double *to, sums x)
{
    _mm256_storeu_pd(to, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    _mm256_storeu_pd(to + LANES, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}

static inline sums sums_zero(void)
{
    return _mm256_setzero_ps();
}

static inline sums sums_operand(const float *from)
{
    return _mm256_loadu_ps(from);
}

static inline sums sums_broadcast(const float *from)
{
    return _mm256_broadcast_ss(from);
}

static inline sums sums_fma(sums a, sums b, sums c)
{
    return _mm256_fmadd_ps(a, b, c);
}

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_squares.inc"

const assay_matmul_kernels assay_matmul_kernels_float32_avx2 = {
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .number = sizeof(number),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .add_squares_a = add_squares_a,
    .add_squares_b = add_squares_b,
};
