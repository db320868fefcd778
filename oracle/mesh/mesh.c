#include "oracle/mesh/mesh.h"

int64_t assay_mesh_shards(const assay_mesh *mesh)
{
    return mesh->size[ASSAY_AXIS_DATA] * mesh->size[ASSAY_AXIS_FSDP] * mesh->size[ASSAY_AXIS_EXPERT];
}

/* Shards between two neighbours along an axis. */
static int64_t stride_of(const assay_mesh *mesh, assay_mesh_axis axis)
{
    int64_t stride = 1;
    for (int inner = (int)axis + 1; inner < ASSAY_MESH_AXES; inner++) stride *= mesh->size[inner];
    return stride;
}

int64_t assay_mesh_index(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis)
{
    return shard / stride_of(mesh, axis) % mesh->size[axis];
}

int64_t assay_mesh_peer(const assay_mesh *mesh, int64_t shard, assay_mesh_axis axis, int64_t index)
{
    return shard + (index - assay_mesh_index(mesh, shard, axis)) * stride_of(mesh, axis);
}
