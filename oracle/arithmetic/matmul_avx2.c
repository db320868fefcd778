/* The product's kernels with AVX2 and FMA (only such files are compiled for them). */
#include "oracle/arithmetic/matmul_avx2.h"

#include "oracle/arithmetic/matmul_kernels.h"

typedef double number;
typedef vec sums;
enum { SUM_LANES = LANES };

static inline void pack_store(double *to, vec x)
{
    _mm256_storeu_pd(to, x);
}

static inline sums sums_load(const double *from)
{
    return vec_load(from);
}

static inline void sums_store(double *to, sums x)
{
    _mm256_storeu_pd(to, x);
}

static inline sums sums_zero(void)
{
    return _mm256_setzero_pd();
}

static inline sums sums_operand(const double *from)
{
    return vec_load(from);
}

static inline sums sums_broadcast(const double *from)
{
    return _mm256_broadcast_sd(from);
}

static inline sums sums_fma(sums a, sums b, sums c)
{
    return _mm256_fmadd_pd(a, b, c);
}

#include "oracle/arithmetic/matmul_kernels.inc"
#include "oracle/arithmetic/matmul_stream.inc"

const assay_matmul_kernels assay_matmul_kernels_avx2 = {
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .number = sizeof(number),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .stream = stream,
};
