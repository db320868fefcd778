/* A block of A is packed to lie in the second-level cache; each panel of B is packed right before it is used, while the
 * next one is fetched. */
#include "oracle/arithmetic/matmul_packed.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

enum {
    BLOCK_ROWS = 512,  /* of A: with BLOCK_STEPS 1.5 MiB of float64 */
    BLOCK_STEPS = 384, /* a panel of A: 24 KiB, of B: 72 KiB */
    LINE = 8,          /* float64 in a line of cache */
};
/* Multiplications below which a second thread costs more than it gives. */
static const double WORK_FOR_THREADS = 1 << 18;

/* `size` cut into as few pieces of at most `largest` as possible, all about the same, a multiple of `unit`. */
static int64_t even_block(int64_t size, int64_t largest, int64_t unit)
{
    return size <= 0 ? unit : assay_parts(assay_parts(size, assay_parts(size, largest)), unit) * unit;
}

int assay_matmul_threads(const assay_context *ctx, const assay_matmul_args *args)
{
    return (double)args->m * (double)args->n * (double)args->k < WORK_FOR_THREADS ? 1 : ctx->threads;
}

assay_partition assay_partition_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels, int threads)
{
    assay_partition best = {.rows = 1,
                            .columns = 1,
                            .row_tiles = assay_parts(args->m, kernels->tile_rows),
                            .column_tiles = assay_parts(args->n, kernels->tile_columns)};
    double least_area = -1, least_edge = -1;
    for (int rows = 1; rows <= threads; rows++) {
        if (threads % rows != 0) continue;
        double height = (double)(assay_parts(best.row_tiles, rows) * kernels->tile_rows);
        double width = (double)(assay_parts(best.column_tiles, threads / rows) * kernels->tile_columns);
        if (least_area >= 0 &&
            !(height * width < least_area || (height * width == least_area && height + width < least_edge)))
            continue;
        least_area = height * width;
        least_edge = height + width;
        best.rows = rows;
        best.columns = threads / rows;
    }
    return best;
}

assay_region assay_region_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels,
                             const assay_partition *cut, int part)
{
    int row = part / cut->columns, column = part % cut->columns;
    return (assay_region){
        .row = assay_smaller(args->m, cut->row_tiles * row / cut->rows * kernels->tile_rows),
        .row_end = assay_smaller(args->m, cut->row_tiles * (row + 1) / cut->rows * kernels->tile_rows),
        .column = assay_smaller(args->n, cut->column_tiles * column / cut->columns * kernels->tile_columns),
        .column_end = assay_smaller(args->n, cut->column_tiles * (column + 1) / cut->columns * kernels->tile_columns),
    };
}

/* A thread's region and panels. */
typedef struct packed_work {
    const assay_matmul_args *args;
    const assay_matmul_kernels *kernels;
    const assay_chains *chains;
    assay_region region;
    char *a_block, *b_panel;
    float *of_rows, *of_columns; /* of the region: sums of squares, of whole chains their roots; NULL: nobody asks */
} packed_work;

/* Steps of the chains, [step, step + k), as they lie in the operands: `count` from `first` on, the rest from 0 on. */
typedef struct steps {
    int64_t first, count, rest;
} steps;

static steps steps_of(const packed_work *w, int64_t step, int64_t k)
{
    const int64_t first = (step + w->chains->start) % w->args->k, count = assay_smaller(k, w->args->k - first);
    return (steps){.first = first, .count = count, .rest = k - count};
}

/* Where op(A)'s element (row, step), or op(B)'s (step, column), is. */
static const double *a_at(const assay_matmul_args *args, int64_t row, int64_t step)
{
    return args->transpose_a ? args->a + step * args->lda + row : args->a + row * args->lda + step;
}

static const double *b_at(const assay_matmul_args *args, int64_t step, int64_t column)
{
    return args->transpose_b ? args->b + column * args->ldb + step : args->b + step * args->ldb + column;
}

static void pack_a(const packed_work *w, char *panel, int64_t row, int64_t rows, const steps *s)
{
    const assay_matmul_args *args = w->args;
    const assay_matmul_kernels *kernels = w->kernels;
    kernels->pack_a(panel, a_at(args, row, s->first), args->lda, args->transpose_a, rows, s->count);
    if (s->rest > 0) {
        panel += s->count * kernels->tile_rows * kernels->number;
        kernels->pack_a(panel, a_at(args, row, 0), args->lda, args->transpose_a, rows, s->rest);
    }
}

static void pack_b(const packed_work *w, int64_t column, int64_t columns, const steps *s)
{
    const assay_matmul_args *args = w->args;
    const assay_matmul_kernels *kernels = w->kernels;
    kernels->pack_b(w->b_panel, b_at(args, s->first, column), args->ldb, !args->transpose_b, columns, s->count);
    if (s->rest > 0) {
        char *panel = w->b_panel + s->count * kernels->tile_columns * kernels->number;
        kernels->pack_b(panel, b_at(args, 0, column), args->ldb, !args->transpose_b, columns, s->rest);
    }
}

/* Of a panel of `lines` lines that was packed with steps up to step_end of the chains. */
static void take_squares(const packed_work *w, void (*add_squares)(float *sums, const void *panel, int64_t k),
                         const char *panel, int64_t k, int64_t step_end, float *sums, int64_t lines)
{
    add_squares(sums, panel, k);
    for (int64_t i = 0; step_end == w->args->k && i < lines; i++) sums[i] = sqrtf(sums[i]);
}

static void end_tile(const packed_work *w, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    const assay_chains_ended where = {.row = row,
                                      .rows = rows,
                                      .column = column,
                                      .columns = columns,
                                      .of_rows = w->of_rows + (row - w->region.row),
                                      .of_columns = w->of_columns + (column - w->region.column)};
    w->chains->ended(w->chains->self, &where);
}

/* A tile that C's edge cuts: computed whole aside (what the padding gives is dropped). */
static void edge_tile(const assay_matmul_kernels *kernels, double *c, int64_t ldc, const void *a_panel,
                      const void *b_panel, int64_t rows, int64_t columns, int64_t k, bool first)
{
    double whole[ASSAY_TILE_ROWS_MAX * ASSAY_TILE_COLUMNS_MAX] = {0};
    const int64_t width = kernels->tile_columns;
    for (int64_t i = 0; !first && i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) whole[i * width + j] = c[i * ldc + j];
    }
    kernels->tile(whole, width, a_panel, b_panel, k, first);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) c[i * ldc + j] = whole[i * width + j];
    }
}

/* Fetches share number `share` of `shares` of the B panel at (step, column) into the second-level cache. Its rows lie
 * far apart in memory, which the processor does not foresee. */
static void prefetch_b(const assay_matmul_args *args, int64_t step, int64_t column, int64_t columns, int64_t k,
                       int64_t share, int64_t shares)
{
    const int64_t lines = args->transpose_b ? columns : k, length = args->transpose_b ? k : columns;
    const double *from = b_at(args, step, column);
    for (int64_t i = lines * share / shares; i < lines * (share + 1) / shares; i++) {
        const double *line = from + i * args->ldb;
        for (int64_t j = 0; j < length; j += LINE) __builtin_prefetch(line + j, 0, 2);
        __builtin_prefetch(line + length - 1, 0, 2);
    }
}

/* The same for a tile of C that comes next. */
static void prefetch_c(const double *c, int64_t ldc, const assay_matmul_kernels *kernels)
{
    for (int64_t i = 0; i < kernels->tile_rows; i++) {
        const double *row = c + i * ldc;
        for (int64_t j = 0; j < kernels->tile_columns; j += LINE) __builtin_prefetch(row + j, 1);
        __builtin_prefetch(row + kernels->tile_columns - 1, 1);
    }
}

/* The block of A that is packed in w->a_block, rows [row, row + rows), steps [step, step + k), times B. */
static void multiply_block(const packed_work *w, int64_t row, int64_t rows, int64_t step, int64_t k)
{
    const assay_matmul_args *args = w->args;
    const assay_matmul_kernels *kernels = w->kernels;
    const int64_t tiles = assay_parts(rows, kernels->tile_rows), column_end = w->region.column_end;
    const bool first = step == 0 && !args->accumulate, last = step + k == args->k;
    const steps s = steps_of(w, step, k);
    for (int64_t j = w->region.column; j < column_end; j += kernels->tile_columns) {
        const int64_t columns = assay_smaller(kernels->tile_columns, column_end - j);
        const int64_t next = j + kernels->tile_columns,
                      next_columns = assay_smaller(kernels->tile_columns, column_end - next);
        pack_b(w, j, columns, &s);
        if (w->of_columns != NULL && row == w->region.row) {
            float *sums = w->of_columns + (j - w->region.column);
            take_squares(w, kernels->add_squares_b, w->b_panel, k, step + k, sums, kernels->tile_columns);
        }
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t i = t * kernels->tile_rows, tile_rows = assay_smaller(kernels->tile_rows, rows - i);
            const char *a_panel = w->a_block + i * k * kernels->number;
            double *c = args->c + (row + i) * args->ldc + j;
            if (next_columns > 0) prefetch_b(args, s.first, next, next_columns, s.count, t, tiles);
            if (tile_rows == kernels->tile_rows && columns == kernels->tile_columns) {
                const bool another = rows - i >= 2 * kernels->tile_rows;
                if (another && !first) prefetch_c(c + kernels->tile_rows * args->ldc, args->ldc, kernels);
                kernels->tile(c, args->ldc, a_panel, w->b_panel, k, first);
            } else {
                edge_tile(kernels, c, args->ldc, a_panel, w->b_panel, tile_rows, columns, k, first);
            }
            if (last && w->of_rows != NULL) end_tile(w, row + i, tile_rows, j, columns);
        }
    }
}

static void multiply_region(const packed_work *w, int64_t block_rows, int64_t block_steps)
{
    for (int64_t p = 0; p < w->args->k; p += block_steps) {
        const int64_t k = assay_smaller(block_steps, w->args->k - p);
        const steps s = steps_of(w, p, k);
        for (int64_t row = w->region.row; row < w->region.row_end; row += block_rows) {
            const int64_t rows = assay_smaller(block_rows, w->region.row_end - row);
            for (int64_t i = 0; i < rows; i += w->kernels->tile_rows) {
                char *panel = w->a_block + i * k * w->kernels->number;
                pack_a(w, panel, row + i, assay_smaller(w->kernels->tile_rows, rows - i), &s);
                if (w->of_rows != NULL) {
                    float *sums = w->of_rows + (row + i - w->region.row);
                    take_squares(w, w->kernels->add_squares_a, panel, k, p + k, sums, w->kernels->tile_rows);
                }
            }
            multiply_block(w, row, rows, p, k);
        }
    }
}

assay_status assay_matmul_packed(assay_context *ctx, const assay_matmul_args *args, const assay_matmul_kernels *kernels,
                                 const assay_chains *chains, int threads)
{
    const assay_partition cut = assay_partition_of(args, kernels, threads);
    const int parts = cut.rows * cut.columns;
    const int64_t rows = assay_parts(cut.row_tiles, cut.rows) * kernels->tile_rows;
    const int64_t block_rows = even_block(rows, BLOCK_ROWS, kernels->tile_rows);
    const int64_t block_steps = even_block(args->k, BLOCK_STEPS, LINE);
    const int64_t a_size = block_rows * block_steps, b_size = kernels->tile_columns * block_steps;
    const int64_t columns = assay_parts(cut.column_tiles, cut.columns) * kernels->tile_columns;
    OWNED void *panels = NULL;
    OWNED float *roots = NULL;
    MUST(assay_alloc(ctx, "matmul panels", parts * (a_size + b_size), (size_t)kernels->number, &panels));
    if (chains->ended != NULL) {
        MUST(assay_alloc_list(ctx, "a product's sums of squares", (parts * (rows + columns)), sizeof *roots, &roots));
    }
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        packed_work work = {.args = args, .kernels = kernels, .chains = chains};
        work.region = assay_region_of(args, kernels, &cut, part);
        work.a_block = (char *)panels + part * (a_size + b_size) * kernels->number;
        work.b_panel = work.a_block + a_size * kernels->number;
        work.of_rows = roots == NULL ? NULL : roots + part * (rows + columns);
        work.of_columns = roots == NULL ? NULL : work.of_rows + rows;
        multiply_region(&work, block_rows, block_steps);
    }
    return ASSAY_OK;
}
