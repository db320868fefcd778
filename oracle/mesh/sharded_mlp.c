/* One gated MLP with its buffers: they are allocated once and serve every expert, and the rows of every shard, in turn.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

static assay_status alloc_weights(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    mlp->table = assay_mlp_weight_table(&mlp->config, mlp->place);
    TRY(assay_weights_alloc(ctx, run->in, "", &mlp->table, mlp->weights));
    TRY(assay_gradients_alloc(ctx, run->out, "", &mlp->table, mlp->weights, mlp->gradients));
    TRY(assay_gradients_alloc(ctx, run->out, "", &mlp->table, mlp->weights, mlp->partials));
cleanup:
    return status;
}

assay_status sharded_mlp_alloc(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run, int64_t checkpoint_rows)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = mlp->config.rows, width = mlp->config.mlp_dim, dim = mlp->config.emb_dim;
    TRY(alloc_weights(ctx, mlp, run));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        char path[ASSAY_PATH_SIZE];
        const int64_t count = checkpoint_rows * assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
        if (count == 0) continue;
        mlp->given[checkpoint] = run->in->has(run->in->self, path);
        if (checkpoint == ASSAY_MLPWO || !sharded_wants(run, path)) continue;
        TRY(assay_alloc_f64(ctx, path, count, &mlp->kept[checkpoint]));
        memset(mlp->kept[checkpoint], 0, (size_t)count * sizeof *mlp->kept[checkpoint]);
    }
    if (mlp->tensor_shards > 1) {
        TRY(assay_alloc_f64(ctx, "product of a tensor shard", rows * mlp->residuals.ld, &mlp->tensor_partial));
    }
    if (mlp->place == ASSAY_MLP_ROUTED && run->sharding->weight_before_wo) {
        TRY(assay_alloc_f64(ctx, "weighted h", rows * width, &mlp->weighted_h));
        TRY(assay_alloc_f64(ctx, "dh", rows * width, &mlp->dh));
        TRY(assay_alloc_f64(ctx, "weighted dy", rows * dim, &mlp->weighted_dy));
    }
cleanup:
    return status;
}

void sharded_mlp_free(sharded_mlp *mlp)
{
    assay_weights_free(&mlp->table, mlp->weights);
    assay_weights_free(&mlp->table, mlp->gradients);
    assay_weights_free(&mlp->table, mlp->partials);
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) free(mlp->kept[checkpoint]);
    assay_gated_mlp_residuals_free(&mlp->residuals);
    free(mlp->tensor_partial);
    free(mlp->weighted_h);
    free(mlp->dh);
    free(mlp->weighted_dy);
    memset(mlp, 0, sizeof *mlp);
}

assay_status sharded_mlp_read(assay_context *ctx, sharded_mlp *mlp, const assay_source *in, int64_t expert)
{
    return assay_weights_read(ctx, in, "", &mlp->table, expert, mlp->weights);
}

assay_status sharded_mlp_write(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run)
{
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS && !mlp->summing; weight++) {
        const int64_t count = assay_tensor_row_count(&mlp->table.rows[weight]);
        if (mlp->gradients[weight] != NULL) memset(mlp->gradients[weight], 0, (size_t)count * sizeof(double));
    }
    mlp->summing = false;
    return assay_gradients_write(ctx, run->out, "", &mlp->table, mlp->gradients);
}

assay_status sharded_write_kept(assay_context *ctx, const sharded_mlp *mlp, const sharded_run *run, int64_t rows)
{
    assay_status status = ASSAY_OK;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        char path[ASSAY_PATH_SIZE];
        if (mlp->kept[checkpoint] == NULL) continue;
        const int64_t count = rows * assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
        TRY(sharded_write(ctx, run, path, count, mlp->kept[checkpoint]));
    }
cleanup:
    return status;
}
