/* The errors of a product's partial sums. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/emulated_internal.h"
#include "oracle/base/memory.h"

/* Blocks of k in assay_propagate_product (oracle/propagate). */
enum { SCALE_BLOCKS = 8 };

static const double SQRT_3 = 1.73205080756887729353;

/* roots [rows]: of the sum of squares of each row. */
static void row_roots(const assay_context *ctx, const emulated_operand *o, double *roots)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= EMULATED_SHARED)
    for (int64_t row = 0; row < o->rows; row++)
        roots[row] = sqrt(loops->sum_of_squares(o->columns, o->values + row * o->ld));
}

static void column_roots(const assay_context *ctx, const emulated_operand *o, double *roots)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= EMULATED_SHARED)
    for (int64_t first = 0; first < o->columns; first += EMULATED_CHUNK) {
        const int64_t count = emulated_smaller(EMULATED_CHUNK, o->columns - first);
        for (int64_t i = 0; i < count; i++) roots[first + i] = 0;
        loops->add_squares(o->rows, o->ld, count, o->values + first, roots + first);
        for (int64_t i = 0; i < count; i++) roots[first + i] = sqrt(roots[first + i]);
    }
}

/* What is cut off of a term is (unit sqrt(3) / 2) times the partial sums that it enters: of k of them, (k + 1) / 2 on
 * average over the orders of the terms, with a variance of (k^2 - 1) / 12. */
static void add_truncation(const assay_emulation *emulation, double unit, double k, emulated_sum_error *errors)
{
    const double share = SQRT_3 * (emulated_centred(emulated_key(emulation, EMULATED_TRUNCATION)) + 0.5);
    errors->mean = fmin(share * unit * SQRT_3 / 4 * (k + 1), 1);
    errors->spread += unit * unit * (k + 1) / 16;
}

/* At the end of a block with a share s of the terms the error scale's partial sum has, on average over the orders of the
 * terms, the square s^2 c^2 + s (1 - s) (k Q - c^2) / (k - 1); and Q is added once. k Q is about sum a^2 sum b^2. */
emulated_sum_error emulated_sum_errors_of(const assay_emulation *emulation, const assay_matmul_args *args)
{
    const int64_t length = (args->k + SCALE_BLOCKS - 1) / SCALE_BLOCKS;
    const emulated_accumulator accumulator = emulated_accumulator_of(emulation, args->kind);
    const double unit = accumulator.unit, block = unit * unit * (double)length, k = (double)args->k;
    emulated_sum_error errors = {.spread = block / k};
    for (int64_t first = 0; first < args->k; first += length) {
        const double share = (double)emulated_smaller(args->k, first + length) / k;
        const double order = share * (1 - share) / fmax(k - 1, 1);
        errors.whole += args->accumulate ? block : block * (share * share - order);
        errors.spread += block * order;
    }
    if (accumulator.kind.truncate) add_truncation(emulation, unit, k, &errors);
    errors.whole = sqrt(errors.whole);
    errors.spread = sqrt(errors.spread);
    return errors;
}

assay_status emulated_add_sum_errors(assay_context *ctx, const assay_matmul_args *args)
{
    assay_status status = ASSAY_OK;
    double *roots = NULL;
    if (args->k == 0 || ctx->emulation->nearest) return ASSAY_OK;
    if (emulated_accumulator_of(ctx->emulation, args->kind).unit == 0) return ASSAY_OK;
    const emulated_sum_error errors = emulated_sum_errors_of(ctx->emulation, args);
    const uint64_t key = emulated_key(ctx->emulation, EMULATED_PRODUCTS);
    const emulated_operand a = emulated_a(args), b = emulated_b(args);
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    TRY(assay_alloc_f64(ctx, "errors of an emulated product", args->m + args->n, &roots));
    double *of_a = roots, *of_b = roots + args->m;
    (args->transpose_a ? column_roots : row_roots)(ctx, &a, of_a);
    (args->transpose_b ? row_roots : column_roots)(ctx, &b, of_b);
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= EMULATED_SHARED)
    for (int64_t i = 0; i < args->m; i++) {
        loops->add_sum_error(&errors, key, args->n, args->c + i * args->ldc, of_a[i], of_b);
    }
cleanup:
    free(roots);
    return status;
}
