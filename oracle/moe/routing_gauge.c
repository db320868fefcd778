#include "oracle/moe/routing_gauge.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/routing_gauge_internal.h"

enum { ARRAYS_OF_EXPERTS = 16, ARRAYS_OF_CHOSEN = 9, SQUARES_OF_CHOSEN = 2 };

static int64_t token_size(const assay_routing_config *config)
{
    const int64_t count = config->num_experts_per_tok;
    return ARRAYS_OF_EXPERTS * config->num_experts + ARRAYS_OF_CHOSEN * count + SQUARES_OF_CHOSEN * count * count;
}

static void place_token(assay_gauge_token *token, double *memory, const assay_routing_config *config)
{
    const int64_t count = config->num_experts_per_tok;
    double **const of_experts[ARRAYS_OF_EXPERTS] = {
        &token->argument,          &token->selecting,    &token->slope,       &token->slope_by_score,
        &token->slope_by_argument, &token->var_argument, &token->local_score, &token->var_score,
        &token->local_biased,      &token->gradient,     &token->sigma,       &token->bias_gradient,
        &token->bias_sigma,        &token->row,          &token->column,      &token->work,
    };
    double **const of_chosen[ARRAYS_OF_CHOSEN] = {
        &token->local_value,  &token->normalized,     &token->var_normalized,
        &token->d_values,     &token->local_d_values, &token->var_d_normalized,
        &token->jacobian_row, &token->hessian_row,    &token->common_d_values,
    };
    for (int i = 0; i < ARRAYS_OF_EXPERTS; i++, memory += config->num_experts) *of_experts[i] = memory;
    for (int i = 0; i < ARRAYS_OF_CHOSEN; i++, memory += count) *of_chosen[i] = memory;
    token->jacobian = memory;
    token->hessian = memory + count * count;
}

static void store_forward(const assay_gauge_pass *pass, const assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok, first = token->t * count;
    const double unit = pass->precision->router;
    for (int64_t k = 0; k < count; k++) {
        const double scale = assay_routing_scale(&pass->rule, pass->in->per_expert_scale, token->selected[k]);
        const double roundings = scale != 1.0 ? 2.0 : 1.0; /* the product and the weight as it is kept */
        if (pass->normalized != NULL) pass->normalized[first + k] = token->var_normalized[k];
        if (pass->weights != NULL) {
            pass->weights[first + k] =
                scale * scale * token->var_normalized[k] +
                roundings * assay_square(unit * pass->r->weights[first + k]) +
                assay_square(token->normalized[k]) * assay_gauge_own_scale(pass, token->selected[k]);
        }
    }
}

static void store_backward(const assay_gauge_pass *pass, const assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts, first = token->t * experts;
    const double unit = pass->precision->router;
    const bool inside = pass->rule.bias_inside; /* the bias gets what the logits get */
    const double *value = inside ? token->gradient : token->bias_gradient;
    const double *sigma = inside ? token->sigma : token->bias_sigma;
    for (int64_t e = 0; e < experts; e++) {
        if (pass->d_logits != NULL) {
            pass->d_logits[first + e] = assay_square(token->sigma[e]) + assay_square(unit * token->gradient[e]);
        }
        if (pass->bias != NULL) {
            pass->bias[first + e] = assay_square(sigma[e]) + assay_square(unit * value[e]);
            pass->bias_size[first + e] = fabs(value[e]);
        }
    }
}

static void gauge_token(const assay_gauge_pass *pass, assay_gauge_token *token, int64_t t)
{
    token->t = t;
    token->selected = pass->r->selected_experts + t * pass->config->num_experts_per_tok;
    token->scores = pass->r->scores + t * pass->config->num_experts;
    assay_gauge_forward_token(pass, token);
    store_forward(pass, token);
    if (pass->loss != NULL) pass->loss[t] = assay_gauge_balance_loss(pass, token);
    if (pass->d_logits == NULL && pass->bias == NULL) return;
    assay_gauge_backward_token(pass, token);
    assay_gauge_balance(pass, token);
    store_backward(pass, token);
}

static assay_status gauge_tokens(assay_context *ctx, const assay_gauge_pass *pass)
{
    const int64_t tokens = pass->config->batch * pass->config->sequence, size = token_size(pass->config);
    double *memory = NULL;
    assay_status status = assay_alloc_f64(ctx, "routing gauge: scratch", size * ctx->threads, &memory);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads)
    for (int part = 0; part < ctx->threads; part++) {
        assay_gauge_token token = {0};
        place_token(&token, memory + part * size, pass->config);
        const int64_t end = assay_part_begin(ctx, tokens, part + 1);
        for (int64_t t = assay_part_begin(ctx, tokens, part); t < end; t++) gauge_token(pass, &token, t);
    }
    free(memory);
    return ASSAY_OK;
}

/* Sums over the tokens: their errors are independent; `size` [E] is the sum of the absolute values. */
static void sum_bias(const assay_gauge_pass *pass, double *d_bias, double *size)
{
    const int64_t tokens = pass->config->batch * pass->config->sequence, experts = pass->config->num_experts;
    assay_column_sums(pass->ctx, d_bias, tokens, experts, experts, pass->bias);
    assay_column_sums(pass->ctx, size, tokens, experts, experts, pass->bias_size);
    for (int64_t e = 0; e < experts; e++) {
        d_bias[e] += (double)tokens * assay_square(pass->precision->accumulate * size[e]);
    }
}

static void sum_expert_scale(const assay_gauge_pass *pass, double *d_scale, double *size)
{
    const int64_t count = pass->config->num_experts_per_tok, experts = pass->config->num_experts;
    for (int64_t e = 0; e < experts; e++) d_scale[e] = size[e] = 0.0;
    if (pass->d_weights == NULL) return;
    for (int64_t i = 0; i < pass->config->batch * pass->config->sequence * count; i++) {
        const int32_t e = pass->r->selected_experts[i];
        const double *gathered = pass->r->gathered + i / count * count;
        const double value = pass->r->gathered[i] / assay_routing_divisor(gathered, count, &pass->rule);
        const double d = pass->d_weights[i] * pass->rule.factor, unit2 = assay_square(pass->precision->router);
        /* d_weights and the product are rounded once each. */
        d_scale[e] += d * d * pass->normalized[i] + 2.0 * unit2 * assay_square(d * value);
        d_scale[e] += assay_square(pass->rule.factor * value) * assay_gauge_d_weight(pass, i);
        size[e] += fabs(d * value);
    }
    for (int64_t e = 0; e < experts; e++) {
        d_scale[e] += (double)pass->r->group_sizes[e] * assay_square(pass->precision->accumulate * size[e]);
    }
}

assay_status assay_routing_gauge(assay_context *ctx, const assay_precision *precision, const assay_routing_variances *v,
                                 const double *variance_logits, const double *d_weights,
                                 const double *variance_d_weights, double d_lb_loss, const assay_routing *r,
                                 const assay_routing_inputs *in, const assay_routing_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = config->num_experts, tokens = config->batch * config->sequence;
    const assay_routing_rule rule = assay_routing_rule_of(config);
    assay_gauge_pass pass = {
        ctx, precision, variance_logits, d_weights, variance_d_weights,    d_lb_loss,
        r,   in,        config,          rule,      .weights = v->weights, .d_logits = v->d_logits,
    };
    double *size = NULL;
    TRY(assay_alloc_f64(ctx, "routing gauge: sizes", experts, &size));
    if (v->d_bias != NULL) {
        TRY(assay_alloc_f64(ctx, "routing gauge: variances of d_bias", tokens * experts, &pass.bias));
        TRY(assay_alloc_f64(ctx, "routing gauge: sizes of d_bias", tokens * experts, &pass.bias_size));
    }
    if (v->d_per_expert_scale != NULL) {
        TRY(assay_alloc_f64(ctx, "routing gauge: variances of normalised weights", tokens * config->num_experts_per_tok,
                            &pass.normalized));
    }
    if (v->lb_loss != NULL && rule.balance) {
        TRY(assay_alloc_f64(ctx, "routing gauge: variances of lb_loss", tokens, &pass.loss));
    }
    TRY(gauge_tokens(ctx, &pass));
    if (v->lb_loss != NULL) *v->lb_loss = rule.balance ? assay_gauge_loss_sums(&pass, pass.loss) : 0.0;
    if (v->d_bias != NULL) sum_bias(&pass, v->d_bias, size);
    if (v->d_per_expert_scale != NULL) sum_expert_scale(&pass, v->d_per_expert_scale, size);
cleanup:
    free(size);
    free(pass.bias);
    free(pass.bias_size);
    free(pass.normalized);
    free(pass.loss);
    return status;
}
