/* How the emulated arithmetic rounds values: the draws, the grids, the operands of products. */
#include <math.h>

#include "oracle/arithmetic/emulated_internal.h"
#include "oracle/base/memory.h"

static const double SQRT_3 = 1.73205080756887729353;
/* Relative errors of an RMS below this disappear when the result is rounded to float64. */
static const double LEAST_UNIT = 0x1p-51;

const emulated_loops *emulated_loops_for(assay_isa isa)
{
#ifdef __x86_64__
    if (isa == ASSAY_ISA_AVX512) return &emulated_loops_avx512;
    if (isa == ASSAY_ISA_AVX2) return &emulated_loops_avx2;
#else
    (void)isa;
#endif
    return &emulated_loops_scalar;
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

emulated_rounder emulated_storage_rounder(const assay_emulation *emulation, assay_dtype type)
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

bool emulated_is_scaled(const assay_emulation *emulation, assay_product product)
{
    const bool linear = product == ASSAY_PRODUCT_LINEAR || product == ASSAY_PRODUCT_LINEAR_GRADIENT;
    return linear && emulation->precision.scaled.block > 0;
}

emulated_accumulator emulated_accumulator_of(const assay_emulation *emulation, assay_product product)
{
    const assay_precision *p = &emulation->precision;
    if (emulation->sums != ASSAY_FLOAT64) {
        return (emulated_accumulator){.unit = ASSAY_ROUNDING_RMS * assay_dtype_unit_roundoff(emulation->sums)};
    }
    if (p->scaled.block > 0 && !emulated_is_scaled(emulation, product)) {
        return (emulated_accumulator){.unit = ASSAY_FLOAT32_RMS};
    }
    return (emulated_accumulator){.unit = p->accumulate, .kind = p->accumulator};
}

static emulated_rounder rounder_of(const assay_emulation *emulation, assay_rounding rounding)
{
    const assay_precision *p = &emulation->precision;
    switch (rounding) {
    case ASSAY_ROUND_ROUTER:
        return unit_rounder(emulation, rounding, p->router);
    case ASSAY_ROUND_ELEMENTARY:
        return unit_rounder(emulation, rounding, p->elementary);
    case ASSAY_ROUND_ACCUMULATE: /* what is rounded once may be on the grid already */
        if (p->form == ASSAY_FORM_ROUNDED_ONCE && p->accumulate >= ASSAY_FLOAT32_RMS)
            return emulated_storage_rounder(emulation, ASSAY_FLOAT32);
        return unit_rounder(emulation, rounding, emulated_accumulator_of(emulation, ASSAY_PRODUCT_OTHER).unit);
    case ASSAY_ROUND_OPERAND:
        if (emulation->multiply == ASSAY_FLOAT64) return (emulated_rounder){.way = EMULATED_NOTHING};
        return emulated_storage_rounder(emulation, emulation->multiply);
    case ASSAY_ROUND_STORAGE:
        break;
    }
    return emulated_storage_rounder(emulation, emulation->storage);
}

static void round_some(const assay_context *ctx, const emulated_rounder *r, int64_t count, double *values)
{
    emulated_loops_for(ctx->isa)->round(r, count, values, values);
}

static void round_all(const assay_context *ctx, const emulated_rounder *r, int64_t count, double *values)
{
    if (count < EMULATED_SHARED) {
        round_some(ctx, r, count, values);
        return;
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += EMULATED_CHUNK)
        round_some(ctx, r, assay_smaller(EMULATED_CHUNK, count - first), values + first);
}

void emulated_round_narrow_sums(const assay_context *ctx, int64_t count, double *sums)
{
    if (ctx->emulation->sums != ASSAY_FLOAT16) return;
    const emulated_rounder r = emulated_storage_rounder(ctx->emulation, ASSAY_FLOAT16);
    round_all(ctx, &r, count, sums);
}

void emulated_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    const emulated_rounder r = rounder_of(ctx->emulation, rounding);
    round_all(ctx, &r, count, values);
    if (rounding == ASSAY_ROUND_ACCUMULATE) emulated_round_narrow_sums(ctx, count, values);
}

double emulated_moved_by(const assay_context *ctx, double number)
{
    const emulated_rounder r = rounder_of(ctx->emulation, ASSAY_ROUND_ACCUMULATE);
    double rounded = number;
    if (r.way ==
        EMULATED_TO_NEIGHBOUR) /* twice, as a number is next to others that are up to two of its roundings away */
        return number * 4 * r.largest * emulated_centred(emulated_hash(emulated_bits_of(number) ^ r.key));
    emulated_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &rounded);
    return rounded - number;
}

void emulated_to_scaled_grid(const assay_context *ctx, assay_dtype type, int64_t count, double *values)
{
    emulated_rounder r = emulated_storage_rounder(ctx->emulation, type);
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
#pragma omp parallel for num_threads(ctx->threads) reduction(|| : off) if (o->rows * o->columns >= EMULATED_SHARED)
    for (int64_t row = 1; row < o->rows; row++)
        off = off || !loops->are_on_grid(g, o->columns, o->values + row * o->ld);
    return !off;
}

assay_status emulated_round_operand(assay_context *ctx, const emulated_rounder *r, emulated_operand *o, double **copy)
{
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    if (is_on_grid(ctx, &r->grid, o)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "operand of an emulated product", o->rows * o->columns, copy));
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= EMULATED_SHARED)
    for (int64_t row = 0; row < o->rows; row++)
        loops->round(r, o->columns, o->values + row * o->ld, *copy + row * o->columns);
    o->values = *copy;
    o->ld = o->columns;
    return ASSAY_OK;
}
