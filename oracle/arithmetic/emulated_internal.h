/* What the files of the emulated arithmetic share. */
#ifndef ASSAY_ARITHMETIC_EMULATED_INTERNAL_H
#define ASSAY_ARITHMETIC_EMULATED_INTERNAL_H

#include "oracle/arithmetic/emulated.h"

/* Streams of draws, independent of each other and of those of every assay_rounding. */
enum { EMULATED_PRODUCTS = 16, EMULATED_SCALES, EMULATED_ORDER, EMULATED_TRUNCATION };
uint64_t emulated_key(const assay_emulation *emulation, uint64_t stream);
uint64_t emulated_mixed(uint64_t x); /* a hash: 64 random bits from 64 bits */

/* Onto the grid of the type, as block-scaled operands are rounded. */
void emulated_to_scaled_grid(const assay_context *ctx, assay_dtype type, int64_t count, double *values);

/* An operand as it lies in memory. */
typedef struct emulated_operand {
    const double *values;
    int64_t ld, rows, columns;
} emulated_operand;
emulated_operand emulated_a(const assay_matmul_args *args);
emulated_operand emulated_b(const assay_matmul_args *args);

/* The profile's accumulator, and its unit, of such a product. */
typedef struct emulated_accumulator {
    double unit;
    assay_accumulator kind;
} emulated_accumulator;
emulated_accumulator emulated_accumulator_of(const assay_emulation *emulation, assay_product_kind product);

/* Errors of the product's partial sums, onto c. */
assay_status emulated_add_sum_errors(assay_context *ctx, const assay_matmul_args *args);

/* Whether the profile scales the operands of such a product; the operands of the product, scaled. *copy_a and *copy_b
 * are to be freed. */
bool emulated_is_scaled(const assay_emulation *emulation, assay_product_kind product);
assay_status emulated_scale_operands(assay_context *ctx, assay_matmul_args *args, double **copy_a, double **copy_b);

/* The product from sums of blocks, which are added in float32. */
assay_status emulated_sum_blocks(assay_context *ctx, const assay_matmul_args *args, int64_t length);

#endif
