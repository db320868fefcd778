/* What products are built from: the inner loops, once for each instruction set, for chains in float64 and in float32.
 * In memory A, B and C are float64; C then holds float32 numbers.
 *
 * A panel holds `width` lines (rows of op(A), columns of op(B)) over a range of k, in the chains' type: element (line,
 * p) is at panel[p * width + line]. A tile is the block of C that one panel of A and one of B give. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"

enum { ASSAY_TILE_ROWS_MAX = 8, ASSAY_TILE_COLUMNS_MAX = 48 };

typedef struct assay_matmul_kernels {
    int64_t tile_rows, tile_columns; /* the widths of a panel of A and of B */
    int64_t number;                  /* bytes of one in a panel */

    /* Fills a panel from `lines` lines, at most its width; the lines beyond them become 0. Line i, step p is at
     * from[i * ld + p], or at from[p * ld + i] when `lines_adjacent`. */
    void (*pack_a)(void *panel, const double *from, int64_t ld, bool lines_adjacent, int64_t lines, int64_t k);
    void (*pack_b)(void *panel, const double *from, int64_t ld, bool lines_adjacent, int64_t lines, int64_t k);

    /* A whole tile: c = (first ? 0 : c) followed by k steps of the chain. */
    void (*tile)(double *c, int64_t ldc, const void *a_panel, const void *b_panel, int64_t k, bool first);

    /* sums [the panel's width]: plus the squares of each line. In float32 only. */
    void (*add_squares_a)(float *sums, const void *panel, int64_t k);
    void (*add_squares_b)(float *sums, const void *panel, int64_t k);

    /* Columns [column, column_end) of a product with at most tile_rows rows (k at least 1): B is read once and as it
     * lies in memory. Heeds args->accumulate. In float64 only. */
    void (*stream)(const assay_matmul_args *args, int64_t column, int64_t column_end);
} assay_matmul_kernels;

extern const assay_matmul_kernels assay_matmul_kernels_scalar, assay_matmul_kernels_float32_scalar;
#ifdef __x86_64__
extern const assay_matmul_kernels assay_matmul_kernels_avx2, assay_matmul_kernels_avx512;
extern const assay_matmul_kernels assay_matmul_kernels_float32_avx2, assay_matmul_kernels_float32_avx512;
#endif
