/* The kernels of the product with chains in float32 with AVX-512 (only such files are compiled for it). */
#include "oracle/arithmetic/matmul_avx512.h"

#include "oracle/arithmetic/matmul_kernels.h"

typedef float number;
typedef __m512 sums;
enum { SUM_LANES = 2 * LANES };

static inline void pack_store(float *to, vec x)
{
    _mm256_storeu_ps(to, _mm512_cvtpd_ps(x));
}

static inline sums sums_load(const double *from)
{
    const __m256 low = _mm512_cvtpd_ps(_mm512_loadu_pd(from)), high = _mm512_cvtpd_ps(_mm512_loadu_pd(from + LANES));
    const __m512d both = _mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)), _mm256_castps_pd(high), 1);
    return _mm512_castpd_ps(both);
}

static inline void sums_store(double *to, sums x)
{
    _mm512_storeu_pd(to, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    const __m256d high = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    _mm512_storeu_pd(to + LANES, _mm512_cvtps_pd(_mm256_castpd_ps(high)));
}

static inline sums sums_zero(void)
{
    return _mm512_setzero_ps();
}

static inline sums sums_operand(const float *from)
{
    return _mm512_loadu_ps(from);
}

static inline sums sums_broadcast(const float *from)
{
    return _mm512_set1_ps(*from);
}

static inline sums sums_fma(sums a, sums b, sums c)
{
    return _mm512_fmadd_ps(a, b, c);
}

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_squares.inc"

const assay_matmul_kernels assay_matmul_kernels_float32_avx512 = {
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .number = sizeof(number),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .add_squares_a = add_squares_a,
    .add_squares_b = add_squares_b,
};
