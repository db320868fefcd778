/* A virtual mesh: many devices in one process (docs/expert-parallelism.md; jax.sharding.Mesh with MaxText's axes).
 *
 * Shards are numbered with `mlp_tensor` innermost: shard = ((data * size[FSDP] + fsdp) * size[EXPERT] + expert) *
 * size[MLP_TENSOR] + mlp_tensor. A sharded tensor is one array [shards, local shape], so that a batch that is split over all
 * axes is the whole batch as it lies. `mlp_tensor` (MaxText's `tensor`) splits the hidden dimension of experts; tokens
 * are the same on all of it. */
#pragma once

#include "oracle/base/tensor.h"

typedef enum assay_mesh_axis {
    ASSAY_AXIS_DATA,
    ASSAY_AXIS_FSDP,
    ASSAY_AXIS_EXPERT,
    ASSAY_AXIS_MLP_TENSOR,
    ASSAY_MESH_AXES
} assay_mesh_axis;

typedef struct assay_mesh {
    int64_t size[ASSAY_MESH_AXES]; /* each at least 1; 0, an axis that nobody names, is 1 */
} assay_mesh;

int64_t assay_mesh_size(const assay_mesh *mesh, assay_mesh_axis axis);
int64_t assay_mesh_shards(const assay_mesh *mesh);
/* The place of a shard along one axis (jax.lax.axis_index). */
int64_t assay_mesh_index(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis);
/* The shard that differs from `shard` only in being at `index` along `axis`. */
int64_t assay_mesh_peer(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis, int64_t index);
