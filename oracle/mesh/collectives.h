/* Collectives over one axis of a virtual mesh, as jax.lax has them (docs/expert-parallelism.md). Arrays are [shards, local shape] (mesh.h);
 * `in` and `out` do not overlap. Sums run over the shards of the axis in ascending order, so the bits are always the
 * same. Each has its transpose: what the gradient of its result is to its operand. */
#pragma once

#include "oracle/mesh/mesh.h"

/* all_gather, tiled: `local` is the shape of a shard of `in`, of elements of `width` bytes; in `out` its dimension `dimension` is as
 * many times larger as the axis has shards. The transpose is psum_scatter. */
void assay_all_gather(void *out, const void *in, size_t width, const assay_shape *local, int dimension,
                      const assay_mesh *mesh, assay_mesh_axis axis);

/* psum: every shard of the axis gets the sum of all, `count` numbers a shard. Its transpose is psum (of cotangents that
 * are each shard's own). */
void assay_psum(const assay_context *ctx, double *out, const double *in, int64_t count, const assay_mesh *mesh,
                assay_mesh_axis axis);

/* psum_scatter, tiled: the sum, of which each shard keeps its part along `dimension`. `local` is the shape of a shard
 * of `in`; that dimension is a multiple of the axis's size. The transpose is all_gather. */
void assay_psum_scatter(const assay_context *ctx, double *out, const double *in, const assay_shape *local,
                        int dimension, const assay_mesh *mesh, assay_mesh_axis axis);
