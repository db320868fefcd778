#include <math.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/moe/routing_gauge_internal.h"

/* The slope of an elementwise score function as implementations have it: from the stored score s. */
static void set_slope(assay_gauge_token *token, int64_t e, assay_score_func score_func)
{
    const double x = token->argument[e], s = token->scores[e];
    token->slope[e] = assay_score_derivative(score_func, x);
    token->slope_by_score[e] = 0.0;
    token->slope_by_argument[e] = 0.0;
    if (score_func == ASSAY_SCORE_SIGMOID) {
        token->slope_by_score[e] = 1.0 - 2.0 * s;        /* slope = s (1 - s) */
    } else if (score_func == ASSAY_SCORE_SQRTSOFTPLUS) { /* slope = sigmoid(x) / (2 s) */
        const double sigmoid = 1.0 / (1.0 + assay_exp(-x));
        token->slope_by_score[e] = x < -40.0 ? -0.5 : -sigmoid / (2.0 * s * s);
        token->slope_by_argument[e] = token->slope[e] * (1.0 - sigmoid);
    }
}

static void set_softmax_errors(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    const double unit = pass->precision->router, elementary = pass->precision->elementary;
    double largest = -INFINITY, total = 0.0;
    for (int64_t e = 0; e < experts; e++) largest = fmax(largest, token->argument[e]);
    for (int64_t e = 0; e < experts; e++) {
        /* A relative error of an exponential is an absolute one of its argument. */
        token->var_argument[e] += assay_square(elementary) + assay_square(unit * (token->argument[e] - largest));
        token->local_score[e] = assay_square(unit * token->scores[e]);
        total += assay_square(token->scores[e]) * token->var_argument[e];
    }
    for (int64_t e = 0; e < experts; e++) {
        const double s = token->scores[e], v = token->var_argument[e];
        const double others = fmax(total - s * s * v, 0.0);
        token->var_score[e] = s * s * (assay_square(1.0 - s) * v + others) + token->local_score[e];
    }
}

static double bias_error(const assay_gauge_pass *pass, int64_t e)
{
    return assay_gauge_given(pass->precision->router_bias, pass->in->bias[e]);
}

static void set_errors(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    const double unit = pass->precision->router, elementary = pass->precision->elementary;
    const double *logits = pass->in->logits + token->t * experts, *bias = pass->in->bias;
    const bool inside = pass->rule.bias_inside && bias != NULL;
    const bool elementwise =
        pass->rule.score_func == ASSAY_SCORE_SIGMOID || pass->rule.score_func == ASSAY_SCORE_SQRTSOFTPLUS;
    for (int64_t e = 0; e < experts; e++) {
        const double x = inside ? logits[e] + bias[e] : logits[e];
        token->argument[e] = x;
        token->var_argument[e] = assay_square(unit * logits[e]);
        if (inside) token->var_argument[e] += assay_square(unit * x) + bias_error(pass, e);
        if (pass->variance_logits != NULL) token->var_argument[e] += pass->variance_logits[token->t * experts + e];
        set_slope(token, e, pass->rule.score_func);
        token->local_score[e] =
            elementwise ? (assay_square(unit) + assay_square(elementary)) * assay_square(token->scores[e]) : 0.0;
        token->var_score[e] = assay_square(token->slope[e]) * token->var_argument[e] + token->local_score[e];
    }
    if (pass->rule.score_func == ASSAY_SCORE_SOFTMAX) set_softmax_errors(pass, token);
    for (int64_t e = 0; e < experts; e++) {
        const bool added = pass->rule.selects == ASSAY_SELECTS_BIASED && bias != NULL;
        token->selecting[e] = pass->rule.selects == ASSAY_SELECTS_ARGUMENT ? token->argument[e]
                                                                           : token->scores[e] + (added ? bias[e] : 0.0);
        token->local_biased[e] = added ? assay_square(unit * token->selecting[e]) + bias_error(pass, e) : 0.0;
    }
}

/* The normalised values (softmax and division done, no scaling), their Jacobian and what enters at the weighed values.
 */
static void set_normalized(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok;
    const assay_routing_rule *rule = &pass->rule;
    const double *gathered = pass->r->gathered + token->t * count;
    const double divisor = assay_routing_divisor(gathered, count, rule);
    double largest = -INFINITY;
    for (int64_t k = 0; k < count; k++) largest = fmax(largest, token->selecting[token->selected[k]]);
    for (int64_t k = 0; k < count; k++) {
        const int32_t e = token->selected[k];
        const double n = gathered[k] / divisor;
        token->normalized[k] = n;
        token->local_value[k] = rule->weighs_scores ? 0.0 : token->local_biased[e];
        if (rule->softmax_chosen) {
            token->local_value[k] += assay_square(pass->precision->elementary) +
                                     assay_square(pass->precision->router * (token->selecting[e] - largest));
        }
        token->jacobian_row[k] = 0.0;
        for (int64_t i = 0; i < count; i++) {
            const double same = i == k ? 1.0 : 0.0;
            double *j = &token->jacobian[k * count + i];
            *j = rule->softmax_chosen ? n * (same - gathered[i] / divisor) : rule->divide ? (same - n) / divisor : same;
            token->jacobian_row[k] = fma(*j, token->scores[token->selected[i]], token->jacobian_row[k]);
        }
    }
}

/* Variance of the normalised values; a softmax over all experts has errors of those that were not chosen in it too. */
static void set_var_normalized(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok, experts = pass->config->num_experts;
    const assay_routing_rule *rule = &pass->rule;
    const bool softmax = rule->score_func == ASSAY_SCORE_SOFTMAX;
    const double roundings = (rule->softmax_chosen ? 2.0 : 0.0) + (rule->divide ? 2.0 : 0.0); /* sum and quotient */
    double others = 0.0;
    for (int64_t e = 0; e < experts; e++) token->row[e] = assay_square(token->scores[e]) * token->var_argument[e];
    for (int64_t k = 0; k < count; k++) token->row[token->selected[k]] = 0.0;
    for (int64_t e = 0; e < experts; e++) others += token->row[e];
    for (int64_t k = 0; k < count; k++) {
        double sum = softmax ? assay_square(token->jacobian_row[k]) * others : 0.0;
        for (int64_t i = 0; i < count; i++) {
            const int32_t e = token->selected[i];
            const double j = token->jacobian[k * count + i];
            const double through = softmax ? token->scores[e] * (j - token->jacobian_row[k]) : j * token->slope[e];
            sum += assay_square(through) * token->var_argument[e];
            sum += assay_square(j) * (token->local_score[e] + token->local_value[i]);
        }
        token->var_normalized[k] = sum + roundings * assay_square(pass->precision->router * token->normalized[k]);
    }
}

void assay_gauge_forward_token(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    set_errors(pass, token);
    set_normalized(pass, token);
    set_var_normalized(pass, token);
}
