#include "oracle/quad/quad_product.h"

#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_slices.h"

enum {
    ROWS = 1024, /* that are made at a time */
    COLUMNS = 256,
    LEAST_COLUMNS = 4,
    LOW_LEVELS = 3 /* that are added in one integer */
};
static const double LEAST_WORK = 1 << 16; /* multiplications */
static const double ALLOWED = 0x1p-96;

static quad w_at(const quad_product *p, int64_t step, int64_t column)
{
    return p->w_transposed ? p->w[column * p->ldw + step] : p->w[step * p->ldw + column];
}

static quad chain(const quad_product *p, int64_t row, int64_t column)
{
    quad sum = 0;
    for (int64_t i = 0; i < p->k; i++) sum += p->x[row * p->ldx + i] * w_at(p, i, column);
    return sum;
}

static void scalar_row(const quad_product *p, int64_t row)
{
    quad *y = p->y + row * p->ldy;
    if (p->w_transposed) {
        for (int64_t j = 0; j < p->n; j++) y[j] = chain(p, row, j);
    } else {
        quad_vector_matrix(p->k, p->n, p->x + row * p->ldx, p->w, p->ldw, y);
    }
}

void quad_matmul_scalar(const assay_context *ctx, const quad_product *p)
{
    const double work = (double)p->m * (double)p->n * (double)p->k;
#pragma omp parallel for num_threads(ctx->threads) schedule(static) if (work >= LEAST_WORK)
    for (int64_t row = 0; row < p->m; row++) scalar_row(p, row);
}

/* A piece of y, and what it is made of; its memory serves one piece after the other. Starts zeroed. */
typedef struct piece {
    quad_product product;
    quad_cut cut;
    const assay_arithmetic *engine;
    const quad_slices *x;
    quad_slices w;
    int level_count;                  /* of them are not 0 */
    double *levels[QUAD_SLICES_MOST]; /* [m,n]: the sum of products of digits p and q with p + q = level */
    double *sizes;                    /* [m,n]: the product of sizes */
    uint64_t *random;                 /* [n] */
    uint64_t *w_random;               /* [used,k]: w's digits times that */
} piece;

static void free_piece(piece *s)
{
    quad_slices_free(&s->w);
    for (int level = 0; level < QUAD_SLICES_MOST; level++) free(s->levels[level]);
    free(s->sizes);
    free(s->random);
    free(s->w_random);
}

static assay_status multiply(assay_context *ctx, const piece *s, const double *x, const double *w, bool accumulate,
                             double *c)
{
    const quad_product *p = &s->product;
    assay_matmul_args args =
        s->w.lines_across ? assay_product_ab(c, x, w, p->m, p->n, p->k) : assay_product_abt(c, x, w, p->m, p->n, p->k);
    args.accumulate = accumulate;
    return s->engine->matmul(ctx, &args);
}

static uint64_t whole(double digit)
{
    return (uint64_t)(int64_t)digit;
}

/* Digits of one slice of w times the random vector. */
static void times_random(const assay_context *ctx, const piece *s, int q)
{
    const double *digits = s->w.digits[q];
    const int64_t k = s->product.k, n = s->product.n;
    const int parts = ctx->threads;
    uint64_t *to = s->w_random + q * k;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        const int64_t begin = k * part / parts, end = k * (part + 1) / parts;
        for (int64_t i = begin; i < end; i++) to[i] = 0;
        for (int64_t i = begin; s->w.lines_across && i < end; i++) {
            for (int64_t j = 0; j < n; j++) to[i] += whole(digits[i * n + j]) * s->random[j];
        }
        for (int64_t j = 0; !s->w.lines_across && j < n; j++) {
            for (int64_t i = begin; i < end; i++) to[i] += whole(digits[j * k + i]) * s->random[j];
        }
    }
}

/* Whether level times random = sum of x's digits times w_random. */
static bool is_right(const piece *s, int level, int64_t row)
{
    const int64_t k = s->product.k, n = s->product.n;
    uint64_t difference = 0;
    for (int64_t j = 0; j < n; j++) difference += whole(s->levels[level][row * n + j]) * s->random[j];
    for (int p = 0; p <= level && p < s->x->used; p++) {
        if (level - p >= s->w.used) continue;
        const double *digits = s->x->digits[p] + row * k;
        const uint64_t *w = s->w_random + (level - p) * k;
        for (int64_t i = 0; i < k; i++) difference -= whole(digits[i]) * w[i];
    }
    return difference == 0;
}

static assay_status make_level(assay_context *ctx, const piece *s, int level)
{
    bool first = true, right = true;
    for (int p = level; p >= 0; p--) {
        if (p >= s->x->used || level - p >= s->w.used) continue;
        const assay_status status = multiply(ctx, s, s->x->digits[p], s->w.digits[level - p], !first, s->levels[level]);
        if (status != ASSAY_OK) return status;
        first = false;
    }
#pragma omp parallel for num_threads(ctx->threads) schedule(static) reduction(&& : right)
    for (int64_t row = 0; row < s->product.m; row++) right = right && is_right(s, level, row);
    if (right) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "the product of two slices in float64 is not what integers give");
}

/* The sum of levels [from, to), in units of the last one. */
static __int128 sum_levels(const piece *s, int from, int to, int64_t at)
{
    __int128 sum = 0;
    for (int level = from; level < to; level++) {
        sum *= (__int128)1 << s->cut.bits;
        if (level < s->level_count) sum += (int64_t)s->levels[level][at];
    }
    return sum;
}

/* What is lost: of each line below 2^(2 - most bits) of its power, times the other's; and products of digits behind the
 * last level, at most `most` in the first of these. */
static double lost(const piece *s)
{
    const int most = s->cut.most;
    return (double)(most + 2) * (double)s->product.k * ldexp(1, 2 - most * s->cut.bits);
}

static void add_row(const piece *s, int64_t row)
{
    const quad_product *p = &s->product;
    const int most = s->cut.most, low = most - LOW_LEVELS;
    const double bound = lost(s) / ALLOWED;
    const quad low_unit = ldexpq(1, 4 - (most + 1) * s->cut.bits);
    const quad high_unit = ldexpq(low_unit, LOW_LEVELS * s->cut.bits);
    for (int64_t j = 0; j < p->n; j++) {
        const int64_t at = row * p->n + j;
        if (quad_slices_are_out(s->x, row) || quad_slices_are_out(&s->w, j)) {
            p->y[row * p->ldy + j] = chain(p, row, j);
            continue;
        }
        const quad power = s->x->powers[row] * s->w.powers[j];
        const quad sum = (quad)sum_levels(s, low, most, at) * low_unit + (quad)sum_levels(s, 0, low, at) * high_unit;
        const bool is_near = power == 0 || s->sizes[at] >= bound;
        p->y[row * p->ldy + j] = is_near ? sum * power : chain(p, row, j);
    }
}

static assay_status alloc_piece(assay_context *ctx, piece *s)
{
    uint64_t state = 1;
    MUST(assay_alloc(ctx, "random numbers", COLUMNS, sizeof *s->random, &s->random));
    MUST(assay_alloc(ctx, "random numbers", QUAD_SLICES_MOST * s->product.k, sizeof *s->w_random, &s->w_random));
    MUST(assay_alloc_f64(ctx, "products of sizes", s->product.m * COLUMNS, &s->sizes));
    for (int64_t j = 0; j < COLUMNS; j++) s->random[j] = quad_next_random(&state);
    return ASSAY_OK;
}

static assay_status make_piece(assay_context *ctx, piece *s)
{
    const quad_product *p = &s->product;
    const quad_layout w = {.values = p->w,
                           .outer = p->w_transposed ? p->n : p->k,
                           .inner = p->w_transposed ? p->k : p->n,
                           .ld = p->ldw,
                           .lines_across = !p->w_transposed};
    MUST(quad_slices_make(ctx, &w, &s->cut, &s->w));
    for (int q = 0; q < s->w.used; q++) times_random(ctx, s, q);
    s->level_count = s->x->used + s->w.used - 1 < s->cut.most ? s->x->used + s->w.used - 1 : s->cut.most;
    for (int level = 0; level < s->level_count; level++) {
        if (s->levels[level] == NULL) {
            MUST(assay_alloc_f64(ctx, "products of slices", p->m * COLUMNS, &s->levels[level]));
        }
        MUST(make_level(ctx, s, level));
    }
    MUST(multiply(ctx, s, s->x->sizes, s->w.sizes, false, s->sizes));
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t row = 0; row < p->m; row++) add_row(s, row);
    return ASSAY_OK;
}

/* Some rows, all columns. */
static assay_status make_rows(assay_context *ctx, const quad_product *rows, const quad_cut *cut,
                              const assay_arithmetic *engine)
{
    OWNED_BY(quad_slices_free) quad_slices x = {0};
    OWNED_BY(free_piece) piece s = {.product = *rows, .cut = *cut, .engine = engine, .x = &x};
    const quad_layout layout = {.values = rows->x, .outer = rows->m, .inner = rows->k, .ld = rows->ldx};
    MUST(quad_slices_make(ctx, &layout, cut, &x));
    MUST(alloc_piece(ctx, &s));
    for (int64_t begin = 0; begin < rows->n; begin += COLUMNS) {
        s.product.n = rows->n - begin < COLUMNS ? rows->n - begin : COLUMNS;
        s.product.w = rows->w + (rows->w_transposed ? begin * rows->ldw : begin);
        s.product.y = rows->y + begin;
        MUST(make_piece(ctx, &s));
    }
    return ASSAY_OK;
}

assay_status quad_matmul_sliced(assay_context *ctx, const quad_product *product, const assay_arithmetic *engine)
{
    const quad_cut cut = quad_cut_for(product->k);
    if (cut.bits == 0 || product->k == 0) {
        quad_matmul_scalar(ctx, product);
        return ASSAY_OK;
    }
    for (int64_t begin = 0; begin < product->m; begin += ROWS) {
        quad_product rows = *product;
        rows.m = product->m - begin < ROWS ? product->m - begin : ROWS;
        rows.x += begin * product->ldx;
        rows.y += begin * product->ldy;
        const assay_status status = make_rows(ctx, &rows, &cut, engine);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

assay_status quad_matmul(assay_context *ctx, const quad_product *p)
{
    const double work = (double)p->m * (double)p->n * (double)p->k;
    if (p->n >= LEAST_COLUMNS && work >= LEAST_WORK) {
        return quad_matmul_sliced(ctx, p, &assay_arithmetic_reference);
    }
    quad_matmul_scalar(ctx, p);
    return ASSAY_OK;
}
