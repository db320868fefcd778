#include "oracle/propagate/propagate_moe.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"
#include "oracle/propagate/propagate_moe_internal.h"
#include "oracle/propagate/propagate_routing.h"
#include "oracle/propagate/scales.h"

/* The sink of one precision. */
static bool wants_scale(void *self, const char *path)
{
    const moe_scales *scale = self;
    return assay_wants_scale(scale->out, scale->precision, path);
}

static assay_status write_scale(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const moe_scales *scale = self;
    return assay_write_scale(ctx, scale->out, scale->precision, path, count, values);
}

static assay_status open_scale(assay_context *ctx, moe_propagation *p, moe_scales *scale, const moe_block *block)
{
    const int64_t count = block->tokens * block->emb_dim, choices = block->tokens * block->per_token;
    scale->sink = (assay_sink){.self = scale, .wants = wants_scale, .write = write_scale};
    moe_results_open(&scale->results, block->config, block->in, &scale->sink);
    scale->any = moe_wants_any(&scale->results, 0, MOE_RESULTS);
    scale->router = moe_wants_any(&scale->results, MOE_DX, MOE_ROUTED - MOE_DX);
    if (!scale->any) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "variance of logits", block->tokens * block->experts, &scale->logits));
    MUST(assay_alloc_f64(ctx, "variance of weights", choices, &scale->weights));
    if (block->llama4) MUST(assay_alloc_f64(ctx, "variance of the token scale", block->tokens, &scale->gate));
    if (moe_wants(&scale->results, MOE_Y)) MUST(assay_alloc_zeros(ctx, "variance of y", count, &scale->y));
    if (moe_wants(&scale->results, MOE_DX) || (scale->router && block->llama4))
        MUST(assay_alloc_zeros(ctx, "variance of dx", count, &scale->dx));
    if (scale->router) MUST(assay_alloc_zeros(ctx, "variance of d_weights", choices, &scale->d_weights));
    if (scale->y != NULL && p->sum_y == NULL) {
        MUST(assay_alloc_zeros(ctx, "partial sums of y", count, &p->sum_y));
        MUST(assay_alloc_zeros(ctx, "squares of partial sums of y", count, &p->squares_y));
    }
    if (scale->dx != NULL && p->sum_dx == NULL) {
        MUST(assay_alloc_zeros(ctx, "partial sums of dx", count, &p->sum_dx));
        MUST(assay_alloc_zeros(ctx, "squares of partial sums of dx", count, &p->squares_dx));
    }
    return ASSAY_OK;
}

static void close_all(moe_propagation *p)
{
    for (int i = 0; p->scales != NULL && i < p->count; i++) {
        moe_scales *scale = &p->scales[i];
        free(scale->logits);
        free(scale->weights);
        free(scale->gate);
        free(scale->y);
        free(scale->dx);
        free(scale->d_weights);
        moe_checkpoints_close(&scale->checkpoints);
    }
    free(p->scales);
    free(p->sum_y);
    free(p->squares_y);
    free(p->sum_dx);
    free(p->squares_dx);
    moe_row_scratch_free(&p->rows);
}

/* The variances of logits and weights; writes the scales of these, lb_loss and bias_updates. */
static assay_status routed_one(assay_context *ctx, moe_scales *scale, const moe_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_precision *precision = scale->precision;
    const double *weights = block->router.routing.weights;
    const int64_t chosen = block->config->routing.num_experts_per_tok;
    double lb_loss = 0, *zeros = NULL;
    const assay_matmul_args args = moe_logits_product(block, scale->logits);
    const assay_routing_variances variances = {.weights = scale->weights, .lb_loss = &lb_loss};
    const assay_routing_run run = {.variance_logits = scale->logits,
                                   .r = &block->router.routing,
                                   .in = &block->router.inputs,
                                   .config = &block->config->routing};
    TRY(assay_propagate_product(ctx, precision, false, &args, NULL, NULL));
    assay_propagate_store(precision->router, 0, block->tokens * block->experts, block->router.logits, scale->logits);
    TRY(assay_propagate_routing(ctx, precision, &variances, &run));
    /* llama4's scale of a token, sigmoid(weight), is held as the router holds its numbers. */
    for (int64_t t = 0; block->llama4 && t < block->tokens; t++) {
        const double gate = block->gate[t], slope = gate * assay_sigmoid(-weights[t]);
        scale->gate[t] = assay_square(slope) * scale->weights[t] +
                         (assay_square(precision->elementary) + assay_square(precision->router)) * assay_square(gate);
    }
    TRY(moe_write(ctx, &scale->results, MOE_LB_LOSS, 1, &lb_loss));
    TRY(moe_write(ctx, &scale->results, MOE_WEIGHTS, block->tokens * chosen, scale->weights));
    /* The sign of a count: no error at a fixed choice. */
    TRY(assay_alloc_zeros(ctx, "scale of bias_updates", block->experts, &zeros));
    TRY(moe_write(ctx, &scale->results, MOE_BIAS_UPDATES, block->experts, zeros));
cleanup:
    free(zeros);
    return status;
}

static assay_status routed(assay_context *ctx, void *self, const moe_block *block)
{
    moe_propagation *p = self;
    for (int i = 0; i < p->count; i++) {
        moe_scales *scale = &p->scales[i];
        MUST(open_scale(ctx, p, scale, block));
        MUST(moe_checkpoints_open(ctx, &scale->checkpoints, block, &scale->results, true));
        if (scale->any) MUST(routed_one(ctx, scale, block));
    }
    return ASSAY_OK;
}

/* llama4: from the variance of dx of the scaled token to those of the weight's gradient and of dx itself. */
static void unscale(const assay_context *ctx, const moe_scales *scale, const moe_block *block)
{
    const assay_precision *precision = scale->precision;
    const double *weights = block->router.routing.weights;
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < block->tokens; t++) {
        const double *x = block->x + t * dim, *dx = block->dx + t * dim;
        double *variance_dx = scale->dx + t * dim;
        const double gate = block->gate[t], other = assay_sigmoid(-weights[t]), slope = gate * other;
        const double value = assay_dot(ctx, dim, x, dx);
        double variance = assay_propagate_dot(precision, dim, x, dx);
        for (int64_t d = 0; d < dim; d++) {
            variance += x[d] * x[d] * variance_dx[d] + dx[d] * dx[d] * assay_propagate_given(precision->given, x[d]);
            variance_dx[d] = gate * gate * variance_dx[d] + dx[d] * dx[d] * scale->gate[t];
        }
        if (scale->d_weights == NULL) continue;
        /* The slope as kernels have it, s (1 - s) of the s that is kept: 1 - 2 s by s. It cancels where s is near 1. */
        const double bend = (other - gate) * value, own = precision->router * slope * value;
        scale->d_weights[t] = slope * slope * variance + bend * bend * scale->gate[t] + own * own;
    }
}

/* The sums over K themselves are rounded. */
static assay_status experts(assay_context *ctx, void *self, const moe_block *block)
{
    const moe_propagation *p = self;
    const int64_t count = block->tokens * block->emb_dim;
    assay_status status = ASSAY_OK;
    for (int i = 0; i < p->count; i++) {
        moe_scales *scale = &p->scales[i];
        const double square = assay_square(scale->precision->accumulate);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t at = 0; at < count; at++) {
            if (scale->y != NULL) scale->y[at] += square * p->squares_y[at];
            if (scale->dx != NULL) scale->dx[at] += square * p->squares_dx[at];
        }
        if (block->llama4 && scale->dx != NULL) unscale(ctx, scale, block);
        TRY(moe_checkpoints_finish(ctx, &scale->checkpoints));
        moe_checkpoints_close(&scale->checkpoints);
    }
cleanup:
    moe_row_scratch_free(&((moe_propagation *)self)->rows);
    return status;
}

typedef struct router_variances {
    double *d_logits, *d_bias, *d_scale, *d_kernel, *dx;
} router_variances;

static assay_status router_one(assay_context *ctx, const moe_scales *scale, const moe_block *block,
                               const router_variances *v, const double *dx_router)
{
    const assay_precision *precision = scale->precision;
    const moe_router *router = &block->router;
    const assay_routing_variances variances = {
        .d_logits = v->d_logits, .d_bias = v->d_bias, .d_per_expert_scale = v->d_scale};
    const assay_routing_run run = {.variance_logits = scale->logits,
                                   .d_weights = block->d_weights,
                                   .variance_d_weights = scale->d_weights,
                                   .d_lb_loss = router->d_lb_loss[0],
                                   .r = &router->routing,
                                   .in = &router->inputs,
                                   .config = &block->config->routing};
    MUST(assay_propagate_routing(ctx, precision, &variances, &run));
    MUST(moe_write(ctx, &scale->results, MOE_DBIAS, block->experts, v->d_bias));
    MUST(moe_write(ctx, &scale->results, MOE_DSCALE, block->experts, v->d_scale));
    if (moe_wants(&scale->results, MOE_DKERNEL)) {
        const assay_matmul_args args = assay_product_of_router(
            assay_product_atb(v->d_kernel, block->x, router->d_logits, block->emb_dim, block->experts, block->tokens));
        MUST(assay_propagate_product(ctx, precision, false, &args, NULL, v->d_logits));
        MUST(moe_write(ctx, &scale->results, MOE_DKERNEL, block->emb_dim * block->experts, v->d_kernel));
    }
    if (moe_wants(&scale->results, MOE_DX)) {
        const assay_matmul_args args = moe_dx_product(block, v->dx);
        MUST(assay_propagate_product(ctx, precision, false, &args, v->d_logits, NULL));
        moe_propagate_join(precision, block->tokens * block->emb_dim, block->dx, dx_router, scale->dx, v->dx);
    }
    return ASSAY_OK;
}

/* The scales of the gate's gradients; its part joins the variance of dx. */
static assay_status router(assay_context *ctx, void *self, const moe_block *block, const double *dx_router)
{
    assay_status status = ASSAY_OK;
    const moe_propagation *p = self;
    router_variances v = {0};
    const int64_t dim = block->emb_dim, experts = block->experts;
    bool any = false, kernel = false;
    for (int i = 0; i < p->count; i++) {
        any |= p->scales[i].router;
        kernel |= moe_wants(&p->scales[i].results, MOE_DKERNEL);
    }
    if (!any) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "variance of d_logits", block->tokens * experts, &v.d_logits));
    if (block->router.bias != NULL) TRY(assay_alloc_f64(ctx, "variance of d_bias", experts, &v.d_bias));
    if (block->router.per_expert_scale != NULL) TRY(assay_alloc_f64(ctx, "variance of d_scale", experts, &v.d_scale));
    if (kernel) TRY(assay_alloc_f64(ctx, "variance of d_kernel", dim * experts, &v.d_kernel));
    if (dx_router != NULL) TRY(assay_alloc_f64(ctx, "variance of dx", block->tokens * dim, &v.dx));
    for (int i = 0; i < p->count; i++) {
        if (p->scales[i].router) TRY(router_one(ctx, &p->scales[i], block, &v, dx_router));
    }
cleanup:
    free(v.d_logits);
    free(v.d_bias);
    free(v.d_scale);
    free(v.d_kernel);
    free(v.dx);
    return status;
}

/* What the block is asked for: what somebody wants, and what has a scale that somebody wants. */
typedef struct wide_sink {
    const assay_sink *out;
    const assay_precision *precisions;
    int count;
} wide_sink;

static bool wide_wants(void *self, const char *path)
{
    const wide_sink *sink = self;
    bool wants = assay_wants(sink->out, path);
    for (int i = 0; i < sink->count && !wants; i++) wants = assay_wants_scale(sink->out, &sink->precisions[i], path);
    return wants;
}

static assay_status wide_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const wide_sink *sink = self;
    return assay_write_result(ctx, sink->out, path, count, values);
}

static assay_status wide_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const wide_sink *sink = self;
    return assay_write_result_i32(ctx, sink->out, path, count, values);
}

assay_status assay_propagate_moe(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                                 const assay_sink *out, const assay_precision *precisions, int precision_count)
{
    assay_status status = ASSAY_OK;
    moe_propagation p = {.count = precision_count};
    wide_sink asked = {out, precisions, precision_count};
    const assay_sink wide = {.self = &asked, .wants = wide_wants, .write = wide_write, .write_i32 = wide_write_i32};
    const assay_moe_observer observer = {.self = &p,
                                         .routed = routed,
                                         .rows = moe_propagate_rows,
                                         .combined = moe_propagate_combined,
                                         .experts = experts,
                                         .router = router};
    const int64_t count = config->routing.batch * config->routing.sequence * config->emb_dim;
    if (precision_count == 0) return assay_moe_run(ctx, config, in, out, NULL);
    TRY(assay_alloc(ctx, "error scales", precision_count, sizeof *p.scales, &p.scales));
    memset(p.scales, 0, (size_t)precision_count * sizeof *p.scales);
    for (int i = 0; i < precision_count; i++) {
        p.scales[i].precision = &precisions[i];
        p.scales[i].out = out;
    }
    TRY(assay_moe_run(ctx, config, in, &wide, &observer));
    for (int i = 0; i < precision_count; i++) {
        TRY(moe_write(ctx, &p.scales[i].results, MOE_Y, count, p.scales[i].y));
        TRY(moe_write(ctx, &p.scales[i].results, MOE_DX, count, p.scales[i].dx));
    }
cleanup:
    close_all(&p);
    return status;
}
