/* Collectives over one axis of a virtual mesh, as jax.lax has them (docs/expert-parallelism.md). Arrays are [shards, local shape] (mesh.h);
 * `in` and `out` do not overlap. Sums run over the shards of the axis in ascending order, so the bits are always the
 * same. Each has its transpose: what the gradient of its result is to its operand. */
#pragma once

#include "oracle/mesh/mesh.h"

/* all_gather, tiled: `local` is the shape of a shard of `in`; in `out` its dimension `dimension` is as many times
 * larger as the axis has shards. The transpose is psum_scatter. */
void assay_all_gather(const assay_context *ctx, double *out, const double *in, const assay_shape *local, int dimension,
                      const assay_mesh *mesh, assay_mesh_axis axis);
void assay_all_gather_i32(int32_t *out, const int32_t *in, const assay_shape *local, int dimension,
                          const assay_mesh *mesh, assay_mesh_axis axis);

/* psum: every shard of the axis gets the sum of all, `count` numbers a shard. Its transpose is psum (of cotangents that
 * are each shard's own). */
void assay_psum(const assay_context *ctx, double *out, const double *in, int64_t count, const assay_mesh *mesh,
                assay_mesh_axis axis);
void assay_psum_i32(int32_t *out, const int32_t *in, int64_t count, const assay_mesh *mesh, assay_mesh_axis axis);

/* psum_scatter, tiled: the sum, of which each shard keeps its part along `dimension`. `local` is the shape of a shard
 * of `in`; that dimension is a multiple of the axis's size. The transpose is all_gather. */
void assay_psum_scatter(const assay_context *ctx, double *out, const double *in, const assay_shape *local,
                        int dimension, const assay_mesh *mesh, assay_mesh_axis axis);

/* Who sends what where, from the view of every shard: [shards, P] each, P the size of the axis. To the j-th shard of
 * the axis go the rows input_offsets[j] to input_offsets[j] + send_sizes[j] - 1, and they land there at row
 * output_offsets[j]; recv_sizes[j] come from it. */
typedef struct assay_ragged_params {
    int32_t *input_offsets, *send_sizes, *output_offsets, *recv_sizes;
} assay_ragged_params;

assay_status assay_ragged_params_alloc(assay_context *ctx, assay_ragged_params *params, const assay_mesh *mesh,
                                       assay_mesh_axis axis);
void assay_ragged_params_free(assay_ragged_params *params); /* safe on a zeroed struct */

typedef struct assay_ragged_dims {
    int64_t in_rows, out_rows; /* of a shard */
    int64_t columns;
} assay_ragged_dims;

/* ragged_all_to_all: in [shards,in_rows,columns] -> rows of out [shards,out_rows,columns]; rows that nobody sends keep
 * what `out` holds. Refused: rows outside either array, and a shard that receives another number than is sent. */
assay_status assay_ragged_all_to_all(assay_context *ctx, double *out, const double *in,
                                     const assay_ragged_params *params, const assay_ragged_dims *dims,
                                     const assay_mesh *mesh, assay_mesh_axis axis);
/* Its transpose: d_in gets the sum of what became of each row (0 where it was not sent, more than one term where it was
 * sent to several, ascending); d_out_operand, or NULL, is d_out with 0 where a row was overwritten. */
assay_status assay_ragged_all_to_all_transpose(assay_context *ctx, double *d_in, double *d_out_operand,
                                               const double *d_out, const assay_ragged_params *params,
                                               const assay_ragged_dims *dims, const assay_mesh *mesh,
                                               assay_mesh_axis axis);
