#include "compare/tile_slopes.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

double assay_slope_square(double products, double weights)
{
    return weights > 0 ? products * products / weights : 0;
}

/* Takes a slice in. */
static void add_slice(assay_worst_slope *worst, int64_t slice, double products, double weights)
{
    const double square = assay_slope_square(products, weights);
    if (!(square > worst->square)) return;
    *worst = (assay_worst_slope){.square = square, .slope = products / weights, .slice = slice};
}

assay_worst_slope assay_worst_slope_of(int64_t count, const double *products, const double *weights)
{
    assay_worst_slope worst = {0};
    for (int64_t i = 0; i < count; i++) add_slice(&worst, i, products[i], weights[i]);
    return worst;
}

int64_t assay_tile_size(int level)
{
    return (int64_t)ASSAY_LEAST_TILE << level;
}

static int64_t rows_of(const assay_shape *shape)
{
    int64_t rows = 1;
    for (int axis = 0; axis < shape->rank - 1; axis++) rows *= shape->dims[axis];
    return rows;
}

int64_t assay_tiles_across(const assay_shape *shape, int level)
{
    return assay_parts(assay_row_length(shape), assay_tile_size(level));
}

int64_t assay_tiles_count(const assay_shape *shape, int level)
{
    return assay_tiles_across(shape, level) * assay_parts(rows_of(shape), assay_tile_size(level));
}

/* Columns, of all rows and of those of the smallest tile; then tiles. */
assay_status assay_tile_slopes_start(assay_context *ctx, const assay_shape *shape, assay_tile_slopes *tiles)
{
    int64_t total = 2 * assay_row_length(shape);
    *tiles = (assay_tile_slopes){.rows = rows_of(shape), .columns = assay_row_length(shape)};
    for (int level = 0; level < ASSAY_TILE_SIZES; level++) total += assay_tiles_across(shape, level);
    MUST(assay_alloc_zeros(ctx, "statistics of tiles", 2 * total, &tiles->memory));
    double *products = tiles->memory, *weights = tiles->memory + total;
    tiles->whole_products = products;
    tiles->whole_weights = weights;
    int64_t at = tiles->columns;
    for (int level = -1; level < ASSAY_TILE_SIZES; level++) {
        tiles->products[level + 1] = products + at;
        tiles->weights[level + 1] = weights + at;
        at += level < 0 ? tiles->columns : assay_tiles_across(shape, level);
    }
    return ASSAY_OK;
}

/* Adds `count` parts to wholes of `each`, and empties the parts. */
static void fold(int64_t count, int64_t each, double *from, double *to)
{
    for (int64_t i = 0; i < count; i++) to[i / each] += from[i];
    memset(from, 0, (size_t)count * sizeof *from);
}

static void take_columns(assay_tile_slopes *tiles)
{
    for (int64_t i = 0; i < tiles->columns; i++) {
        tiles->whole_products[i] += tiles->products[0][i];
        tiles->whole_weights[i] += tiles->weights[0][i];
    }
    fold(tiles->columns, ASSAY_LEAST_TILE, tiles->products[0], tiles->products[1]);
    fold(tiles->columns, ASSAY_LEAST_TILE, tiles->weights[0], tiles->weights[1]);
}

static void end_tiles(assay_tile_slopes *tiles, int level)
{
    const int64_t size = assay_tile_size(level), across = assay_parts(tiles->columns, size);
    double *products = tiles->products[level + 1], *weights = tiles->weights[level + 1];
    const int64_t first = (tiles->row - 1) / size * across;
    for (int64_t i = 0; i < across; i++) {
        add_slice(&tiles->worst[level], first + i, products[i], weights[i]);
        if (tiles->squares[level] == NULL) continue;
        tiles->squares[level][first + i] = assay_slope_square(products[i], weights[i]);
    }
    if (level + 1 == ASSAY_TILE_SIZES) {
        memset(products, 0, (size_t)across * sizeof *products);
        memset(weights, 0, (size_t)across * sizeof *weights);
        return;
    }
    fold(across, 2, products, tiles->products[level + 2]);
    fold(across, 2, weights, tiles->weights[level + 2]);
}

void assay_tile_slopes_end_row(assay_tile_slopes *tiles)
{
    tiles->row++;
    const bool last = tiles->row == tiles->rows;
    if (!last && tiles->row % ASSAY_LEAST_TILE != 0) return;
    take_columns(tiles);
    for (int level = 0; level < ASSAY_TILE_SIZES; level++) {
        if (!last && tiles->row % assay_tile_size(level) != 0) return;
        end_tiles(tiles, level);
    }
}

assay_status assay_tile_slopes_keep(assay_context *ctx, const assay_shape *shape, assay_tile_slopes *tiles)
{
    for (int level = 0; tiles->memory != NULL && level < ASSAY_TILE_SIZES; level++)
        MUST(assay_alloc_zeros(ctx, "statistics of tiles", assay_tiles_count(shape, level), &tiles->squares[level]));
    return ASSAY_OK;
}

void assay_tile_slopes_free(assay_tile_slopes *tiles)
{
    for (int level = 0; level < ASSAY_TILE_SIZES; level++) free(tiles->squares[level]);
    free(tiles->memory);
    *tiles = (assay_tile_slopes){0};
}
