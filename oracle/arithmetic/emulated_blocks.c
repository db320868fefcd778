/* Products of the emulated arithmetic that go by blocks: operands with a scale for each block, sums with an accumulator
 * for each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated_internal.h"
#include "oracle/base/memory.h"

/* Of values that a quarter of the spacing at most was added to before they were rounded to nearest, the mean square
 * error is 5/48 of the squared spacing; that of stochastic rounding, which is twice that of rounding to nearest, 1/6.
 */
static const double STRETCH = 1.26491106406735172800; /* sqrt(8 / 5) */

/* How one operand is cut: blocks of so many rows and columns, as it lies in memory. */
typedef struct blocks {
    int64_t rows, columns;
    assay_dtype type;
    bool other;    /* which scales are powers of two: of each largest number in every other member */
    bool anywhere; /* or how much larger a scale is: up to twice */
    uint64_t key;
} blocks;

/* With which the block's largest number is the type's largest. Of a block of zeros, 1. */
static double scale_of(const blocks *b, double largest)
{
    int exponent = 0;
    uint64_t bits;
    const double scale = (double)(float)(largest / assay_dtype_max(b->type));
    if (!(scale > 0)) return 1;
    memcpy(&bits, &largest, sizeof bits);
    if (b->anywhere) return scale * (1 + ldexp((double)(emulated_hash(bits ^ b->key) >> 11), -53));
    if ((emulated_hash(bits) & 1) == b->other || isinf(scale)) return scale;
    return frexp(scale, &exponent) == 0.5 ? scale : ldexp(1, exponent);
}

static void find_largest(const blocks *b, const emulated_operand *o, int64_t row, double *largest)
{
    const double *values = o->values + row * o->ld;
    for (int64_t first = 0; first < o->columns; first += b->columns, largest++) {
        const int64_t end = assay_smaller(first + b->columns, o->columns);
        for (int64_t i = first; i < end; i++) *largest = fabs(values[i]) > *largest ? fabs(values[i]) : *largest;
    }
}

static void scale_row(const assay_context *ctx, const blocks *b, const emulated_operand *o, int64_t row,
                      const double *scales, double *to)
{
    const double *values = o->values + row * o->ld, stretch = ctx->emulation->nearest ? 1 : STRETCH;
    for (int64_t first = 0, j = 0; first < o->columns; first += b->columns, j++) {
        const int64_t end = assay_smaller(first + b->columns, o->columns);
        for (int64_t i = first; i < end; i++) to[i] = values[i] / scales[j];
    }
    emulated_to_scaled_grid(ctx, b->type, o->columns, to);
    for (int64_t first = 0, j = 0; first < o->columns; first += b->columns, j++) {
        const int64_t end = assay_smaller(first + b->columns, o->columns);
        for (int64_t i = first; i < end; i++) to[i] = values[i] + stretch * (to[i] * scales[j] - values[i]);
    }
}

/* The rows [first, first + b->rows) of the copy onto their grid. `scales`: a number for each block of columns. */
static void scale_band(const assay_context *ctx, const blocks *b, const emulated_operand *o, double *copy,
                       int64_t first, double *scales)
{
    const int64_t end = assay_smaller(first + b->rows, o->rows), width = assay_parts(o->columns, b->columns);
    for (int64_t i = 0; i < width; i++) scales[i] = 0;
    for (int64_t row = first; row < end; row++) find_largest(b, o, row, scales);
    for (int64_t i = 0; i < width; i++) scales[i] = scale_of(b, scales[i]);
    for (int64_t row = first; row < end; row++) scale_row(ctx, b, o, row, scales, copy + row * o->columns);
}

/* *copy is to be freed; *o becomes the copy. */
static assay_status scale_operand(assay_context *ctx, const blocks *b, emulated_operand *o, double **copy)
{
    const int64_t bands = assay_parts(o->rows, b->rows), width = assay_parts(o->columns, b->columns);
    OWNED double *scales = NULL;
    MUST(assay_alloc_f64(ctx, "scales of an emulated product", bands * width, &scales));
    MUST(assay_alloc_f64(ctx, "operand of an emulated product", o->rows * o->columns, copy));
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= EMULATED_SHARED)
    for (int64_t band = 0; band < bands; band++) scale_band(ctx, b, o, *copy, band * b->rows, scales + band * width);
    o->values = *copy;
    o->ld = o->columns;
    return ASSAY_OK;
}

assay_status emulated_scale_operands(assay_context *ctx, assay_matmul_args *args, double **copy_a, double **copy_b)
{
    const assay_emulation *e = ctx->emulation;
    const int64_t block = e->precision.scaled.block, across = args->kind == ASSAY_PRODUCT_LINEAR ? block : 1;
    const blocks shape = {.type = e->precision.scaled.type,
                          .other = e->second_form,
                          .anywhere = e->staged && !e->nearest,
                          .key = emulated_key(e, EMULATED_SCALES)};
    blocks of_a = shape, of_b = shape;
    emulated_operand a = emulated_a(args), b = emulated_b(args);
    of_a.rows = args->transpose_a ? block : 1;
    of_a.columns = args->transpose_a ? 1 : block;
    of_b.rows = args->transpose_b ? across : block;
    of_b.columns = args->transpose_b ? block : across;
    MUST(scale_operand(ctx, &of_a, &a, copy_a));
    MUST(scale_operand(ctx, &of_b, &b, copy_b));
    args->a = a.values, args->lda = a.ld;
    args->b = b.values, args->ldb = b.ld;
    return ASSAY_OK;
}

/* 0, 1, ..., count - 1 in an order that the member draws (Fisher and Yates). */
static void draw_order(const assay_emulation *emulation, int64_t count, int32_t *order)
{
    const uint64_t key = emulated_key(emulation, EMULATED_ORDER);
    for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = (int64_t)(emulated_hash(key + (uint64_t)i) % (uint64_t)(i + 1));
        const int32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static void add_float32(const assay_context *ctx, const assay_matmul_args *args, const double *sum, bool first)
{
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= EMULATED_SHARED)
    for (int64_t i = 0; i < args->m; i++) {
        double *c = args->c + i * args->ldc;
        for (int64_t j = 0; j < args->n; j++) c[j] = (double)(float)((first ? 0 : c[j]) + sum[i * args->n + j]);
    }
}

assay_status emulated_sum_blocks(assay_context *ctx, const assay_matmul_args *args, int64_t length)
{
    const int64_t count = assay_parts(args->k, length);
    OWNED int32_t *order = NULL;
    OWNED double *sum = NULL;
    MUST(assay_alloc_i32(ctx, "order of blocks", count, &order));
    MUST(assay_alloc_f64(ctx, "sum of a block", args->m * args->n, &sum));
    draw_order(ctx->emulation, count, order);
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = order[i] * length;
        assay_matmul_args block = *args;
        block.accumulate = false;
        block.c = sum;
        block.ldc = args->n;
        block.k = assay_smaller(length, args->k - first);
        block.a += args->transpose_a ? first * args->lda : first;
        block.b += args->transpose_b ? first : first * args->ldb;
        MUST(assay_arithmetic_reference.matmul(ctx, &block));
        MUST(emulated_add_sum_errors(ctx, &block));
        add_float32(ctx, args, sum, i == 0 && !args->accumulate);
    }
    return ASSAY_OK;
}
