/* One gated MLP with its buffers: they are allocated once and serve every expert, and the rows of every shard, in turn.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

/* Kernels must be there (reading says so when they are not), biases may be. */
static bool has_weight(const sharded_mlp *mlp, const assay_source *in, int weight)
{
    const char *path = sharded_weight_path(mlp->routed, weight);
    if (path == NULL) return false;
    if (weight == SHARDED_WI) return mlp->config.fused;
    if (weight == SHARDED_WI_0 || weight == SHARDED_WI_1) return !mlp->config.fused;
    return weight == SHARDED_WO || in->has(in->self, path);
}

static assay_status alloc_weights(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim, width = mlp->config.mlp_dim;
    const int64_t sizes[SHARDED_WEIGHTS] = {
        [SHARDED_WI] = dim * 2 * width, [SHARDED_WI_0] = dim * width, [SHARDED_WI_1] = dim * width,
        [SHARDED_WO] = width * dim,     [SHARDED_WI_0_BIAS] = width,  [SHARDED_WI_1_BIAS] = width,
        [SHARDED_WO_BIAS] = dim,
    };
    memcpy(mlp->sizes, sizes, sizeof sizes);
    for (int weight = 0; weight < SHARDED_WEIGHTS; weight++) {
        if (!has_weight(mlp, run->in, weight)) continue;
        const char *path = sharded_weight_path(mlp->routed, weight);
        TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->weights[weight]));
        if (!sharded_wants_gradient(run, path)) continue;
        TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->gradients[weight]));
        TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->partials[weight]));
    }
cleanup:
    return status;
}

int64_t sharded_checkpoint_width(const sharded_mlp *mlp, int checkpoint)
{
    if (checkpoint == SHARDED_Y) return mlp->config.emb_dim;
    return checkpoint == SHARDED_AB ? 2 * mlp->config.mlp_dim : mlp->config.mlp_dim;
}

assay_status sharded_mlp_alloc(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run, int64_t checkpoint_rows)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = mlp->config.rows, width = mlp->config.mlp_dim, dim = mlp->config.emb_dim;
    TRY(alloc_weights(ctx, mlp, run));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    for (int checkpoint = 0; checkpoint < SHARDED_CHECKPOINTS; checkpoint++) {
        const char *path = sharded_checkpoint_path(mlp->routed, checkpoint);
        mlp->given[checkpoint] = path != NULL && run->in->has(run->in->self, path);
        if (checkpoint == SHARDED_Y || !sharded_wants_checkpoint(run, mlp->routed, checkpoint)) continue;
        const int64_t count = checkpoint_rows * sharded_checkpoint_width(mlp, checkpoint);
        TRY(assay_alloc_f64(ctx, path, count, &mlp->kept[checkpoint]));
        memset(mlp->kept[checkpoint], 0, (size_t)count * sizeof *mlp->kept[checkpoint]);
    }
    if (mlp->tensor_shards > 1) {
        TRY(assay_alloc_f64(ctx, "product of a tensor shard", rows * mlp->residuals.ld, &mlp->tensor_partial));
    }
    if (mlp->routed && run->sharding->weight_before_wo) {
        TRY(assay_alloc_f64(ctx, "weighted h", rows * width, &mlp->weighted_h));
        TRY(assay_alloc_f64(ctx, "dh", rows * width, &mlp->dh));
        TRY(assay_alloc_f64(ctx, "weighted dy", rows * dim, &mlp->weighted_dy));
    }
cleanup:
    return status;
}

void sharded_mlp_free(sharded_mlp *mlp)
{
    for (int weight = 0; weight < SHARDED_WEIGHTS; weight++) {
        free(mlp->weights[weight]);
        free(mlp->gradients[weight]);
        free(mlp->partials[weight]);
    }
    for (int checkpoint = 0; checkpoint < SHARDED_CHECKPOINTS; checkpoint++) free(mlp->kept[checkpoint]);
    assay_gated_mlp_residuals_free(&mlp->residuals);
    free(mlp->tensor_partial);
    free(mlp->weighted_h);
    free(mlp->dh);
    free(mlp->weighted_dy);
    memset(mlp, 0, sizeof *mlp);
}

assay_status sharded_mlp_read(assay_context *ctx, sharded_mlp *mlp, const assay_source *in, int64_t expert)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < SHARDED_WEIGHTS; weight++) {
        const int64_t size = mlp->sizes[weight];
        if (mlp->weights[weight] == NULL) continue;
        TRY(in->read(ctx, in->self, sharded_weight_path(mlp->routed, weight), expert * size, size,
                     mlp->weights[weight]));
    }
cleanup:
    return status;
}

assay_status sharded_mlp_write(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < SHARDED_WEIGHTS; weight++) {
        const int64_t size = mlp->sizes[weight];
        if (mlp->gradients[weight] == NULL) continue;
        if (!mlp->summing) memset(mlp->gradients[weight], 0, (size_t)size * sizeof *mlp->gradients[weight]);
        TRY(sharded_write_gradient(ctx, run, sharded_weight_path(mlp->routed, weight), size, mlp->gradients[weight]));
    }
    mlp->summing = false;
cleanup:
    return status;
}
