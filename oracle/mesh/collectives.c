#include "oracle/mesh/collectives.h"

#include <string.h>

#include "oracle/ops/vector_sums.h"

/* A shard's array seen along one dimension: `outer` pieces of `piece` numbers each. */
typedef struct tiling {
    int64_t outer, piece;
} tiling;

static tiling tiling_of(const assay_shape *local, int dimension)
{
    tiling t = {1, 1};
    for (int i = 0; i < dimension; i++) t.outer *= local->dims[i];
    for (int i = dimension; i < local->rank; i++) t.piece *= local->dims[i];
    return t;
}

/* Piece `o` of the peer at `part` goes behind those of the peers before it. */
void assay_all_gather(void *out, const void *in, size_t width, const assay_shape *local, int dimension,
                      const assay_mesh *mesh, assay_mesh_axis axis)
{
    const tiling t = tiling_of(local, dimension);
    const int64_t shards = assay_mesh_shards(mesh), parts = assay_mesh_size(mesh, axis);
    const size_t bytes = (size_t)t.piece * width;
    for (int64_t shard = 0; shard < shards; shard++) {
        for (int64_t part = 0; part < parts; part++) {
            const int64_t peer = assay_mesh_peer(mesh, shard, axis, part);
            for (int64_t o = 0; o < t.outer; o++) {
                const int64_t to = (shard * t.outer + o) * parts + part, from = peer * t.outer + o;
                memcpy((char *)out + (size_t)to * bytes, (const char *)in + (size_t)from * bytes, bytes);
            }
        }
    }
}

void assay_psum(const assay_context *ctx, double *out, const double *in, int64_t count, const assay_mesh *mesh,
                assay_mesh_axis axis)
{
    const int64_t shards = assay_mesh_shards(mesh);
    for (int64_t shard = 0; shard < shards; shard++) {
        double *sum = out + shard * count;
        memcpy(sum, in + assay_mesh_peer(mesh, shard, axis, 0) * count, (size_t)count * sizeof *sum);
        for (int64_t part = 1; part < assay_mesh_size(mesh, axis); part++)
            assay_add(ctx, count, in + assay_mesh_peer(mesh, shard, axis, part) * count, sum);
    }
}

void assay_psum_scatter(const assay_context *ctx, double *out, const double *in, const assay_shape *local,
                        int dimension, const assay_mesh *mesh, assay_mesh_axis axis)
{
    const tiling t = tiling_of(local, dimension);
    const int64_t shards = assay_mesh_shards(mesh), parts = assay_mesh_size(mesh, axis);
    const int64_t kept = t.piece / parts, whole = t.outer * t.piece;
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t own = assay_mesh_index(mesh, shard, axis);
        for (int64_t o = 0; o < t.outer; o++) {
            double *sum = out + (shard * t.outer + o) * kept;
            const double *from = in + o * t.piece + own * kept;
            memcpy(sum, from + assay_mesh_peer(mesh, shard, axis, 0) * whole, (size_t)kept * sizeof *sum);
            for (int64_t part = 1; part < parts; part++)
                assay_add_scaled(ctx, kept, 1, from + assay_mesh_peer(mesh, shard, axis, part) * whole, sum);
        }
    }
}
