#include "oracle/spec/spec_internal.h"

void spec_mlp_row(const spec_mlp *mlp, const spec_quad *x, spec_quad *a, spec_quad *b, spec_quad *h, spec_quad *y)
{
    const assay_gated_mlp_config *config = &mlp->config;
    const int64_t dim = config->emb_dim, width = config->mlp_dim, ld = config->fused ? 2 * width : width;
    const spec_quad *wi_0 = mlp->w[config->fused ? ASSAY_MLP_WI : ASSAY_MLP_WI_0];
    const spec_quad *wi_1 = config->fused ? wi_0 + width : mlp->w[ASSAY_MLP_WI_1];
    const spec_quad *wi_0_bias = mlp->w[ASSAY_MLP_WI_0_BIAS], *wi_1_bias = mlp->w[ASSAY_MLP_WI_1_BIAS];
    const spec_quad *wo_bias = mlp->w[ASSAY_MLP_WO_BIAS];
    spec_vector_matrix(dim, width, x, wi_0, ld, a);
    spec_vector_matrix(dim, width, x, wi_1, ld, b);
    for (int64_t j = 0; j < width; j++) {
        if (wi_0_bias != NULL) a[j] += wi_0_bias[j];
        if (wi_1_bias != NULL) b[j] += wi_1_bias[j];
        h[j] = spec_glu(config->activation, config->glu, config->limit, a[j], b[j]);
    }
    spec_vector_matrix(width, dim, h, mlp->w[ASSAY_MLP_WO], dim, y);
    for (int64_t d = 0; wo_bias != NULL && d < dim; d++) y[d] += wo_bias[d];
}

assay_status spec_gated_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const spec_tensors *in,
                            spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const spec_tensor *x = NULL;
    spec_mlp mlp = {.config = *config};
    const assay_tensor_table weights = assay_mlp_weight_table(config, ASSAY_MLP_DENSE);
    spec_quad *y = NULL, *a = NULL, *b = NULL, *both = NULL, *down = NULL, *h = NULL;
    int64_t rows = 0, emb_dim = 0, mlp_dim = config->mlp_dim;
    TRY(spec_read_rows(ctx, in, "inputs/x", &x, &rows, &emb_dim));
    if (emb_dim != config->emb_dim) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "the last axis of 'inputs/x' is %lld, expected %lld",
                            (long long)emb_dim, (long long)config->emb_dim);
        goto cleanup;
    }
    TRY(spec_read_weights(ctx, &weights, in, 1, mlp.w));
    assay_shape hidden = x->shape, wide = x->shape;
    hidden.dims[hidden.rank - 1] = mlp_dim;
    wide.dims[wide.rank - 1] = 2 * mlp_dim;
    TRY(spec_tensors_add(ctx, out, "outputs/y", &x->shape, &y));
    TRY(spec_tensors_add(ctx, out, "checkpoints/mlpwi_0", &hidden, &a));
    TRY(spec_tensors_add(ctx, out, "checkpoints/mlpwi_1", &hidden, &b));
    if (config->fused) TRY(spec_tensors_add(ctx, out, "checkpoints/mlpwi", &wide, &both));
    TRY(spec_tensors_add(ctx, out, "checkpoints/mlpwo", &x->shape, &down));
    TRY(spec_alloc(ctx, mlp_dim, &h));
    for (int64_t row = 0; row < rows; row++) {
        spec_quad *row_a = a + row * mlp_dim, *row_b = b + row * mlp_dim;
        spec_mlp_row(&mlp, x->values + row * emb_dim, row_a, row_b, h, y + row * emb_dim);
        for (int64_t d = 0; d < emb_dim; d++) down[row * emb_dim + d] = y[row * emb_dim + d];
        for (int64_t j = 0; both != NULL && j < 2 * mlp_dim; j++) {
            both[row * 2 * mlp_dim + j] = j < mlp_dim ? row_a[j] : row_b[j - mlp_dim];
        }
    }
cleanup:
    free(h);
    return status;
}
