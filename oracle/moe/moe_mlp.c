/* One gated MLP of a block with its buffers: they are allocated once and serve every expert in turn. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static assay_status alloc_weights(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const assay_source *in)
{
    assay_status status = ASSAY_OK;
    mlp->table = assay_mlp_weight_table(&mlp->config, mlp->place);
    TRY(assay_weights_alloc(ctx, in, "", &mlp->table, mlp->weights));
    TRY(assay_gradients_alloc(ctx, r->out, "", &mlp->table, mlp->weights, mlp->gradients));
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row *row = &mlp->table.rows[weight];
        if (!moe_wants_any_scale(r, mlp->first_result + MLP_GRADIENT + weight)) continue;
        TRY(assay_alloc_f64(ctx, row->name, assay_tensor_row_count(row), &mlp->variances[weight]));
    }
cleanup:
    return status;
}

assay_status moe_mlp_alloc(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const assay_source *in,
                           const moe_mlp_needs *needs)
{
    assay_status status = ASSAY_OK;
    int64_t wide = mlp->config.rows * mlp->config.mlp_dim, rows = mlp->config.rows * mlp->config.emb_dim;
    int first = mlp->first_result;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        char path[ASSAY_PATH_SIZE];
        mlp->given[checkpoint] =
            assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path) > 0 && in->has(in->self, path);
    }
    TRY(alloc_weights(ctx, mlp, r, in));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    bool both = moe_wants_any_scale(r, first + ASSAY_MLPWI);
    if (both || moe_wants_any_scale(r, first + ASSAY_MLPWI_0)) {
        TRY(assay_alloc_f64(ctx, "variance of a", wide, &mlp->variance_a));
    }
    if (both || moe_wants_any_scale(r, first + ASSAY_MLPWI_1)) {
        TRY(assay_alloc_f64(ctx, "variance of b", wide, &mlp->variance_b));
    }
    if (needs->h) {
        TRY(assay_alloc_f64(ctx, "variance of h", wide, &mlp->variance_h));
        TRY(assay_alloc_f64(ctx, "dh", wide, &mlp->dh));
    }
    if (needs->y || moe_wants_any_scale(r, first + ASSAY_MLPWO)) {
        TRY(assay_alloc_f64(ctx, "variance of y", rows, &mlp->variance_y));
    }
    if (needs->dx) TRY(assay_alloc_f64(ctx, "variance of dx", rows, &mlp->variance_dx));
cleanup:
    return status;
}

void moe_mlp_free(moe_mlp *mlp)
{
    assay_weights_free(&mlp->table, mlp->weights);
    assay_weights_free(&mlp->table, mlp->gradients);
    assay_weights_free(&mlp->table, mlp->variances);
    assay_gated_mlp_residuals_free(&mlp->residuals);
    free(mlp->dh);
    free(mlp->variance_a);
    free(mlp->variance_b);
    free(mlp->variance_h);
    free(mlp->variance_y);
    free(mlp->variance_dx);
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

assay_status moe_mlp_gauge(assay_context *ctx, moe_mlp *mlp, const moe_results *r, int precision, const moe_rows *rows,
                           const moe_row_variances *given, const moe_mlp_needs *needs)
{
    int first = mlp->first_result;
    assay_gated_mlp_gradients gradients = {.dx = needs->dx ? mlp->variance_dx : NULL};
    const double *dy = needs->dx ? rows->dy : NULL;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (!moe_wants(r, precision, first + MLP_GRADIENT + weight)) continue;
        gradients.g[weight] = mlp->variances[weight];
        dy = rows->dy;
    }
    bool both = moe_wants(r, precision, first + ASSAY_MLPWI);
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    assay_gated_mlp_variances variances = {
        .x = given->x,
        .weighted = given->weighted_h,
        .a = both || moe_wants(r, precision, first + ASSAY_MLPWI_0) ? mlp->variance_a : NULL,
        .b = both || moe_wants(r, precision, first + ASSAY_MLPWI_1) ? mlp->variance_b : NULL,
        .h = needs->h ? mlp->variance_h : NULL,
        .y = needs->y || moe_wants(r, precision, first + ASSAY_MLPWO) ? mlp->variance_y : NULL,
        .gradients = gradients,
    };
    mlp->config.rows = rows->count;
    assay_status status = assay_gated_mlp_gauge(ctx, &r->precisions[precision], &variances, dy, given->dy,
                                                &mlp->residuals, rows->x, &weights, &mlp->config);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS && status == ASSAY_OK && dy != NULL; weight++) {
        status = moe_write(ctx, r, precision, first + MLP_GRADIENT + weight,
                           assay_tensor_row_count(&mlp->table.rows[weight]), gradients.g[weight]);
    }
    return status;
}

assay_status moe_mlp_write_zeros(assay_context *ctx, moe_mlp *mlp, const moe_results *r)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const int gradient = mlp->first_result + MLP_GRADIENT + weight;
        const int64_t count = assay_tensor_row_count(&mlp->table.rows[weight]);
        for (int precision = -1; precision < r->precision_count; precision++) {
            double *zeros = precision < 0 ? mlp->gradients[weight] : mlp->variances[weight];
            if (!moe_wants(r, precision, gradient)) continue;
            memset(zeros, 0, (size_t)count * sizeof *zeros);
            TRY(moe_write(ctx, r, precision, gradient, count, zeros));
        }
    }
cleanup:
    return status;
}
