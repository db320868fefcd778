/* The errors of a product's partial sums. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/emulated_internal.h"
#include "oracle/base/memory.h"

/* Blocks of k, at whose ends partial sums count (emulated.h). */
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
        const int64_t count = assay_smaller(EMULATED_CHUNK, o->columns - first);
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
    errors->of_norm += unit * unit * (k + 1) / 16;
}

/* At the end of a block with a share s of the terms the partial sum has, on average over the orders of the
 * terms, the square s^2 c^2 + s (1 - s) (k Q - c^2) / (k - 1); and Q is added once. k Q is about sum a^2 sum b^2. */
emulated_sum_error emulated_sum_errors_of(const assay_emulation *emulation, const assay_matmul_args *args)
{
    const int64_t length = (args->k + SCALE_BLOCKS - 1) / SCALE_BLOCKS;
    const emulated_accumulator accumulator = emulated_accumulator_of(emulation, args->kind);
    const double unit = accumulator.unit, block = unit * unit * (double)length, k = (double)args->k;
    emulated_sum_error errors = {.of_norm = block / k};
    for (int64_t first = 0; first < args->k; first += length) {
        const double share = (double)assay_smaller(args->k, first + length) / k;
        const double order = share * (1 - share) / fmax(k - 1, 1);
        errors.of_result += args->accumulate ? block : block * (share * share - order);
        errors.of_norm += block * order;
    }
    if (accumulator.kind.truncate) add_truncation(emulation, unit, k, &errors);
    errors.of_result = sqrt(errors.of_result);
    errors.of_norm = sqrt(errors.of_norm);
    return errors;
}

/* a and b of term l of the sum c[i,j]. */
static double of_a_at(const assay_matmul_args *args, int64_t i, int64_t l)
{
    return args->transpose_a ? args->a[l * args->lda + i] : args->a[i * args->lda + l];
}

static double of_b_at(const assay_matmul_args *args, int64_t l, int64_t j)
{
    return args->transpose_b ? args->b[j * args->ldb + l] : args->b[l * args->ldb + j];
}

/* The square of the size of terms of the sum c[i,j], as add_sum_errors takes it; 0 where all terms are 0. */
static double square_of_terms(const assay_matmul_args *args, int64_t i, int64_t j)
{
    double of_a = 0, of_b = 0;
    bool cancels = false;
    for (int64_t l = 0; l < args->k; l++) {
        const double a = of_a_at(args, i, l), b = of_b_at(args, l, j);
        of_a += a * a;
        of_b += b * b;
        cancels |= a * b != 0;
    }
    return cancels ? of_a * of_b : 0;
}

static bool is_row_of_zeros(const assay_matmul_args *args, int64_t i)
{
    for (int64_t l = 0; l < args->k; l++)
        if (of_a_at(args, i, l) != 0) return false;
    return true;
}

static bool is_column_of_zeros(const assay_matmul_args *args, int64_t j)
{
    for (int64_t l = 0; l < args->k; l++)
        if (of_b_at(args, l, j) != 0) return false;
    return true;
}

/* A sum of 0 whose terms cancel: what it may come out as in another order of them. */
static double cancelled(const emulated_sum_error *errors, uint64_t key, double size)
{
    return 2 * SQRT_3 * errors->of_norm * size * emulated_centred(emulated_hash(emulated_bits_of(size) ^ key) >> 16);
}

assay_status emulated_move_cancelled(assay_context *ctx, const assay_matmul_args *args,
                                     const emulated_sum_error *errors)
{
    const uint64_t key = emulated_key(ctx->emulation, EMULATED_PRODUCTS);
    OWNED bool *of_zeros = NULL; /* columns of B */
    bool found = false;
    for (int64_t i = 0; !found && i < args->m; i++)
        for (int64_t j = 0; j < args->n; j++) found |= args->c[i * args->ldc + j] == 0;
    if (!found) return ASSAY_OK;
    MUST(assay_alloc(ctx, "columns of zeros", args->n, sizeof *of_zeros, &of_zeros));
#pragma omp parallel for num_threads(ctx->threads) if (args->k * args->n >= EMULATED_SHARED)
    for (int64_t j = 0; j < args->n; j++) of_zeros[j] = is_column_of_zeros(args, j);
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= EMULATED_SHARED)
    for (int64_t i = 0; i < args->m; i++) {
        double *c = args->c + i * args->ldc;
        int64_t j = 0;
        while (j < args->n && c[j] != 0) j++;
        if (j == args->n || is_row_of_zeros(args, i)) continue;
        for (; j < args->n; j++)
            if (c[j] == 0 && !of_zeros[j]) c[j] = cancelled(errors, key, sqrt(square_of_terms(args, i, j)));
    }
    return ASSAY_OK;
}

void emulated_round_terms(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums)
{
    enum { PIECE = 256 };
    const double root = sqrt((double)terms);
    double roots[PIECE];
    bool zero[PIECE];
    const assay_matmul_args args = {.m = 1, .n = count, .k = terms, .kind = ASSAY_PRODUCT_OTHER};
    assay_emulation plain = *ctx->emulation;
    plain.precision.accumulator = (assay_accumulator){0}; /* that is of products */
    const uint64_t key = emulated_key(&plain, EMULATED_PRODUCTS);
    if (terms == 0 || plain.nearest || emulated_accumulator_of(&plain, args.kind).unit == 0) return;
    const emulated_sum_error errors = emulated_sum_errors_of(&plain, &args);
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t length = assay_smaller(PIECE, count - first);
        for (int64_t i = 0; i < length; i++) {
            roots[i] = sqrt(squares[first + i]);
            zero[i] = sums[first + i] == 0;
        }
        emulated_loops_for(ctx->isa)->add_sum_error(&errors, key, length, sums + first, root, roots);
        for (int64_t i = 0; i < length; i++)
            if (zero[i]) sums[first + i] = cancelled(&errors, key, root * roots[i]);
    }
}

assay_status emulated_add_sum_errors(assay_context *ctx, const assay_matmul_args *args)
{
    OWNED double *roots = NULL;
    if (args->k == 0 || ctx->emulation->nearest) return ASSAY_OK;
    if (emulated_accumulator_of(ctx->emulation, args->kind).unit == 0) return ASSAY_OK;
    const emulated_sum_error errors = emulated_sum_errors_of(ctx->emulation, args);
    const uint64_t key = emulated_key(ctx->emulation, EMULATED_PRODUCTS);
    const emulated_operand a = emulated_a(args), b = emulated_b(args);
    const emulated_loops *loops = emulated_loops_for(ctx->isa);
    MUST(assay_alloc_f64(ctx, "errors of an emulated product", args->m + args->n, &roots));
    double *of_a = roots, *of_b = roots + args->m;
    (args->transpose_a ? column_roots : row_roots)(ctx, &a, of_a);
    (args->transpose_b ? row_roots : column_roots)(ctx, &b, of_b);
#pragma omp parallel for num_threads(ctx->threads) if (args->m * args->n >= EMULATED_SHARED)
    for (int64_t i = 0; i < args->m; i++)
        loops->add_sum_error(&errors, key, args->n, args->c + i * args->ldc, of_a[i], of_b);
    return emulated_move_cancelled(ctx, args, &errors);
}
