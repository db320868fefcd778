/* The reference arithmetic. Blocking and threads decide only when an output's chain is advanced, never its order: a
 * chain interrupted at the end of a block is stored to C, a float64, and loaded again, which is exact.
 *
 * A block of A is packed to lie in the second-level cache; each panel of B is packed right before it is used, while the
 * next one is fetched. */
#include <stdlib.h>

#include "oracle/arithmetic/matmul_kernels.h"
#include "oracle/base/memory.h"

enum {
    BLOCK_ROWS = 512,      /* of A: with BLOCK_STEPS 1.5 MiB */
    BLOCK_STEPS = 384,     /* a panel of A: 24 KiB, of B: 72 KiB */
    STREAM_COLUMNS = 2048, /* rows of C that a stream keeps in the second-level cache: 8 of 16 KiB */
    FEW_STEPS = 8,         /* of k, for which packing is not worth its while */
    LINE = 8,              /* float64 in a line of cache */
};
/* Multiplications below which a second thread costs more than it gives. */
static const double WORK_FOR_THREADS = 1 << 18;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts_of(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* `size` cut into as few pieces of at most `largest` as possible, all about the same, a multiple of `unit`. */
static int64_t even_block(int64_t size, int64_t largest, int64_t unit)
{
    return size <= 0 ? unit : parts_of(parts_of(size, parts_of(size, largest)), unit) * unit;
}

/* A rectangle of C for one thread, and that thread's panels. */
typedef struct region {
    int64_t row, row_end, column, column_end;
    double *a_block, *b_panel;
} region;

/* How C is cut: rows x columns regions, whole tiles each. */
typedef struct partition {
    int rows, columns;
    int64_t row_tiles, column_tiles;
} partition;

/* The grid of `threads` regions whose largest region is smallest, and of those the one with the least to pack. */
static partition partition_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels, int threads)
{
    partition best = {.rows = 1,
                      .columns = 1,
                      .row_tiles = parts_of(args->m, kernels->tile_rows),
                      .column_tiles = parts_of(args->n, kernels->tile_columns)};
    double least_area = -1, least_edge = -1;
    for (int rows = 1; rows <= threads; rows++) {
        if (threads % rows != 0) continue;
        double height = (double)(parts_of(best.row_tiles, rows) * kernels->tile_rows);
        double width = (double)(parts_of(best.column_tiles, threads / rows) * kernels->tile_columns);
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

static region region_of(const assay_matmul_args *args, const assay_matmul_kernels *kernels, const partition *cut,
                        int part)
{
    int row = part / cut->columns, column = part % cut->columns;
    return (region){
        .row = least(args->m, cut->row_tiles * row / cut->rows * kernels->tile_rows),
        .row_end = least(args->m, cut->row_tiles * (row + 1) / cut->rows * kernels->tile_rows),
        .column = least(args->n, cut->column_tiles * column / cut->columns * kernels->tile_columns),
        .column_end = least(args->n, cut->column_tiles * (column + 1) / cut->columns * kernels->tile_columns),
    };
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

/* A tile that C's edge cuts: computed whole aside (what the padding gives is dropped). */
static void edge_tile(const assay_matmul_kernels *kernels, double *c, int64_t ldc, const double *a_panel,
                      const double *b_panel, int64_t rows, int64_t columns, int64_t k, bool first)
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

/* The block of A that is packed in work->a_block, rows [row, row + rows), steps [step, step + k), times B. */
static void multiply_block(const assay_matmul_args *args, const assay_matmul_kernels *kernels, const region *work,
                           int64_t row, int64_t rows, int64_t step, int64_t k)
{
    const int64_t tiles = parts_of(rows, kernels->tile_rows);
    const bool first = step == 0 && !args->accumulate;
    for (int64_t j = work->column; j < work->column_end; j += kernels->tile_columns) {
        const int64_t columns = least(kernels->tile_columns, work->column_end - j);
        const int64_t next = j + kernels->tile_columns;
        const int64_t next_columns = least(kernels->tile_columns, work->column_end - next);
        kernels->pack_b(work->b_panel, b_at(args, step, j), args->ldb, !args->transpose_b, columns, k);
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t i = t * kernels->tile_rows, tile_rows = least(kernels->tile_rows, rows - i);
            const double *a_panel = work->a_block + i * k;
            double *c = args->c + (row + i) * args->ldc + j;
            if (next_columns > 0) prefetch_b(args, step, next, next_columns, k, t, tiles);
            if (tile_rows == kernels->tile_rows && columns == kernels->tile_columns) {
                const bool another = rows - i >= 2 * kernels->tile_rows;
                if (another && !first) prefetch_c(c + kernels->tile_rows * args->ldc, args->ldc, kernels);
                kernels->tile(c, args->ldc, a_panel, work->b_panel, k, first);
            } else {
                edge_tile(kernels, c, args->ldc, a_panel, work->b_panel, tile_rows, columns, k, first);
            }
        }
    }
}

static void multiply_region(const assay_matmul_args *args, const assay_matmul_kernels *kernels, const region *work,
                            int64_t block_rows, int64_t block_steps)
{
    for (int64_t p = 0; p < args->k; p += block_steps) {
        const int64_t k = least(block_steps, args->k - p);
        for (int64_t row = work->row; row < work->row_end; row += block_rows) {
            const int64_t rows = least(block_rows, work->row_end - row);
            for (int64_t i = 0; i < rows; i += kernels->tile_rows) {
                kernels->pack_a(work->a_block + i * k, a_at(args, row + i, p), args->lda, args->transpose_a,
                                least(kernels->tile_rows, rows - i), k);
            }
            multiply_block(args, kernels, work, row, rows, p, k);
        }
    }
}

static assay_status packed_matmul(assay_context *ctx, const assay_matmul_args *args,
                                  const assay_matmul_kernels *kernels, int threads)
{
    const partition cut = partition_of(args, kernels, threads);
    const int parts = cut.rows * cut.columns;
    const int64_t rows = parts_of(cut.row_tiles, cut.rows) * kernels->tile_rows;
    const int64_t block_rows = even_block(rows, BLOCK_ROWS, kernels->tile_rows);
    const int64_t block_steps = even_block(args->k, BLOCK_STEPS, LINE);
    const int64_t a_size = block_rows * block_steps, b_size = kernels->tile_columns * block_steps;
    double *panels = NULL;
    assay_status status = assay_alloc_f64(ctx, "matmul panels", parts * (a_size + b_size), &panels);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        region work = region_of(args, kernels, &cut, part);
        work.a_block = panels + part * (a_size + b_size);
        work.b_panel = work.a_block + a_size;
        multiply_region(args, kernels, &work, block_rows, block_steps);
    }
    free(panels);
    return ASSAY_OK;
}

/* A few rows times a large B, or a few steps into a large C: all the time goes into reading B, or writing C, so it is
 * done once and in order. */
static void streamed_matmul(const assay_matmul_args *args, const assay_matmul_kernels *kernels, int threads)
{
    const partition cut = partition_of(args, kernels, threads);
    const int parts = cut.rows * cut.columns;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        const region work = region_of(args, kernels, &cut, part);
        for (int64_t i = work.row; i < work.row_end; i += kernels->tile_rows) {
            assay_matmul_args rows = *args;
            rows.m = least(kernels->tile_rows, work.row_end - i);
            rows.a = a_at(args, i, 0);
            rows.c += i * args->ldc;
            for (int64_t j = work.column; j < work.column_end; j += STREAM_COLUMNS) {
                kernels->stream(&rows, j, least(j + STREAM_COLUMNS, work.column_end));
            }
        }
    }
}

static void zeros(const assay_matmul_args *args)
{
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) args->c[i * args->ldc + j] = 0.0;
    }
}

static const assay_matmul_kernels *kernels_for(assay_isa isa)
{
#ifdef __x86_64__
    if (isa == ASSAY_ISA_AVX512) return &assay_matmul_kernels_avx512;
    if (isa == ASSAY_ISA_AVX2) return &assay_matmul_kernels_avx2;
#endif
    return NULL;
}

static assay_status reference_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const assay_matmul_kernels *kernels = kernels_for(ctx->isa);
    const double work = (double)args->m * (double)args->n * (double)args->k;
    const int threads = work < WORK_FOR_THREADS ? 1 : ctx->threads;
    if (args->m == 0 || args->n == 0) return ASSAY_OK;
    if (args->k == 0) {
        if (!args->accumulate) zeros(args);
    } else if (kernels == NULL) {
        assay_matmul_scalar(args, threads);
    } else if (args->m <= kernels->tile_rows || (args->k <= FEW_STEPS && !args->transpose_b)) {
        streamed_matmul(args, kernels, threads);
    } else {
        return packed_matmul(ctx, args, kernels, threads);
    }
    return ASSAY_OK;
}

const assay_arithmetic assay_arithmetic_reference = {.name = "reference", .matmul = reference_matmul};
