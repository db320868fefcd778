#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/memory.h"

/* Blocks of k at whose ends partial sums are looked at; rows and columns of a tile, so that scratch stays small;
 * elements from which on threads pay. */
enum { BLOCKS = 8, TILE = 512, SHARED = 1 << 14 };

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
    const double *value, *variance; /* variance NULL: exact */
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

/* out [rows,columns] = factor * value^2 + variance. */
static void square_into(const assay_context *ctx, double *out, const operand *o, double factor, const double *variance)
{
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t r = 0; r < o->rows; r++) {
        const double *value = o->value + r * o->ld;
        double *row = out + r * o->columns;
        for (int64_t i = 0; i < o->columns; i++) row[i] = factor * (value[i] * value[i]);
        for (int64_t i = 0; variance != NULL && i < o->columns; i++) row[i] += variance[r * o->ld + i];
    }
}

static void copy_into(const assay_context *ctx, double *out, const operand *o, const double *values)
{
#pragma omp parallel for num_threads(ctx->threads) if (o->rows * o->columns >= SHARED)
    for (int64_t r = 0; r < o->rows; r++) {
        for (int64_t i = 0; i < o->columns; i++) out[r * o->columns + i] = values[r * o->ld + i];
    }
}

/* One gauge product: what stays the same for its tiles, and their scratch. */
typedef struct gauge {
    const assay_matmul_args *args;
    const double *variance_a, *variance_b;
    double squares;       /* the factor of Q */
    double partial, last; /* the factors of squared partial sums, and of the last one once more */
    double *memory, *left, *right, *product, *sum;
} gauge;

static void add_into(const assay_context *ctx, const gauge *g, double *out, int64_t ld, int64_t m, int64_t n)
{
#pragma omp parallel for num_threads(ctx->threads) if (m * n >= SHARED)
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) out[i * ld + j] += g->product[i * n + j];
    }
}

static assay_status multiply_scratch(assay_context *ctx, const gauge *g, int64_t m, int64_t n, int64_t k)
{
    const assay_matmul_args args = {.c = g->product,
                                    .ldc = n,
                                    .a = g->left,
                                    .lda = g->args->transpose_a ? m : k,
                                    .transpose_a = g->args->transpose_a,
                                    .b = g->right,
                                    .ldb = g->args->transpose_b ? k : n,
                                    .transpose_b = g->args->transpose_b,
                                    .m = m,
                                    .n = n,
                                    .k = k};
    return assay_matmul(ctx, &args);
}

/* out += sum over the block of a^2 var(b) + b^2 var(a) + squares a^2 b^2. */
static assay_status add_variances(assay_context *ctx, const gauge *g, const operand *a, const operand *b, double *out,
                                  int64_t m, int64_t n, int64_t k)
{
    assay_status status = ASSAY_OK;
    if (b->variance == NULL) {
        square_into(ctx, g->left, a, g->squares, a->variance);
        square_into(ctx, g->right, b, 1, NULL);
    } else {
        square_into(ctx, g->left, a, 1, NULL);
        square_into(ctx, g->right, b, g->squares, b->variance);
    }
    TRY(multiply_scratch(ctx, g, m, n, k));
    add_into(ctx, g, out, g->args->ldc, m, n);
    if (a->variance != NULL && b->variance != NULL) {
        copy_into(ctx, g->left, a, a->variance);
        square_into(ctx, g->right, b, 1, NULL);
        TRY(multiply_scratch(ctx, g, m, n, k));
        add_into(ctx, g, out, g->args->ldc, m, n);
    }
cleanup:
    return status;
}

/* sum += the products of the block; out += factor * sum^2. */
static assay_status add_partial_sums(assay_context *ctx, const gauge *g, const operand *a, const operand *b,
                                     double factor, double *out, int64_t m, int64_t n, int64_t k)
{
    const assay_matmul_args args = {.c = g->product,
                                    .ldc = n,
                                    .a = a->value,
                                    .lda = a->ld,
                                    .transpose_a = g->args->transpose_a,
                                    .b = b->value,
                                    .ldb = b->ld,
                                    .transpose_b = g->args->transpose_b,
                                    .m = m,
                                    .n = n,
                                    .k = k};
    assay_status status = assay_matmul(ctx, &args);
    RETURN_IF(status != ASSAY_OK, status);
    add_into(ctx, g, g->sum, n, m, n);
#pragma omp parallel for num_threads(ctx->threads) if (m * n >= SHARED)
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) out[i * g->args->ldc + j] += factor * (g->sum[i * n + j] * g->sum[i * n + j]);
    }
    return ASSAY_OK;
}

static assay_status gauge_tile(assay_context *ctx, const gauge *g, int64_t first_row, int64_t m, int64_t first_column,
                               int64_t n)
{
    assay_status status = ASSAY_OK;
    const assay_matmul_args *args = g->args;
    double *out = args->c + first_row * args->ldc + first_column;
    const int64_t length = block_length(args->k);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) out[i * args->ldc + j] = g->sum[i * n + j] = 0;
    }
    for (int64_t first = 0; first < args->k; first += length) {
        int64_t k = least(length, args->k - first);
        operand a = block_of(args->a, g->variance_a, args->lda, !args->transpose_a, first_row, m, first, k);
        operand b = block_of(args->b, g->variance_b, args->ldb, args->transpose_b, first_column, n, first, k);
        double factor = g->partial + (first + k == args->k ? g->last : 0);
        if (g->squares > 0 || a.variance != NULL || b.variance != NULL) {
            TRY(add_variances(ctx, g, &a, &b, out, m, n, k));
        }
        if (g->partial > 0 || g->last > 0) TRY(add_partial_sums(ctx, g, &a, &b, factor, out, m, n, k));
    }
cleanup:
    return status;
}

static double summing(const assay_precision *precision, int64_t k)
{
    return precision->accumulate * precision->accumulate * (double)block_length(k);
}

static assay_status gauge_product(assay_context *ctx, const assay_precision *precision, double stored,
                                  const assay_matmul_args *args, const double *variance_a, const double *variance_b)
{
    assay_status status = ASSAY_OK;
    gauge g = {.args = args, .variance_a = variance_a, .variance_b = variance_b};
    int64_t m = least(args->m, TILE), n = least(args->n, TILE), k = block_length(args->k);
    g.partial = summing(precision, args->k);
    g.squares = 2 * precision->multiply * precision->multiply + g.partial;
    g.last = stored * stored;
    TRY(assay_alloc_f64(ctx, "error scale of a product", (m + n) * k + 2 * m * n, &g.memory));
    g.left = g.memory;
    g.right = g.left + m * k;
    g.product = g.right + k * n;
    g.sum = g.product + m * n;
    for (int64_t i = 0; i < args->m; i += TILE) {
        for (int64_t j = 0; j < args->n; j += TILE) {
            TRY(gauge_tile(ctx, &g, i, least(TILE, args->m - i), j, least(TILE, args->n - j)));
        }
    }
cleanup:
    free(g.memory);
    return status;
}

assay_status assay_gauge_matmul(assay_context *ctx, const assay_precision *precision, const assay_matmul_args *args,
                                const double *variance_a, const double *variance_b)
{
    return gauge_product(ctx, precision, 0, args, variance_a, variance_b);
}

assay_status assay_gauge_matmul_stored(assay_context *ctx, const assay_precision *precision,
                                       const assay_matmul_args *args, const double *variance_a,
                                       const double *variance_b)
{
    return gauge_product(ctx, precision, precision->storage, args, variance_a, variance_b);
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

void assay_gauge_store(double unit, int64_t count, const double *value, double *variance)
{
    for (int64_t i = 0; i < count; i++) {
        double error = unit * value[i];
        variance[i] += error * error;
    }
}
