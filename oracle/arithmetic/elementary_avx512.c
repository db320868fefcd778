#include <immintrin.h>
#include <sleef.h>
#include <string.h>

#include "oracle/arithmetic/elementary_vectors.h"

enum { LANES = 8 };

void assay_exp_many_avx512(int64_t count, const double *x, double *y)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm512_storeu_pd(y + i, Sleef_cinz_expd8_u10avx512fnofma(_mm512_loadu_pd(x + i)));
    if (i < count) {
        double rest[LANES] = {0};
        size_t bytes = (size_t)(count - i) * sizeof *rest;
        memcpy(rest, x + i, bytes);
        _mm512_storeu_pd(rest, Sleef_cinz_expd8_u10avx512fnofma(_mm512_loadu_pd(rest)));
        memcpy(y + i, rest, bytes);
    }
}
