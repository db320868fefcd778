#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/propagate/rules.h"

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
            row[i] += variance != NULL ? variance[i] : assay_propagate_given(o->given, value[i]);
    }
}

/* The variance of one product: what stays the same for its tiles, and their scratch. */
typedef struct product {
    const assay_matmul_args *args;
    const assay_precision *precision;
    const double *variance_a, *variance_b;
    int64_t length;       /* of a block of k */
    double squares;       /* the factor of Q */
    double block;         /* of squared sums of blocks */
    double partial, last; /* the factors of squared partial sums, and of the last one once more */
    bool stored;
    double *memory, *left, *right, *values, *sum;
} product;

/* The tile's rows [row, row + m) and columns [column, column + n). */
typedef struct tile {
    int64_t row, m, column, n;
    double *out; /* rows args->ldc apart */
} tile;

static operand a_block(const product *p, const tile *t, int64_t first, int64_t k)
{
    operand a = block_of(p->args->a, p->variance_a, p->args->lda, !p->args->transpose_a, t->row, t->m, first, k);
    a.given = p->precision->given;
    return a;
}

static operand b_block(const product *p, const tile *t, int64_t first, int64_t k)
{
    operand b = block_of(p->args->b, p->variance_b, p->args->ldb, p->args->transpose_b, t->column, t->n, first, k);
    b.given = p->precision->given;
    return b;
}

static assay_status multiply(assay_context *ctx, const product *p, const tile *t, const double *a, int64_t lda,
                             const double *b, int64_t ldb, int64_t k)
{
    assay_matmul_args args = assay_product_ab(p->values, a, b, t->m, t->n, k);
    args.lda = lda;
    args.ldb = ldb;
    args.transpose_a = p->args->transpose_a;
    args.transpose_b = p->args->transpose_b;
    return assay_matmul(ctx, &args);
}

/* out += left right, which were squared from a and b. */
static assay_status add_scratch_product(assay_context *ctx, const product *p, const tile *t, const operand *a,
                                        const operand *b, int64_t k)
{
    MUST(multiply(ctx, p, t, p->left, a->columns, p->right, b->columns, k));
#pragma omp parallel for num_threads(ctx->threads) if (t->m * t->n >= SHARED)
    for (int64_t i = 0; i < t->m; i++) {
        for (int64_t j = 0; j < t->n; j++) t->out[i * p->args->ldc + j] += p->values[i * t->n + j];
    }
    return ASSAY_OK;
}

/* out += sum over k of a^2 var(b) + b^2 var(a) + squares a^2 b^2. */
static assay_status add_variances(assay_context *ctx, const product *p, const tile *t)
{
    for (int64_t first = 0; first < p->args->k; first += DEPTH) {
        const int64_t k = least(DEPTH, p->args->k - first);
        const operand a = a_block(p, t, first, k), b = b_block(p, t, first, k);
        if (is_exact(&b)) {
            square_into(ctx, p->left, &a, p->squares, true);
            square_into(ctx, p->right, &b, 1, false);
        } else {
            square_into(ctx, p->left, &a, 1, false);
            square_into(ctx, p->right, &b, p->squares, true);
        }
        MUST(add_scratch_product(ctx, p, t, &a, &b, k));
        if (!is_exact(&a) && !is_exact(&b)) {
            square_into(ctx, p->left, &a, 0, true);
            square_into(ctx, p->right, &b, 1, false);
            MUST(add_scratch_product(ctx, p, t, &a, &b, k));
        }
    }
    return ASSAY_OK;
}

/* out += the squares of the sums of blocks and of the partial sums at their ends, times their factors. */
static assay_status add_partial_sums(assay_context *ctx, const product *p, const tile *t)
{
    const int64_t length = p->length;
    memset(p->sum, 0, (size_t)(t->m * t->n) * sizeof *p->sum);
    for (int64_t first = 0; first < p->args->k; first += length) {
        const int64_t k = least(length, p->args->k - first);
        const operand a = a_block(p, t, first, k), b = b_block(p, t, first, k);
        const bool whole = first + k == p->args->k;
        const double factor = p->partial + (whole ? p->last : 0);
        MUST(multiply(ctx, p, t, a.value, a.ld, b.value, b.ld, k));
#pragma omp parallel for num_threads(ctx->threads) if (t->m * t->n >= SHARED)
        for (int64_t i = 0; i < t->m; i++) {
            double *out = t->out + i * p->args->ldc, *sum = p->sum + i * t->n, *values = p->values + i * t->n;
            for (int64_t j = 0; j < t->n; j++) {
                sum[j] += values[j];
                out[j] += factor * (sum[j] * sum[j]);
                if (p->block > 0) out[j] += p->block * (values[j] * values[j]);
            }
            if (whole && p->stored) assay_propagate_store(p->precision->storage, p->precision->least, t->n, sum, out);
        }
    }
    return ASSAY_OK;
}

static assay_status propagate_tile(assay_context *ctx, const product *p, const tile *t)
{
    for (int64_t i = 0; i < t->m; i++) memset(t->out + i * p->args->ldc, 0, (size_t)t->n * sizeof *t->out);
    if (p->squares > 0 || p->variance_a != NULL || p->variance_b != NULL || p->precision->given != ASSAY_FLOAT64)
        MUST(add_variances(ctx, p, t));
    if (p->partial > 0 || p->last > 0 || p->block > 0 || p->stored) MUST(add_partial_sums(ctx, p, t));
    return ASSAY_OK;
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

static void add_accumulator(product *p)
{
    const assay_precision *precision = p->precision;
    const assay_accumulator *accumulator = &precision->accumulator;
    const double unit = precision->accumulate, length = (double)accumulator->block;
    if (accumulator->block == 0 || accumulator->block >= p->args->k) {
        p->length = block_length(p->args->k);
        p->partial = summing(precision, p->args->k) * with_one_mean(accumulator, p->args->k);
        p->squares += p->partial;
        return;
    }
    p->length = accumulator->block;
    p->block = unit * unit * length / 2 * with_one_mean(accumulator, accumulator->block);
    p->partial = ASSAY_FLOAT32_RMS * ASSAY_FLOAT32_RMS;
    p->squares += p->block;
    if (accumulator->truncate) p->last += unit * unit * 3 / 16 * (length + 1) * (length + 1);
}

assay_status assay_propagate_product(assay_context *ctx, const assay_precision *precision, bool stored,
                                     const assay_matmul_args *args, const double *variance_a, const double *variance_b)
{
    assay_status status = ASSAY_OK;
    const int64_t m = least(args->m, TILE), n = least(args->n, TILE), k = least(args->k, DEPTH);
    product p = {.args = args,
                 .precision = precision,
                 .variance_a = variance_a,
                 .variance_b = variance_b,
                 .stored = stored && precision->storage > 0,
                 .squares = 2 * precision->multiply * precision->multiply};
    add_accumulator(&p);
    TRY(assay_alloc_f64(ctx, "error scale of a product", (m + n) * k + 2 * m * n, &p.memory));
    p.left = p.memory;
    p.right = p.left + m * k;
    p.values = p.right + k * n;
    p.sum = p.values + m * n;
    for (int64_t i = 0; i < args->m; i += TILE) {
        for (int64_t j = 0; j < args->n; j += TILE) {
            const tile t = {i, least(TILE, args->m - i), j, least(TILE, args->n - j), args->c + i * args->ldc + j};
            TRY(propagate_tile(ctx, &p, &t));
        }
    }
cleanup:
    free(p.memory);
    return status;
}

double assay_propagate_dot(const assay_precision *precision, int64_t count, const double *a, const double *b)
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
