/* Error scales of the rows of one expert (docs/comparing.md): from the weights of a token's choices through the expert
 * to y, dx and d_weights. A token has one row at most with an expert, so threads split rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

static const assay_precision *precision_of(const moe_block *block, int precision)
{
    return &block->results.precisions[precision];
}

moe_mlp_needs moe_gauge_needs(const moe_block *block, int precision)
{
    const moe_results *r = &block->results;
    if (precision >= r->precision_count) return (moe_mlp_needs){0};
    bool router = moe_gauge_router_gradient(block, precision);
    return (moe_mlp_needs){
        .h = router && !block->llama4,
        .y = moe_wants(r, precision, MOE_Y),
        .dx = moe_wants(r, precision, MOE_DX) || (router && block->llama4),
    };
}

assay_status moe_gauge_alloc_rows(assay_context *ctx, moe_block *block, int64_t most)
{
    assay_status status = ASSAY_OK;
    moe_gauge *gauge = &block->gauge;
    int64_t count = most * block->emb_dim;
    if (block->results.precision_count == 0) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "variance of weights", most, &gauge->weights));
    TRY(assay_alloc_f64(ctx, "variance of dy", count, &gauge->dy));
    TRY(assay_alloc_f64(ctx, "variance of products", count, &gauge->products));
    TRY(assay_alloc_f64(ctx, "variance of weighted h", most * block->expert.config.mlp_dim, &gauge->weighted_h));
    TRY(assay_alloc_f64(ctx, "variance of weighted y", count, &gauge->weighted_y));
    if (block->llama4) TRY(assay_alloc_f64(ctx, "variance of x", count, &gauge->x));
cleanup:
    return status;
}

void moe_gauge_free_rows(moe_gauge *gauge)
{
    free(gauge->weights);
    free(gauge->dy);
    free(gauge->products);
    free(gauge->x);
    free(gauge->weighted_h);
    free(gauge->weighted_y);
    gauge->weights = gauge->dy = gauge->products = gauge->x = gauge->weighted_h = gauge->weighted_y = NULL;
}

/* One more term of a sum of which squares of partial sums are kept. */
static void add_term(double *sum, double *squares, double term)
{
    *sum += term;
    *squares += *sum * *sum + term * term;
}

static void add_sums(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const moe_gauge *gauge = &block->gauge;
    int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        int64_t row = moe_row_of(block, j);
        for (int64_t d = 0; d < dim; d++) {
            int64_t from = row * dim + d, to = rows->tokens[row] * dim + d;
            if (gauge->sum_y != NULL) {
                add_term(&gauge->sum_y[to], &gauge->squares_y[to], rows->weights[row] * rows->y[from]);
            }
            if (gauge->sum_dx != NULL) add_term(&gauge->sum_dx[to], &gauge->squares_dx[to], rows->dx[from]);
        }
    }
}

/* dy = weight * dy[token], which is stored before the expert's backward. */
static void variances_of_dy(assay_context *ctx, moe_block *block, const assay_precision *unit)
{
    const moe_rows *rows = &block->rows;
    int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        for (int64_t d = 0; d < dim; d++) {
            double dy = rows->tokens[i] < 0 ? 0 : block->dy[rows->tokens[i] * dim + d], weight = rows->weights[i];
            block->gauge.dy[i * dim + d] = dy * dy * block->gauge.weights[i] + moe_stored(unit, rows->dy[i * dim + d]) +
                                           weight * weight * assay_gauge_given(unit->given, dy);
        }
    }
}

/* llama4: x of the rows is x times the token's scale, stored. */
static void variances_of_x(assay_context *ctx, moe_block *block, const assay_precision *unit,
                           const double *variance_scale)
{
    const moe_rows *rows = &block->rows;
    int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        for (int64_t d = 0; d < dim; d++) {
            int64_t token = rows->tokens[i];
            double x = block->x[token * dim + d], gate = block->gate[token];
            block->gauge.x[i * dim + d] = x * x * variance_scale[token] + moe_stored(unit, rows->x[i * dim + d]) +
                                          gate * gate * assay_gauge_given(unit->given, x);
        }
    }
}

static void variances_of_rows(assay_context *ctx, moe_block *block, int precision)
{
    const moe_rows *rows = &block->rows;
    const moe_scale *scale = &block->gauge.scales[precision];
    const assay_precision *unit = precision_of(block, precision);
    for (int64_t i = 0; i < rows->count; i++) block->gauge.weights[i] = 0;
    if (block->llama4) {
        variances_of_x(ctx, block, unit, scale->gate);
        return;
    }
    for (int64_t j = 0; j < rows->size; j++)
        block->gauge.weights[moe_row_of(block, j)] = scale->weights[block->order[rows->first + j]];
    if (block->need_backward) variances_of_dy(ctx, block, unit);
}

/* The least subnormal number of what a row holds, which may be stored times the row's weight. The floor keeps it
 * finite: what such a weight leaves is no error. */
static double least_of_row(const assay_precision *unit, double weight)
{
    const double size = fabs(weight), floor = 0x1p-500;
    if (size == 0 || size >= 1) return unit->least;
    return unit->least / (size > floor ? size : floor);
}

/* h wo of the rows at hand. */
static assay_matmul_args down_product(const moe_block *block, double *out)
{
    const moe_mlp *mlp = &block->expert;
    const int64_t width = mlp->config.mlp_dim, dim = block->emb_dim;
    return assay_product_ab(out, mlp->residuals.h, mlp->weights[ASSAY_MLP_WO], block->rows.count, dim, width);
}

/* A weight may go onto h instead of y, and the product is stored then: relative to h as exact as h alone, but where it
 * falls below the normal numbers. */
static assay_status variances_of_weighted_h(assay_context *ctx, moe_block *block, int precision)
{
    const moe_rows *rows = &block->rows;
    const moe_mlp *mlp = &block->expert;
    const assay_precision *unit = precision_of(block, precision), exact = {0};
    const int64_t width = mlp->config.mlp_dim;
    double *variance = block->gauge.weighted_h;
    bool any = false;
#pragma omp parallel for num_threads(ctx->threads) reduction(|| : any)
    for (int64_t row = 0; row < rows->count; row++) {
        const double least = least_of_row(unit, rows->weights[row]);
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            const double h = mlp->residuals.h[i], more = assay_gauge_rounding(unit->storage, least, h);
            variance[i] = more - moe_stored(unit, h);
            any = any || variance[i] > 0;
        }
    }
    block->gauge.weighted = any;
    if (!any || !moe_wants(&block->results, precision, MOE_Y)) return ASSAY_OK;
    const assay_matmul_args args = down_product(block, block->gauge.weighted_y);
    return assay_gauge_matmul(ctx, &exact, &args, variance, NULL);
}

/* y[token] += weight * row, where the row or that product is stored; dx[token] += row, stored too. */
static void add_terms(assay_context *ctx, moe_block *block, int precision)
{
    const moe_rows *rows = &block->rows;
    const assay_precision *unit = precision_of(block, precision);
    const moe_scale *scale = &block->gauge.scales[precision];
    double operands = 2 * unit->multiply * unit->multiply;
    int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->tokens[i] < 0) continue;
        double square = rows->weights[i] * rows->weights[i], variance = block->gauge.weights[i];
        double least = least_of_row(unit, rows->weights[i]);
        for (int64_t d = 0; d < dim; d++) {
            int64_t from = i * dim + d, to = rows->tokens[i] * dim + d;
            if (scale->y != NULL) {
                double y = rows->y[from] * rows->y[from];
                double stored = assay_gauge_rounding(unit->storage, least, rows->y[from]);
                double weighted = block->gauge.weighted ? block->gauge.weighted_y[from] : 0;
                scale->y[to] +=
                    square * (block->expert.variance_y[from] + weighted + stored + operands * y) + y * variance;
            }
            if (scale->dx != NULL) {
                scale->dx[to] += block->expert.variance_dx[from] + moe_stored(unit, rows->dx[from]);
            }
        }
    }
}

/* Gradient of a row's weight through its hidden values: sum over h of dh_h^2 var(h_h), dh = dy[token] wo^T; h is
 * stored. What backward kept is dh times the weight, which may be 0. */
static double through_hidden(const assay_context *ctx, const moe_block *block, int64_t row, const double *dy,
                             const assay_precision *unit)
{
    const moe_mlp *mlp = &block->expert;
    int64_t width = mlp->config.mlp_dim, dim = block->emb_dim;
    double weight = block->rows.weights[row], sum = 0;
    for (int64_t i = 0; i < width; i++) {
        double stored = moe_stored(unit, mlp->residuals.h[row * width + i]);
        double dh = weight != 0 ? mlp->dh[row * width + i] / weight
                                : assay_dot(ctx, dim, dy, mlp->weights[ASSAY_MLP_WO] + i * dim);
        sum += dh * dh * (mlp->variance_h[row * width + i] + stored);
    }
    return sum;
}

/* d_weights = <y, dy>. All of y shares the errors of h, so those are summed before squaring; the products' own errors
 * and the storage of y are independent. */
static assay_status gauge_weight_gradients(assay_context *ctx, moe_block *block, int precision)
{
    const moe_rows *rows = &block->rows;
    const moe_mlp *mlp = &block->expert;
    const assay_precision *unit = precision_of(block, precision);
    int64_t dim = block->emb_dim;
    double *products = block->gauge.products, *d_weights = block->gauge.scales[precision].d_weights;
    const double *bias = mlp->weights[ASSAY_MLP_WO_BIAS];
    double *exact = block->gauge.weighted_h; /* free again: the expert's gauge is done */
    const assay_matmul_args args = down_product(block, products);
    memset(exact, 0, (size_t)(rows->count * mlp->config.mlp_dim) * sizeof *exact);
    /* The product is stored before a bias is added. */
    assay_status status = bias != NULL ? assay_gauge_matmul_stored(ctx, unit, &args, exact, NULL)
                                       : assay_gauge_matmul(ctx, unit, &args, exact, NULL);
    if (status != ASSAY_OK) return status;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        int64_t row = moe_row_of(block, j), choice = block->order[rows->first + j];
        const double *dy = block->dy + choice / block->per_token * dim, *y = rows->y + row * dim;
        double value = unit->router * block->d_weights[choice];
        double variance = through_hidden(ctx, block, row, dy, unit) + value * value;
        for (int64_t d = 0; d < dim; d++) {
            const double of_bias = bias != NULL ? assay_gauge_given(unit->given, bias[d]) : 0;
            variance += dy[d] * dy[d] * (products[row * dim + d] + moe_stored(unit, y[d]) + of_bias) +
                        y[d] * y[d] * assay_gauge_given(unit->given, dy[d]);
        }
        d_weights[choice] = variance + assay_gauge_dot(unit, dim, y, dy);
    }
    return ASSAY_OK;
}

static bool any_scale(const moe_block *block, int precision, int first, int count)
{
    for (int result = first; result < first + count; result++) {
        if (moe_wants(&block->results, precision, result)) return true;
    }
    return false;
}

assay_status moe_gauge_slots(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const moe_results *r = &block->results;
    const moe_mlp_needs needs = {0};
    const moe_row_variances exact = {0};
    moe_rows rows = block->rows;
    rows.dy = NULL;
    for (int precision = 0; precision < r->precision_count; precision++) {
        if (!any_scale(block, precision, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS)) continue;
        TRY(moe_mlp_gauge(ctx, &block->expert, r, precision, &rows, &exact, &needs));
        TRY(moe_checkpoints_put(ctx, &block->checkpoints, &block->expert, r, precision, &rows));
    }
cleanup:
    return status;
}

assay_status moe_gauge_rows(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const moe_results *r = &block->results;
    bool slots = block->checkpoints.slots != NULL;
    add_sums(ctx, block);
    for (int precision = 0; precision < r->precision_count; precision++) {
        moe_mlp_needs needs = moe_gauge_needs(block, precision);
        bool any = needs.h || needs.y || needs.dx || any_scale(block, precision, MOE_ROUTED, MLP_RESULTS);
        if (!any) continue;
        variances_of_rows(ctx, block, precision);
        TRY(variances_of_weighted_h(ctx, block, precision));
        /* llama4 combines with weight 1, and so leaves dy exact. */
        const moe_row_variances variances = {.x = block->gauge.x,
                                             .dy = block->llama4 ? NULL : block->gauge.dy,
                                             .weighted_h = block->gauge.weighted ? block->gauge.weighted_h : NULL};
        TRY(moe_mlp_gauge(ctx, &block->expert, r, precision, &block->rows, &variances, &needs));
        if (!slots) TRY(moe_checkpoints_put(ctx, &block->checkpoints, &block->expert, r, precision, &block->rows));
        add_terms(ctx, block, precision);
        if (needs.h) TRY(gauge_weight_gradients(ctx, block, precision));
    }
cleanup:
    return status;
}
