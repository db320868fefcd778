#include "oracle/moe/tests/routing_reference.h"

#include <math.h>
#include <stdlib.h>

quad reference_exp(quad x)
{
    if (x < -10000) return 0;
    int halvings = 0;
    quad term = 1, sum = 1;
    for (; x > 0.0078125Q || x < -0.0078125Q; halvings++) x /= 2;
    for (int n = 1; n < 15; n++) {
        term *= x / n;
        sum += term;
    }
    for (; halvings > 0; halvings--) sum *= sum;
    return sum;
}

static quad square_root(quad x)
{
    if (x == 0) return 0;
    int halvings = 0; /* to a range in which the float64 root is a good start */
    for (; x < 0x1p-900; halvings++) x *= 0x1p200;
    quad root = (quad)sqrt((double)x);
    for (int i = 0; i < 4; i++) root = (root + x / root) / 2;
    for (; halvings > 0; halvings--) root *= 0x1p-100;
    return root;
}

/* log(1 + exp(x)), the logarithm by Newton's method on exp, its tail by its series. */
static quad softplus(quad x)
{
    const quad t = reference_exp(x > 0 ? -x : x);
    quad y;
    if (t < 1e-6Q) {
        y = t * (1 - t * (1 / 2.0Q - t * (1 / 3.0Q - t * (1 / 4.0Q - t * (1 / 5.0Q - t / 6)))));
    } else {
        y = (quad)log1p((double)t);
        for (int i = 0; i < 4; i++) y += (1 + t) * reference_exp(-y) - 1;
    }
    return x > 0 ? x + y : y;
}

quad reference_score(assay_score_func score_func, quad x)
{
    switch (score_func) {
    case ASSAY_SCORE_SIGMOID:
        return x > 0 ? 1 / (1 + reference_exp(-x)) : reference_exp(x) / (1 + reference_exp(x));
    case ASSAY_SCORE_SQRTSOFTPLUS:
        return square_root(softplus(x));
    default:
        return x;
    }
}

static void softmax(quad *y, const quad *x, int64_t count)
{
    quad largest = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i++) sum += y[i] = reference_exp(x[i] - largest);
    for (int64_t i = 0; i < count; i++) y[i] /= sum;
}

static quad bias_of(const reference_inputs *in, int64_t e)
{
    return in->bias != NULL ? in->bias[e] : 0;
}

/* f(x) of a whole row. */
static void score_row(quad *scores, const quad *x, int64_t experts, assay_score_func score_func)
{
    if (score_func == ASSAY_SCORE_SOFTMAX) {
        softmax(scores, x, experts);
    } else {
        for (int64_t e = 0; e < experts; e++) scores[e] = reference_score(score_func, x[e]);
    }
}

void reference_weights(quad *weights, const reference_inputs *in, int64_t t, const int32_t *selected,
                       const assay_routing_config *config)
{
    const int64_t experts = config->num_experts, count = config->num_experts_per_tok;
    quad *x = calloc((size_t)experts, sizeof *x), *scores = calloc((size_t)experts, sizeof *scores);
    quad sum = 0;
    const bool fused = config->family == ASSAY_ROUTER_FUSED, gemma4 = config->family == ASSAY_ROUTER_GEMMA4;
    for (int64_t e = 0; e < experts; e++) {
        x[e] = in->logits[t * experts + e] + (fused || gemma4 ? bias_of(in, e) : 0);
    }
    assay_score_func f = config->score_func;
    if (gemma4 || (fused && f == ASSAY_SCORE_NONE)) f = ASSAY_SCORE_SOFTMAX;
    score_row(scores, x, experts, f);
    for (int64_t k = 0; k < count; k++) {
        const bool biased = !fused && !gemma4 && config->family != ASSAY_ROUTER_DEEPSEEK3;
        weights[k] = scores[selected[k]] + (biased ? bias_of(in, selected[k]) : 0);
    }
    if (config->family == ASSAY_ROUTER_DEFAULT) {
        for (int64_t k = 0; k < count; k++) x[k] = weights[k];
        softmax(weights, x, count);
    }
    for (int64_t k = 0; k < count; k++) sum += weights[k];
    const bool deepseek = config->family == ASSAY_ROUTER_DEEPSEEK3 || config->family == ASSAY_ROUTER_DEEPSEEK2;
    for (int64_t k = 0; k < count; k++) {
        if (config->family == ASSAY_ROUTER_DEEPSEEK3 && (f == ASSAY_SCORE_SIGMOID || f == ASSAY_SCORE_SQRTSOFTPLUS)) {
            weights[k] /= sum + (config->renormalize_exactly ? 0.0Q : (quad)1e-20);
        } else if (!deepseek && config->norm_topk_prob) {
            weights[k] /= sum;
        }
        if (deepseek) weights[k] *= config->routed_scaling_factor;
        if (in->per_expert_scale != NULL) weights[k] *= in->per_expert_scale[selected[k]];
    }
    free(x);
    free(scores);
}

quad reference_lb_loss(const reference_inputs *in, const int32_t *selected, const assay_routing_config *config)
{
    const int64_t experts = config->num_experts, count = config->num_experts_per_tok, sequence = config->sequence;
    quad *b = calloc((size_t)experts, sizeof *b), *p = calloc((size_t)experts, sizeof *p);
    quad total = 0;
    for (int64_t t = 0; t < config->batch * sequence; t++) {
        score_row(b, in->logits + t * experts, experts, config->score_func);
        for (int64_t e = 0; e < experts; e++) b[e] += bias_of(in, e);
        softmax(p, b, experts);
        for (int64_t e = 0; e < experts; e++) {
            int64_t times = 0; /* in this token's sequence */
            for (int64_t i = 0; i < sequence * count; i++) {
                times += selected[t / sequence * sequence * count + i] == e;
            }
            total += (quad)times / sequence * p[e] / sequence;
        }
    }
    free(b);
    free(p);
    return total / (config->batch * experts) * experts * experts * config->load_balance_loss_weight;
}

/* The objective with `in`. */
static quad objective(const reference_inputs *in, const double *d_weights, double d_lb_loss, const int32_t *selected,
                      const assay_routing_config *config, int64_t first, int64_t last)
{
    const int64_t count = config->num_experts_per_tok;
    quad *weights = calloc((size_t)count, sizeof *weights);
    quad total = 0;
    for (int64_t t = first; t < last && d_weights != NULL; t++) {
        reference_weights(weights, in, t, selected + t * count, config);
        for (int64_t k = 0; k < count; k++) total += weights[k] * d_weights[t * count + k];
    }
    free(weights);
    if (d_lb_loss != 0) total += d_lb_loss * reference_lb_loss(in, selected, config);
    return total;
}

static quad *widened(const double *x, int64_t count)
{
    if (x == NULL) return NULL;
    quad *wide = calloc((size_t)count, sizeof *wide);
    for (int64_t i = 0; i < count; i++) wide[i] = x[i];
    return wide;
}

void reference_gradients(double *d_logits, double *d_bias, double *d_per_expert_scale, const double *d_weights,
                         double d_lb_loss, const int32_t *selected, const assay_routing_inputs *in,
                         const assay_routing_config *config)
{
    const int64_t experts = config->num_experts, tokens = config->batch * config->sequence;
    const quad step = 0x1p-34Q;
    reference_inputs wide = {widened(in->logits, tokens * experts), widened(in->bias, experts),
                             widened(in->per_expert_scale, experts)};
    struct {
        double *result;
        quad *variable;
        int64_t count;
    } const parts[] = {{d_logits, wide.logits, tokens * experts},
                       {d_bias, wide.bias, experts},
                       {d_per_expert_scale, wide.per_expert_scale, experts}};
    for (int part = 0; part < 3; part++) {
        for (int64_t i = 0; parts[part].result != NULL && i < parts[part].count; i++) {
            /* A logit moves its own token's weights only. */
            const int64_t first = part == 0 ? i / experts : 0, last = part == 0 ? first + 1 : tokens;
            quad *x = &parts[part].variable[i];
            const quad middle = *x;
            *x = middle + step;
            const quad above = objective(&wide, d_weights, d_lb_loss, selected, config, first, last);
            *x = middle - step;
            const quad below = objective(&wide, d_weights, d_lb_loss, selected, config, first, last);
            *x = middle;
            parts[part].result[i] = (double)((above - below) / (2 * step));
        }
    }
    free(wide.logits);
    free(wide.bias);
    free(wide.per_expert_scale);
}

double reference_uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

double reference_normal(uint64_t *state)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) sum += reference_uniform(state);
    return sum;
}
