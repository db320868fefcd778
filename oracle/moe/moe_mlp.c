/* One gated MLP of a block with its buffers: they are allocated once and serve every expert in turn. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

assay_status moe_mlp_alloc(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const assay_source *in, bool keep_dh)
{
    assay_status status = ASSAY_OK;
    mlp->most = mlp->config.rows;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        char path[ASSAY_PATH_SIZE];
        mlp->given[checkpoint] =
            assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path) > 0 && in->has(in->self, path);
    }
    mlp->table = assay_mlp_weight_table(&mlp->config, mlp->place);
    TRY(assay_weights_alloc(ctx, in, "", &mlp->table, mlp->weights));
    TRY(assay_gradients_alloc(ctx, r->out, "", &mlp->table, mlp->weights, mlp->gradients));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    if (keep_dh) TRY(assay_alloc_f64(ctx, "dh", mlp->most * mlp->config.mlp_dim, &mlp->dh));
cleanup:
    return status;
}

void moe_mlp_free(moe_mlp *mlp)
{
    assay_weights_free(&mlp->table, mlp->weights);
    assay_weights_free(&mlp->table, mlp->gradients);
    assay_gated_mlp_residuals_free(&mlp->residuals);
    free(mlp->dh);
    memset(mlp, 0, sizeof *mlp);
}

assay_status moe_mlp_read(assay_context *ctx, moe_mlp *mlp, const assay_source *in, int64_t expert)
{
    return assay_weights_read(ctx, in, "", &mlp->table, expert, mlp->weights);
}

static assay_status forward_up(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows)
{
    assay_status status = ASSAY_OK;
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const bool gate = mlp->given[ASSAY_MLPWI_0], up = mlp->given[ASSAY_MLPWI_1], both = mlp->given[ASSAY_MLPWI];
    if (gate) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI_0, rows, mlp->residuals.a));
    if (up) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI_1, rows, mlp->residuals.b));
    if (both) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI, rows, mlp->residuals.a));
    if (both || (gate && up)) return ASSAY_OK;
    TRY(assay_gated_mlp_up(ctx, &mlp->residuals,
                           gate ? ASSAY_BRANCH_UP
                           : up ? ASSAY_BRANCH_GATE
                                : ASSAY_BRANCH_BOTH,
                           rows->x, &weights, &mlp->config));
cleanup:
    return status;
}

assay_status moe_mlp_forward(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows, bool down)
{
    assay_status status = ASSAY_OK;
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    mlp->config.rows = rows->count;
    TRY(forward_up(ctx, mlp, block, rows));
    assay_gated_mlp_gate(ctx, &mlp->residuals, &mlp->config);
    if (!down) return ASSAY_OK;
    if (mlp->given[ASSAY_MLPWO]) {
        TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWO, rows, rows->y));
    } else {
        TRY(assay_gated_mlp_down(ctx, rows->y, &mlp->residuals, &weights, &mlp->config));
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * mlp->config.emb_dim, rows->y);
    }
cleanup:
    return status;
}

assay_status moe_mlp_backward(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const moe_rows *rows)
{
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    assay_gated_mlp_gradients gradients = assay_gated_mlp_gradients_of(rows->dx, mlp->gradients);
    gradients.dh = mlp->dh;
    mlp->config.rows = rows->count;
    assay_status status =
        assay_gated_mlp_backward(ctx, &gradients, rows->dy, &mlp->residuals, rows->x, &weights, &mlp->config);
    if (rows->dx != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * mlp->config.emb_dim, rows->dx);
    return status == ASSAY_OK ? assay_gradients_write(ctx, r->out, "", &mlp->table, mlp->gradients) : status;
}

assay_status moe_mlp_write_zeros(assay_context *ctx, const moe_mlp *mlp, const moe_results *r)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const int gradient = mlp->first_result + MLP_GRADIENT + weight;
        const int64_t count = assay_tensor_row_count(&mlp->table.rows[weight]);
        if (!moe_wants(r, gradient)) continue;
        memset(mlp->gradients[weight], 0, (size_t)count * sizeof(double));
        TRY(moe_write(ctx, r, gradient, count, mlp->gradients[weight]));
    }
cleanup:
    return status;
}
