/* One gated MLP of a block with its buffers: they are allocated once and serve every expert, and every piece of its rows, in
 * turn. gmm_up, the sum over tensor shards, the activation, gmm_down; their transposes in reverse order. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/moe/permute.h"
#include "oracle/ops/quantised_spread.h"
#include "oracle/ops/requantise.h"
#include "oracle/ops/vector_sums.h"

static assay_status alloc_weights(assay_context *ctx, moe_mlp *mlp, const moe_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = block->results.out;
    const int64_t groups = mlp->config.groups;
    mlp->table = assay_mlp_weight_table(&mlp->config, mlp->place);
    for (int i = 0; groups > 0 && i < mlp->table.count; i++) {
        assay_tensor_row *row = &mlp->table.rows[i];
        if (row->name != NULL) *row = assay_tensor_row_below("E", &groups, *row);
    }
    TRY(assay_weights_alloc(ctx, block->in, "", &mlp->table, mlp->weights));
    TRY(assay_gradients_alloc(ctx, out, "", &mlp->table, mlp->weights, mlp->gradients));
    if (mlp->pieces > 1) TRY(assay_gradients_alloc(ctx, out, "", &mlp->table, mlp->weights, mlp->partials));
cleanup:
    return status;
}

/* Of gate and up together, as their values lie. */
static assay_status alloc_spreads(assay_context *ctx, moe_mlp *mlp)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = mlp->most, width = mlp->config.mlp_dim;
    if (mlp->spread[ASSAY_MLP_INTERMEDIATE]) TRY(assay_alloc_f64(ctx, "spread of h", rows * width, &mlp->h_spread));
    if (mlp->spread[ASSAY_MLPWO_GRADIENT])
        TRY(assay_alloc_f64(ctx, "spread of dy", rows * mlp->config.emb_dim, &mlp->dy_spread));
    if (mlp->spread[ASSAY_MLPWI_GRADIENT] || mlp->spread[ASSAY_MLPWI_0_GRADIENT])
        TRY(assay_alloc_f64(ctx, "spread of gradients", 2 * rows * width, &mlp->d_up_spread));
cleanup:
    return status;
}

assay_status moe_mlp_alloc(assay_context *ctx, moe_mlp *mlp, const moe_block *block)
{
    assay_status status = ASSAY_OK;
    const bool routed = mlp->place == ASSAY_MLP_ROUTED, weighs_h = routed && block->split.weighs_h;
    const int64_t rows = mlp->config.rows, width = mlp->config.mlp_dim;
    mlp->most = rows;
    mlp->config.hidden_shards = block->split.hidden_shards;
    mlp->tensor_shards = routed ? block->split.tensor_shards : 1;
    mlp->emb_chunks = routed ? block->split.emb_chunks : 1;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        char path[ASSAY_PATH_SIZE], staged[ASSAY_PATH_SIZE];
        if (assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path) == 0) continue;
        mlp->given[checkpoint] = block->in->has(block->in->self, path);
        assay_staged_path(path, staged);
        mlp->staged[checkpoint] = block->in->has(block->in->self, staged);
        assay_spread_path(path, staged);
        mlp->spread[checkpoint] = block->in->has(block->in->self, staged);
    }
    TRY(alloc_spreads(ctx, mlp));
    TRY(alloc_weights(ctx, mlp, block));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &mlp->residuals, &mlp->config));
    if (mlp->tensor_shards > 1)
        TRY(assay_alloc_f64(ctx, "product of a tensor shard", rows * mlp->residuals.ld, &mlp->tensor_partial));
    if (weighs_h || (routed && block->observer != NULL && block->need_router_gradient))
        TRY(assay_alloc_f64(ctx, "dh", rows * width, &mlp->dh));
    if (weighs_h) TRY(assay_alloc_f64(ctx, "weighted h", rows * width, &mlp->weighted_h));
    if (weighs_h) TRY(assay_alloc_f64(ctx, "weighted dy", rows * mlp->config.emb_dim, &mlp->weighted_dy));
cleanup:
    return status;
}

void moe_mlp_free(moe_mlp *mlp)
{
    assay_weights_free(&mlp->table, mlp->weights);
    assay_weights_free(&mlp->table, mlp->gradients);
    assay_weights_free(&mlp->table, mlp->partials);
    assay_gated_mlp_residuals_free(&mlp->residuals);
    free(mlp->tensor_partial);
    free(mlp->h_spread);
    free(mlp->dy_spread);
    free(mlp->d_up_spread);
    free(mlp->dh);
    free(mlp->weighted_h);
    free(mlp->weighted_dy);
    memset(mlp, 0, sizeof *mlp);
}

/* The part of a product with w [D,ld] that one tensor shard has the slice of D for, in chunks that continue one chain.
 */
static assay_status up_slice(assay_context *ctx, const moe_mlp *mlp, int64_t slice, double *out, const double *x,
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

static assay_status up_product(assay_context *ctx, const moe_mlp *mlp, double *out, const double *x, const double *w)
{
    assay_status status = ASSAY_OK;
    for (int64_t slice = 0; slice < mlp->tensor_shards; slice++) {
        TRY(up_slice(ctx, mlp, slice, slice == 0 ? out : mlp->tensor_partial, x, w));
        if (slice > 0) moe_join(ctx, mlp->config.rows * mlp->residuals.ld, out, mlp->tensor_partial);
    }
cleanup:
    return status;
}

/* Both branches, what is given read instead; biases come once, after all chunks and tensor shards. */
static assay_status forward_up(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_weights w = assay_gated_mlp_weights_of(mlp->weights);
    assay_gated_mlp_residuals *r = &mlp->residuals;
    const bool both = mlp->given[ASSAY_MLPWI], gate = mlp->given[ASSAY_MLPWI_0], up = mlp->given[ASSAY_MLPWI_1];
    if (gate) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI_0, rows, r->a));
    if (up) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI_1, rows, r->b));
    if (both) TRY(moe_read_given(ctx, mlp, block, ASSAY_MLPWI, rows, r->a));
    if (both || (gate && up)) return ASSAY_OK;
    const assay_gated_mlp_branch missing = gate ? ASSAY_BRANCH_UP : up ? ASSAY_BRANCH_GATE : ASSAY_BRANCH_BOTH;
    if (mlp->config.recipe.recipe != NULL) return assay_gated_mlp_up(ctx, r, missing, rows->x, &w, &mlp->config);
    if (mlp->config.fused) TRY(up_product(ctx, mlp, r->a, rows->x, w.w[ASSAY_MLP_WI]));
    if (!mlp->config.fused && !gate) TRY(up_product(ctx, mlp, r->a, rows->x, w.w[ASSAY_MLP_WI_0]));
    if (!mlp->config.fused && !up) TRY(up_product(ctx, mlp, r->b, rows->x, w.w[ASSAY_MLP_WI_1]));
    assay_gated_mlp_add_biases(ctx, r, missing, &w, &mlp->config);
cleanup:
    return status;
}

/* y = h wo + wo_bias, or (weight h) wo + weight wo_bias. */
static assay_status forward_down(assay_context *ctx, const moe_mlp *mlp, const moe_rows *rows)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim;
    assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const double *bias = weights.w[ASSAY_MLP_WO_BIAS];
    assay_gated_mlp_residuals r = mlp->residuals;
    if (rows->h_weights != NULL) {
        assay_weigh_rows(ctx, mlp->weighted_h, rows->h_weights, r.h, rows->count, mlp->config.mlp_dim);
        r.h = mlp->weighted_h;
        weights.w[ASSAY_MLP_WO_BIAS] = NULL;
    }
    TRY(assay_gated_mlp_down(ctx, rows->y, &r, &weights, &mlp->config));
    for (int64_t row = 0; rows->h_weights != NULL && bias != NULL && row < rows->count; row++)
        assay_add_scaled(ctx, dim, rows->h_weights[row], bias, rows->y + row * dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * dim, rows->y);
cleanup:
    return status;
}

/* What the product with wo takes of h. Codes that are given are the result. */
static assay_status requantise(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows,
                               moe_checkpoints *checkpoints)
{
    assay_status status = ASSAY_OK;
    assay_gated_mlp_residuals *r = &mlp->residuals;
    const moe_checkpoint_values values = {.codes = r->codes, .scale = r->scale};
    TRY(moe_read_spread(ctx, mlp, block, ASSAY_MLP_INTERMEDIATE, rows, mlp->h_spread));
    if (mlp->config.hidden.format == NULL) r->h_spread = mlp->h_spread; /* the numbers of codes are exact */
    if (mlp->config.hidden.format == NULL || rows->count == 0) return ASSAY_OK;
    TRY(assay_requantise(ctx, r, mlp->h_spread, &mlp->config));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLP_CODES, rows, r->codes));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLP_SCALE, rows, r->scale));
    TRY(moe_checkpoints_put(ctx, checkpoints, block, mlp, &block->results, rows, &values));
    assay_hidden_numbers(ctx, r, &mlp->config);
cleanup:
    return status;
}

assay_status moe_mlp_forward(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows,
                             moe_checkpoints *checkpoints, bool down)
{
    assay_status status = ASSAY_OK;
    const moe_results *results = &block->results;
    assay_gated_mlp_residuals *r = &mlp->residuals;
    const moe_checkpoint_values up = {.a = r->a, .b = r->b}, gate = {.h = r->h}, y = {.y = rows->y};
    mlp->config.rows = rows->count;
    TRY(forward_up(ctx, mlp, block, rows));
    TRY(moe_checkpoints_put(ctx, checkpoints, block, mlp, results, rows, &up));
    TRY(moe_go_on(ctx, mlp, block, mlp->config.fused ? ASSAY_MLPWI : ASSAY_MLPWI_0, rows, r->a));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLPWI_1, rows, r->b));
    assay_gated_mlp_gate(ctx, r, &mlp->config);
    TRY(moe_checkpoints_put(ctx, checkpoints, block, mlp, results, rows, &gate));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLP_INTERMEDIATE, rows, r->h));
    TRY(requantise(ctx, mlp, block, rows, checkpoints));
    if (!down) return ASSAY_OK;
    TRY(mlp->given[ASSAY_MLPWO] ? moe_read_given(ctx, mlp, block, ASSAY_MLPWO, rows, rows->y)
                                : forward_down(ctx, mlp, rows));
    TRY(moe_checkpoints_put(ctx, checkpoints, block, mlp, results, rows, &y));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLPWO, rows, rows->y));
cleanup:
    return status;
}

/* Of weights on h: d_weight = <h, dy wo^T> + <wo_bias, dy>. */
static assay_status weight_gradients(assay_context *ctx, const moe_mlp *mlp, const moe_rows *rows)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = mlp->config.emb_dim, width = mlp->config.mlp_dim;
    const assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    const assay_gated_mlp_gradients g = {.dh = mlp->dh};
    const double *bias = weights.w[ASSAY_MLP_WO_BIAS];
    TRY(assay_gated_mlp_backward(ctx, &g, rows->dy, &mlp->residuals, rows->x, &weights, &mlp->config));
    for (int64_t row = 0; row < rows->count; row++) {
        const double of_bias = bias == NULL ? 0 : assay_dot(ctx, dim, bias, rows->dy + row * dim);
        rows->d_h_weights[row] = assay_dot(ctx, width, mlp->residuals.h + row * width, mlp->dh + row * width);
        assay_add_scaled(ctx, 1, 1, &of_bias, &rows->d_h_weights[row]);
    }
cleanup:
    return status;
}

assay_status moe_mlp_take_dy(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows,
                             moe_checkpoints *checkpoints, double *dy)
{
    assay_status status = ASSAY_OK;
    const moe_checkpoint_values values = {.dy = dy};
    if (mlp->config.recipe.recipe == NULL) return ASSAY_OK;
    TRY(moe_checkpoints_put(ctx, checkpoints, block, mlp, &block->results, rows, &values));
    TRY(moe_go_on(ctx, mlp, block, ASSAY_MLPWO_GRADIENT, rows, dy));
    TRY(moe_read_spread(ctx, mlp, block, ASSAY_MLPWO_GRADIENT, rows, mlp->dy_spread));
    mlp->residuals.dy_spread = mlp->dy_spread;
cleanup:
    return status;
}

/* On the way back of the rows of one MLP. */
typedef struct way_back {
    moe_mlp *mlp;
    const moe_block *block;
    const moe_rows *rows;
    moe_checkpoints *checkpoints;
} way_back;

static assay_status take_d_up(assay_context *ctx, void *self, double *da, double *db)
{
    assay_status status;
    const way_back *w = self;
    moe_mlp *mlp = w->mlp;
    const bool fused = mlp->config.fused;
    const int64_t second = w->rows->count * mlp->config.mlp_dim;
    const int gate = fused ? ASSAY_MLPWI_GRADIENT : ASSAY_MLPWI_0_GRADIENT;
    const moe_checkpoint_values values = {.da = da, .db = db};
    TRY(moe_checkpoints_put(ctx, w->checkpoints, w->block, mlp, &w->block->results, w->rows, &values));
    TRY(moe_go_on(ctx, mlp, w->block, gate, w->rows, da));
    TRY(moe_read_spread(ctx, mlp, w->block, gate, w->rows, mlp->d_up_spread));
    mlp->residuals.d_up_spread = mlp->d_up_spread;
    if (fused) return ASSAY_OK;
    TRY(moe_go_on(ctx, mlp, w->block, ASSAY_MLPWI_1_GRADIENT, w->rows, db));
    if (mlp->d_up_spread != NULL)
        TRY(moe_read_spread(ctx, mlp, w->block, ASSAY_MLPWI_1_GRADIENT, w->rows, mlp->d_up_spread + second));
cleanup:
    return status;
}

assay_status moe_mlp_backward(assay_context *ctx, moe_mlp *mlp, const moe_block *block, const moe_rows *rows,
                              moe_checkpoints *checkpoints)
{
    assay_status status = ASSAY_OK;
    way_back way = {mlp, block, rows, checkpoints};
    const assay_gated_mlp_weights weights = assay_gated_mlp_weights_of(mlp->weights);
    assay_gated_mlp_gradients g = assay_gated_mlp_gradients_of(rows->dx, mlp->summing ? mlp->partials : mlp->gradients);
    const double *dy = rows->dy;
    mlp->config.rows = rows->count;
    if (mlp->config.recipe.recipe != NULL) g.take_d_up = take_d_up;
    g.self = &way;
    if (rows->d_h_weights != NULL) TRY(weight_gradients(ctx, mlp, rows));
    if (rows->h_weights != NULL) {
        /* A weight on h is a weight on dy: (weight h)^T dy = h^T (weight dy). */
        assay_weigh_rows(ctx, mlp->weighted_dy, rows->h_weights, dy, rows->count, mlp->config.emb_dim);
        dy = mlp->weighted_dy;
    } else {
        g.dh = mlp->dh;
    }
    TRY(assay_gated_mlp_backward(ctx, &g, dy, &mlp->residuals, rows->x, &weights, &mlp->config));
    if (rows->dx != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * mlp->config.emb_dim, rows->dx);
    for (int weight = 0; mlp->summing && weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (mlp->gradients[weight] == NULL) continue;
        moe_join(ctx, assay_tensor_row_count(&mlp->table.rows[weight]), mlp->gradients[weight], mlp->partials[weight]);
    }
    mlp->summing = true;
cleanup:
    return status;
}

assay_status moe_mlp_write(assay_context *ctx, moe_mlp *mlp, const moe_results *r)
{
    if (!mlp->summing) return assay_gradients_write_zeros(ctx, r->out, "", &mlp->table, mlp->gradients);
    mlp->summing = false;
    return assay_gradients_write(ctx, r->out, "", &mlp->table, mlp->gradients);
}
