#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/memory.h"

/* Blocks of k at whose ends partial sums are looked at; rows and columns of a tile and values of k that are squared at
 * a time, so that scratch stays small; elements from which on threads pay. */
enum { BLOCKS = 8, TILE = 512, DEPTH = 2048, SHARED = 1 << 14 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t block_length(int64_t k)
{
    return (k + BLOCKS - 1) / BLOCKS;
}

/* An operand, or its block under consideration: `rows` by `columns` as they lie in memory. */
typedef struct operand {
    const double *value, *variance; /* variance NULL: it is given */
    assay_dtype given;              /* what that is rounded to */
    int64_t ld, rows, columns;
} operand;

static const double *moved(const double *start, int64_t by)
{
    return start == NULL ? NULL : start + by;
}

/* The block of `outer` rows (of a) or columns (of b) and `inner` values of k, at (outer_first, inner_first). */
static operand block_of(const double *value, const double *variance, int64_t ld, bool outer_is_row, int64_t outer_first,
                        int64_t outer, int64_t inner_first, int64_t inner)
{
    int64_t first = outer_is_row ? outer_first * ld + inner_first : inner_first * ld + outer_first;
    return (operand){.value = value + first,
                     .variance = moved(variance, first),
                     .ld = ld,
                     .rows = outer_is_row ? outer : inner,
                     .columns = outer_is_row ? inner : outer};
}

static bool is_exact(const operand *o)
{
    return o->variance == NULL && o->given == ASSAY_FLOAT64;
}

/* out [rows,columns] = factor * value^2, plus the variance. */
static void square_into(const assay_context *ctx, double *out, const operand *o, double factor, bool with_variance)
{
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t r = 0; r < o->rows; r++) {
        const double *value = o->value + r * o->ld, *variance = moved(o->variance, r * o->ld);
        double *row = out + r * o->columns;
        for (int64_t i = 0; i < o->columns; i++) row[i] = factor * (value[i] * value[i]);
        if (!with_variance || is_exact(o)) continue;
        for (int64_t i = 0; i < o->columns; i++)
            row[i] += variance != NULL ? variance[i] : assay_gauge_given(o->given, value[i]);
    }
}

/* One gauge product: what stays the same for its tiles, and their scratch. */
typedef struct gauge {
    const assay_matmul_args *args;
    const double *variance_a, *variance_b;
    int64_t length;       /* of a block of k */
    double squares;       /* the factor of Q */
    double block;         /* of squared sums of blocks */
    double partial, last; /* the factors of squared partial sums, and of the last one once more */
    double stored, least; /* where the result is stored: the precision's; else 0 */
    assay_dtype given;    /* the precision's */
    double *memory, *left, *right, *product, *sum;
} gauge;

/* The tile's rows [row, row + m) and columns [column, column + n). */
typedef struct tile {
    int64_t row, m, column, n;
    double *out; /* rows args->ldc apart */
} tile;

static operand a_block(const gauge *g, const tile *t, int64_t first, int64_t k)
{
    operand a = block_of(g->args->a, g->variance_a, g->args->lda, !g->args->transpose_a, t->row, t->m, first, k);
    a.given = g->given;
    return a;
}

static operand b_block(const gauge *g, const tile *t, int64_t first, int64_t k)
{
    operand b = block_of(g->args->b, g->variance_b, g->args->ldb, g->args->transpose_b, t->column, t->n, first, k);
    b.given = g->given;
    return b;
}

static assay_status multiply(assay_context *ctx, const gauge *g, const tile *t, const double *a, int64_t lda,
                             const double *b, int64_t ldb, int64_t k)
{
    assay_matmul_args args = assay_product_ab(g->product, a, b, t->m, t->n, k);
    args.lda = lda;
    args.ldb = ldb;
    args.transpose_a = g->args->transpose_a;
    args.transpose_b = g->args->transpose_b;
    return assay_matmul(ctx, &args);
}

/* out += left right, which were squared from a and b. */
static assay_status add_scratch_product(assay_context *ctx, const gauge *g, const tile *t, const operand *a,
                                        const operand *b, int64_t k)
{
    assay_status status = multiply(ctx, g, t, g->left, a->columns, g->right, b->columns, k);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads) if (t->m * t->n >= SHARED)
    for (int64_t i = 0; i < t->m; i++) {
        for (int64_t j = 0; j < t->n; j++) t->out[i * g->args->ldc + j] += g->product[i * t->n + j];
    }
    return ASSAY_OK;
}

/* out += sum over k of a^2 var(b) + b^2 var(a) + squares a^2 b^2. */
static assay_status add_variances(assay_context *ctx, const gauge *g, const tile *t)
{
    assay_status status = ASSAY_OK;
    for (int64_t first = 0; first < g->args->k; first += DEPTH) {
        const int64_t k = least(DEPTH, g->args->k - first);
        const operand a = a_block(g, t, first, k), b = b_block(g, t, first, k);
        if (is_exact(&b)) {
            square_into(ctx, g->left, &a, g->squares, true);
            square_into(ctx, g->right, &b, 1, false);
        } else {
            square_into(ctx, g->left, &a, 1, false);
            square_into(ctx, g->right, &b, g->squares, true);
        }
        TRY(add_scratch_product(ctx, g, t, &a, &b, k));
        if (!is_exact(&a) && !is_exact(&b)) {
            square_into(ctx, g->left, &a, 0, true);
            square_into(ctx, g->right, &b, 1, false);
            TRY(add_scratch_product(ctx, g, t, &a, &b, k));
        }
    }
cleanup:
    return status;
}

/* out += the squares of the sums of blocks and of the partial sums at their ends, times their factors. */
static assay_status add_partial_sums(assay_context *ctx, const gauge *g, const tile *t)
{
    const int64_t length = g->length;
    memset(g->sum, 0, (size_t)(t->m * t->n) * sizeof *g->sum);
    for (int64_t first = 0; first < g->args->k; first += length) {
        const int64_t k = least(length, g->args->k - first);
        const operand a = a_block(g, t, first, k), b = b_block(g, t, first, k);
        const bool whole = first + k == g->args->k;
        const double factor = g->partial + (whole ? g->last : 0);
        assay_status status = multiply(ctx, g, t, a.value, a.ld, b.value, b.ld, k);
        RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads) if (t->m * t->n >= SHARED)
        for (int64_t i = 0; i < t->m; i++) {
            double *out = t->out + i * g->args->ldc, *sum = g->sum + i * t->n, *product = g->product + i * t->n;
            for (int64_t j = 0; j < t->n; j++) {
                sum[j] += product[j];
                out[j] += factor * (sum[j] * sum[j]);
                if (g->block > 0) out[j] += g->block * (product[j] * product[j]);
            }
            if (whole && g->stored > 0) assay_gauge_store(g->stored, g->least, t->n, sum, out);
        }
    }
    return ASSAY_OK;
}

static assay_status gauge_tile(assay_context *ctx, const gauge *g, const tile *t)
{
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < t->m; i++) memset(t->out + i * g->args->ldc, 0, (size_t)t->n * sizeof *t->out);
    if (g->squares > 0 || g->variance_a != NULL || g->variance_b != NULL || g->given != ASSAY_FLOAT64)
        TRY(add_variances(ctx, g, t));
    if (g->partial > 0 || g->last > 0 || g->block > 0 || g->stored > 0) TRY(add_partial_sums(ctx, g, t));
cleanup:
    return status;
}

static double summing(const assay_precision *precision, int64_t k)
{
    return precision->accumulate * precision->accumulate * (double)block_length(k);
}

/* By how much more errors weigh that have one mean. */
static double with_one_mean(const assay_accumulator *accumulator, int64_t length)
{
    return accumulator->truncate ? (3.0 * (double)length + 1) / 4 : 1;
}

static void add_accumulator(gauge *g, const assay_precision *precision)
{
    const assay_accumulator *accumulator = &precision->accumulator;
    const double unit = precision->accumulate, length = (double)accumulator->block;
    if (accumulator->block == 0 || accumulator->block >= g->args->k) {
        g->length = block_length(g->args->k);
        g->partial = summing(precision, g->args->k) * with_one_mean(accumulator, g->args->k);
        g->squares += g->partial;
        return;
    }
    g->length = accumulator->block;
    g->block = unit * unit * length / 2 * with_one_mean(accumulator, accumulator->block);
    g->partial = ASSAY_FLOAT32_RMS * ASSAY_FLOAT32_RMS;
    g->squares += g->block;
    if (accumulator->truncate) g->last += unit * unit * 3 / 16 * (length + 1) * (length + 1);
}

static assay_status gauge_product(assay_context *ctx, const assay_precision *precision, bool stored,
                                  const assay_matmul_args *args, const double *variance_a, const double *variance_b)
{
    assay_status status = ASSAY_OK;
    gauge g = {.args = args, .variance_a = variance_a, .variance_b = variance_b, .given = precision->given};
    const int64_t m = least(args->m, TILE), n = least(args->n, TILE), k = least(args->k, DEPTH);
    g.squares = 2 * precision->multiply * precision->multiply;
    if (stored) g.stored = precision->storage, g.least = precision->least;
    add_accumulator(&g, precision);
    TRY(assay_alloc_f64(ctx, "error scale of a product", (m + n) * k + 2 * m * n, &g.memory));
    g.left = g.memory;
    g.right = g.left + m * k;
    g.product = g.right + k * n;
    g.sum = g.product + m * n;
    for (int64_t i = 0; i < args->m; i += TILE) {
        for (int64_t j = 0; j < args->n; j += TILE) {
            const tile t = {i, least(TILE, args->m - i), j, least(TILE, args->n - j), args->c + i * args->ldc + j};
            TRY(gauge_tile(ctx, &g, &t));
        }
    }
cleanup:
    free(g.memory);
    return status;
}

assay_status assay_gauge_matmul(assay_context *ctx, const assay_precision *precision, const assay_matmul_args *args,
                                const double *variance_a, const double *variance_b)
{
    return gauge_product(ctx, precision, false, args, variance_a, variance_b);
}

assay_status assay_gauge_matmul_stored(assay_context *ctx, const assay_precision *precision,
                                       const assay_matmul_args *args, const double *variance_a,
                                       const double *variance_b)
{
    return gauge_product(ctx, precision, true, args, variance_a, variance_b);
}

double assay_gauge_dot(const assay_precision *precision, int64_t count, const double *a, const double *b)
{
    const int64_t length = block_length(count);
    double sum = 0, squares = 0, partial = 0;
    for (int64_t first = 0; first < count; first += length) {
        for (int64_t i = first; i < least(first + length, count); i++) {
            double term = a[i] * b[i];
            sum += term;
            squares += term * term;
        }
        partial += sum * sum;
    }
    return 2 * precision->multiply * precision->multiply * squares + summing(precision, count) * (partial + squares);
}

double assay_gauge_given(assay_dtype type, double value)
{
    if (type == ASSAY_FLOAT64 || assay_dtype_round(type, value, false) == value) return 0;
    return assay_gauge_rounding(ASSAY_ROUNDING_RMS * assay_dtype_unit_roundoff(type), assay_dtype_least_subnormal(type),
                                value);
}

void assay_gauge_store(double unit, double least, int64_t count, const double *value, double *variance)
{
    for (int64_t i = 0; i < count; i++) variance[i] += assay_gauge_rounding(unit, least, value[i]);
}
