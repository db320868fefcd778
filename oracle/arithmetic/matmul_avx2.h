/* What packing takes of AVX2, for the files that are compiled for it. Private to matmul*.c. */
#pragma once

#include <immintrin.h>

enum { LANES = 4 };
typedef __m256d vec;

static inline void vec_transpose(vec x[LANES])
{
    vec low01 = _mm256_unpacklo_pd(x[0], x[1]), high01 = _mm256_unpackhi_pd(x[0], x[1]);
    vec low23 = _mm256_unpacklo_pd(x[2], x[3]), high23 = _mm256_unpackhi_pd(x[2], x[3]);
    x[0] = _mm256_permute2f128_pd(low01, low23, 0x20);
    x[1] = _mm256_permute2f128_pd(high01, high23, 0x20);
    x[2] = _mm256_permute2f128_pd(low01, low23, 0x31);
    x[3] = _mm256_permute2f128_pd(high01, high23, 0x31);
}
