#include "oracle/ops/vector_sums.h"

#include <math.h>
#include <string.h>

static inline __attribute__((always_inline)) double dot(int64_t count, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum = fma(a[i], b[i], sum);
    return sum;
}

static inline __attribute__((always_inline)) void add_scaled(int64_t count, double factor, const double *x, double *y)
{
    for (int64_t i = 0; i < count; i++) y[i] = fma(factor, x[i], y[i]);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static double dot_avx2(int64_t count, const double *a, const double *b)
{
    return dot(count, a, b);
}

__attribute__((target("avx2,fma"))) static void add_scaled_avx2(int64_t count, double factor, const double *x,
                                                                double *y)
{
    add_scaled(count, factor, x, y);
}
#endif

double assay_dot(const assay_context *ctx, int64_t count, const double *a, const double *b)
{
#ifdef __x86_64__
    if (ctx->isa != ASSAY_ISA_SCALAR) return dot_avx2(count, a, b);
#endif
    (void)ctx;
    return dot(count, a, b);
}

void assay_add_scaled(const assay_context *ctx, int64_t count, double factor, const double *x, double *y)
{
#ifdef __x86_64__
    if (ctx->isa != ASSAY_ISA_SCALAR) {
        add_scaled_avx2(count, factor, x, y);
        return;
    }
#endif
    (void)ctx;
    add_scaled(count, factor, x, y);
}

void assay_column_sums(const assay_context *ctx, double *sums, int64_t rows, int64_t columns, int64_t ld,
                       const double *values)
{
    enum { BLOCK = 256 };
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < columns; first += BLOCK) {
        int64_t count = columns - first < BLOCK ? columns - first : BLOCK;
        memset(sums + first, 0, (size_t)count * sizeof *sums);
        for (int64_t row = 0; row < rows; row++)
            assay_add_scaled(ctx, count, 1, values + row * ld + first, sums + first);
    }
}
