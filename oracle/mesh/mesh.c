#include "oracle/mesh/mesh.h"

int64_t assay_mesh_size(const assay_mesh *mesh, assay_mesh_axis axis)
{
    return mesh->size[axis] == 0 ? 1 : mesh->size[axis];
}

/* Along this axis and those inside it. */
static int64_t shards_from(const assay_mesh *mesh, int axis)
{
    int64_t shards = 1;
    for (; axis < ASSAY_MESH_AXES; axis++) shards *= assay_mesh_size(mesh, (assay_mesh_axis)axis);
    return shards;
}

int64_t assay_mesh_shards(const assay_mesh *mesh)
{
    return shards_from(mesh, 0);
}

/* Shards between two neighbours along an axis. */
static int64_t stride_of(const assay_mesh *mesh, assay_mesh_axis axis)
{
    return shards_from(mesh, (int)axis + 1);
}

int64_t assay_mesh_index(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis)
{
    return shard / stride_of(mesh, axis) % assay_mesh_size(mesh, axis);
}

int64_t assay_mesh_peer(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis, int64_t index)
{
    return shard + (index - assay_mesh_index(mesh, shard, axis)) * stride_of(mesh, axis);
}
