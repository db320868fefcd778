/* Error scales of the rows of one gated MLP of the block (docs/comparing.md): of an expert from the weights of its tokens'
 * choices to y, dx and d_weights. A token has one row at most with an expert, so threads split rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/vector_sums.h"
#include "oracle/propagate/propagate_moe_internal.h"

/* One precision and the rows at hand. */
typedef struct hand {
    const moe_block *block;
    const moe_mlp *mlp;
    const moe_rows *rows;
    const moe_scales *scale;
    const assay_precision *precision;
    moe_row_scratch *s;
} hand;

void moe_row_scratch_free(moe_row_scratch *s)
{
    double *const all[] = {s->a,      s->b,  s->h,  s->y,        s->dx,         s->weights,   s->x,
                           s->factor, s->dy, s->dh, s->products, s->weighted_h, s->weighted_y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) free(s->gradients[weight]);
    memset(s, 0, sizeof *s);
}

static bool any_wants(const moe_propagation *p, int result)
{
    bool any = false;
    for (int i = 0; i < p->count; i++) any |= moe_wants(&p->scales[i].results, result);
    return any;
}

static int64_t size_of(const moe_mlp *mlp, int weight)
{
    return assay_tensor_row_count(&mlp->table.rows[weight]);
}

static assay_status alloc_scratch(assay_context *ctx, moe_propagation *p, const moe_block *block, const moe_mlp *mlp)
{
    moe_row_scratch *s = &p->rows;
    const int first = moe_mlp_first_result(mlp);
    const bool routed = first == MOE_ROUTED;
    const assay_gated_mlp_config *config = &mlp->config.mlp;
    const int64_t rows = mlp->most, wide = rows * config->mlp_dim, count = rows * block->emb_dim;
    bool router = false, of_y = any_wants(p, first + ASSAY_MLPWO), of_dx = false;
    for (int i = 0; i < p->count; i++) {
        router |= p->scales[i].router;
        of_y |= p->scales[i].y != NULL;
        of_dx |= p->scales[i].dx != NULL;
        if (!routed) MUST(moe_checkpoints_open(ctx, &p->scales[i].checkpoints, block, &p->scales[i].results, false));
    }
    s->mlp = mlp;
    if (any_wants(p, first + ASSAY_MLPWI_0) || any_wants(p, first + ASSAY_MLPWI))
        MUST(assay_alloc_f64(ctx, "variance of a", (config->fused ? 2 : 1) * wide, &s->a));
    if (any_wants(p, first + ASSAY_MLPWI_1) && !config->fused) MUST(assay_alloc_f64(ctx, "variance of b", wide, &s->b));
    if (any_wants(p, first + ASSAY_MLP_INTERMEDIATE) || (routed && router && !block->llama4))
        MUST(assay_alloc_f64(ctx, "variance of h", wide, &s->h));
    if (of_y) MUST(assay_alloc_f64(ctx, "variance of y", count, &s->y));
    if (of_dx) MUST(assay_alloc_f64(ctx, "variance of dx", count, &s->dx));
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (any_wants(p, first + MLP_GRADIENT + weight))
            MUST(assay_alloc_f64(ctx, "variance of a gradient", size_of(mlp, weight), &s->gradients[weight]));
    }
    if (!routed) return ASSAY_OK;
    if (router && !block->llama4) MUST(assay_alloc_f64(ctx, "variance of products", count, &s->products));
    if (router && !block->llama4) MUST(assay_alloc_f64(ctx, "dh", wide, &s->dh));
    MUST(assay_alloc_f64(ctx, "variance of weights", rows, &s->weights));
    if (block->llama4) MUST(assay_alloc_f64(ctx, "variance of x", count, &s->x));
    if (block->llama4) MUST(assay_alloc_f64(ctx, "scales of tokens", rows, &s->factor));
    if (!block->llama4) MUST(assay_alloc_f64(ctx, "variance of dy", count, &s->dy));
    MUST(assay_alloc_f64(ctx, "variance of weighted h", wide, &s->weighted_h));
    return assay_alloc_f64(ctx, "variance of weighted y", count, &s->weighted_y);
}

static void add_sums(const assay_context *ctx, const moe_propagation *p, const moe_block *block, const moe_rows *rows)
{
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        const int64_t row = moe_row_of(block, j);
        for (int64_t d = 0; d < dim; d++) {
            const int64_t from = row * dim + d, to = rows->tokens[row] * dim + d;
            if (p->sum_y != NULL)
                assay_propagate_term(&p->sum_y[to], &p->squares_y[to], rows->weights[row] * rows->y[from]);
            if (p->sum_dx != NULL) assay_propagate_term(&p->sum_dx[to], &p->squares_dx[to], rows->dx[from]);
        }
    }
}

/* Rows of x that are gathered, times a factor for each, and stored: dy times the weight; llama4's x times its scale. */
static void gather_stored(const assay_context *ctx, const hand *h, double *variance, const double *x,
                          const double *stored, const double *factor, const double *variance_factor)
{
    const int64_t dim = h->block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < h->rows->count; i++) {
        for (int64_t d = 0; d < dim; d++) {
            const double value = x[h->rows->tokens[i] * dim + d];
            variance[i * dim + d] = value * value * variance_factor[i] +
                                    assay_propagate_stored(h->precision, stored[i * dim + d]) +
                                    factor[i] * factor[i] * assay_propagate_given(h->precision->given, value);
        }
    }
}

static void factors_of_rows(const assay_context *ctx, const hand *h)
{
    const moe_rows *rows = h->rows;
    double *variance = h->s->weights, *factor = h->s->factor;
    for (int64_t i = 0; i < rows->count; i++) variance[i] = 0;
    if (h->block->llama4) {
        for (int64_t i = 0; i < rows->count; i++) {
            factor[i] = h->block->gate[rows->tokens[i]];
            variance[i] = h->scale->gate[rows->tokens[i]];
        }
        gather_stored(ctx, h, h->s->x, h->block->x, rows->x, factor, variance);
        for (int64_t i = 0; i < rows->count; i++) variance[i] = 0; /* it combines with weight 1 */
        return;
    }
    for (int64_t j = 0; j < rows->size; j++)
        variance[moe_row_of(h->block, j)] = h->scale->weights[h->block->order[rows->first + j]];
    if (h->block->need_backward) gather_stored(ctx, h, h->s->dy, h->block->dy, rows->dy, rows->weights, variance);
}

/* The least subnormal number of what a row holds, which may be stored times the row's weight. The floor keeps it
 * finite: what such a weight leaves is no error. */
static double least_of_row(const assay_precision *precision, double weight)
{
    const double size = fabs(weight), floor = 0x1p-500;
    if (size == 0 || size >= 1) return precision->least;
    return precision->least / (size > floor ? size : floor);
}

static const double *hidden_of(const hand *h)
{
    return moe_mlp_value(h->mlp, ASSAY_MLP_INTERMEDIATE);
}

static assay_gated_mlp_values values_of(const moe_mlp *mlp)
{
    const bool fused = mlp->config.mlp.fused;
    const int64_t width = mlp->config.mlp.mlp_dim;
    const double *gate = moe_mlp_value(mlp, fused ? ASSAY_MLPWI : ASSAY_MLPWI_0);
    return (assay_gated_mlp_values){.a = gate,
                                    .b = fused ? gate + width : moe_mlp_value(mlp, ASSAY_MLPWI_1),
                                    .h = moe_mlp_value(mlp, ASSAY_MLP_INTERMEDIATE),
                                    .ld = fused ? 2 * width : width};
}

/* h wo of the rows at hand. */
static assay_matmul_args down_product(const hand *h, double *out)
{
    return assay_product_ab(out, hidden_of(h), h->mlp->weights[ASSAY_MLP_WO], h->rows->count, h->block->emb_dim,
                            h->mlp->config.mlp.mlp_dim);
}

/* A weight may go onto h instead of y, and the product is stored then: relative to h as exact as h alone, but where it
 * falls below the normal numbers. */
static assay_status weighted_h(assay_context *ctx, const hand *h)
{
    const assay_precision exact = {0};
    const int64_t width = h->mlp->config.mlp.mlp_dim;
    const double *hidden = hidden_of(h);
    double *variance = h->s->weighted_h;
    bool any = false;
#pragma omp parallel for num_threads(ctx->threads) reduction(|| : any)
    for (int64_t row = 0; row < h->rows->count; row++) {
        const double least = least_of_row(h->precision, h->rows->weights[row]);
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            const double value = hidden[i];
            variance[i] = assay_propagate_rounding(h->precision->storage, least, value) -
                          assay_propagate_stored(h->precision, value);
            any = any || variance[i] > 0;
        }
    }
    h->s->weighted = any;
    if (!any || h->scale->y == NULL) return ASSAY_OK;
    const assay_matmul_args args = down_product(h, h->s->weighted_y);
    return assay_propagate_product(ctx, &exact, false, &args, variance, NULL);
}

/* The first `count` rows of the gated MLP; writes the scales of its weights' gradients. slots: checkpoints alone. */
static assay_status propagate_mlp(assay_context *ctx, const hand *h, int64_t count, bool slots,
                                  const assay_gated_mlp_run *given)
{
    const moe_results *r = &h->scale->results;
    const int first = moe_mlp_first_result(h->mlp);
    assay_gated_mlp_config config = h->mlp->config.mlp;
    assay_gated_mlp_run run = *given;
    assay_gated_mlp_variances v = {.a = h->s->a,
                                   .b = config.fused ? h->s->a + config.mlp_dim : h->s->b,
                                   .h = h->s->h,
                                   .y = h->s->y,
                                   .dh_values = h->s->dh};
    bool backward = false;
    if (config.fused && h->s->a == NULL) v.b = NULL;
    for (int weight = 0; !slots && weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (!moe_wants(r, first + MLP_GRADIENT + weight)) continue;
        v.g[weight] = h->s->gradients[weight];
        backward = true;
    }
    if (!slots && h->scale->dx != NULL) v.dx = h->s->dx;
    config.rows = count;
    run.x = h->rows->x;
    run.dy = backward || v.dx != NULL || (!slots && v.dh_values != NULL && h->scale->router) ? h->rows->dy : NULL;
    run.r = values_of(h->mlp);
    run.w = h->mlp->weights;
    run.config = &config;
    MUST(assay_propagate_gated_mlp(ctx, h->precision, &v, &run));
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (v.g[weight] != NULL)
            MUST(moe_write(ctx, r, first + MLP_GRADIENT + weight, size_of(h->mlp, weight), v.g[weight]));
    }
    return ASSAY_OK;
}

static assay_status put_checkpoints(assay_context *ctx, const hand *h, moe_checkpoints *c)
{
    const moe_row_scratch *s = h->s;
    const double *const variances[ASSAY_MLP_CHECKPOINTS] = {[ASSAY_MLPWI] = s->a,
                                                            [ASSAY_MLPWI_0] = s->a,
                                                            [ASSAY_MLPWI_1] = s->b,
                                                            [ASSAY_MLP_INTERMEDIATE] = s->h,
                                                            [ASSAY_MLPWO] = s->y};
    c->rows = h->rows;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++)
        if (variances[i] != NULL) MUST(moe_checkpoints_put(ctx, c, i, variances[i]));
    return ASSAY_OK;
}

/* y[token] += weight * row, where the row or that product is stored; dx[token] += row, stored too: what the rows' own
 * variances become as terms of these sums. */
static void make_terms(const assay_context *ctx, const hand *h)
{
    const moe_rows *rows = h->rows;
    const moe_row_scratch *s = h->s;
    const double operands = 2 * assay_square(h->precision->multiply);
    const int64_t dim = h->block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        const double square = assay_square(rows->weights[i]), variance = s->weights[i];
        const double least = least_of_row(h->precision, rows->weights[i]);
        for (int64_t at = i * dim; at < (i + 1) * dim; at++) {
            if (h->scale->y != NULL) {
                const double y = assay_square(rows->y[at]);
                const double stored = assay_propagate_rounding(h->precision->storage, least, rows->y[at]);
                const double weighted = s->weighted ? s->weighted_y[at] : 0;
                s->y[at] = square * (s->y[at] + weighted + stored + operands * y) + y * variance;
            }
            if (h->scale->dx != NULL) s->dx[at] = s->dx[at] + assay_propagate_stored(h->precision, rows->dx[at]);
        }
    }
}

/* Terms of rows [count,D], each to its token. */
static void add_terms(const assay_context *ctx, const moe_block *block, const moe_rows *rows, double *sum,
                      const double *terms)
{
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t d = 0; d < dim; d++) sum[rows->tokens[i] * dim + d] += terms[i * dim + d];
}

/* Gradient of a row's weight through its hidden values: sum over h of dh_h^2 var(h_h), dh = dy[token] wo^T; h is
 * stored. What backward kept is dh times the weight, which may be 0. */
static double through_hidden(const assay_context *ctx, const hand *h, int64_t row, const double *dy)
{
    const moe_mlp *mlp = h->mlp;
    const int64_t width = mlp->config.mlp.mlp_dim, dim = h->block->emb_dim;
    const double weight = h->rows->weights[row], *hidden = hidden_of(h) + row * width;
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
        const double stored = assay_propagate_stored(h->precision, hidden[i]);
        const double dh = weight != 0 ? h->s->dh[row * width + i] / weight
                                      : assay_dot(ctx, dim, dy, mlp->weights[ASSAY_MLP_WO] + i * dim);
        sum += dh * dh * (h->s->h[row * width + i] + stored);
    }
    return sum;
}

/* d_weights = <y, dy>. All of y shares the errors of h, so those are summed before squaring; the products' own errors
 * and the storage of y are independent. */
static assay_status weight_gradients(assay_context *ctx, const hand *h)
{
    const moe_rows *rows = h->rows;
    const moe_block *block = h->block;
    const assay_precision *precision = h->precision;
    const int64_t dim = block->emb_dim;
    const double *bias = h->mlp->weights[ASSAY_MLP_WO_BIAS];
    double *exact = h->s->weighted_h; /* free again: the rows' terms are added */
    const assay_matmul_args args = down_product(h, h->s->products);
    memset(exact, 0, (size_t)(rows->count * h->mlp->config.mlp.mlp_dim) * sizeof *exact);
    /* The product is stored before a bias is added. */
    MUST(assay_propagate_product(ctx, precision, bias != NULL, &args, exact, NULL));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        const int64_t row = moe_row_of(block, j), choice = block->order[rows->first + j];
        const double *dy = block->dy + choice / block->per_token * dim, *y = rows->y + row * dim;
        double variance = through_hidden(ctx, h, row, dy) + assay_square(precision->router * block->d_weights[choice]);
        for (int64_t d = 0; d < dim; d++) {
            const double of_bias = bias != NULL ? assay_propagate_given(precision->given, bias[d]) : 0;
            variance +=
                dy[d] * dy[d] * (h->s->products[row * dim + d] + assay_propagate_stored(precision, y[d]) + of_bias) +
                y[d] * y[d] * assay_propagate_given(precision->given, dy[d]);
        }
        h->scale->d_weights[choice] = variance + assay_propagate_dot(precision, dim, y, dy);
    }
    return ASSAY_OK;
}

static assay_status write_zeros(assay_context *ctx, const hand *h)
{
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const int gradient = moe_mlp_first_result(h->mlp) + MLP_GRADIENT + weight;
        double *zeros = h->s->gradients[weight];
        if (!moe_wants(&h->scale->results, gradient)) continue;
        memset(zeros, 0, (size_t)size_of(h->mlp, weight) * sizeof *zeros);
        MUST(moe_write(ctx, &h->scale->results, gradient, size_of(h->mlp, weight), zeros));
    }
    return ASSAY_OK;
}

void moe_propagate_combined(void *self, const assay_context *ctx, const moe_block *block, const moe_rows *rows)
{
    add_sums(ctx, self, block, rows);
}

static assay_status routed_rows(assay_context *ctx, const hand *h, moe_checkpoints *checkpoints)
{
    const moe_block *block = h->block;
    const bool slots = block->slots.row != NULL;
    assay_gated_mlp_run given = {0};
    if (slots && moe_wants_any(&h->scale->results, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS)) { /* with the row of zeros */
        MUST(propagate_mlp(ctx, h, h->rows->size + 1, true, &given));
        MUST(put_checkpoints(ctx, h, checkpoints));
    }
    if (h->rows->count == 0) return write_zeros(ctx, h);
    factors_of_rows(ctx, h);
    MUST(weighted_h(ctx, h));
    given.variance_x = h->s->x;
    given.variance_dy = h->s->dy; /* of llama4, which combines with weight 1, dy is given */
    given.weighted = h->s->weighted ? h->s->weighted_h : NULL;
    MUST(propagate_mlp(ctx, h, h->rows->count, false, &given));
    if (!slots) MUST(put_checkpoints(ctx, h, checkpoints));
    make_terms(ctx, h);
    if (h->scale->router && !block->llama4) MUST(weight_gradients(ctx, h));
    if (h->scale->y != NULL) add_terms(ctx, block, h->rows, h->scale->y, h->s->y);
    if (h->scale->dx != NULL) add_terms(ctx, block, h->rows, h->scale->dx, h->s->dx);
    return ASSAY_OK;
}

static assay_status shared_rows(assay_context *ctx, const hand *h, moe_checkpoints *checkpoints)
{
    const moe_block *block = h->block;
    const moe_scales *scale = h->scale;
    const int64_t count = block->tokens * block->emb_dim;
    const bool dx = moe_wants(&scale->results, MOE_DX);
    if (scale->y == NULL && !dx && !moe_wants_any(&scale->results, MOE_SHARED, MLP_RESULTS)) return ASSAY_OK;
    MUST(propagate_mlp(ctx, h, h->rows->count, false, &(assay_gated_mlp_run){0}));
    if (scale->y != NULL) moe_propagate_join(h->precision, count, block->y, h->rows->y, scale->y, h->s->y);
    if (dx) moe_propagate_join(h->precision, count, block->dx, h->rows->dx, scale->dx, h->s->dx);
    return put_checkpoints(ctx, h, checkpoints);
}

assay_status moe_propagate_rows(assay_context *ctx, void *self, const moe_block *block, const moe_mlp *mlp,
                                const moe_rows *rows)
{
    moe_propagation *p = self;
    const bool routed = moe_mlp_first_result(mlp) == MOE_ROUTED;
    if (p->rows.mlp != mlp) MUST(alloc_scratch(ctx, p, block, mlp));
    for (int i = 0; i < p->count; i++) {
        moe_scales *scale = &p->scales[i];
        const hand h = {block, mlp, rows, scale, scale->precision, &p->rows};
        if (!scale->any) continue;
        MUST(routed ? routed_rows(ctx, &h, &scale->checkpoints) : shared_rows(ctx, &h, &scale->checkpoints));
    }
    return ASSAY_OK;
}
