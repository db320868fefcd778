/* What packing takes of any processor. Private to matmul*.c. */
#pragma once

enum { LANES = 2 };
typedef double vec __attribute__((vector_size(LANES * sizeof(double))));

static inline void vec_transpose(vec x[LANES])
{
    const double kept = x[0][1];
    x[0][1] = x[1][0];
    x[1][0] = kept;
}
