/* The blas arithmetic: OpenBLAS dgemm. */
#include "oracle/arithmetic/arithmetic.h"

#ifdef ASSAY_WITHOUT_OPENBLAS
static assay_status blas_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    (void)args;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "engine is blas, which this assay is built without: expected reference");
}
#else
#include <cblas.h>
#include <inttypes.h>
#include <limits.h>
#include <omp.h>

/* BLAS wants a leading dimension of at least a row even where there is no second row. */
static int64_t leading(int64_t ld, int64_t rows, int64_t columns)
{
    if (rows > 1) return ld;
    return columns < 1 ? 1 : columns;
}

/* The one place that narrows to BLAS's integer. */
static assay_status blas_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const int64_t lda = args->transpose_a ? leading(args->lda, args->k, args->m) : leading(args->lda, args->m, args->k);
    const int64_t ldb = args->transpose_b ? leading(args->ldb, args->n, args->k) : leading(args->ldb, args->k, args->n);
    const int64_t ldc = leading(args->ldc, args->m, args->n);
    const int64_t sizes[] = {args->m, args->n, args->k, lda, ldb, ldc};
    const int64_t largest = sizeof(blasint) == sizeof(int) ? INT_MAX : INT64_MAX;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] > largest) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "matmul: size %" PRId64 " is beyond this OpenBLAS's integers (at most %" PRId64 ")",
                              sizes[i], largest);
        }
    }
    if (args->m == 0 || args->n == 0 || (args->k == 0 && args->accumulate)) return ASSAY_OK;
    /* Not thread-safe; within a parallel region OpenBLAS takes one thread by itself. */
    if (!omp_in_parallel()) openblas_set_num_threads(ctx->threads);
    cblas_dgemm(CblasRowMajor, args->transpose_a ? CblasTrans : CblasNoTrans,
                args->transpose_b ? CblasTrans : CblasNoTrans, (blasint)args->m, (blasint)args->n, (blasint)args->k,
                1.0, args->a, (blasint)lda, args->b, (blasint)ldb, args->accumulate ? 1.0 : 0.0, args->c, (blasint)ldc);
    return ASSAY_OK;
}
#endif

const assay_arithmetic assay_arithmetic_blas = {.name = "blas", .matmul = blas_matmul};
