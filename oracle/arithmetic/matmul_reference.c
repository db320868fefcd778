/* The reference arithmetic. */

#include "oracle/arithmetic/matmul_packed.h"

enum {
    STREAM_COLUMNS = 2048, /* rows of C that a stream keeps in the second-level cache: 8 of 16 KiB */
    FEW_STEPS = 8,         /* of k, for which packing is not worth its while */
};

/* A few rows times a large B, or a few steps into a large C: all the time goes into reading B, or writing C, so it is
 * done once and in order. */
static void streamed_matmul(const assay_matmul_args *args, const assay_matmul_kernels *kernels, int threads)
{
    const assay_partition cut = assay_partition_of(args, kernels, threads);
    const int parts = cut.rows * cut.columns;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        const assay_region work = assay_region_of(args, kernels, &cut, part);
        for (int64_t i = work.row; i < work.row_end; i += kernels->tile_rows) {
            assay_matmul_args rows = *args;
            rows.m = work.row_end - i < kernels->tile_rows ? work.row_end - i : kernels->tile_rows;
            rows.a += args->transpose_a ? i : i * args->lda;
            rows.c += i * args->ldc;
            for (int64_t j = work.column; j < work.column_end; j += STREAM_COLUMNS) {
                const int64_t end = j + STREAM_COLUMNS < work.column_end ? j + STREAM_COLUMNS : work.column_end;
                kernels->stream(&rows, j, end);
            }
        }
    }
}

static void zeros(const assay_matmul_args *args)
{
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) args->c[i * args->ldc + j] = 0.0;
    }
}

/* By assay_isa. */
static const assay_matmul_kernels *const kernels_of_isa[] = {
    &assay_matmul_kernels_scalar,
#ifdef __x86_64__
    &assay_matmul_kernels_avx2,
    &assay_matmul_kernels_avx512,
#endif
};

static assay_status reference_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const assay_matmul_kernels *kernels = kernels_of_isa[ctx->isa];
    const assay_chains chains = {.start = 0};
    const int threads = assay_matmul_threads(ctx, args);
    if (args->m == 0 || args->n == 0) return ASSAY_OK;
    if (args->k == 0) {
        if (!args->accumulate) zeros(args);
    } else if (args->m <= kernels->tile_rows || (args->k <= FEW_STEPS && !args->transpose_b)) {
        streamed_matmul(args, kernels, threads);
    } else {
        return assay_matmul_packed(ctx, args, kernels, &chains, threads);
    }
    return ASSAY_OK;
}

const assay_arithmetic assay_arithmetic_reference = {.name = "reference", .matmul = reference_matmul};
