/* Sketches (docs/large.md): what a golden holds of a gradient that is too large to be stored. A tensor [..., R, C] is
 * seen as blocks (experts; all axes but the last two) of R rows and C columns. Its sketch is sums with random signs over
 * each row, each column, each tile of 128 x 128 and each block, and some rows and one block in full. Which signs, rows and
 * block follows from the case's seed and the tensor's path, so that a kernel can make the sums where its gradient lies. */
#pragma once

#include "oracle/base/tensor.h"

/* gradients/weights/wi_0 becomes gradients/weights/wi_0/sketch/rows ... */
typedef enum assay_sketch_component {
    ASSAY_SKETCH_ROWS,       /* [..., R]: sum over columns of sign(block, column) x */
    ASSAY_SKETCH_COLUMNS,    /* [..., C]: sum over rows of sign(block, row) x */
    ASSAY_SKETCH_TILES,      /* [..., R/128, C/128], rounded up: sum over the tile of both signs times x */
    ASSAY_SKETCH_BLOCKS,     /* [...]: sum of the block's tiles */
    ASSAY_SKETCH_SLICE_ROWS, /* [16 or fewer, C]: so many rows in full, of the R in every block, in ascending order */
    ASSAY_SKETCH_SLICE_BLOCK /* [R, C]: one block in full; only of several blocks */
} assay_sketch_component;
enum { ASSAY_SKETCH_COMPONENTS = ASSAY_SKETCH_SLICE_BLOCK + 1, ASSAY_SKETCH_TILE = 128, ASSAY_SKETCH_SLICES = 16 };

/* Whether a golden with sketches above so many elements (0: none) holds one in the tensor's place: the gradient of a
 * weight of two axes or more. */
bool assay_sketch_is_for(const assay_tensor_spec *spec, int64_t above);
/* The tensor of a component; path and role "" where the sketch does not have it: no tensor but blocks has more than `above`
 * elements. Float64, as the tensor is in goldens. */
assay_tensor_spec assay_sketch_spec(const assay_tensor_spec *of, int64_t above, assay_sketch_component component);
/* The tensor's own path from that of a component, "" of other paths; *component may be NULL. */
void assay_sketch_tensor_path(const char *path, char whole[ASSAY_PATH_SIZE], assay_sketch_component *component);

/* A sketch that grows while the tensor streams by. */
typedef struct assay_sketch {
    assay_tensor_spec spec; /* of the whole tensor */
    int64_t blocks, rows, columns, column_tiles, row_tiles;
    int64_t position, count;                     /* elements so far; in all */
    double *components[ASSAY_SKETCH_COMPONENTS]; /* NULL: not there */
    int64_t sizes[ASSAY_SKETCH_COMPONENTS];
    uint64_t *signs_of_columns, *signs_of_rows; /* one bit each: 1 is minus */
    int64_t *slices;                            /* rows in full */
    int64_t slice_count, next_slice, slice_block;
    double lanes[8];      /* of the segment of a row at hand */
    double *column_sums;  /* of the 128 rows at hand */
    double *column_signs; /* of the block at hand */
    double *tiles;        /* of the block at hand */
    double *memory;
} assay_sketch;

/* A path too long for the names of the components is refused. Starts zeroed, and is to be freed if it fails too. */
assay_status assay_sketch_start(assay_context *ctx, const assay_tensor_spec *spec, int64_t above, uint64_t seed,
                                assay_sketch *sketch);
/* The next elements: `sums` go into the sums, `slices` into what is kept in full. */
void assay_sketch_add(assay_sketch *sketch, int64_t count, const double *sums, const double *slices);
void assay_sketch_add_zeros(assay_sketch *sketch, int64_t count); /* the same of 0 */
void assay_sketch_free(assay_sketch *sketch);                     /* safe on a zeroed struct */

/* The signs with which the tensor's elements stand in a sum: signs [count of the tensor], 0 where one does not. */
void assay_sketch_signs(const assay_sketch *sketch, assay_sketch_component component, int64_t index,
                        signed char *signs);
