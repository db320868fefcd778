/* A linear layer by a training recipe, in binary128: what its three products take, and the products. */
#ifndef ASSAY_QUAD_SPEC_RECIPE_H
#define ASSAY_QUAD_SPEC_RECIPE_H

#include "oracle/quad/quad_internal.h"

/* A matrix, the group of each of its rows (-1: of none), and what it becomes. */
typedef struct quad_recipe_matrix {
    int64_t rows, columns;
    const quad *x;
    const int64_t *group;
    bool counts_all; /* rows of no group count too, but for scales of blocks */
    quad *codes, *scale, *numbers;
} quad_recipe_matrix;

/* x [rows,k], w [groups,k,n]; dy [rows,n]. Starts zeroed but for these. */
typedef struct quad_recipe_layer {
    const assay_recipe_config *recipe;
    int64_t rows, k, n, groups;
    const int64_t *group; /* of each row */
    bool counts_all;      /* of the matrices of rows */
    const quad *x, *w, *dy;
    quad_recipe_matrix of_x, of_w, dx_dy, dw_x, dw_dy;
    quad *for_dx, *for_dw;
    int64_t *all; /* the group of each row of w: 0 */
} quad_recipe_layer;

/* of_x and of_w; then, once dy is there, the others. */
assay_status quad_recipe_take(assay_context *ctx, quad_recipe_layer *layer);
assay_status quad_recipe_take_back(assay_context *ctx, quad_recipe_layer *layer);

/* Overwritten; rows of no group become 0. */
void quad_recipe_forward(const quad_recipe_layer *layer, quad *y);
void quad_recipe_backward(const quad_recipe_layer *layer, quad *dx, quad *dw);
void quad_recipe_free(quad_recipe_layer *layer);

/* Gated MLPs, of each group one; gate and up are one layer where they are fused, else two. Starts zeroed but for what is given. */
typedef struct quad_recipe_mlp {
    const assay_gated_mlp_config *config;
    int64_t rows, groups;
    const int64_t *group;                  /* of each row; -1: of none, where x and dy are 0 */
    const quad *x, *dy;               /* [rows,D] */
    const quad *w[ASSAY_MLP_WEIGHTS]; /* [groups,...] */
    quad_recipe_layer up[2], down;
    quad *made[2], *gradient[2]; /* of up: what the layers give, and its gradient */
    quad *h, *numbers, *y, *dh;  /* numbers: of codes of h */
    quad *dx, *dw[ASSAY_MLP_WEIGHTS];
} quad_recipe_mlp;

assay_status quad_recipe_mlp_run(assay_context *ctx, quad_recipe_mlp *m);
void quad_recipe_mlp_keep(const quad_recipe_mlp *m, const quad_mlp_checkpoints *kept);
/* gradients/weights/ of the table's rows, each of `below` groups; 0: of one, which has no axis. */
assay_status quad_recipe_mlp_put_gradients(assay_context *ctx, const assay_tensor_table *table, int64_t below,
                                           const quad_recipe_mlp *m, quad_tensors *out);
void quad_recipe_mlp_free(quad_recipe_mlp *m);

/* quad_mla_parts; layers [ASSAY_MLA_WEIGHTS]: NULL, or by a recipe each weight's, which gets what forward takes. */
assay_status quad_mla_parts_by(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                               quad_recipe_layer *layers, quad_tensors *parts);
quad quad_mla_softmax_scale(const assay_mla_config *config);
assay_attention_config quad_mla_attention(const assay_mla_config *config);

/* A copy of the values. */
assay_status quad_put(assay_context *ctx, quad_tensors *out, const char *path, const assay_shape *shape,
                      const quad *values);

#endif
