/* What the files of the routing gauge share: the errors of one token, to first order.
 *
 * Independent errors enter at the argument of the score function (the logits' own and their rounding), at the scores
 * (the elementary function and a rounding), at the values that are weighed (adding the bias; the exponentials of a
 * softmax over the chosen), at d_weights, and wherever a sum or a product is rounded. Each goes through the whole chain
 * with one coefficient; the squares add up. The load-balance part of a gradient shares errors with the weights' part,
 * so that those two add as standard deviations. */
#ifndef ASSAY_MOE_ROUTING_GAUGE_INTERNAL_H
#define ASSAY_MOE_ROUTING_GAUGE_INTERNAL_H

#include <math.h>

#include "oracle/moe/routing_gauge.h"
#include "oracle/moe/routing_internal.h"

typedef struct assay_gauge_pass {
    const assay_context *ctx;
    const assay_precision *precision;
    const double *variance_logits, *d_weights, *variance_d_weights;
    double d_lb_loss;
    const assay_routing *r;
    const assay_routing_inputs *in;
    const assay_routing_config *config;
    assay_routing_rule rule;
    /* Results; NULL where nobody asks. */
    double *weights;          /* [T,K] */
    double *normalized;       /* [T,K] variance of the weights before scaling */
    double *d_logits;         /* [T,E] */
    double *bias, *bias_size; /* [T,E] variance and absolute value of what d_bias sums */
    double *loss;             /* [T] the token's part of the variance of lb_loss */
} assay_gauge_pass;

/* One token; arrays of one thread, filled anew for each. */
typedef struct assay_gauge_token {
    int64_t t;
    const int32_t *selected; /* [K] */
    const double *scores;    /* [E] */
    /* [E]: the score function at its argument; slope as a function of score and argument */
    double *argument, *selecting, *slope, *slope_by_score, *slope_by_argument;
    /* [E]: variances of the argument, of the score's own error, of the whole score, of adding the bias */
    double *var_argument, *local_score, *var_score, *local_biased;
    /* [E]: d_logits and what d_bias sums, values and standard deviations */
    double *gradient, *sigma, *bias_gradient, *bias_sigma;
    double *row, *column, *work; /* [E] scratch */
    /* [K]: variance that enters at the weighed values, the normalised values and their variance */
    double *local_value, *normalized, *var_normalized;
    /* [K]: gradient of the weighed values, variance of its own roundings and of its incoming gradient */
    double *d_values, *local_d_values, *var_d_normalized;
    double *common_d_values;    /* [K] that part of its roundings, a deviation, which all of a token's values share */
    double *jacobian, *hessian; /* [K,K] of the normalised values; of <d_normalized, normalised> */
    double *jacobian_row, *hessian_row; /* [K] their rows times the chosen scores */
} assay_gauge_token;

/* Adds the load-balance part to gradient, sigma, bias_gradient, bias_sigma. */
void assay_gauge_balance(const assay_gauge_pass *pass, assay_gauge_token *token);
/* The token's part of the variance of lb_loss, without the sums over tokens. */
double assay_gauge_balance_loss(const assay_gauge_pass *pass, assay_gauge_token *token);
/* The variance of lb_loss from the parts of all tokens. */
double assay_gauge_loss_sums(const assay_gauge_pass *pass, const double *parts);

/* Fill the token for a forward, then for a backward: weights and their gradient. */
void assay_gauge_forward_token(const assay_gauge_pass *pass, assay_gauge_token *token);
void assay_gauge_backward_token(const assay_gauge_pass *pass, assay_gauge_token *token);
void assay_gauge_softmax_part(const assay_gauge_pass *pass, assay_gauge_token *token);

static inline double assay_square(double x)
{
    return x * x;
}

/* Variance of d_weights[i]. */
static inline double assay_gauge_d_weight(const assay_gauge_pass *pass, int64_t i)
{
    return pass->variance_d_weights != NULL ? pass->variance_d_weights[i]
                                            : assay_gauge_given(pass->precision->given, pass->d_weights[i]);
}

/* What an expert's own scale, which is given, has in the scale of its weight (assay_routing_scale). */
static inline double assay_gauge_own_scale(const assay_gauge_pass *pass, int32_t expert)
{
    const double *scales = pass->in->per_expert_scale;
    return scales == NULL ? 0.0
                          : assay_square(pass->rule.factor) * assay_gauge_given(pass->precision->given, scales[expert]);
}

/* Squares of the partial sums of `count` terms that come in random order, added up: what rounding each of them counts
 * with. squares: of the terms; sum: of all. */
static inline double assay_partial_squares(int64_t count, double squares, double sum)
{
    const double k = (double)count;
    double total = 0.0;
    for (int64_t j = 1; j <= count; j++) {
        const double share = (double)j / k;
        total += share * share * sum * sum;
        if (j < count) total += share * (1.0 - share) * fmax(k * squares - sum * sum, 0.0) / (k - 1.0);
    }
    return total;
}

#endif
