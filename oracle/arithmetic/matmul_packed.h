/* What the float64 and the float32 product share: how C is cut between threads, and the product in packed panels.
 * Blocking and threads decide only when an output's chain is advanced, never its order: a chain interrupted at the end
 * of a block is stored to C, a float64, and loaded again, which is exact. Private to matmul*.c. */
#pragma once

#include "oracle/arithmetic/matmul_float32.h"
#include "oracle/arithmetic/matmul_kernels.h"

/* How C is cut: rows x columns regions, whole tiles each. */
typedef struct assay_partition {
    int rows, columns;
    int64_t row_tiles, column_tiles;
} assay_partition;

/* A rectangle of C for one thread. */
typedef struct assay_region {
    int64_t row, row_end, column, column_end;
} assay_region;

/* The grid of `threads` regions whose largest region is smallest, and of those the one with the least to pack. */
assay_partition assay_partition_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels, int threads);
assay_region assay_region_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels,
                             const assay_partition *cut, int part);

/* Threads that are worth their while. */
int assay_matmul_threads(const assay_context *ctx, const assay_matmul_args *args);

/* m, n and k are at least 1. */
assay_status assay_matmul_packed(assay_context *ctx, const assay_matmul_args *args, const assay_matmul_kernels *kernels,
                                 const assay_chains *chains, int threads);
