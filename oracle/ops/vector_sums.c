#include "oracle/ops/vector_sums.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"

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

static double plain_dot(const assay_context *ctx, int64_t count, const double *a, const double *b)
{
#ifdef __x86_64__
    if (ctx->isa != ASSAY_ISA_SCALAR) return dot_avx2(count, a, b);
#endif
    (void)ctx;
    return dot(count, a, b);
}

double assay_dot(const assay_context *ctx, int64_t count, const double *a, const double *b)
{
    double sum = plain_dot(ctx, count, a, b), squares = 0;
    if (ctx->arithmetic->round == NULL) return sum;
    for (int64_t i = 0; i < count; i++) squares += (a[i] * b[i]) * (a[i] * b[i]);
    assay_round_terms(ctx, count, 1, &squares, &sum);
    return sum;
}

static void plain_add(const assay_context *ctx, int64_t count, double factor, const double *x, double *y)
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

static void rounded_add(const assay_context *ctx, int64_t count, double factor, const double *x, double *y)
{
    enum { PIECE = 256 };
    double sums[PIECE];
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t length = count - first < PIECE ? count - first : PIECE;
        const double *term = x + first;
        double *sum = y + first;
        memcpy(sums, sum, (size_t)length * sizeof *sums);
        plain_add(ctx, length, factor, term, sums);
        for (int64_t i = 0; i < length; i++) {
            const bool exact = (factor * term[i] == 0) | ((factor == 1) & (sum[i] == 0));
            sum[i] = sums[i];
            sums[i] = exact ? 0 : sums[i]; /* which stays */
        }
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, length, sums);
        for (int64_t i = 0; i < length; i++) sum[i] = sums[i] != 0 ? sums[i] : sum[i];
    }
}

void assay_add_scaled(const assay_context *ctx, int64_t count, double factor, const double *x, double *y)
{
    (ctx->arithmetic->round == NULL ? plain_add : rounded_add)(ctx, count, factor, x, y);
}

void assay_add(const assay_context *ctx, int64_t count, const double *term, double *sum)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += PIECE)
        assay_add_scaled(ctx, count - first < PIECE ? count - first : PIECE, 1, term + first, sum + first);
}

enum { COLUMNS = 256 };

/* Emulated, after the sums [count] of rows: a sum of one term is exact. */
static void round_columns(const assay_context *ctx, double *sums, int64_t rows, int64_t count, int64_t ld,
                          const double *values)
{
    double squares[COLUMNS] = {0}, rounded[COLUMNS];
    if (ctx->arithmetic->round == NULL) return;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < count; i++) squares[i] = fma(values[row * ld + i], values[row * ld + i], squares[i]);
    memcpy(rounded, sums, (size_t)count * sizeof *sums);
    assay_round_terms(ctx, rows, count, squares, rounded);
    for (int64_t i = 0; i < count; i++)
        if (sums[i] * sums[i] != squares[i]) sums[i] = rounded[i];
}

void assay_column_sums(const assay_context *ctx, double *sums, int64_t rows, int64_t columns, int64_t ld,
                       const double *values)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < columns; first += COLUMNS) {
        const int64_t count = columns - first < COLUMNS ? columns - first : COLUMNS;
        memset(sums + first, 0, (size_t)count * sizeof *sums);
        for (int64_t row = 0; row < rows; row++) plain_add(ctx, count, 1, values + row * ld + first, sums + first);
        round_columns(ctx, sums + first, rows, count, ld, values + first);
    }
}

void assay_weigh_rows(const assay_context *ctx, double *out, const double *weights, const double *rows, int64_t count,
                      int64_t width)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < count; row++) {
        for (int64_t i = row * width; i < (row + 1) * width; i++) out[i] = weights[row] * rows[i];
        assay_round(ctx, ASSAY_ROUND_STORAGE, width, out + row * width);
    }
}
