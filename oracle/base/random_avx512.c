#include <immintrin.h>
#include <sleef.h>

#include "oracle/base/random_kernels.h"

typedef double vector_f64 __attribute__((vector_size(64)));
typedef uint64_t vector_u64 __attribute__((vector_size(64)));

#define WIDTH 8
#define MULTIPLY_LOW_HALVES(a, b) ((vector_u64)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define SWAP_HALVES(a) ((vector_u64)_mm512_shuffle_epi32((__m512i)(a), _MM_PERM_CDAB))
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define FUSED(a, b, c) _mm512_fmadd_pd(a, b, c)
#define STORE(to, a) _mm512_storeu_pd(to, a)
#define SQRT _mm512_sqrt_pd
#define LOG Sleef_cinz_logd8_u10avx512fnofma
#define SINCOS Sleef___m512d_2
#define SINCOSPI Sleef_cinz_sincospid8_u05avx512fnofma

/* 64 times the sum of each word's bytes, and the upper half of SUMS_FROM, whose last bit is worth 2^-6. */
#define SUMS_FROM 0x1p14
static inline __m512i sums_of_bytes(vector_u64 words)
{
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)words, _mm512_set1_epi8(64));
    return _mm512_add_epi32(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)), _mm512_set1_epi32(0x40d00000));
}

/* Blocks 2 j and 2 j + 1 in x[j]: two words of each from `first`, two from `second`. */
static inline void in_upper_halves(vector_f64 x[4], __m512i first, __m512i second)
{
    for (int j = 0; j < 4; j++) {
        const int a = 4 * j, b = 16 + 4 * j;
        const __m512i from = _mm512_setr_epi32(0, a, 0, a + 1, 0, b, 0, b + 1, 0, a + 2, 0, a + 3, 0, b + 2, 0, b + 3);
        x[j] = (vector_f64)_mm512_maskz_permutex2var_epi32(0xaaaa, first, from, second);
    }
}

#include "oracle/base/random_vector.inc"

const assay_random_kernels assay_random_avx512 = {lanes_vector, normals_vector, near_normals_vector, bells_vector};
