#include <math.h>

#include "oracle/moe/routing_gauge_internal.h"

/* What all experts share in a softmax over all of them: d_logits[e] = s[e] * centred[e], centred = d_values -
 * <s,d_values> (d_values is 0 at those not chosen). */
typedef struct softmax_shared {
    const double *centred; /* [E] */
    const double *inner;   /* [E] the derivative of <s,d_values> by argument j, over s[j] */
    double mean;           /* <s,d_values> */
    double partial;        /* squares of its partial sums, added up */
    double common;         /* <s,common_d_values> */
} softmax_shared;

/* The variance of value i's own roundings, without what all values have in common. */
static double own_variance(const assay_gauge_token *token, int64_t i)
{
    return fmax(token->local_d_values[i] - assay_square(token->common_d_values[i]), 0.0);
}

static double chosen_variance(const assay_gauge_pass *pass, assay_gauge_token *token, const softmax_shared *shared,
                              int64_t k)
{
    const int64_t count = pass->config->num_experts_per_tok, experts = pass->config->num_experts;
    const double *m = token->hessian + k * count, unit = pass->precision->router;
    const int32_t e = token->selected[k];
    const double s = token->scores[e], centred = shared->centred[e];
    double *row = token->work; /* coefficients of the errors of the arguments, over s */
    double variance = assay_square(unit * s) * shared->partial;
    for (int64_t j = 0; j < experts; j++) {
        row[j] = -token->scores[j] * (shared->inner[j] + centred + token->hessian_row[k]);
    }
    for (int64_t i = 0; i < count; i++) row[token->selected[i]] += token->scores[token->selected[i]] * m[i];
    row[e] += centred;
    for (int64_t j = 0; j < experts; j++) variance += assay_square(s * row[j]) * token->var_argument[j];
    for (int64_t i = 0; i < count; i++) {
        const double h = token->d_values[i], s_i = token->scores[token->selected[i]], same = i == k ? 1.0 : 0.0;
        variance += assay_square(s * (m[i] - h - token->hessian_row[i]) + same * centred) *
                    token->local_score[token->selected[i]];
        variance += assay_square(s * (m[i] - token->hessian_row[i])) * token->local_value[i];
        variance +=
            assay_square(s * (token->jacobian[i * count + k] - token->jacobian_row[i])) * token->var_d_normalized[i];
        variance += assay_square(s * (same - s_i)) * own_variance(token, i) + assay_square(s * unit * s_i * h);
    }
    return variance + assay_square(s * (token->common_d_values[k] - shared->common));
}

/* The part of the variance that is s[e]^2 times one number for every expert that was not chosen. */
static double unchosen_variance(const assay_gauge_pass *pass, const assay_gauge_token *token,
                                const softmax_shared *shared)
{
    const int64_t count = pass->config->num_experts_per_tok;
    const double unit = pass->precision->router;
    double variance = assay_square(unit) * shared->partial;
    for (int64_t i = 0; i < count; i++) {
        const double h = token->d_values[i], s = token->scores[token->selected[i]];
        variance += assay_square(h + token->hessian_row[i]) * token->local_score[token->selected[i]];
        variance += assay_square(token->hessian_row[i]) * token->local_value[i];
        variance += assay_square(token->jacobian_row[i]) * token->var_d_normalized[i];
        variance += assay_square(s) * own_variance(token, i) + assay_square(unit * s * h);
    }
    return variance + assay_square(shared->common);
}

/* Scores that are a softmax over all experts: every logit gets a gradient. */
void assay_gauge_softmax_part(const assay_gauge_pass *pass, assay_gauge_token *token)
{
    const int64_t count = pass->config->num_experts_per_tok, experts = pass->config->num_experts;
    const double *s = token->scores, *v = token->var_argument;
    double mean = 0.0, products = 0.0, rows = 0.0, total = 0.0, common_mean = 0.0;
    for (int64_t k = 0; k < count; k++) {
        mean = fma(s[token->selected[k]], token->d_values[k], mean);
        products += assay_square(s[token->selected[k]] * token->d_values[k]);
        rows = fma(s[token->selected[k]], token->hessian_row[k], rows);
        common_mean = fma(s[token->selected[k]], token->common_d_values[k], common_mean);
    }
    for (int64_t e = 0; e < experts; e++) {
        token->row[e] = -mean;
        token->column[e] = -mean - rows;
    }
    for (int64_t k = 0; k < count; k++) {
        token->row[token->selected[k]] += token->d_values[k];
        token->column[token->selected[k]] += token->d_values[k] + token->hessian_row[k];
    }
    const softmax_shared shared = {token->row, token->column, mean, assay_partial_squares(count, products, mean),
                                   common_mean};
    for (int64_t j = 0; j < experts; j++) total += assay_square(s[j] * (shared.inner[j] - mean)) * v[j];
    const double common = unchosen_variance(pass, token, &shared);
    for (int64_t e = 0; e < experts; e++) {
        const double through = s[e] * (shared.inner[e] - mean), own = -mean - through;
        const double others = fmax(total - through * through * v[e], 0.0);
        token->gradient[e] = s[e] * shared.centred[e];
        token->sigma[e] =
            assay_square(s[e]) * (others + own * own * v[e] + common) + assay_square(mean) * token->local_score[e];
    }
    for (int64_t k = 0; k < count; k++) token->sigma[token->selected[k]] = chosen_variance(pass, token, &shared, k);
    for (int64_t e = 0; e < experts; e++) {
        token->sigma[e] = sqrt(token->sigma[e] + 2.0 * assay_square(pass->precision->router * token->gradient[e]));
    }
}
