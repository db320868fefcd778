#include "oracle/spec/spec_internal.h"

void spec_mlp_row(const spec_mlp *mlp, const spec_quad *x, spec_quad *a, spec_quad *b, spec_quad *h, spec_quad *y)
{
    spec_vector_matrix(mlp->emb_dim, mlp->mlp_dim, x, mlp->wi_0, mlp->ld, a);
    spec_vector_matrix(mlp->emb_dim, mlp->mlp_dim, x, mlp->wi_1, mlp->ld, b);
    for (int64_t j = 0; j < mlp->mlp_dim; j++) {
        if (mlp->wi_0_bias != NULL) a[j] += mlp->wi_0_bias[j];
        if (mlp->wi_1_bias != NULL) b[j] += mlp->wi_1_bias[j];
        h[j] = spec_glu(mlp->activation, mlp->glu, mlp->limit, a[j], b[j]);
    }
    spec_vector_matrix(mlp->mlp_dim, mlp->emb_dim, h, mlp->wo, mlp->emb_dim, y);
    for (int64_t d = 0; mlp->wo_bias != NULL && d < mlp->emb_dim; d++) y[d] += mlp->wo_bias[d];
}

static assay_status read_weights(assay_context *ctx, const assay_gated_mlp_config *config, const spec_tensors *in,
                                 spec_mlp *mlp)
{
    assay_status status = ASSAY_OK;
    int64_t emb_dim = config->emb_dim, mlp_dim = config->mlp_dim;
    *mlp = (spec_mlp){.emb_dim = emb_dim,
                      .mlp_dim = mlp_dim,
                      .ld = config->fused ? 2 * mlp_dim : mlp_dim,
                      .activation = {config->activation[0], config->activation[1]},
                      .glu = config->glu,
                      .limit = config->limit};
    if (config->fused) {
        TRY(spec_read(ctx, in, "weights/wi/kernel", emb_dim * 2 * mlp_dim, &mlp->wi_0));
        mlp->wi_1 = mlp->wi_0 + mlp_dim;
    } else {
        TRY(spec_read(ctx, in, "weights/wi_0/kernel", emb_dim * mlp_dim, &mlp->wi_0));
        TRY(spec_read(ctx, in, "weights/wi_1/kernel", emb_dim * mlp_dim, &mlp->wi_1));
    }
    TRY(spec_read(ctx, in, "weights/wo/kernel", mlp_dim * emb_dim, &mlp->wo));
    TRY(spec_read_optional(ctx, in, "weights/wi_0/bias", mlp_dim, &mlp->wi_0_bias));
    TRY(spec_read_optional(ctx, in, "weights/wi_1/bias", mlp_dim, &mlp->wi_1_bias));
    TRY(spec_read_optional(ctx, in, "weights/wo/bias", emb_dim, &mlp->wo_bias));
cleanup:
    return status;
}

assay_status spec_gated_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const spec_tensors *in,
                            spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const spec_tensor *x = NULL;
    spec_mlp mlp;
    spec_quad *y = NULL, *a = NULL, *b = NULL, *both = NULL, *down = NULL, *h = NULL;
    int64_t rows = 0, emb_dim = 0, mlp_dim = config->mlp_dim;
    TRY(spec_read_rows(ctx, in, "inputs/x", &x, &rows, &emb_dim));
    if (emb_dim != config->emb_dim) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "the last axis of 'inputs/x' is %lld, expected %lld",
                            (long long)emb_dim, (long long)config->emb_dim);
        goto cleanup;
    }
    TRY(read_weights(ctx, config, in, &mlp));
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
