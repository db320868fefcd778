/* The product with chains of fused multiply-adds in float32, one of which is what a float32 unit makes of a sum:
 * operands are rounded to float32 (to nearest), and so is what C holds when the chains continue from it. Bits do not
 * depend on the number of threads, the instruction set or the blocking. */
#ifndef ASSAY_ARITHMETIC_MATMUL_FLOAT32_H
#define ASSAY_ARITHMETIC_MATMUL_FLOAT32_H

#include "oracle/arithmetic/arithmetic.h"

/* Where the chains of a product begin, and who is told when they have ended. */
typedef struct assay_chains {
    int64_t start; /* their first step, 0 to k - 1; after step k - 1 comes step 0 */
    /* For each rectangle of C once, while the processor's cache still has it, by the thread that made it. NULL: nobody.
     */
    void (*ended)(const void *self, int64_t row, int64_t rows, int64_t column, int64_t columns);
    const void *self;
} assay_chains;

/* k is at least 1. Fails only for want of memory. */
assay_status assay_matmul_float32(assay_context *ctx, const assay_matmul_args *args, const assay_chains *chains);

#endif
