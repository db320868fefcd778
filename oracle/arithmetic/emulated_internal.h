/* What the files of the emulated arithmetic share. Lowest first: the loops (emulated_loops.h), emulated_round.c,
 * emulated_sums.c, emulated_blocks.c, emulated_matmul.c. */
#pragma once

#include "oracle/arithmetic/emulated.h"
#include "oracle/arithmetic/emulated_loops.h"
#include "oracle/base/memory.h"

/* Values from which on threads pay, and values that one of them takes at a time. */
enum { EMULATED_SHARED = 1 << 14, EMULATED_CHUNK = 1 << 10 };

/* --- rounding (emulated_round.c) --- */

/* Streams of draws, independent of each other and of those of every assay_rounding. */
enum { EMULATED_PRODUCTS = 16, EMULATED_ORDER = 18, EMULATED_TRUNCATION, EMULATED_SCALES };
uint64_t emulated_key(const assay_emulation *emulation, uint64_t stream);

/* As the arithmetic rounds a tensor somewhere: assay_arithmetic.round. */
void emulated_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values);
double emulated_moved_by(const assay_context *ctx, double number); /* assay_moved_by, of a run that rounds at random */
emulated_rounder emulated_storage_rounder(const assay_emulation *emulation, assay_dtype type);
/* Onto the grid of the type, as block-scaled operands are rounded. */
void emulated_to_scaled_grid(const assay_context *ctx, assay_dtype type, int64_t count, double *values);

/* An operand as it lies in memory. */
typedef struct emulated_operand {
    const double *values;
    int64_t ld, rows, columns;
} emulated_operand;
emulated_operand emulated_a(const assay_matmul_args *args);
emulated_operand emulated_b(const assay_matmul_args *args);
/* *o becomes a copy where it changes. *copy is to be freed. */
assay_status emulated_round_operand(assay_context *ctx, const emulated_rounder *r, emulated_operand *o, double **copy);

/* Sums of float16, onto its grid; others stay as they are. */
void emulated_round_narrow_sums(const assay_context *ctx, int64_t count, double *sums);

/* Whether the profile scales the operands of such a product. */
bool emulated_is_scaled(const assay_emulation *emulation, assay_product product);

/* The profile's accumulator, and its unit, of such a product. */
typedef struct emulated_accumulator {
    double unit;
    assay_accumulator kind;
} emulated_accumulator;
emulated_accumulator emulated_accumulator_of(const assay_emulation *emulation, assay_product product);

/* --- errors of the product's partial sums (emulated_sums.c) --- */

emulated_sum_error emulated_sum_errors_of(const assay_emulation *emulation, const assay_matmul_args *args);
/* An error for each sum that is 0 though its terms are not. */
assay_status emulated_move_cancelled(assay_context *ctx, const assay_matmul_args *args,
                                     const emulated_sum_error *errors);
/* Of sums that are no products: assay_arithmetic.round_terms. */
void emulated_round_terms(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums);
/* Onto c. */
assay_status emulated_add_sum_errors(assay_context *ctx, const assay_matmul_args *args);

/* --- blocks (emulated_blocks.c) --- */

/* The operands of the product, scaled. *copy_a and *copy_b are to be freed. */
assay_status emulated_scale_operands(assay_context *ctx, assay_matmul_args *args, double **copy_a, double **copy_b);
/* The product from sums of blocks, which are added in float32. */
assay_status emulated_sum_blocks(assay_context *ctx, const assay_matmul_args *args, int64_t length);
