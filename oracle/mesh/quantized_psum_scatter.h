/* quantized_psum_scatter: a sum over shards whose gradient travels in 8 bits, as MaxText's models/deepseek_batchsplit_fp8.py
 * has it (quantized_psum_scatter, _q_psum_scatter_fwd, _q_psum_scatter_bwd), with scatter_dimension 0 and tiled.
 *
 * Forward: x [shards,P*rows,columns] -> y [shards,rows,columns], each shard's rows of the sum over the axis (psum_scatter,
 * collectives.h). Nothing is quantised.
 * Backward: each shard quantises its own dy [rows,columns] as fp8_full quantises dy for dx (quant_recipe.h): e5m2, a scale for
 * each row by the largest magnitude, every step rounded to the type of the tensors. dx [P*rows,columns] of a shard is the
 * codes of all shards of the axis one after the other, times the scales of the shard that each code is of.
 *
 * The source gathers the codes and not their scales: it takes those of the shard that receives, each for P rows
 * (qwix, core/qarray.py, call_with_generic_broadcast). That is right on one shard alone, and a bug here. */
#pragma once

#include "oracle/mesh/mesh.h"
#include "oracle/ops/quant_recipe.h"

typedef struct assay_psum_scatter_dims {
    int64_t rows, columns; /* of y, of one shard */
} assay_psum_scatter_dims;

void assay_quantized_psum_scatter_forward(const assay_context *ctx, double *y, const double *x,
                                          const assay_psum_scatter_dims *dims, const assay_mesh *mesh,
                                          assay_mesh_axis axis);
/* config without a recipe: nothing is quantised. */
assay_status assay_quantized_psum_scatter_backward(assay_context *ctx, double *dx, const double *dy,
                                                   const assay_psum_scatter_dims *dims, const assay_mesh *mesh,
                                                   assay_mesh_axis axis, const assay_quant_recipe_config *config);
