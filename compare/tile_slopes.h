/* Slopes of a candidate on its golden over square tiles of every size, in one pass: what a factor on one tile moves, when no
 * element shows it.
 *
 * Rows are all indices but the last, as they lie in memory; tiles of 8, 16 ... 512 rows and columns, less at the edges. Of a
 * tile, z = sum(r s) / sqrt(sum(s^2)) with the error r and the golden value s, both over the error's deviation: of
 * independent errors it has the deviation that r has. */
#pragma once

#include "oracle/base/tensor.h"

enum { ASSAY_TILE_SIZES = 7, ASSAY_LEAST_TILE = 8 };

/* The slice of a tensor that has the largest |z|. */
typedef struct assay_worst_slope {
    double square; /* of z */
    double slope;  /* sum(r s) / sum(s^2) */
    int64_t slice; /* of tiles, row after row */
} assay_worst_slope;

double assay_slope_square(double products, double weights); /* z^2; 0 where nothing has a weight */
/* Of slices that stand side by side. */
assay_worst_slope assay_worst_slope_of(int64_t count, const double *products, const double *weights);

typedef struct assay_tile_slopes {
    int64_t rows, columns, row;
    double *products[ASSAY_TILE_SIZES + 1],
        *weights[ASSAY_TILE_SIZES + 1];     /* of columns, then of the tiles that are open */
    double *whole_products, *whole_weights; /* of columns, over all rows */
    assay_worst_slope worst[ASSAY_TILE_SIZES];
    double *squares[ASSAY_TILE_SIZES]; /* z^2 of every tile; NULL: not kept */
    double *memory;
} assay_tile_slopes;

int64_t assay_tile_size(int level); /* 8, 16 ... 512 */
int64_t assay_tiles_across(const assay_shape *shape, int level);
int64_t assay_tiles_count(const assay_shape *shape, int level);

assay_status assay_tile_slopes_start(assay_context *ctx, const assay_shape *shape, assay_tile_slopes *tiles);
/* What a row adds to products[0] and weights[0], column by column, is there. */
void assay_tile_slopes_end_row(assay_tile_slopes *tiles);
/* Squares are kept from here on, if it was started; before anything is added. */
assay_status assay_tile_slopes_keep(assay_context *ctx, const assay_shape *shape, assay_tile_slopes *tiles);
void assay_tile_slopes_free(assay_tile_slopes *tiles); /* safe on a zeroed struct */
