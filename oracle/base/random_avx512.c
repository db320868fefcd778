#include <immintrin.h>
#include <sleef.h>

#include "oracle/base/random_kernels.h"

typedef double vector_f64 __attribute__((vector_size(64)));
typedef uint64_t vector_u64 __attribute__((vector_size(64)));

#define WIDTH 8
#define MULTIPLY_LOW_HALVES(a, b) ((vector_u64)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define WIDEN_LOW(a) _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)(a)))
#define WIDEN_HIGH(a) _mm512_cvtps_pd((__m256)_mm512_extractf64x4_pd((__m512d)(a), 1))
#define SQRT _mm512_sqrt_pd
#define LOG Sleef_cinz_logd8_u10avx512fnofma
#define SINCOS Sleef___m512d_2
#define SINCOSPI Sleef_cinz_sincospid8_u05avx512fnofma
#include "oracle/base/random_vector.inc"

const assay_random_kernels assay_random_avx512 = {lanes_vector, normals_vector, near_normals_vector, bells_vector};
