#include "oracle/arithmetic/tests/fp8_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128 };

static double e4m3(double x)
{
    int exponent = 0;
    frexp(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    const double step = ldexp(1, exponent - 4 < -9 ? -9 : exponent - 4);
    return fmax(-448, fmin(448, rint(x / step) * step));
}

double fp8_truncated(double x, int bits)
{
    uint64_t code;
    memcpy(&code, &x, sizeof code);
    code &= ~UINT64_C(0) << (52 - bits);
    memcpy(&x, &code, sizeof x);
    return x;
}

/* An operand, elements (outer,p) by p of the contraction: fp8 numbers and their scales, one for each element. */
typedef struct quantised {
    double *numbers;
    float *scales;
} quantised;

static float scale_of(const fp8_kernel *kernel, float largest)
{
    const float scale = largest / 448.0f;
    if (largest == 0) return 1;
    return kernel->power_of_two ? exp2f(ceilf(log2f(scale))) : scale;
}

static double element(const assay_matmul_args *x, bool weight, int64_t outer, int64_t p)
{
    if (weight) return x->transpose_b ? x->b[outer * x->ldb + p] : x->b[p * x->ldb + outer];
    return x->transpose_a ? x->a[p * x->lda + outer] : x->a[outer * x->lda + p];
}

/* The second operand, in tiles of `across` by 128, or the first. */
static quantised quantise(const fp8_kernel *kernel, const assay_matmul_args *x, bool second, int64_t across)
{
    const int64_t outer = second ? x->n : x->m, k = x->k;
    const bool whole = kernel->fault == FP8_TENSOR_SCALE;
    const int64_t tall = whole ? outer : across, wide = whole ? k : BLOCK;
    quantised q = {malloc((size_t)(outer * k) * sizeof *q.numbers + 1),
                   malloc((size_t)(outer * k) * sizeof *q.scales + 1)};
    if (q.numbers == NULL || q.scales == NULL) abort();
    for (int64_t i0 = 0; i0 < outer; i0 += tall) {
        for (int64_t p0 = 0; p0 < k; p0 += wide) {
            const int64_t i1 = i0 + tall < outer ? i0 + tall : outer, p1 = p0 + wide < k ? p0 + wide : k;
            float largest = 0;
            for (int64_t i = i0; i < i1; i++)
                for (int64_t p = p0; p < p1; p++) largest = fmaxf(largest, fabsf((float)element(x, second, i, p)));
            const float scale = scale_of(kernel, largest);
            const bool last = second && i1 == outer && p1 == k;
            float applied = scale;
            if (second && kernel->fault == FP8_POWER_OFF_BY_ONE) applied = scale / 2;
            if (last && kernel->fault == FP8_BLOCK_UNSCALED) applied = 1;
            for (int64_t i = i0; i < i1; i++) {
                for (int64_t p = p0; p < p1; p++) {
                    q.numbers[i * k + p] = e4m3((float)element(x, second, i, p) / scale);
                    q.scales[i * k + p] = applied;
                }
            }
        }
    }
    return q;
}

static float dot(const fp8_kernel *kernel, const quantised *a, const quantised *b, int64_t i, int64_t j, int64_t k)
{
    const int64_t block = kernel->fault == FP8_ONE_ACCUMULATOR ? k : BLOCK;
    float sum = 0;
    for (int64_t first = 0; first < k; first += block) {
        const int64_t end = first + block < k ? first + block : k;
        double sums = 0;
        float one = 0;
        /* one accumulator for all blocks can only take them scaled */
        const bool scaled = kernel->fault == FP8_ONE_ACCUMULATOR;
        for (int64_t p = first; p < end; p++) {
            double term = a->numbers[i * k + p] * b->numbers[j * k + p];
            if (scaled) term *= (double)a->scales[i * k + p] * (double)b->scales[j * k + p];
            one += (float)term;
            sums = fp8_truncated(sums + term, kernel->bits);
        }
        const float block_sum = kernel->bits > 0 ? (float)sums : one;
        sum += scaled ? block_sum : block_sum * a->scales[i * k + first] * b->scales[j * k + first];
    }
    return sum;
}

static void scaled_product(const fp8_kernel *kernel, const assay_matmul_args *x)
{
    quantised a = quantise(kernel, x, false, 1);
    quantised b = quantise(kernel, x, true, x->kind == ASSAY_PRODUCT_LINEAR ? BLOCK : 1);
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            double *c = x->c + i * x->ldc + j;
            const float sum = dot(kernel, &a, &b, i, j, x->k);
            *c = x->accumulate ? (float)*c + sum : sum;
        }
    }
    free(a.numbers);
    free(a.scales);
    free(b.numbers);
    free(b.scales);
}

static void plain_product(const assay_matmul_args *x)
{
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            double *c = x->c + i * x->ldc + j;
            float sum = 0;
            for (int64_t p = 0; p < x->k; p++) {
                const double a = element(x, false, i, p), b = element(x, true, j, p);
                sum += (float)assay_dtype_round(ASSAY_BFLOAT16, a, false) *
                       (float)assay_dtype_round(ASSAY_BFLOAT16, b, false);
            }
            *c = x->accumulate ? (float)*c + sum : sum;
        }
    }
}

static void truncated_product(const fp8_kernel *kernel, const assay_matmul_args *x)
{
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            double *c = x->c + i * x->ldc + j, part = 0;
            float sum = x->accumulate ? (float)*c : 0;
            for (int64_t p = 0; p < x->k; p++) {
                part = fp8_truncated(part + element(x, false, i, p) * element(x, true, j, p), kernel->bits);
                if (p % BLOCK < BLOCK - 1 && p < x->k - 1) continue;
                sum += (float)part;
                part = 0;
            }
            *c = sum;
        }
    }
}

static assay_status matmul(assay_context *ctx, const assay_matmul_args *x)
{
    const fp8_kernel *kernel = (const fp8_kernel *)(const void *)ctx->emulation;
    if (kernel->unscaled) {
        truncated_product(kernel, x);
    } else if (x->kind == ASSAY_PRODUCT_OTHER) {
        plain_product(x);
    } else {
        scaled_product(kernel, x);
    }
    return ASSAY_OK;
}

static void round_values(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    const assay_dtype type = rounding == ASSAY_ROUND_STORAGE ? ctx->emulation->storage : ASSAY_FLOAT32;
    for (int64_t i = 0; i < count; i++) values[i] = assay_dtype_round(type, values[i], false);
}

const assay_arithmetic fp8_arithmetic = {.name = "fp8", .matmul = matmul, .round = round_values};
