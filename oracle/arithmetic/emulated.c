#include "oracle/arithmetic/emulated_internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* Values from which on threads pay, and values that one of them takes at a time. */
enum { SHARED = 1 << 14, CHUNK = 1 << 10 };
/* Blocks of k in assay_gauge_matmul. */
enum { GAUGE_BLOCKS = 8 };

static const double SQRT_3 = 1.73205080756887729353;
/* Relative errors of an RMS below this disappear when the result is rounded to float64. */
static const double LEAST_UNIT = 0x1p-51;

static const uint64_t EXPONENT_MASK = UINT64_C(0x7ff) << 52;
static const uint64_t SIGN_MASK = UINT64_C(1) << 63;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double value_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood 2014): each bit of x changes each of the result with probability
 * one half. */
static inline uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t emulated_mixed(uint64_t x)
{
    return mixed(x);
}

uint64_t emulated_key(const assay_emulation *emulation, uint64_t stream)
{
    return mixed(mixed(emulation->seed) + (stream + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

/* Uniform in (-1/2, 1/2), from 24 of 64 random bits. Never nearer than 2^-25 to an end: a number of the grid must not
 * come halfway to the next one. */
static inline double centred(uint64_t random_bits)
{
    return ((double)(int32_t)(random_bits & 0xffffff) + 0.5) * 0x1p-24 - 0.5;
}

/* What the loop of stochastic rounding needs of a type. */
typedef struct grid {
    double spacing;       /* of the numbers above a power of two, relative to it */
    double least, max;    /* the least spacing; the largest finite number */
    double limit, beyond; /* what is above `limit` becomes that first; what is above max becomes `beyond` */
} grid;

static grid grid_of(assay_dtype type)
{
    const double max = assay_dtype_max(type);
    return (grid){.spacing = 2 * assay_dtype_unit_roundoff(type),
                  .least = assay_dtype_least_subnormal(type),
                  .max = max,
                  .limit = 2 * max,
                  .beyond = assay_dtype_round(type, INFINITY, false)};
}

/* Adding c makes float64's own last bit the grid's spacing, as in oracle/base/dtype_loops.inc; moving the value by up
 * to half of that beforehand makes the rounding stochastic. */
static inline double to_grid(const grid *g, double x, uint64_t key, double dither)
{
    double magnitude = fabs(x);
    magnitude = g->limit < magnitude ? g->limit : magnitude; /* NaN stays */
    double spacing = value_of(bits_of(magnitude) & EXPONENT_MASK) * g->spacing;
    spacing = spacing > g->least ? spacing : g->least;
    double c = spacing * 0x1p52;
    double moved = magnitude + dither * centred(mixed(bits_of(x) ^ key)) * spacing;
    moved = magnitude > g->max ? magnitude : moved;
    moved = moved < 0 ? 0 : moved; /* below c float64's last bit is half of that */
    double rounded = (moved + c) - c;
    rounded = rounded > g->max ? g->beyond : rounded;
    return value_of(bits_of(rounded) | (bits_of(x) & SIGN_MASK));
}

/* The next float64 up, the next one down, or x. */
static inline double to_neighbour(double x, uint64_t key)
{
    uint64_t draw = mixed(bits_of(x) ^ key) >> 32, sixth = (UINT64_C(1) << 32) / 6;
    uint64_t step = (uint64_t)(draw < sixth) - (uint64_t)(draw >= 5 * sixth);
    return x != 0 && fabs(x) < DBL_MAX ? value_of(bits_of(x) + step) : x;
}

static inline double with_relative_error(double x, uint64_t key, double largest)
{
    return x * (1 + largest * 2 * centred(mixed(bits_of(x) ^ key)));
}

/* How values are rounded somewhere, and with which draws. */
typedef struct rounder {
    enum { TO_GRID, TO_NEIGHBOUR, RELATIVE, NOTHING } way;
    uint64_t key;
    grid grid;
    double dither;  /* TO_GRID: 1 stochastic, 0 to nearest */
    double largest; /* RELATIVE: the largest error */
} rounder;

static rounder storage_rounder(const assay_emulation *emulation, assay_dtype type)
{
    rounder r = {.way = emulation->nearest ? NOTHING : TO_NEIGHBOUR,
                 .key = emulated_key(emulation, ASSAY_ROUND_STORAGE),
                 .dither = emulation->nearest ? 0 : 1};
    if (type == ASSAY_FLOAT64) return r;
    r.way = TO_GRID;
    r.grid = grid_of(type);
    return r;
}

static rounder unit_rounder(const assay_emulation *emulation, uint64_t stream, double unit)
{
    rounder r = {.way = RELATIVE, .key = emulated_key(emulation, stream), .largest = unit * SQRT_3};
    if (unit < LEAST_UNIT) r.way = TO_NEIGHBOUR;
    if (unit == 0 || emulation->nearest) r.way = NOTHING;
    return r;
}

static rounder rounder_of(const assay_emulation *emulation, assay_rounding rounding)
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

static void round_some(const rounder *r, int64_t count, double *values)
{
    const grid g = r->grid;
    const uint64_t key = r->key;
    const double largest = r->largest, dither = r->dither;
    switch (r->way) {
    case TO_GRID:
        for (int64_t i = 0; i < count; i++) values[i] = to_grid(&g, values[i], key, dither);
        break;
    case TO_NEIGHBOUR:
        for (int64_t i = 0; i < count; i++) values[i] = to_neighbour(values[i], key);
        break;
    case RELATIVE:
        for (int64_t i = 0; i < count; i++) values[i] = with_relative_error(values[i], key, largest);
        break;
    case NOTHING:
        break;
    }
}

static void emulated_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    const rounder r = rounder_of(ctx->emulation, rounding);
    if (count < SHARED) {
        round_some(&r, count, values);
        return;
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += CHUNK) round_some(&r, least(CHUNK, count - first), values + first);
}

void emulated_to_scaled_grid(const assay_emulation *emulation, assay_dtype type, int64_t count, double *values)
{
    rounder r = storage_rounder(emulation, type);
    r.dither *= 0.5;
    round_some(&r, count, values);
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

/* *copy is to be freed; *o becomes the copy. */
static assay_status round_operand(assay_context *ctx, const rounder *r, emulated_operand *o, double **copy)
{
    assay_status status = assay_alloc_f64(ctx, "operand of an emulated product", o->rows * o->columns, copy);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t row = 0; row < o->rows; row++) {
        double *to = *copy + row * o->columns;
        memcpy(to, o->values + row * o->ld, (size_t)o->columns * sizeof *to);
        round_some(r, o->columns, to);
    }
    o->values = *copy;
    o->ld = o->columns;
    return ASSAY_OK;
}

/* squares [rows] = factor times the sum of squares of each row. */
static void square_rows(const assay_context *ctx, const emulated_operand *o, double factor, double *squares)
{
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t row = 0; row < o->rows; row++) {
        const double *values = o->values + row * o->ld;
        double sum = 0;
        for (int64_t i = 0; i < o->columns; i++) sum += values[i] * values[i];
        squares[row] = factor * sum;
    }
}

static void square_columns(const assay_context *ctx, const emulated_operand *o, double factor, double *squares)
{
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t first = 0; first < o->columns; first += CHUNK) {
        const int64_t count = least(CHUNK, o->columns - first);
        for (int64_t i = 0; i < count; i++) squares[first + i] = 0;
        for (int64_t row = 0; row < o->rows; row++) {
            const double *values = o->values + row * o->ld + first;
            for (int64_t i = 0; i < count; i++) squares[first + i] += factor * (values[i] * values[i]);
        }
    }
}

emulated_accumulator emulated_accumulator_of(const assay_emulation *emulation, assay_product product)
{
    const assay_precision *p = &emulation->precision;
    if (p->scaled.block > 0 && !emulated_is_scaled(emulation, product)) {
        return (emulated_accumulator){.unit = ASSAY_FLOAT32_RMS};
    }
    return (emulated_accumulator){.unit = p->accumulate, .kind = p->accumulator};
}

/* Variance of the error of an element c: whole c^2 + spread sum a^2 sum b^2; its mean is -mean c. */
typedef struct sum_errors {
    double whole, spread, mean;
} sum_errors;

/* What is cut off of a term is (unit sqrt(3) / 2) times the partial sums that it enters: of k of them, (k + 1) / 2 on
 * average over the orders of the terms, with a variance of (k^2 - 1) / 12. */
static void add_truncation(const assay_emulation *emulation, double unit, double k, sum_errors *errors)
{
    const double share = SQRT_3 * (centred(emulated_key(emulation, EMULATED_TRUNCATION)) + 0.5);
    errors->mean = fmin(share * unit * SQRT_3 / 4 * (k + 1), 1);
    errors->spread += unit * unit * (k + 1) / 16;
}

/* At the end of a block with a share s of the terms the gauge's partial sum has, on average over the orders of the
 * terms, the square s^2 c^2 + s (1 - s) (k Q - c^2) / (k - 1); and Q is added once. k Q is about sum a^2 sum b^2. */
static sum_errors sum_errors_of(const assay_emulation *emulation, const assay_matmul_args *args)
{
    const int64_t length = (args->k + GAUGE_BLOCKS - 1) / GAUGE_BLOCKS;
    const emulated_accumulator accumulator = emulated_accumulator_of(emulation, args->kind);
    const double unit = accumulator.unit, block = unit * unit * (double)length, k = (double)args->k;
    sum_errors errors = {.spread = block / k};
    for (int64_t first = 0; first < args->k; first += length) {
        const double share = (double)least(args->k, first + length) / k;
        const double order = share * (1 - share) / fmax(k - 1, 1);
        errors.whole += args->accumulate ? block : block * (share * share - order);
        errors.spread += block * order;
    }
    if (accumulator.kind.truncate) add_truncation(emulation, unit, k, &errors);
    return errors;
}

/* The last part lets float64's own rounding of the sum happen either way. */
static inline double with_sum_error(double c, double variance, double mean, uint64_t key)
{
    const uint64_t bits = mixed(bits_of(c) ^ key);
    const double ulp = value_of(bits_of(c) & EXPONENT_MASK) * 0x1p-52;
    const double error = sqrt(variance) * (2 * SQRT_3) * centred(bits >> 40);
    const double moved = (c - mean * c) + (error + ulp * centred(bits));
    return c != 0 && variance <= DBL_MAX ? moved : c;
}

assay_status emulated_add_sum_errors(assay_context *ctx, const assay_matmul_args *args)
{
    assay_status status = ASSAY_OK;
    double *squares = NULL;
    if (args->k == 0 || ctx->emulation->nearest) return ASSAY_OK;
    if (emulated_accumulator_of(ctx->emulation, args->kind).unit == 0) return ASSAY_OK;
    const sum_errors errors = sum_errors_of(ctx->emulation, args);
    const uint64_t key = emulated_key(ctx->emulation, EMULATED_PRODUCTS);
    const emulated_operand a = emulated_a(args), b = emulated_b(args);
    TRY(assay_alloc_f64(ctx, "errors of an emulated product", args->m + args->n, &squares));
    double *of_a = squares, *of_b = squares + args->m;
    (args->transpose_a ? square_columns : square_rows)(ctx, &a, errors.spread, of_a);
    (args->transpose_b ? square_rows : square_columns)(ctx, &b, 1, of_b);
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= SHARED)
    for (int64_t i = 0; i < args->m; i++) {
        double *c = args->c + i * args->ldc;
        for (int64_t j = 0; j < args->n; j++) {
            const double variance = errors.whole * (c[j] * c[j]) + of_a[i] * of_b[j];
            c[j] = with_sum_error(c[j], variance, errors.mean, key);
        }
    }
cleanup:
    free(squares);
    return status;
}

static assay_status emulated_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    assay_status status = ASSAY_OK;
    assay_matmul_args rounded = *args;
    const int64_t block = emulated_accumulator_of(ctx->emulation, args->kind).kind.block;
    double *copy_a = NULL, *copy_b = NULL;
    if (args->k > 0 && emulated_is_scaled(ctx->emulation, args->kind)) {
        TRY(emulated_scale_operands(ctx, &rounded, &copy_a, &copy_b));
    } else if (args->k > 0 && ctx->emulation->multiply != ASSAY_FLOAT64) {
        const rounder r = storage_rounder(ctx->emulation, ctx->emulation->multiply);
        emulated_operand a = emulated_a(args), b = emulated_b(args);
        TRY(round_operand(ctx, &r, &a, &copy_a));
        TRY(round_operand(ctx, &r, &b, &copy_b));
        rounded.a = a.values, rounded.lda = a.ld;
        rounded.b = b.values, rounded.ldb = b.ld;
    }
    if (block > 0 && args->k > 0 && (block < args->k || args->accumulate)) {
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
