#include "oracle/arithmetic/matmul_float32.h"

#include <math.h>
#include <stddef.h>

#include "oracle/arithmetic/matmul_packed.h"

static const assay_matmul_kernels *kernels_for(assay_isa isa)
{
#ifdef __x86_64__
    if (isa == ASSAY_ISA_AVX512) return &assay_matmul_kernels_float32_avx512;
    if (isa == ASSAY_ISA_AVX2) return &assay_matmul_kernels_float32_avx2;
#else
    (void)isa;
#endif
    return NULL;
}

/* One fmaf() a step, nothing else: what the kernels must agree with. */
static float chain(const assay_matmul_args *args, int64_t start, int64_t i, int64_t j)
{
    const int64_t a_row = args->transpose_a ? 1 : args->lda, a_step = args->transpose_a ? args->lda : 1;
    const int64_t b_step = args->transpose_b ? 1 : args->ldb, b_column = args->transpose_b ? args->ldb : 1;
    const double *a = args->a + i * a_row, *b = args->b + j * b_column;
    float sum = args->accumulate ? (float)args->c[i * args->ldc + j] : 0;
    for (int64_t q = 0; q < args->k; q++) {
        const int64_t p = q < args->k - start ? q + start : q + start - args->k;
        sum = fmaf((float)a[p * a_step], (float)b[p * b_step], sum);
    }
    return sum;
}

static float root_of_squares(const double *x, int64_t step, int64_t start, int64_t k)
{
    float sum = 0;
    for (int64_t q = 0; q < k; q++) {
        const float value = (float)x[(q < k - start ? q + start : q + start - k) * step];
        sum = fmaf(value, value, sum);
    }
    return sqrtf(sum);
}

/* Told element by element. */
static void end_chain(const assay_matmul_args *args, const assay_chains *chains, int64_t i, int64_t j, float of_row)
{
    const double *b = args->b + j * (args->transpose_b ? args->ldb : 1);
    const float of_column = root_of_squares(b, args->transpose_b ? 1 : args->ldb, chains->start, args->k);
    const assay_chains_ended where = {
        .row = i, .rows = 1, .column = j, .columns = 1, .of_rows = &of_row, .of_columns = &of_column};
    chains->ended(chains->self, &where);
}

static void scalar_matmul(const assay_matmul_args *args, const assay_chains *chains, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < args->m; i++) {
        const double *a = args->a + i * (args->transpose_a ? 1 : args->lda);
        const float of_row = root_of_squares(a, args->transpose_a ? args->lda : 1, chains->start, args->k);
        for (int64_t j = 0; j < args->n; j++) {
            args->c[i * args->ldc + j] = (double)chain(args, chains->start, i, j);
            if (chains->ended != NULL) end_chain(args, chains, i, j, of_row);
        }
    }
}

assay_status assay_matmul_float32(assay_context *ctx, const assay_matmul_args *args, const assay_chains *chains)
{
    const assay_matmul_kernels *kernels = kernels_for(ctx->isa);
    const int threads = assay_matmul_threads(ctx, args);
    if (args->m == 0 || args->n == 0) return ASSAY_OK;
    if (kernels != NULL) return assay_matmul_packed(ctx, args, kernels, chains, threads);
    scalar_matmul(args, chains, threads);
    return ASSAY_OK;
}
