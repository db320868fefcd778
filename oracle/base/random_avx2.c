#include <immintrin.h>
#include <sleef.h>

#include "oracle/base/random_kernels.h"

typedef double vector_f64 __attribute__((vector_size(32)));
typedef uint64_t vector_u64 __attribute__((vector_size(32)));

#define WIDTH 4
#define MULTIPLY_LOW_HALVES(a, b) ((vector_u64)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define SWAP_HALVES(a) ((vector_u64)_mm256_shuffle_epi32((__m256i)(a), _MM_SHUFFLE(2, 3, 0, 1)))
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define FUSED(a, b, c) _mm256_fmadd_pd(a, b, c)
#define STORE(to, a) _mm256_storeu_pd(to, a)
#define SQRT _mm256_sqrt_pd
#define LOG Sleef_cinz_logd4_u10avx
#define SINCOS Sleef___m256d_2
#define SINCOSPI Sleef_cinz_sincospid4_u05avx

/* 64 times the sum of each word's bytes, and the upper half of SUMS_FROM, whose last bit is worth 2^-6. */
#define SUMS_FROM 0x1p14
static inline __m256i sums_of_bytes(vector_u64 words)
{
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)words, _mm256_set1_epi8(64));
    return _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), _mm256_set1_epi32(0x40d00000));
}

/* Block j in x[j]: two words from `first`, two from `second`. */
static inline void in_upper_halves(vector_f64 x[4], __m256i first, __m256i second)
{
    const __m256i blocks[] = {_mm256_permute2x128_si256(first, second, 0x20),
                              _mm256_permute2x128_si256(first, second, 0x31)};
    const __m256i zero = _mm256_setzero_si256();
    for (int j = 0; j < 4; j += 2) {
        x[j] = (vector_f64)_mm256_unpacklo_epi32(zero, blocks[j / 2]);
        x[j + 1] = (vector_f64)_mm256_unpackhi_epi32(zero, blocks[j / 2]);
    }
}

#include "oracle/base/random_vector.inc"

const assay_random_kernels assay_random_avx2 = {lanes_vector, normals_vector, near_normals_vector, bells_vector};
