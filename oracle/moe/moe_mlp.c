/* One gated MLP of a block with its buffers: they are allocated once and serve every expert in turn. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static const char *const routed_paths[MLP_WEIGHTS] = {
    [MLP_WI] = "weights/wi",           [MLP_WI_0] = "weights/wi_0",           [MLP_WI_1] = "weights/wi_1",
    [MLP_WO] = "weights/wo",           [MLP_WI_0_BIAS] = "weights/wi_0_bias", [MLP_WI_1_BIAS] = "weights/wi_1_bias",
    [MLP_WO_BIAS] = "weights/wo_bias",
};
static const char *const shared_paths[MLP_WEIGHTS] = {
    [MLP_WI_0] = "weights/shared_experts/wi_0/kernel",
    [MLP_WI_1] = "weights/shared_experts/wi_1/kernel",
    [MLP_WO] = "weights/shared_experts/wo/kernel",
};

static const char *weight_path(const moe_mlp *mlp, int weight)
{
    return mlp->first_result == MOE_SHARED ? shared_paths[weight] : routed_paths[weight];
}

/* Kernels must be there (reading says so when they are not), biases may be. */
static bool has_weight(const moe_mlp *mlp, const assay_source *in, int weight)
{
    const char *path = weight_path(mlp, weight);
    if (path == NULL) return false;
    if (weight == MLP_WI) return mlp->config.fused;
    if (weight == MLP_WI_0 || weight == MLP_WI_1) return !mlp->config.fused;
    return weight == MLP_WO || in->has(in->self, path);
}

static assay_status alloc_weights(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const assay_source *in)
{
    assay_status status = ASSAY_OK;
    int64_t dim = mlp->config.emb_dim, width = mlp->config.mlp_dim;
    const int64_t sizes[MLP_WEIGHTS] = {
        [MLP_WI] = dim * 2 * width, [MLP_WI_0] = dim * width, [MLP_WI_1] = dim * width, [MLP_WO] = width * dim,
        [MLP_WI_0_BIAS] = width,    [MLP_WI_1_BIAS] = width,  [MLP_WO_BIAS] = dim,
    };
    memcpy(mlp->sizes, sizes, sizeof sizes);
    for (int weight = 0; weight < MLP_WEIGHTS; weight++) {
        int gradient = mlp->first_result + MLP_GRADIENT + weight;
        if (!has_weight(mlp, in, weight)) continue;
        const char *path = weight_path(mlp, weight);
        TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->weights[weight]));
        if (moe_wants(r, -1, gradient)) TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->gradients[weight]));
        if (moe_wants_any_scale(r, gradient)) TRY(assay_alloc_f64(ctx, path, sizes[weight], &mlp->variances[weight]));
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
    for (int checkpoint = 0; checkpoint < MLP_CHECKPOINTS; checkpoint++) {
        const char *path = moe_checkpoint_path(mlp, checkpoint);
        mlp->given[checkpoint] = path != NULL && in->has(in->self, path);
    }
    TRY(alloc_weights(ctx, mlp, r, in));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    bool both = moe_wants_any_scale(r, first + MLP_AB);
    if (both || moe_wants_any_scale(r, first + MLP_A)) {
        TRY(assay_alloc_f64(ctx, "variance of a", wide, &mlp->variance_a));
    }
    if (both || moe_wants_any_scale(r, first + MLP_B)) {
        TRY(assay_alloc_f64(ctx, "variance of b", wide, &mlp->variance_b));
    }
    if (needs->h) {
        TRY(assay_alloc_f64(ctx, "variance of h", wide, &mlp->variance_h));
        TRY(assay_alloc_f64(ctx, "dh", wide, &mlp->dh));
    }
    if (needs->y || moe_wants_any_scale(r, first + MLP_Y)) {
        TRY(assay_alloc_f64(ctx, "variance of y", rows, &mlp->variance_y));
    }
    if (needs->dx) TRY(assay_alloc_f64(ctx, "variance of dx", rows, &mlp->variance_dx));
cleanup:
    return status;
}

void moe_mlp_free(moe_mlp *mlp)
{
    for (int weight = 0; weight < MLP_WEIGHTS; weight++) {
        free(mlp->weights[weight]);
        free(mlp->gradients[weight]);
        free(mlp->variances[weight]);
    }
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
    for (int weight = 0; weight < MLP_WEIGHTS; weight++) {
        int64_t size = mlp->sizes[weight];
        if (mlp->weights[weight] == NULL) continue;
        assay_status status =
            in->read(ctx, in->self, weight_path(mlp, weight), expert * size, size, mlp->weights[weight]);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

static assay_gated_mlp_weights weights_of(const moe_mlp *mlp)
{
    return (assay_gated_mlp_weights){
        .wi = mlp->weights[MLP_WI],
        .wi_0 = mlp->weights[MLP_WI_0],
        .wi_1 = mlp->weights[MLP_WI_1],
        .wo = mlp->weights[MLP_WO],
        .wi_0_bias = mlp->weights[MLP_WI_0_BIAS],
        .wi_1_bias = mlp->weights[MLP_WI_1_BIAS],
        .wo_bias = mlp->weights[MLP_WO_BIAS],
    };
}

/* Gradients or their variances, in the struct that gated_mlp.h takes. */
static assay_gated_mlp_gradients gradients_of(double *const *buffers, double *dx, double *dh)
{
    return (assay_gated_mlp_gradients){
        .dx = dx,
        .dwi = buffers[MLP_WI],
        .dwi_0 = buffers[MLP_WI_0],
        .dwi_1 = buffers[MLP_WI_1],
        .dwo = buffers[MLP_WO],
        .dwi_0_bias = buffers[MLP_WI_0_BIAS],
        .dwi_1_bias = buffers[MLP_WI_1_BIAS],
        .dwo_bias = buffers[MLP_WO_BIAS],
        .dh = dh,
    };
}

static assay_status forward_up(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows)
{
    assay_status status = ASSAY_OK;
    assay_gated_mlp_weights weights = weights_of(mlp);
    const bool gate = mlp->given[MLP_A], up = mlp->given[MLP_B], both = mlp->given[MLP_AB];
    if (gate) TRY(moe_read_given(ctx, mlp, block, MLP_A, rows, mlp->residuals.a));
    if (up) TRY(moe_read_given(ctx, mlp, block, MLP_B, rows, mlp->residuals.b));
    if (both) TRY(moe_read_given(ctx, mlp, block, MLP_AB, rows, mlp->residuals.a));
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
    assay_gated_mlp_weights weights = weights_of(mlp);
    mlp->config.rows = rows->count;
    TRY(forward_up(ctx, mlp, block, rows));
    assay_gated_mlp_gate(ctx, &mlp->residuals, &mlp->config);
    if (!down) return ASSAY_OK;
    if (mlp->given[MLP_Y]) {
        TRY(moe_read_given(ctx, mlp, block, MLP_Y, rows, rows->y));
    } else {
        TRY(assay_gated_mlp_down(ctx, rows->y, &mlp->residuals, &weights, &mlp->config));
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * mlp->config.emb_dim, rows->y);
    }
cleanup:
    return status;
}

assay_status moe_mlp_backward(assay_context *ctx, moe_mlp *mlp, const moe_results *r, const moe_rows *rows)
{
    assay_gated_mlp_weights weights = weights_of(mlp);
    assay_gated_mlp_gradients gradients = gradients_of(mlp->gradients, rows->dx, mlp->dh);
    mlp->config.rows = rows->count;
    assay_status status =
        assay_gated_mlp_backward(ctx, &gradients, rows->dy, &mlp->residuals, rows->x, &weights, &mlp->config);
    if (rows->dx != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * mlp->config.emb_dim, rows->dx);
    for (int weight = 0; weight < MLP_WEIGHTS && status == ASSAY_OK; weight++) {
        status = moe_write(ctx, r, -1, mlp->first_result + MLP_GRADIENT + weight, mlp->sizes[weight],
                           mlp->gradients[weight]);
    }
    return status;
}

assay_status moe_mlp_gauge(assay_context *ctx, moe_mlp *mlp, const moe_results *r, int precision, const moe_rows *rows,
                           const moe_row_variances *given, const moe_mlp_needs *needs)
{
    int first = mlp->first_result;
    double *buffers[MLP_WEIGHTS];
    const double *dy = needs->dx ? rows->dy : NULL;
    for (int weight = 0; weight < MLP_WEIGHTS; weight++) {
        buffers[weight] = moe_wants(r, precision, first + MLP_GRADIENT + weight) ? mlp->variances[weight] : NULL;
        if (buffers[weight] != NULL) dy = rows->dy;
    }
    bool both = moe_wants(r, precision, first + MLP_AB);
    assay_gated_mlp_weights weights = weights_of(mlp);
    assay_gated_mlp_variances variances = {
        .x = given->x,
        .weighted = given->weighted_h,
        .a = both || moe_wants(r, precision, first + MLP_A) ? mlp->variance_a : NULL,
        .b = both || moe_wants(r, precision, first + MLP_B) ? mlp->variance_b : NULL,
        .h = needs->h ? mlp->variance_h : NULL,
        .y = needs->y || moe_wants(r, precision, first + MLP_Y) ? mlp->variance_y : NULL,
        .gradients = gradients_of(buffers, needs->dx ? mlp->variance_dx : NULL, NULL),
    };
    mlp->config.rows = rows->count;
    assay_status status = assay_gated_mlp_gauge(ctx, &r->precisions[precision], &variances, dy, given->dy,
                                                &mlp->residuals, rows->x, &weights, &mlp->config);
    for (int weight = 0; weight < MLP_WEIGHTS && status == ASSAY_OK && dy != NULL; weight++) {
        status = moe_write(ctx, r, precision, first + MLP_GRADIENT + weight, mlp->sizes[weight], buffers[weight]);
    }
    return status;
}

assay_status moe_mlp_write_zeros(assay_context *ctx, moe_mlp *mlp, const moe_results *r)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < MLP_WEIGHTS; weight++) {
        int gradient = mlp->first_result + MLP_GRADIENT + weight;
        for (int precision = -1; precision < r->precision_count; precision++) {
            double *zeros = precision < 0 ? mlp->gradients[weight] : mlp->variances[weight];
            if (!moe_wants(r, precision, gradient)) continue;
            memset(zeros, 0, (size_t)mlp->sizes[weight] * sizeof *zeros);
            TRY(moe_write(ctx, r, precision, gradient, mlp->sizes[weight], zeros));
        }
    }
cleanup:
    return status;
}
