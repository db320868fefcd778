/* A gated MLP on the rows of one shard: gmm_up, the sum over tensor shards, the activation, gmm_down, and their
 * transposes in reverse order. */
#include <string.h>

#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/ops/vector_sums.h"

void sharded_add(const assay_context *ctx, int64_t count, double *total, double *term)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, total);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) total[i] += term[i];
}

/* The part of a product with w [D,ld] that one tensor shard has the slice of D for, in chunks that continue one chain.
 */
static assay_status up_slice(assay_context *ctx, const sharded_mlp *mlp, int64_t slice, double *out, const double *x,
                             const double *w)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim, ld = mlp->residuals.ld, rows = mlp->config.rows;
    const int64_t width = dim / mlp->tensor_shards / mlp->emb_chunks;
    for (int64_t chunk = 0; chunk < mlp->emb_chunks; chunk++) {
        const int64_t first = (slice * mlp->emb_chunks + chunk) * width;
        assay_matmul_args args = assay_product_ab(out, x + first, w + first * ld, rows, ld, width);
        args.lda = dim;
        args.accumulate = chunk > 0;
        args.kind = ASSAY_PRODUCT_LINEAR;
        if (chunk > 0) assay_round(ctx, ASSAY_ROUND_STORAGE, rows * ld, out);
        TRY(assay_matmul(ctx, &args));
    }
cleanup:
    return status;
}

static assay_status up_product(assay_context *ctx, sharded_mlp *mlp, double *out, const double *x, const double *w)
{
    assay_status status = ASSAY_OK;
    for (int64_t slice = 0; slice < mlp->tensor_shards; slice++) {
        TRY(up_slice(ctx, mlp, slice, slice == 0 ? out : mlp->tensor_partial, x, w));
        if (slice > 0) sharded_add(ctx, mlp->config.rows * mlp->residuals.ld, out, mlp->tensor_partial);
    }
cleanup:
    return status;
}

/* Biases come once, after all chunks and tensor shards. */
static void finish_branch(const assay_context *ctx, const sharded_mlp *mlp, double *branch, const double *bias)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < mlp->config.rows; row++) {
        double *values = branch + row * mlp->residuals.ld;
        for (int64_t i = 0; bias != NULL && i < mlp->config.mlp_dim; i++) values[i] += bias[i];
        assay_round(ctx, ASSAY_ROUND_STORAGE, mlp->config.mlp_dim, values);
    }
}

static assay_status read_given(assay_context *ctx, const sharded_mlp *mlp, const assay_source *in, int checkpoint,
                               const sharded_piece *piece, double *values)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
    return in->read(ctx, in->self, path, piece->first * width, piece->count * width, values);
}

/* Both branches, tensor-parallel reduce included; what is given is not computed. */
static assay_status gmm_up(assay_context *ctx, sharded_mlp *mlp, const assay_source *in, const sharded_piece *piece)
{
    assay_status status = ASSAY_OK;
    double *const *w = mlp->weights, *a = mlp->residuals.a, *b = mlp->residuals.b;
    const bool fused = mlp->config.fused, both = mlp->given[ASSAY_MLPWI];
    const bool gate = mlp->given[ASSAY_MLPWI_0] || both, up = mlp->given[ASSAY_MLPWI_1] || both;
    if (both) TRY(read_given(ctx, mlp, in, ASSAY_MLPWI, piece, a));
    if (fused && !both) TRY(up_product(ctx, mlp, a, piece->x, w[ASSAY_MLP_WI]));
    if (!fused && gate) TRY(read_given(ctx, mlp, in, ASSAY_MLPWI_0, piece, a));
    if (!fused && up) TRY(read_given(ctx, mlp, in, ASSAY_MLPWI_1, piece, b));
    if (!fused && !gate) TRY(up_product(ctx, mlp, a, piece->x, w[ASSAY_MLP_WI_0]));
    if (!fused && !up) TRY(up_product(ctx, mlp, b, piece->x, w[ASSAY_MLP_WI_1]));
    if (!gate) finish_branch(ctx, mlp, a, w[ASSAY_MLP_WI_0_BIAS]);
    if (!up) finish_branch(ctx, mlp, b, w[ASSAY_MLP_WI_1_BIAS]);
cleanup:
    return status;
}

static void keep_branch(const sharded_mlp *mlp, double *kept, int64_t kept_ld, const double *branch,
                        const sharded_piece *piece)
{
    for (int64_t row = 0; kept != NULL && row < piece->count; row++) {
        memcpy(kept + (piece->first + row) * kept_ld, branch + row * mlp->residuals.ld,
               (size_t)mlp->config.mlp_dim * sizeof *kept);
    }
}

static void keep_checkpoints(const sharded_mlp *mlp, const sharded_piece *piece)
{
    const int64_t width = mlp->config.mlp_dim;
    double *both = mlp->kept[ASSAY_MLPWI];
    keep_branch(mlp, mlp->kept[ASSAY_MLPWI_0], width, mlp->residuals.a, piece);
    keep_branch(mlp, mlp->kept[ASSAY_MLPWI_1], width, mlp->residuals.b, piece);
    keep_branch(mlp, both, 2 * width, mlp->residuals.a, piece);
    keep_branch(mlp, both == NULL ? NULL : both + width, 2 * width, mlp->residuals.b, piece);
}

/* y = h wo + wo_bias, or (weight h) wo + weight wo_bias. */
static assay_status gmm_down(assay_context *ctx, const sharded_mlp *mlp, const assay_source *in,
                             const sharded_piece *piece)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim;
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const double *bias = weights.w[ASSAY_MLP_WO_BIAS];
    if (mlp->given[ASSAY_MLPWO]) return read_given(ctx, mlp, in, ASSAY_MLPWO, piece, piece->y);
    assay_gated_mlp_residuals r = mlp->residuals;
    if (piece->weights != NULL) {
        assay_weigh_rows(ctx, mlp->weighted_h, piece->weights, r.h, piece->count, mlp->config.mlp_dim);
        r.h = mlp->weighted_h;
        weights.w[ASSAY_MLP_WO_BIAS] = NULL;
    }
    TRY(assay_gated_mlp_down(ctx, piece->y, &r, &weights, &mlp->config));
    for (int64_t row = 0; piece->weights != NULL && bias != NULL && row < piece->count; row++)
        assay_add_scaled(ctx, dim, piece->weights[row], bias, piece->y + row * dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, piece->count * dim, piece->y);
cleanup:
    return status;
}

assay_status sharded_mlp_forward(assay_context *ctx, sharded_mlp *mlp, const assay_source *in,
                                 const sharded_piece *piece)
{
    assay_status status = ASSAY_OK;
    mlp->config.rows = piece->count;
    TRY(gmm_up(ctx, mlp, in, piece));
    keep_checkpoints(mlp, piece);
    assay_gated_mlp_gate(ctx, &mlp->residuals, &mlp->config);
    TRY(gmm_down(ctx, mlp, in, piece));
cleanup:
    return status;
}

/* Of weights on h: d_weight = <h, dy wo^T> + <wo_bias, dy>. */
static assay_status weight_gradients(assay_context *ctx, const sharded_mlp *mlp, const sharded_piece *piece)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim, width = mlp->config.mlp_dim;
    const assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const assay_gated_mlp_gradients g = {.dh = mlp->dh};
    const double *bias = weights.w[ASSAY_MLP_WO_BIAS];
    TRY(assay_gated_mlp_backward(ctx, &g, piece->dy, &mlp->residuals, piece->x, &weights, &mlp->config));
    for (int64_t row = 0; row < piece->count; row++) {
        double d_weight = assay_dot(ctx, width, mlp->residuals.h + row * width, mlp->dh + row * width);
        if (bias != NULL) d_weight += assay_dot(ctx, dim, bias, piece->dy + row * dim);
        piece->d_weights[row] = d_weight;
    }
cleanup:
    return status;
}

assay_status sharded_mlp_backward(assay_context *ctx, sharded_mlp *mlp, const sharded_piece *piece)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const double *dy = piece->dy;
    const assay_gated_mlp_gradients g =
        assay_gated_mlp_gradients_of(piece->dx, mlp->summing ? mlp->partials : mlp->gradients);
    mlp->config.rows = piece->count;
    if (piece->d_weights != NULL) TRY(weight_gradients(ctx, mlp, piece));
    if (piece->weights != NULL) {
        /* A weight on h is a weight on dy: (weight h)^T dy = h^T (weight dy). */
        assay_weigh_rows(ctx, mlp->weighted_dy, piece->weights, dy, piece->count, mlp->config.emb_dim);
        dy = mlp->weighted_dy;
    }
    TRY(assay_gated_mlp_backward(ctx, &g, dy, &mlp->residuals, piece->x, &weights, &mlp->config));
    if (piece->dx != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, piece->count * mlp->config.emb_dim, piece->dx);
    for (int weight = 0; mlp->summing && weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (mlp->gradients[weight] == NULL) continue;
        sharded_add(ctx, assay_tensor_row_count(&mlp->table.rows[weight]), mlp->gradients[weight],
                    mlp->partials[weight]);
    }
    mlp->summing = true;
cleanup:
    return status;
}
