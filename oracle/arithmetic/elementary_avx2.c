#include <immintrin.h>
#include <sleef.h>
#include <string.h>

#include "oracle/arithmetic/elementary_vectors.h"

enum { LANES = 4 };

void assay_exp_many_avx2(int64_t count, const double *x, double *y)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) _mm256_storeu_pd(y + i, Sleef_cinz_expd4_u10avx(_mm256_loadu_pd(x + i)));
    if (i < count) {
        double rest[LANES] = {0};
        size_t bytes = (size_t)(count - i) * sizeof *rest;
        memcpy(rest, x + i, bytes);
        _mm256_storeu_pd(rest, Sleef_cinz_expd4_u10avx(_mm256_loadu_pd(rest)));
        memcpy(y + i, rest, bytes);
    }
}
