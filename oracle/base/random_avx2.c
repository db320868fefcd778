#include <immintrin.h>
#include <sleef.h>

#include "oracle/base/random_kernels.h"

typedef double vector_f64 __attribute__((vector_size(32)));
typedef uint64_t vector_u64 __attribute__((vector_size(32)));

#define WIDTH 4
#define MULTIPLY_LOW_HALVES(a, b) ((vector_u64)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define WIDEN_LOW(a) _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)(a)))
#define WIDEN_HIGH(a) _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)(a), 1))
#define SQRT _mm256_sqrt_pd
#define LOG Sleef_cinz_logd4_u10avx
#define SINCOS Sleef___m256d_2
#define SINCOSPI Sleef_cinz_sincospid4_u05avx
#include "oracle/base/random_vector.inc"

const assay_random_kernels assay_random_avx2 = {lanes_vector, normals_vector, near_normals_vector, bells_vector};
