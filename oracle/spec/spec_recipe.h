/* A linear layer by a training recipe, in binary128: what its three products take, and the products. */
#ifndef ASSAY_SPEC_SPEC_RECIPE_H
#define ASSAY_SPEC_SPEC_RECIPE_H

#include "oracle/spec/spec_internal.h"

/* A matrix, the group of each of its rows (-1: of none), and what it becomes. */
typedef struct spec_recipe_matrix {
    int64_t rows, columns;
    const spec_quad *x;
    const int64_t *group;
    spec_quad *codes, *scale, *numbers;
} spec_recipe_matrix;

/* x [rows,k], w [groups,k,n]; dy [rows,n]. Starts zeroed but for these. */
typedef struct spec_recipe_layer {
    const assay_recipe_config *recipe;
    int64_t rows, k, n, groups;
    const int64_t *group; /* of each row */
    const spec_quad *x, *w, *dy;
    spec_recipe_matrix of_x, of_w, dx_dy, dw_x, dw_dy;
    spec_quad *for_dx, *for_dw;
    int64_t *all; /* the group of each row of w: 0 */
} spec_recipe_layer;

/* of_x and of_w; then, once dy is there, the others. */
assay_status spec_recipe_take(assay_context *ctx, spec_recipe_layer *layer);
assay_status spec_recipe_take_back(assay_context *ctx, spec_recipe_layer *layer);

/* Overwritten; rows of no group become 0. */
void spec_recipe_forward(const spec_recipe_layer *layer, spec_quad *y);
void spec_recipe_backward(const spec_recipe_layer *layer, spec_quad *dx, spec_quad *dw);
void spec_recipe_free(spec_recipe_layer *layer);

#endif
