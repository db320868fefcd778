#include "oracle/arithmetic/emulated_internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated_loops.h"
#include "oracle/arithmetic/matmul_float32.h"
#include "oracle/base/memory.h"

/* Values from which on threads pay, and values that one of them takes at a time. */
enum { SHARED = 1 << 14, CHUNK = 1 << 10 };
/* Blocks of k in assay_gauge_matmul. */
enum { GAUGE_BLOCKS = 8 };
/* Where chains in float32 may start: at a multiple of this, so that vectors of operands stay whole. */
enum { START_STEPS = 8 };

static const double SQRT_3 = 1.73205080756887729353;
/* Relative errors of an RMS below this disappear when the result is rounded to float64. */
static const double LEAST_UNIT = 0x1p-51;
/* Of the variance that is expected, what is drawn where sums are really added up in float32: rounding to nearest gives
 * a quarter to half of it. */
static const double SHARE_DRAWN = 2.0 / 3;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

const emulated_loops *emulated_loops_for(assay_isa isa)
{
#ifdef __x86_64__
    /* 64-bit products are a part of AVX-512 of its own */
    if (isa == ASSAY_ISA_AVX512 && __builtin_cpu_supports("avx512dq")) return &emulated_loops_avx512;
    if (isa != ASSAY_ISA_SCALAR) return &emulated_loops_avx2;
#else
    (void)isa;
#endif
    return &emulated_loops_scalar;
}

uint64_t emulated_mixed(uint64_t x)
{
    return emulated_hash(x);
}

uint64_t emulated_key(const assay_emulation *emulation, uint64_t stream)
{
    return emulated_hash(emulated_hash(emulation->seed) + (stream + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

static emulated_grid grid_of(assay_dtype type)
{
    const double max = assay_dtype_max(type), spacing = 2 * assay_dtype_unit_roundoff(type);
    const double least = assay_dtype_least_subnormal(type);
    return (emulated_grid){.spacing = spacing,
                           .least = least,
                           .max = max,
                           .limit = 2 * max,
                           .beyond = assay_dtype_round(type, INFINITY, false),
                           .normal = least / spacing,
                           .below = (UINT64_C(1) << (52 + ilogb(spacing))) - 1};
}

static emulated_rounder storage_rounder(const assay_emulation *emulation, assay_dtype type)
{
    emulated_rounder r = {.way = emulation->nearest ? EMULATED_NOTHING : EMULATED_TO_NEIGHBOUR,
                          .key = emulated_key(emulation, ASSAY_ROUND_STORAGE)};
    if (type == ASSAY_FLOAT64) return r;
    r.way = emulation->nearest ? EMULATED_TO_GRID : EMULATED_BY_CHANCE;
    r.grid = grid_of(type);
    return r;
}

static emulated_rounder unit_rounder(const assay_emulation *emulation, uint64_t stream, double unit)
{
    emulated_rounder r = {.way = EMULATED_RELATIVE, .key = emulated_key(emulation, stream), .largest = unit * SQRT_3};
    if (unit < LEAST_UNIT) r.way = EMULATED_TO_NEIGHBOUR;
    if (unit == 0 || emulation->nearest) r.way = EMULATED_NOTHING;
    return r;
}

static emulated_rounder rounder_of(const assay_emulation *emulation, assay_rounding rounding)
{
    const assay_precision *p = &emulation->precision;
    switch (rounding) {
    case ASSAY_ROUND_ROUTER:
        return unit_rounder(emulation, rounding, p->router);
    case ASSAY_ROUND_ELEMENTARY:
        return unit_rounder(emulation, rounding, p->elementary);
    case ASSAY_ROUND_ACCUMULATE:
        return unit_rounder(emulation, rounding, emulated_accumulator_of(emulation, ASSAY_PRODUCT_OTHER).unit);
    case ASSAY_ROUND_STORAGE:
        break;
    }
    return storage_rounder(emulation, emulation->storage);
}

static void round_some(const assay_context *ctx, const emulated_rounder *r, int64_t count, double *values)
{
    emulated_loops_for(ctx->isa)->round(r, count, values, values);
}

static void emulated_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    const emulated_rounder r = rounder_of(ctx->emulation, rounding);
    if (count < SHARED) {
        round_some(ctx, &r, count, values);
        return;
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += CHUNK) {
        round_some(ctx, &r, smaller(CHUNK, count - first), values + first);
    }
}

void emulated_to_scaled_grid(const assay_context *ctx, assay_dtype type, int64_t count, double *values)
{
    emulated_rounder r = storage_rounder(ctx->emulation, type);
    r.way = EMULATED_TO_GRID;
    r.dither = ctx->emulation->nearest ? 0 : 0.5;
    round_some(ctx, &r, count, values);
}

emulated_operand emulated_a(const assay_matmul_args *args)
{
    return (emulated_operand){.values = args->a,
                              .ld = args->lda,
                              .rows = args->transpose_a ? args->k : args->m,
                              .columns = args->transpose_a ? args->m : args->k};
}

emulated_operand emulated_b(const assay_matmul_args *args)
{
    return (emulated_operand){.values = args->b,
                              .ld = args->ldb,
                              .rows = args->transpose_b ? args->n : args->k,
                              .columns = args->transpose_b ? args->k : args->n};
}

/* Most operands were rounded when they were stored: these stay as they are. */
static bool is_on_grid(const assay_context *ctx, const emulated_grid *g, const emulated_operand *o)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    bool off = o->rows > 0 && !loops->are_on_grid(g, o->columns, o->values);
    if (off) return false;
#pragma omp parallel for num_threads(ctx->threads) reduction(|| : off) if (o->rows * o->columns >= SHARED)
    for (int64_t row = 1; row < o->rows; row++) {
        off = off || !loops->are_on_grid(g, o->columns, o->values + row * o->ld);
    }
    return !off;
}

/* *o becomes a copy where it changes. *copy is to be freed. */
static assay_status round_operand(assay_context *ctx, const emulated_rounder *r, emulated_operand *o, double **copy)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    if (is_on_grid(ctx, &r->grid, o)) return ASSAY_OK;
    assay_status status = assay_alloc_f64(ctx, "operand of an emulated product", o->rows * o->columns, copy);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t row = 0; row < o->rows; row++) {
        loops->round(r, o->columns, o->values + row * o->ld, *copy + row * o->columns);
    }
    o->values = *copy;
    o->ld = o->columns;
    return ASSAY_OK;
}

/* roots [rows]: of the sum of squares of each row. */
static void row_roots(const assay_context *ctx, const emulated_operand *o, double *roots)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t row = 0; row < o->rows; row++)
        roots[row] = sqrt(loops->sum_of_squares(o->columns, o->values + row * o->ld));
}

static void column_roots(const assay_context *ctx, const emulated_operand *o, double *roots)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t first = 0; first < o->columns; first += CHUNK) {
        const int64_t count = smaller(CHUNK, o->columns - first);
        for (int64_t i = 0; i < count; i++) roots[first + i] = 0;
        loops->add_squares(o->rows, o->ld, count, o->values + first, roots + first);
        for (int64_t i = 0; i < count; i++) roots[first + i] = sqrt(roots[first + i]);
    }
}

emulated_accumulator emulated_accumulator_of(const assay_emulation *emulation, assay_product_kind product)
{
    const assay_precision *p = &emulation->precision;
    if (p->scaled.block > 0 && !emulated_is_scaled(emulation, product)) {
        return (emulated_accumulator){.unit = ASSAY_FLOAT32_RMS};
    }
    return (emulated_accumulator){.unit = p->accumulate, .kind = p->accumulator};
}

/* What is cut off of a term is (unit sqrt(3) / 2) times the partial sums that it enters: of k of them, (k + 1) / 2 on
 * average over the orders of the terms, with a variance of (k^2 - 1) / 12. */
static void add_truncation(const assay_emulation *emulation, double unit, double k, emulated_sum_error *errors)
{
    const double share = SQRT_3 * (emulated_centred(emulated_key(emulation, EMULATED_TRUNCATION)) + 0.5);
    errors->mean = fmin(share * unit * SQRT_3 / 4 * (k + 1), 1);
    errors->spread += unit * unit * (k + 1) / 16;
}

/* At the end of a block with a share s of the terms the gauge's partial sum has, on average over the orders of the
 * terms, the square s^2 c^2 + s (1 - s) (k Q - c^2) / (k - 1); and Q is added once. k Q is about sum a^2 sum b^2. */
static emulated_sum_error sum_errors_of(const assay_emulation *emulation, const assay_matmul_args *args)
{
    const int64_t length = (args->k + GAUGE_BLOCKS - 1) / GAUGE_BLOCKS;
    const emulated_accumulator accumulator = emulated_accumulator_of(emulation, args->kind);
    const double unit = accumulator.unit, block = unit * unit * (double)length, k = (double)args->k;
    emulated_sum_error errors = {.spread = block / k};
    for (int64_t first = 0; first < args->k; first += length) {
        const double share = (double)smaller(args->k, first + length) / k;
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
    const emulated_sum_error errors = sum_errors_of(ctx->emulation, args);
    const uint64_t key = emulated_key(ctx->emulation, EMULATED_PRODUCTS);
    const emulated_operand a = emulated_a(args), b = emulated_b(args);
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    TRY(assay_alloc_f64(ctx, "errors of an emulated product", args->m + args->n, &roots));
    double *of_a = roots, *of_b = roots + args->m;
    (args->transpose_a ? column_roots : row_roots)(ctx, &a, of_a);
    (args->transpose_b ? row_roots : column_roots)(ctx, &b, of_b);
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= SHARED)
    for (int64_t i = 0; i < args->m; i++) {
        loops->add_sum_error(&errors, key, args->n, args->c + i * args->ldc, of_a[i], of_b);
    }
cleanup:
    free(roots);
    return status;
}

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
                             .errors = sum_errors_of(ctx->emulation, args),
                             .key = (uint32_t)emulated_key(ctx->emulation, EMULATED_PRODUCTS),
                             .c = args->c,
                             .ldc = args->ldc};
    errors.errors.whole *= sqrt(SHARE_DRAWN);
    errors.errors.spread *= sqrt(SHARE_DRAWN);
    const assay_chains chains = {
        .start = START_STEPS * (int64_t)(drawn % starts), .ended = add_float32_errors, .self = &errors};
    return assay_matmul_float32(ctx, args, &chains);
}

static assay_status emulated_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    assay_status status = ASSAY_OK;
    assay_matmul_args rounded = *args;
    const int64_t block = emulated_accumulator_of(ctx->emulation, args->kind).kind.block;
    const bool in_float32 = has_float32_sums(ctx->emulation, args);
    const bool rounds_itself = in_float32 && ctx->emulation->multiply == ASSAY_FLOAT32;
    double *copy_a = NULL, *copy_b = NULL;
    if (args->k > 0 && emulated_is_scaled(ctx->emulation, args->kind)) {
        TRY(emulated_scale_operands(ctx, &rounded, &copy_a, &copy_b));
    } else if (args->k > 0 && ctx->emulation->multiply != ASSAY_FLOAT64 && !rounds_itself) {
        const emulated_rounder r = storage_rounder(ctx->emulation, ctx->emulation->multiply);
        emulated_operand a = emulated_a(args), b = emulated_b(args);
        TRY(round_operand(ctx, &r, &a, &copy_a));
        TRY(round_operand(ctx, &r, &b, &copy_b));
        rounded.a = a.values, rounded.lda = a.ld;
        rounded.b = b.values, rounded.ldb = b.ld;
    }
    if (in_float32) {
        TRY(float32_matmul(ctx, &rounded));
    } else if (block > 0 && args->k > 0 && (block < args->k || args->accumulate)) {
        TRY(emulated_sum_blocks(ctx, &rounded, block));
    } else {
        TRY(assay_arithmetic_reference.matmul(ctx, &rounded));
        TRY(emulated_add_sum_errors(ctx, &rounded));
    }
cleanup:
    free(copy_a);
    free(copy_b);
    return status;
}

const assay_arithmetic assay_arithmetic_emulated = {
    .name = "emulated", .matmul = emulated_matmul, .round = emulated_round};
