#include <math.h>

#include "oracle/moe/routing_gauge_internal.h"

/* Gradient of the weighed values, its second derivatives, and its own errors. */
static void set_d_values(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok, first = token->t * count;
    const assay_routing_rule *rule = &pass->rule;
    const double unit = pass->precision->router;
    const double divisor = assay_routing_divisor(pass->r->gathered + first, count, rule);
    const double *h = token->d_values, *n = token->normalized;
    double products = 0.0, mean = 0.0, partial;
    assay_routing_gathered_backward(token->d_values, pass->d_weights + first, pass->r->gathered + first,
                                    token->selected, pass->in->per_expert_scale, count, rule);
    for (int64_t k = 0; k < count; k++) {
        const double scale = assay_routing_scale(rule, pass->in->per_expert_scale, token->selected[k]);
        const double d = pass->d_weights[first + k] * scale;
        const double roundings = scale != 1.0 ? 2.0 : 1.0; /* as it comes in, and the product */
        token->var_d_normalized[k] =
            assay_gauge_d_weight(pass, first + k) * scale * scale + roundings * assay_square(unit * d) +
            assay_square(pass->d_weights[first + k]) * assay_gauge_own_scale(pass, token->selected[k]);
        products += assay_square(n[k] * d);
        mean = fma(n[k], d, mean);
    }
    /* The rounding of partial sums counts where a softmax sums what it leaves; beside the rest it is small. */
    partial = rule->score_func == ASSAY_SCORE_SOFTMAX ? assay_partial_squares(count, products, mean) : mean * mean;
    for (int64_t k = 0; k < count; k++) {
        double outer = rule->softmax_chosen ? n[k] : rule->divide ? 1.0 / divisor : 0.0;
        if (rule->softmax_chosen && rule->divide) outer *= sqrt(2.0);              /* centred twice */
        token->common_d_values[k] = unit * outer * sqrt(2.0 * products + partial); /* of the mean, taken from all */
        token->local_d_values[k] = assay_square(token->common_d_values[k]) +
                                   (rule->softmax_chosen || rule->divide ? 2.0 * assay_square(unit * h[k]) : 0.0);
        token->hessian_row[k] = 0.0;
        for (int64_t i = 0; i < count; i++) {
            double *m = &token->hessian[k * count + i];
            *m = rule->softmax_chosen ? (i == k ? h[k] : 0.0) - (n[i] * h[k] + n[k] * h[i])
                 : rule->divide       ? -(h[k] + h[i]) / divisor
                                      : 0.0;
            token->hessian_row[k] = fma(*m, token->scores[token->selected[i]], token->hessian_row[k]);
        }
    }
}

/* Standard deviations of the gradient of the weighed values themselves: what a bias added to them gets. */
static void add_bias_part(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok;
    for (int64_t k = 0; k < count; k++) {
        double variance = token->local_d_values[k];
        for (int64_t i = 0; i < count; i++) {
            variance += assay_square(token->hessian[k * count + i]) *
                        (token->var_score[token->selected[i]] + token->local_value[i]);
            variance += assay_square(token->jacobian[i * count + k]) * token->var_d_normalized[i];
        }
        token->bias_gradient[token->selected[k]] = token->d_values[k];
        token->bias_sigma[token->selected[k]] = sqrt(variance);
    }
}

/* Scores that depend on their own logit only: those that were not chosen stay exactly 0. */
static void elementwise_part(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok;
    const assay_score_func score_func = pass->rule.score_func;
    const double roundings = score_func == ASSAY_SCORE_NONE ? 0.0 : 2.0;
    for (int64_t k = 0; k < count; k++) {
        const int32_t e = token->selected[k];
        const double slope = token->slope[e], h = token->d_values[k], value = slope * h;
        double variance = assay_square(slope) * token->local_d_values[k];
        for (int64_t i = 0; i < count; i++) {
            const int32_t f = token->selected[i];
            const double through = slope * token->hessian[k * count + i];
            const double own_score = i == k ? h * token->slope_by_score[e] : 0.0;
            const double own_argument = i == k ? h * token->slope_by_argument[e] : 0.0;
            variance += assay_square((through + own_score) * token->slope[f] + own_argument) * token->var_argument[f];
            variance += assay_square(through + own_score) * token->local_score[f];
            variance += assay_square(through) * token->local_value[i];
            variance += assay_square(slope * token->jacobian[i * count + k]) * token->var_d_normalized[i];
        }
        variance += roundings * assay_square(pass->precision->router * value);
        if (score_func == ASSAY_SCORE_SQRTSOFTPLUS) variance += assay_square(pass->precision->elementary * value);
        token->gradient[e] = value;
        token->sigma[e] = sqrt(variance);
    }
}

void assay_gauge_backward_token(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    for (int64_t e = 0; e < pass->config->num_experts; e++) {
        token->gradient[e] = 0.0;
        token->sigma[e] = 0.0;
        token->bias_gradient[e] = 0.0;
        token->bias_sigma[e] = 0.0;
    }
    if (pass->d_weights == NULL) return;
    set_d_values(pass, token);
    if (!pass->rule.weighs_scores) add_bias_part(pass, token);
    if (pass->rule.score_func == ASSAY_SCORE_SOFTMAX) {
        assay_gauge_softmax_part(pass, token);
    } else {
        elementwise_part(pass, token);
    }
}
