/* The product with chains of fused multiply-adds in float32, one of which is what a float32 unit makes of a sum:
 * operands are rounded to float32 (to nearest), and so is what C holds when the chains continue from it. Bits do not
 * depend on the number of threads, the instruction set or the blocking. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"

/* A rectangle of C whose chains have ended. */
typedef struct assay_chains_ended {
    int64_t row, rows, column, columns;
    /* Roots of the sums of squares of the rectangle's rows of op(A) [rows] and columns of op(B) [columns]. */
    const float *of_rows, *of_columns;
} assay_chains_ended;

/* Where the chains of a product begin, and who is told when they have ended. */
typedef struct assay_chains {
    int64_t start; /* their first step, 0 to k - 1; after step k - 1 comes step 0 */
    /* Called for each element of C once, while the processor's cache still has it, by the thread that made it. NULL:
     * nobody is told. */
    void (*ended)(const void *self, const assay_chains_ended *where);
    const void *self;
} assay_chains;

/* k is at least 1. Fails only for want of memory. */
assay_status assay_matmul_float32(assay_context *ctx, const assay_matmul_args *args, const assay_chains *chains);
