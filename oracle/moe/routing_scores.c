#include <math.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/moe/routing_internal.h"

/* Below this exp(x) < 2^-57, so that log1p(exp(x)) is exp(x) to the last bit; and its root is exp(x/2), which does not
 * underflow where exp(x) does. */
static const double SOFTPLUS_IS_EXP = -40.0;

/* Both from t = exp(-|x|), which never overflows. */
static double sigmoid(double x, double t)
{
    return (x >= 0.0 ? 1.0 : t) / (1.0 + t);
}

static double sqrtsoftplus(double x, double t)
{
    return x < SOFTPLUS_IS_EXP ? assay_exp(0.5 * x) : sqrt(assay_log1p(t) + fmax(x, 0.0));
}

double assay_score_derivative(assay_score_func score_func, double x)
{
    if (score_func != ASSAY_SCORE_SIGMOID && score_func != ASSAY_SCORE_SQRTSOFTPLUS) return 1.0;
    const double t = assay_exp(-fabs(x));
    if (score_func == ASSAY_SCORE_SIGMOID) return t / ((1.0 + t) * (1.0 + t)); /* s (1 - s) would cancel at s near 1 */
    return x < SOFTPLUS_IS_EXP ? 0.5 * assay_exp(0.5 * x) : sigmoid(x, t) / (2.0 * sqrtsoftplus(x, t));
}

void assay_softmax_row(const assay_context *ctx, double *y, const double *x, int64_t count)
{
    double largest = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < count; i++) y[i] = x[i] - largest;
    assay_exp_many(ctx, count, y, y);
    for (int64_t i = 0; i < count; i++) sum += y[i];
    for (int64_t i = 0; i < count; i++) y[i] /= sum;
}

/* A sum, and what its roundings left of it (Ogita, Rump and Oishi, "Accurate sum and dot product", 2005). */
typedef struct compensated_sum {
    double sum, rest;
} compensated_sum;

static void add_product(compensated_sum *s, double a, double b)
{
    const double product = a * b, of_product = fma(a, b, -product);
    const double sum = s->sum + product, added = sum - s->sum;
    s->rest += (s->sum - (sum - added)) + (product - added) + of_product;
    s->sum = sum;
}

void assay_center(double *d, const double *p, double missing, int64_t count)
{
    compensated_sum weights = {0}, products = {0};
    for (int64_t i = 0; i < count; i++) {
        add_product(&weights, p[i], 1.0);
        add_product(&products, p[i], d[i]);
    }
    if (weights.sum == 0.0) return;
    const double mean = products.sum / weights.sum;
    const double rest = fma(-mean, weights.sum, products.sum) + fma(-mean, weights.rest, products.rest);
    for (int64_t i = 0; i < count; i++) d[i] = d[i] - mean - (rest / weights.sum - mean * missing);
}

/* A softmax may have its argument in the place of its scores. */
static void apply_score_func(const assay_context *ctx, double *scores, const double *x, int64_t experts,
                             assay_score_func score_func)
{
    if (score_func == ASSAY_SCORE_SOFTMAX) {
        assay_softmax_row(ctx, scores, x, experts);
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, experts, scores);
    } else if (score_func == ASSAY_SCORE_NONE) {
        for (int64_t e = 0; e < experts; e++) scores[e] = x[e];
    } else {
        for (int64_t e = 0; e < experts; e++) scores[e] = -fabs(x[e]);
        assay_exp_many(ctx, experts, scores, scores);
        for (int64_t e = 0; e < experts; e++) {
            scores[e] = score_func == ASSAY_SCORE_SIGMOID ? sigmoid(x[e], scores[e]) : sqrtsoftplus(x[e], scores[e]);
        }
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, experts, scores);
    }
}

void assay_routing_scores(const assay_context *ctx, double *scores, double *selecting, const double *logits,
                          const double *bias, int64_t experts, const assay_routing_rule *rule)
{
    const double *argument = logits;
    if (rule->bias_inside && bias != NULL) {
        for (int64_t e = 0; e < experts; e++) selecting[e] = logits[e] + bias[e];
        argument = selecting;
        if (rule->score_func == ASSAY_SCORE_SOFTMAX) { /* a large bias, a large sum: of weights, not of the choice */
            for (int64_t e = 0; e < experts; e++) scores[e] = selecting[e];
            assay_round(ctx, ASSAY_ROUND_ROUTER, experts, scores);
            argument = scores;
        }
    }
    apply_score_func(ctx, scores, argument, experts, rule->score_func);
    switch (rule->selects) {
    case ASSAY_SELECTS_ARGUMENT:
        for (int64_t e = 0; e < experts; e++)
            selecting[e] = rule->bias_inside && bias != NULL ? logits[e] + bias[e] : logits[e];
        break;
    case ASSAY_SELECTS_SCORES:
        for (int64_t e = 0; e < experts; e++) selecting[e] = scores[e];
        break;
    case ASSAY_SELECTS_BIASED:
        for (int64_t e = 0; e < experts; e++) selecting[e] = scores[e] + (bias != NULL ? bias[e] : 0.0);
        break;
    }
}
