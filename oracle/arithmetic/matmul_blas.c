/* The blas arithmetic: OpenBLAS dgemm. */
#include <cblas.h>
#include <inttypes.h>
#include <limits.h>

#include "oracle/arithmetic/arithmetic.h"

/* Leading dimensions of empty operands may be anything for us; BLAS wants at least 1 and at least a row. */
static blasint leading(int64_t ld)
{
    return ld < 1 ? 1 : (blasint)ld;
}

/* The one place that narrows to BLAS's integer. */
static assay_status blas_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const int64_t sizes[] = {args->m, args->n, args->k, args->lda, args->ldb, args->ldc};
    const int64_t largest = sizeof(blasint) == sizeof(int) ? INT_MAX : INT64_MAX;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] > largest) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "matmul: size %" PRId64 " is beyond this OpenBLAS's integers (at most %" PRId64 ")", sizes[i],
                              largest);
        }
    }
    if (args->m == 0 || args->n == 0) return ASSAY_OK;
    openblas_set_num_threads(ctx->threads);
    cblas_dgemm(CblasRowMajor, args->transpose_a ? CblasTrans : CblasNoTrans,
                args->transpose_b ? CblasTrans : CblasNoTrans, (blasint)args->m, (blasint)args->n, (blasint)args->k, 1.0,
                args->a, leading(args->lda), args->b, leading(args->ldb), 0.0, args->c, leading(args->ldc));
    return ASSAY_OK;
}

const assay_arithmetic assay_arithmetic_blas = {.name = "blas", .matmul = blas_matmul};
