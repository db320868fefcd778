/* A linear layer by a training recipe, in binary128: what its three products take, and the products. */
#pragma once

#include "oracle/quad/quad_internal.h"

/* A matrix, the group of each of its rows (-1: of none), and what it becomes. */
typedef struct quad_recipe_matrix {
    int64_t rows, columns;
    const quad *x;
    const int64_t *group;
    const int64_t *set; /* of each row: those of different sets have no scale together; NULL: all are of one */
    bool counts_all;    /* rows of no group count too, but for scales of blocks */
    quad *codes, *scale, *numbers;
} quad_recipe_matrix;

/* x [rows,k], w [groups,k,n]; dy [rows,n]. y is of_x w of numbers; dx is of dx_dy's numbers and w's codes, dw of dw_x's and dw_dy's numbers. Starts zeroed
 * but for these. */
typedef struct quad_recipe_layer {
    const assay_quant_recipe_config *recipe;
    int64_t rows, k, n, groups;
    const int64_t *group; /* of each row */
    const int64_t *set;   /* of each row, or NULL */
    int64_t shards;       /* that w's groups are of, one after the other, which are sets */
    bool counts_all;      /* of the matrices of rows */
    const quad *x, *w, *dy;
    quad_recipe_matrix of_x, of_w, dx_dy, dw_x, dw_dy;
    quad *for_dx, *for_dw;
    int64_t *all, *of_shard; /* the group of each row of w: 0; and its set */
} quad_recipe_layer;

/* of_x and of_w; then, once dy is there, the others. */
assay_status quad_recipe_quantise(assay_context *ctx, quad_recipe_layer *layer);
assay_status quad_recipe_quantise_back(assay_context *ctx, quad_recipe_layer *layer);
void quad_recipe_free(quad_recipe_layer *layer);

/* codes times scales of dy [rows,columns] as a recipe quantises it for dx. */
assay_status quad_quantise_gradient(assay_context *ctx, const assay_quant_recipe_config *recipe, int64_t rows,
                                    int64_t columns, const quad *dy, quad *numbers);
