/* The products of the emulated arithmetic. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/emulated_internal.h"
#include "oracle/arithmetic/matmul_float32.h"

/* Where chains in float32 may start: at a multiple of this, so that vectors of operands stay whole. */
enum { START_STEPS = 8 };

/* Of the variance that is expected, what is drawn where sums are really added up in float32: rounding to nearest gives
 * a quarter to half of it. */
static const double SHARE_DRAWN = 2.0 / 3;

/* Whether the profile's sums of such a product are what chains in float32 make of them. */
static bool has_float32_sums(const assay_emulation *emulation, const assay_matmul_args *args)
{
    const emulated_accumulator accumulator = emulated_accumulator_of(emulation, args->kind);
    const bool is_plain = !accumulator.kind.truncate && accumulator.kind.block == 0;
    return args->k > 0 && !emulation->nearest && is_plain && emulation->multiply != ASSAY_FLOAT64 &&
           !emulated_is_scaled(emulation, args->kind) && accumulator.unit == ASSAY_FLOAT32_RMS;
}

typedef struct float32_errors {
    const emulated_loops *loops;
    emulated_sum_error errors;
    uint32_t key;
    double *c;
    int64_t ldc;
} float32_errors;

static void add_float32_errors(const void *self, const assay_chains_ended *where)
{
    const float32_errors *e = self;
    const emulated_block block = {.rows = where->rows,
                                  .columns = where->columns,
                                  .ld = e->ldc,
                                  .of_rows = where->of_rows,
                                  .of_columns = where->of_columns};
    e->loops->add_float32_errors(&e->errors, e->key, &block, e->c + where->row * e->ldc + where->column);
}

static assay_status float32_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const uint64_t starts = (uint64_t)((args->k + START_STEPS - 1) / START_STEPS);
    const uint64_t drawn = emulated_hash(emulated_key(ctx->emulation, EMULATED_ORDER) + (uint64_t)args->k);
    float32_errors errors = {.loops = emulated_loops_for(ctx->isa),
                             .errors = emulated_sum_errors_of(ctx->emulation, args),
                             .key = (uint32_t)emulated_key(ctx->emulation, EMULATED_PRODUCTS),
                             .c = args->c,
                             .ldc = args->ldc};
    errors.errors.of_result *= sqrt(SHARE_DRAWN);
    errors.errors.of_norm *= sqrt(SHARE_DRAWN);
    const assay_chains chains = {
        .start = START_STEPS * (int64_t)(drawn % starts), .ended = add_float32_errors, .self = &errors};
    MUST(assay_matmul_float32(ctx, args, &chains));
    return emulated_move_cancelled(ctx, args, &errors.errors);
}

static assay_status emulated_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    assay_matmul_args rounded = *args;
    const int64_t block = emulated_accumulator_of(ctx->emulation, args->kind).kind.block;
    const bool in_float32 = has_float32_sums(ctx->emulation, args);
    /* Where linear layers are scaled, error scales come from these runs alone. A router's operands stay float32 in half of them:
     * what is rounded to bfloat16 has no smaller error left. */
    const bool kept =
        args->kind == ASSAY_PRODUCT_ROUTER && ctx->emulation->precision.scaled.block > 0 && ctx->emulation->second_form;
    const bool rounds_itself = in_float32 && (ctx->emulation->multiply == ASSAY_FLOAT32 || kept);
    OWNED double *copy_a = NULL, *copy_b = NULL;
    if (args->k > 0 && emulated_is_scaled(ctx->emulation, args->kind)) {
        MUST(emulated_scale_operands(ctx, &rounded, &copy_a, &copy_b));
    } else if (args->k > 0 && ctx->emulation->multiply != ASSAY_FLOAT64 && !rounds_itself) {
        const emulated_rounder r = emulated_storage_rounder(ctx->emulation, ctx->emulation->multiply);
        emulated_operand a = emulated_a(args), b = emulated_b(args);
        MUST(emulated_round_operand(ctx, &r, &a, &copy_a));
        MUST(emulated_round_operand(ctx, &r, &b, &copy_b));
        rounded.a = a.values, rounded.lda = a.ld;
        rounded.b = b.values, rounded.ldb = b.ld;
    }
    if (in_float32) {
        MUST(float32_matmul(ctx, &rounded));
    } else if (block > 0 && args->k > 0 && (block < args->k || args->accumulate)) {
        MUST(emulated_sum_blocks(ctx, &rounded, block));
    } else {
        MUST(assay_arithmetic_reference.matmul(ctx, &rounded));
        MUST(emulated_add_sum_errors(ctx, &rounded));
    }
    for (int64_t i = 0; i < args->m; i++) emulated_round_narrow_sums(ctx, args->n, args->c + i * args->ldc);
    return ASSAY_OK;
}

const assay_arithmetic assay_arithmetic_emulated = {
    .name = "emulated", .matmul = emulated_matmul, .round = emulated_round, .round_terms = emulated_round_terms};
