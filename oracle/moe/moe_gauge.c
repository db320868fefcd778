/* Error scales of a whole block: variances from the logits to y and back to dx, for each precision. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/moe/routing_gauge.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

bool moe_gauge_router_gradient(const moe_block *block, int precision)
{
    const moe_results *r = &block->results;
    return moe_wants(r, precision, MOE_DX) || moe_wants(r, precision, MOE_DKERNEL) ||
           moe_wants(r, precision, MOE_DBIAS) || moe_wants(r, precision, MOE_DSCALE);
}

static bool any_scale(const moe_block *block, int precision)
{
    for (int result = 0; result < MOE_RESULTS; result++) {
        if (moe_wants(&block->results, precision, result)) return true;
    }
    return false;
}

static assay_status alloc_zeros(assay_context *ctx, const char *what, int64_t count, double **out)
{
    assay_status status = assay_alloc_f64(ctx, what, count, out);
    if (status == ASSAY_OK) memset(*out, 0, (size_t)count * sizeof **out);
    return status;
}

assay_status moe_gauge_alloc(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_gauge *gauge = &block->gauge;
    const moe_results *r = &block->results;
    int64_t count = block->tokens * block->emb_dim, choices = block->tokens * block->per_token;
    void *scales = NULL;
    TRY(assay_alloc(ctx, "error scales", r->precision_count, sizeof *gauge->scales, &scales));
    gauge->scales = scales;
    memset(gauge->scales, 0, (size_t)r->precision_count * sizeof *gauge->scales);
    for (int precision = 0; precision < r->precision_count; precision++) {
        moe_scale *scale = &gauge->scales[precision];
        bool router = moe_gauge_router_gradient(block, precision);
        bool dx = moe_wants(r, precision, MOE_DX) || (router && block->llama4);
        if (!any_scale(block, precision)) continue;
        TRY(assay_alloc_f64(ctx, "variance of logits", block->tokens * block->experts, &scale->logits));
        TRY(assay_alloc_f64(ctx, "variance of weights", choices, &scale->weights));
        if (block->llama4) TRY(assay_alloc_f64(ctx, "variance of the token scale", block->tokens, &scale->gate));
        if (moe_wants(r, precision, MOE_Y)) TRY(alloc_zeros(ctx, "variance of y", count, &scale->y));
        if (dx) TRY(alloc_zeros(ctx, "variance of dx", count, &scale->dx));
        if (router) TRY(alloc_zeros(ctx, "variance of d_weights", choices, &scale->d_weights));
        if (scale->y != NULL && gauge->sum_y == NULL) {
            TRY(alloc_zeros(ctx, "partial sums of y", count, &gauge->sum_y));
            TRY(alloc_zeros(ctx, "squares of partial sums of y", count, &gauge->squares_y));
        }
        if (scale->dx != NULL && gauge->sum_dx == NULL) {
            TRY(alloc_zeros(ctx, "partial sums of dx", count, &gauge->sum_dx));
            TRY(alloc_zeros(ctx, "squares of partial sums of dx", count, &gauge->squares_dx));
        }
    }
cleanup:
    return status;
}

void moe_gauge_free(moe_block *block)
{
    moe_gauge *gauge = &block->gauge;
    for (int precision = 0; gauge->scales != NULL && precision < block->results.precision_count; precision++) {
        moe_scale *scale = &gauge->scales[precision];
        free(scale->logits);
        free(scale->weights);
        free(scale->gate);
        free(scale->y);
        free(scale->dx);
        free(scale->d_weights);
    }
    free(gauge->scales);
    free(gauge->sum_y);
    free(gauge->squares_y);
    free(gauge->sum_dx);
    free(gauge->squares_dx);
    memset(gauge, 0, sizeof *gauge);
}

/* The scale of a token, sigmoid(weight), held as the router holds its numbers. */
static void gauge_token_scale(const moe_block *block, const assay_precision *unit, moe_scale *scale)
{
    const double *weights = block->router.routing.weights;
    double own = unit->elementary * unit->elementary + unit->router * unit->router;
    for (int64_t t = 0; t < block->tokens; t++) {
        double gate = block->gate[t], slope = gate * assay_sigmoid(-weights[t]);
        scale->gate[t] = slope * slope * scale->weights[t] + own * gate * gate;
    }
}

assay_status moe_gauge_weights(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const moe_results *r = &block->results;
    moe_router *router = &block->router;
    double *zeros = NULL;
    TRY(alloc_zeros(ctx, "scale of bias_updates", block->experts, &zeros));
    for (int precision = 0; precision < r->precision_count; precision++) {
        const assay_precision *unit = &r->precisions[precision];
        moe_scale *scale = &block->gauge.scales[precision];
        double lb_loss = 0;
        if (!any_scale(block, precision)) continue;
        assay_matmul_args args = moe_logits_product(block, scale->logits);
        TRY(assay_gauge_matmul(ctx, unit, &args, NULL, NULL));
        assay_gauge_store(unit->router, 0, block->tokens * block->experts, router->logits, scale->logits);
        assay_routing_variances variances = {.weights = scale->weights, .lb_loss = &lb_loss};
        TRY(assay_routing_gauge(ctx, unit, &variances, scale->logits, NULL, NULL, 0, &router->routing, &router->inputs,
                                &block->config->routing));
        if (block->llama4) gauge_token_scale(block, unit, scale);
        TRY(moe_write(ctx, r, precision, MOE_LB_LOSS, 1, &lb_loss));
        /* The sign of a count: no error at a fixed choice. */
        TRY(moe_write(ctx, r, precision, MOE_BIAS_UPDATES, block->experts, zeros));
    }
cleanup:
    free(zeros);
    return status;
}

void moe_gauge_sums(assay_context *ctx, moe_block *block)
{
    const moe_gauge *gauge = &block->gauge;
    int64_t count = block->tokens * block->emb_dim;
    for (int precision = 0; precision < block->results.precision_count; precision++) {
        const moe_scale *scale = &gauge->scales[precision];
        double accumulate = block->results.precisions[precision].accumulate;
        double square = accumulate * accumulate;
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t i = 0; i < count; i++) {
            if (scale->y != NULL) scale->y[i] += square * gauge->squares_y[i];
            if (scale->dx != NULL) scale->dx[i] += square * gauge->squares_dx[i];
        }
    }
}

/* From the variance of dx of the scaled token to those of the weight's gradient and of dx itself. */
void moe_gauge_llama4(assay_context *ctx, moe_block *block)
{
    const double *weights = block->router.routing.weights;
    int64_t dim = block->emb_dim;
    for (int precision = 0; precision < block->results.precision_count; precision++) {
        const assay_precision *unit = &block->results.precisions[precision];
        const moe_scale *scale = &block->gauge.scales[precision];
        if (scale->dx == NULL) continue;
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t t = 0; t < block->tokens; t++) {
            const double *x = block->x + t * dim, *dx = block->dx + t * dim;
            double *variance_dx = scale->dx + t * dim;
            double gate = block->gate[t], other = assay_sigmoid(-weights[t]), slope = gate * other;
            double value = assay_dot(ctx, dim, x, dx), variance = assay_gauge_dot(unit, dim, x, dx);
            for (int64_t d = 0; d < dim; d++) {
                variance += x[d] * x[d] * variance_dx[d] + dx[d] * dx[d] * assay_gauge_given(unit->given, x[d]);
                variance_dx[d] = gate * gate * variance_dx[d] + dx[d] * dx[d] * scale->gate[t];
            }
            if (scale->d_weights == NULL) continue;
            /* sigmoid'' = slope (1 - 2 sigmoid) */
            double bend = slope * (other - gate) * value, own = unit->router * slope * value;
            scale->d_weights[t] = slope * slope * variance + bend * bend * scale->weights[t] + own * own;
        }
    }
}

void moe_gauge_join(const assay_context *ctx, const assay_precision *unit, int64_t count, const double *sum,
                    const double *part, double *variance_sum, const double *variance_part)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++)
        variance_sum[i] += variance_part[i] + moe_stored(unit, sum[i]) + moe_stored(unit, part[i]);
}

typedef struct router_variances {
    double *d_logits, *d_bias, *d_scale, *d_kernel, *dx;
} router_variances;

static assay_status gauge_router(assay_context *ctx, moe_block *block, int precision, const router_variances *v,
                                 const double *dx_router)
{
    assay_status status = ASSAY_OK;
    const moe_results *r = &block->results;
    const assay_precision *unit = &r->precisions[precision];
    const moe_scale *scale = &block->gauge.scales[precision];
    const moe_router *router = &block->router;
    assay_routing_variances variances = {
        .d_logits = v->d_logits, .d_bias = v->d_bias, .d_per_expert_scale = v->d_scale};
    TRY(assay_routing_gauge(ctx, unit, &variances, scale->logits, block->d_weights, scale->d_weights, router->d_lb_loss,
                            &router->routing, &router->inputs, &block->config->routing));
    if (v->d_bias != NULL) TRY(moe_write(ctx, r, precision, MOE_DBIAS, block->experts, v->d_bias));
    if (v->d_scale != NULL) TRY(moe_write(ctx, r, precision, MOE_DSCALE, block->experts, v->d_scale));
    if (moe_wants(r, precision, MOE_DKERNEL)) {
        assay_matmul_args args = moe_d_kernel_product(block, v->d_kernel);
        TRY(assay_gauge_matmul(ctx, unit, &args, NULL, v->d_logits));
        TRY(moe_write(ctx, r, precision, MOE_DKERNEL, block->emb_dim * block->experts, v->d_kernel));
    }
    if (moe_wants(r, precision, MOE_DX)) {
        assay_matmul_args args = moe_dx_product(block, v->dx);
        TRY(assay_gauge_matmul(ctx, unit, &args, v->d_logits, NULL));
        moe_gauge_join(ctx, unit, block->tokens * block->emb_dim, block->dx, dx_router, scale->dx, v->dx);
    }
cleanup:
    return status;
}

assay_status moe_gauge_router(assay_context *ctx, moe_block *block, const double *dx_router)
{
    assay_status status = ASSAY_OK;
    const moe_results *r = &block->results;
    router_variances v = {0};
    int64_t dim = block->emb_dim, experts = block->experts;
    bool any = false;
    for (int precision = 0; precision < r->precision_count; precision++)
        any |= moe_gauge_router_gradient(block, precision);
    if (!any) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "variance of d_logits", block->tokens * experts, &v.d_logits));
    if (moe_wants_any_scale(r, MOE_DBIAS)) TRY(assay_alloc_f64(ctx, "variance of d_bias", experts, &v.d_bias));
    if (moe_wants_any_scale(r, MOE_DSCALE)) TRY(assay_alloc_f64(ctx, "variance of d_scale", experts, &v.d_scale));
    if (moe_wants_any_scale(r, MOE_DKERNEL))
        TRY(assay_alloc_f64(ctx, "variance of d_kernel", dim * experts, &v.d_kernel));
    if (moe_wants_any_scale(r, MOE_DX)) TRY(assay_alloc_f64(ctx, "variance of dx", block->tokens * dim, &v.dx));
    for (int precision = 0; precision < r->precision_count; precision++) {
        if (moe_gauge_router_gradient(block, precision)) TRY(gauge_router(ctx, block, precision, &v, dx_router));
    }
cleanup:
    free(v.d_logits);
    free(v.d_bias);
    free(v.d_scale);
    free(v.d_kernel);
    free(v.dx);
    return status;
}
