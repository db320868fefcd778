#include "oracle/mesh/quantized_psum_scatter.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/vector_sums.h"

/* Term after term in ascending order: what is not the sum of all yet may be stored. */
void assay_quantized_psum_scatter_forward(const assay_context *ctx, double *y, const double *x,
                                          const assay_psum_scatter_dims *dims, const assay_mesh *mesh,
                                          assay_mesh_axis axis)
{
    const int64_t count = dims->rows * dims->columns, parts = assay_mesh_size(mesh, axis);
    const int64_t all = assay_mesh_shards(mesh) * count;
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t shard = 0; shard < assay_mesh_shards(mesh); shard++) {
            const int64_t own = assay_mesh_index(mesh, shard, axis);
            const double *term = x + (assay_mesh_peer(mesh, shard, axis, part) * parts + own) * count;
            if (part == 0) memcpy(y + shard * count, term, (size_t)count * sizeof *y);
            if (part > 0) assay_add(ctx, count, term, y + shard * count);
        }
        if (part > 0 && part + 1 < parts) assay_round(ctx, ASSAY_ROUND_STORAGE, all, y);
    }
}

assay_status assay_quantized_psum_scatter_backward(assay_context *ctx, double *dx, const double *dy,
                                                   const assay_psum_scatter_dims *dims, const assay_mesh *mesh,
                                                   assay_mesh_axis axis, const assay_quant_recipe_config *config)
{
    const assay_quant_recipe *r = config->recipe;
    const int64_t count = dims->rows * dims->columns, parts = assay_mesh_size(mesh, axis);
    const int64_t shards = assay_mesh_shards(mesh);
    OWNED double *codes = NULL, *scale = NULL;
    MUST(assay_alloc_f64(ctx, "codes", shards * count, &codes));
    MUST(assay_alloc_f64(ctx, "scales", shards * count, &scale));
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t first = shard * count;
        MUST(assay_quant_recipe_codes(ctx, codes + first, scale + first, dy + first, dims->rows, dims->columns,
                                      r == NULL ? NULL : &r->dx_dy, &config->dy, config));
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < shards * parts * count; i++) {
        const int64_t shard = i / (parts * count), place = i % (parts * count), part = place / count;
        const int64_t from = assay_mesh_peer(mesh, shard, axis, part) * count + place % count;
        int64_t sender = part, of = place;
        if (r != NULL && r->gathered != NULL)
            r->gathered(assay_mesh_index(mesh, shard, axis), parts, dims->columns, &sender, &of);
        dx[i] = codes[from] * scale[assay_mesh_peer(mesh, shard, axis, sender) * count + of % count];
    }
    return ASSAY_OK;
}
