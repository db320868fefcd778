/* Another arithmetic than the emulated one, for correct candidates: what may be stored is rounded to nearest, and
 * products are summed in float32 from the last term to the first. */
#pragma once

#include "oracle/arithmetic/emulated.h"

/* The storage type comes with the context, as for the emulated arithmetic. */
static inline double stored(const assay_context *ctx, double x)
{
    return assay_dtype_round(ctx->emulation->storage, x, false);
}

static inline assay_status nearest_matmul(assay_context *ctx, const assay_matmul_args *x)
{
    (void)ctx;
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            double *c = x->c + i * x->ldc + j;
            float sum = 0;
            for (int64_t p = x->k - 1; p >= 0; p--) {
                const double a = x->transpose_a ? x->a[p * x->lda + i] : x->a[i * x->lda + p];
                const double b = x->transpose_b ? x->b[j * x->ldb + p] : x->b[p * x->ldb + j];
                sum += (float)a * (float)b;
            }
            *c = x->accumulate ? (float)*c + sum : sum;
        }
    }
    return ASSAY_OK;
}

static inline void nearest_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = rounding == ASSAY_ROUND_STORAGE ? stored(ctx, values[i]) : (double)(float)values[i];
    }
}

static const assay_arithmetic nearest_arithmetic = {
    .name = "nearest", .matmul = nearest_matmul, .round = nearest_round};
