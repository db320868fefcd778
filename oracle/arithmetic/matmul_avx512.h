/* What packing takes of AVX-512, for the files that are compiled for it. Private to matmul*.c. */
#pragma once

#include <immintrin.h>

enum { LANES = 8 };
typedef __m512d vec;

/* Pairs of rows, then pairs of pairs, then halves: 0x88 takes the even 128-bit lanes of both operands, 0xdd the odd. */
static inline void vec_transpose(vec x[LANES])
{
    vec pair[LANES], quad[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        pair[i] = _mm512_unpacklo_pd(x[i], x[i + 1]);
        pair[i + 1] = _mm512_unpackhi_pd(x[i], x[i + 1]);
    }
    /* quad[4h + o] holds columns o and o + 4 of the rows 4h to 4h + 3. */
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 4) {
        quad[i] = _mm512_shuffle_f64x2(pair[i], pair[i + 2], 0x88);
        quad[i + 1] = _mm512_shuffle_f64x2(pair[i + 1], pair[i + 3], 0x88);
        quad[i + 2] = _mm512_shuffle_f64x2(pair[i], pair[i + 2], 0xdd);
        quad[i + 3] = _mm512_shuffle_f64x2(pair[i + 1], pair[i + 3], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES / 2; i++) {
        x[i] = _mm512_shuffle_f64x2(quad[i], quad[i + 4], 0x88);
        x[i + 4] = _mm512_shuffle_f64x2(quad[i], quad[i + 4], 0xdd);
    }
}
