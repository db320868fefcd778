#include "oracle/moe/tests/routing_float32.h"

#include <math.h>
#include <string.h>

typedef struct float32_pass {
    const case_data *data;
    const assay_routing_config *config;
    assay_score_func score_func;
    bool inside, weighs_scores, softmax_chosen, divide, naive;
    float epsilon, factor, bias[EXPERTS], coefficient; /* of the loss */
} float32_pass;

static float32_pass prepare(const case_data *data, float d_lb_loss, bool naive)
{
    const assay_routing_config *c = &data->config;
    float32_pass pass = {.data = data, .config = c, .score_func = c->score_func, .factor = 1.0f};
    const bool deepseek = c->family == ASSAY_ROUTER_DEEPSEEK3 || c->family == ASSAY_ROUTER_DEEPSEEK2;
    const bool gemma4 = c->family == ASSAY_ROUTER_GEMMA4, fused = c->family == ASSAY_ROUTER_FUSED;
    pass.inside = gemma4 || fused;
    pass.weighs_scores = pass.inside || c->family == ASSAY_ROUTER_DEEPSEEK3;
    const bool softmax_chosen = c->family == ASSAY_ROUTER_DEFAULT;
    pass.naive = naive && softmax_chosen && c->score_func == ASSAY_SCORE_NONE;
    pass.softmax_chosen = softmax_chosen && !pass.naive;
    pass.divide = c->norm_topk_prob || pass.naive;
    if (pass.inside && c->score_func == ASSAY_SCORE_NONE) pass.score_func = ASSAY_SCORE_SOFTMAX;
    if (deepseek) {
        pass.divide = c->score_func == ASSAY_SCORE_SIGMOID || c->score_func == ASSAY_SCORE_SQRTSOFTPLUS;
        pass.epsilon = c->renormalize_exactly ? 0.0f : 1e-20f;
        pass.factor = (float)c->routed_scaling_factor;
    }
    for (int e = 0; e < EXPERTS; e++) pass.bias[e] = data->in.bias != NULL ? (float)data->bias[e] : 0.0f;
    pass.coefficient = d_lb_loss * (float)c->load_balance_loss_weight * (EXPERTS * EXPERTS) / (BATCH * EXPERTS);
    return pass;
}

static void softmax(float *y, const float *x, int64_t count)
{
    float largest = x[0], sum = 0.0f;
    for (int64_t i = 1; i < count; i++) largest = fmaxf(largest, x[i]);
    for (int64_t i = 0; i < count; i++) sum += y[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < count; i++) y[i] /= sum;
}

static void softmax_backward(float *d, const float *p, int64_t count)
{
    float dot = 0.0f;
    for (int64_t i = 0; i < count; i++) dot += p[i] * d[i];
    for (int64_t i = 0; i < count; i++) d[i] = p[i] * (d[i] - dot);
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void scores_forward(float *scores, const float *x, assay_score_func score_func)
{
    if (score_func == ASSAY_SCORE_SOFTMAX) softmax(scores, x, EXPERTS);
    for (int e = 0; e < EXPERTS && score_func != ASSAY_SCORE_SOFTMAX; e++) {
        scores[e] = score_func == ASSAY_SCORE_SIGMOID        ? sigmoid(x[e])
                    : score_func == ASSAY_SCORE_SQRTSOFTPLUS ? sqrtf(log1pf(expf(-fabsf(x[e]))) + fmaxf(x[e], 0.0f))
                                                             : x[e];
    }
}

static void scores_backward(float *d, const float *scores, const float *x, assay_score_func score_func)
{
    if (score_func == ASSAY_SCORE_SOFTMAX) softmax_backward(d, scores, EXPERTS);
    for (int e = 0; e < EXPERTS; e++) {
        if (score_func == ASSAY_SCORE_SIGMOID) d[e] = d[e] * (scores[e] * (1.0f - scores[e]));
        if (score_func == ASSAY_SCORE_SQRTSOFTPLUS) d[e] = d[e] * (0.5f / scores[e]) * sigmoid(x[e]);
    }
}

/* Normalised values n [K] of the weighed values v, and back: d from those of n to those of v. */
static void normalize(float *n, const float *v, const float32_pass *pass)
{
    const int64_t count = pass->config->num_experts_per_tok;
    float sum = 0.0f;
    for (int64_t k = 0; k < count; k++) n[k] = v[k];
    if (pass->softmax_chosen) softmax(n, v, count);
    for (int64_t k = 0; k < count; k++) sum += n[k];
    for (int64_t k = 0; k < count && pass->divide; k++) n[k] /= sum + pass->epsilon;
}

static void normalize_backward(float *d, const float *v, const float32_pass *pass)
{
    const int64_t count = pass->config->num_experts_per_tok;
    float p[MOST_CHOSEN], sum = 0.0f, dot = 0.0f;
    for (int64_t k = 0; k < count; k++) p[k] = v[k];
    if (pass->softmax_chosen) softmax(p, v, count);
    for (int64_t k = 0; k < count; k++) sum += p[k];
    sum += pass->epsilon;
    for (int64_t k = 0; k < count; k++) dot += d[k] * (pass->naive ? p[k] / sum / sum : p[k] / sum);
    for (int64_t k = 0; k < count && pass->divide; k++) d[k] = pass->naive ? d[k] / sum - dot : (d[k] - dot) / sum;
    if (pass->softmax_chosen) softmax_backward(d, p, count);
}

static void token(float32_results *out, const float32_pass *pass, int64_t t, const int32_t *selected,
                  const double *d_weights, const float *density, float *p)
{
    const case_data *data = pass->data;
    const int64_t count = pass->config->num_experts_per_tok;
    float x[EXPERTS], scores[EXPERTS], biased[EXPERTS], v[MOST_CHOSEN], n[MOST_CHOSEN], d[MOST_CHOSEN];
    float *d_logits = out->d_logits + t * EXPERTS, to_scores[EXPERTS] = {0};
    for (int e = 0; e < EXPERTS; e++) {
        x[e] = (float)data->logits[t * EXPERTS + e] + (pass->inside ? pass->bias[e] : 0.0f);
    }
    scores_forward(scores, x, pass->score_func);
    for (int e = 0; e < EXPERTS; e++) biased[e] = pass->inside ? x[e] : scores[e] + pass->bias[e];
    softmax(p, biased, EXPERTS);
    const float *weighed = pass->naive ? p : pass->weighs_scores ? scores : biased;
    for (int64_t k = 0; k < count; k++) v[k] = weighed[selected[k]];
    normalize(n, v, pass);
    for (int e = 0; e < EXPERTS; e++) d_logits[e] = pass->coefficient * density[e] / SEQUENCE;
    softmax_backward(d_logits, p, EXPERTS);
    for (int64_t k = 0; k < count; k++) {
        const int32_t e = selected[k];
        const float scale = data->in.per_expert_scale != NULL ? (float)data->expert_scale[e] : 1.0f;
        const float d_weight = d_weights != NULL ? (float)d_weights[t * count + k] : 0.0f;
        out->weights[t * count + k] = n[k] * pass->factor * scale;
        out->d_scale[e] += d_weight * n[k] * pass->factor;
        d[k] = d_weight * scale * pass->factor;
    }
    normalize_backward(d, v, pass);
    for (int64_t k = 0; k < count; k++) to_scores[selected[k]] = d[k];
    if (pass->naive) softmax_backward(to_scores, p, EXPERTS);
    for (int e = 0; e < EXPERTS && !pass->inside; e++) {
        out->d_bias[e] += d_logits[e] + (pass->weighs_scores ? 0.0f : to_scores[e]);
        to_scores[e] += d_logits[e];
        d_logits[e] = 0.0f;
    }
    scores_backward(to_scores, scores, x, pass->score_func);
    for (int e = 0; e < EXPERTS; e++) d_logits[e] += to_scores[e];
    for (int e = 0; e < EXPERTS && pass->inside; e++) out->d_bias[e] += d_logits[e];
}

void float32_routing(float32_results *out, const case_data *data, const double *d_weights, float d_lb_loss,
                     const int32_t *selected, bool naive)
{
    const bool balance = has_balance(data);
    const float32_pass pass = prepare(data, balance ? d_lb_loss : 0.0f, naive);
    const int64_t count = data->config.num_experts_per_tok;
    float p[TOKENS * EXPERTS], density[BATCH * EXPERTS] = {0}, total = 0.0f;
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < TOKENS * count; i++) {
        density[i / count / SEQUENCE * EXPERTS + selected[i]] += 1.0f / SEQUENCE;
    }
    for (int64_t t = 0; t < TOKENS; t++) {
        token(out, &pass, t, selected + t * count, d_weights, density + t / SEQUENCE * EXPERTS, p + t * EXPERTS);
    }
    for (int i = 0; i < BATCH * EXPERTS; i++) {
        float sum = 0.0f;
        for (int s = 0; s < SEQUENCE; s++) sum += p[(i / EXPERTS * SEQUENCE + s) * EXPERTS + i % EXPERTS];
        total += density[i] * (sum / SEQUENCE);
    }
    if (balance) {
        out->lb_loss = total / (BATCH * EXPERTS) * (EXPERTS * EXPERTS) * (float)data->config.load_balance_loss_weight;
    }
}
