#include <math.h>

#include "oracle/moe/balance.h"
#include "oracle/moe/routing_gauge_internal.h"

/* The softmax over all experts of what selects: variance of its arguments with what its exponentials add, into
 * token->column. Scores that are a softmax themselves have errors that depend on each other a little; they are taken
 * for independent here, which costs up to a third of a standard deviation. */
static void set_probability_errors(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    const double unit = pass->precision->router, elementary = pass->precision->elementary;
    double largest = -INFINITY;
    for (int64_t e = 0; e < experts; e++) largest = fmax(largest, token->selecting[e]);
    for (int64_t e = 0; e < experts; e++) {
        if (pass->rule.bias_inside) { /* the scores are these probabilities: counted already */
            token->column[e] = token->var_argument[e];
        } else {
            token->column[e] = token->var_score[e] + token->local_biased[e] + assay_square(elementary) +
                               assay_square(unit * (token->selecting[e] - largest));
        }
    }
}

/* The gradient of what selects for a given cotangent of lb_loss, into token->row, its variance into token->work. */
static void selecting_gradient(const assay_gauge_pass *pass, assay_gauge_token *token, double d_lb_loss)
{
    const int64_t experts = pass->config->num_experts;
    const double *density = pass->r->density + token->t / pass->config->sequence * experts;
    const double *p = pass->r->probabilities + token->t * experts, *v = token->column;
    const double coefficient = d_lb_loss * assay_balance_coefficient(pass->config);
    const double unit2 = assay_square(pass->precision->router);
    const double given = assay_gauge_given(pass->precision->given, d_lb_loss);
    const double cotangent = given > 0.0 ? given / assay_square(d_lb_loss) : 0.0;
    double mean = 0.0, sum = 0.0, sum_centred = 0.0, sum_squared = 0.0, products = 0.0;
    set_probability_errors(pass, token);
    for (int64_t e = 0; e < experts; e++) mean = fma(p[e], coefficient * density[e], mean);
    for (int64_t e = 0; e < experts; e++) {
        const double centred = coefficient * density[e] - mean, weight = p[e] * p[e] * v[e];
        sum += weight;
        sum_centred += weight * centred;
        sum_squared += weight * centred * centred;
        products += assay_square(p[e] * coefficient * density[e]);
    }
    for (int64_t e = 0; e < experts; e++) {
        const double d = coefficient * density[e], centred = d - mean;
        /* The sum over j of (p[j] (centred + centred[j]))^2 v[j], but for j = e: that one has a term of its own. */
        const double all = sum_squared + 2.0 * centred * sum_centred + centred * centred * sum;
        const double others = fmax(all - assay_square(2.0 * p[e] * centred) * v[e], 0.0);
        const double own = assay_square(centred - 2.0 * p[e] * centred) * v[e];
        token->row[e] = p[e] * centred;
        token->work[e] = p[e] * p[e] * (others + own + unit2 * (2.0 * products + d * d + mean * mean)) +
                         (2.0 * unit2 + cotangent) * assay_square(token->row[e]);
    }
}

/* Scores that are a softmax themselves: s * (d - <s,d>). */
static void through_softmax(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    const double *s = token->scores, *d = token->row, *variance = token->work;
    const double unit = pass->precision->router;
    double mean = 0.0, var_mean = 0.0;
    for (int64_t e = 0; e < experts; e++) {
        mean = fma(s[e], d[e], mean);
        var_mean += d[e] * d[e] * token->var_score[e] + s[e] * s[e] * variance[e] + assay_square(unit * s[e] * d[e]);
    }
    for (int64_t e = 0; e < experts; e++) {
        const double value = s[e] * (d[e] - mean);
        const double sigma =
            fabs(d[e] - mean) * sqrt(token->var_score[e]) + s[e] * (sqrt(variance[e]) + sqrt(var_mean));
        token->gradient[e] += value;
        token->sigma[e] += sqrt(sigma * sigma + 2.0 * assay_square(unit * value));
    }
}

static void through_elementwise(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    for (int64_t e = 0; e < experts; e++) {
        const double slope = token->slope[e];
        const double by_argument = token->slope_by_score[e] * slope + token->slope_by_argument[e];
        double var_slope = assay_square(by_argument) * token->var_argument[e] +
                           assay_square(token->slope_by_score[e]) * token->local_score[e];
        if (pass->rule.score_func != ASSAY_SCORE_NONE) {
            var_slope +=
                2.0 * assay_square(pass->precision->router * slope) + assay_square(pass->precision->elementary * slope);
        }
        token->gradient[e] += slope * token->row[e];
        token->sigma[e] += fabs(slope) * sqrt(token->work[e]) + fabs(token->row[e]) * sqrt(var_slope);
    }
}

void assay_gauge_balance(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    if (!pass->rule.balance || pass->d_lb_loss == 0.0) return;
    selecting_gradient(pass, token, pass->d_lb_loss);
    for (int64_t e = 0; e < experts; e++) {
        token->bias_gradient[e] += token->row[e];
        token->bias_sigma[e] += sqrt(token->work[e]);
    }
    if (pass->rule.bias_inside) {
        for (int64_t e = 0; e < experts; e++) {
            token->gradient[e] += token->row[e];
            token->sigma[e] += sqrt(token->work[e]);
        }
    } else if (pass->rule.score_func == ASSAY_SCORE_SOFTMAX) {
        through_softmax(pass, token);
    } else {
        through_elementwise(pass, token);
    }
}

double assay_gauge_balance_loss(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t experts = pass->config->num_experts;
    const double *density = pass->r->density + token->t / pass->config->sequence * experts;
    const double *p = pass->r->probabilities + token->t * experts, *s = token->scores;
    const double coefficient = assay_balance_coefficient(pass->config);
    const bool twice = pass->rule.score_func == ASSAY_SCORE_SOFTMAX && !pass->rule.bias_inside;
    double mean = 0.0, variance = 0.0;
    selecting_gradient(pass, token, 1.0);
    for (int64_t e = 0; e < experts; e++) mean = fma(s[e], token->row[e], mean);
    for (int64_t e = 0; e < experts; e++) {
        const double d = token->row[e];
        if (twice) { /* errors of the arguments reach every score */
            const double own = token->column[e] - token->var_score[e] + token->local_score[e];
            variance += assay_square(s[e] * (d - mean)) * token->var_argument[e] + d * d * own;
        } else {
            variance += d * d * token->column[e];
        }
        variance += 2.0 * assay_square(pass->precision->router * p[e] * coefficient * density[e]);
    }
    return variance;
}

double assay_gauge_loss_sums(const assay_gauge_pass *pass, const double *parts)
{
    const assay_routing_config *config = pass->config;
    const int64_t experts = config->num_experts, sequence = config->sequence;
    const double coefficient = assay_balance_coefficient(config), lb_loss = pass->r->lb_loss;
    const double unit2 = assay_square(pass->precision->router), sum2 = assay_square(pass->precision->accumulate);
    double variance = 0.0;
    for (int64_t t = 0; t < config->batch * sequence; t++) variance += parts[t];
    for (int64_t b = 0; b < config->batch; b++) {
        for (int64_t e = 0; e < experts; e++) {
            const double *column = pass->r->probabilities + b * sequence * experts + e;
            double sum = 0.0;
            for (int64_t i = 0; i < sequence; i++) sum += column[i * experts];
            /* One mean over the sequence: its partial sums, the mean as it is kept, its product with the density. */
            variance += assay_square(coefficient * pass->r->density[b * experts + e] * sum) *
                        ((double)sequence * sum2 + 2.0 * unit2);
        }
    }
    /* The mean over (b,e) and the factors after it. */
    return variance + ((double)(config->batch * experts) * sum2 + 2.0 * unit2) * assay_square(lb_loss);
}
