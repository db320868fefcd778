/* The blas arithmetic: OpenBLAS's dgemm. The library is loaded when it is asked for: its start takes memory and time that
 * every other run would pay for. */
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <stddef.h>

#include "oracle/arithmetic/arithmetic.h"

#define LIBRARY "libopenblas.so.0" /* with integers of 32 bits */

/* Of CBLAS's interface (netlib.org/blas/blast-forum/cinterface.pdf) what is called here. */
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
typedef void dgemm_function(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha,
                            const double *a, int lda, const double *b, int ldb, double beta, double *c, int ldc);
typedef void set_threads_function(int threads);

typedef struct blas_functions {
    dgemm_function *dgemm;
    set_threads_function *set_threads;
} blas_functions;

/* Once loaded it stays, so that this only counts and looks up: a microsecond. */
static assay_status find_functions(assay_context *ctx, blas_functions *functions)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) {
        functions->dgemm = (dgemm_function *)dlsym(library, "cblas_dgemm");
        functions->set_threads = (set_threads_function *)dlsym(library, "openblas_set_num_threads");
        if (functions->dgemm != NULL && functions->set_threads != NULL) return ASSAY_OK;
    }
    return assay_refuse(ctx, "engine blas: OpenBLAS cannot be loaded: %.200s", dlerror());
}

static assay_status load(assay_context *ctx)
{
    blas_functions functions;
    return find_functions(ctx, &functions);
}

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
    blas_functions blas = {NULL, NULL};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] > INT_MAX) {
            return assay_refuse(ctx, "matmul: size %" PRId64 " is beyond this OpenBLAS's integers (at most %d)",
                                sizes[i], INT_MAX);
        }
    }
    if (args->m == 0 || args->n == 0 || (args->k == 0 && args->accumulate)) return ASSAY_OK;
    MUST(find_functions(ctx, &blas));
    /* Not thread-safe; within a parallel region OpenBLAS takes one thread by itself. */
    if (!omp_in_parallel()) blas.set_threads(ctx->threads);
    blas.dgemm(ROW_MAJOR, args->transpose_a ? TRANSPOSED : PLAIN, args->transpose_b ? TRANSPOSED : PLAIN, (int)args->m,
               (int)args->n, (int)args->k, 1.0, args->a, (int)lda, args->b, (int)ldb, args->accumulate ? 1.0 : 0.0,
               args->c, (int)ldc);
    return ASSAY_OK;
}

const assay_arithmetic assay_arithmetic_blas = {.name = "blas", .load = load, .matmul = blas_matmul};
