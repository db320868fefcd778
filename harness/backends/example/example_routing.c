/* The router: which experts a token goes to, with which weights, and the loss that balances them. */
#include "example.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static float group_score(const float *values, int64_t count, bool by_max)
{
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        second = fmaxf(second, fminf(first, values[i]));
        first = fmaxf(first, values[i]);
    }
    return by_max || count == 1 ? first : first + second;
}

/* The index of the largest value, the lower one of equals. */
static int32_t largest(const moe *m, const float *values, int64_t count)
{
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        if (values[i] > values[best] || (m->bug == TIES_TO_HIGHER && values[i] == values[best])) best = i;
    return best;
}

static void sort_ascending(int32_t *ids, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        const int32_t id = ids[i];
        int64_t place = i;
        for (; place > 0 && ids[place - 1] > id; place--) ids[place] = ids[place - 1];
        ids[place] = id;
    }
}

static void choose(const moe *m, int32_t *selected, const float *biased, float *candidates, float *group_scores)
{
    const int64_t size = m->experts / m->groups;
    for (int64_t e = 0; e < m->experts; e++) candidates[e] = m->bug == GROUP_FILL_ZERO ? 0 : -INFINITY;
    for (int64_t g = 0; g < m->groups; g++) group_scores[g] = group_score(biased + g * size, size, m->groups_by_max);
    for (int64_t i = 0; i < m->groups_kept; i++) {
        const int64_t g = largest(m, group_scores, m->groups);
        memcpy(candidates + g * size, biased + g * size, (size_t)size * sizeof *biased);
        group_scores[g] = -INFINITY;
    }
    for (int64_t k = 0; k < m->chosen; k++) {
        selected[k] = largest(m, candidates, m->experts);
        candidates[selected[k]] = -INFINITY;
    }
    if (m->bug == WRONG_EXPERT) selected[m->chosen - 1] = largest(m, candidates, m->experts);
    if (m->variant == ASCENDING_SLOTS) sort_ascending(selected, m->chosen);
}

void sort_by_expert(const moe *m)
{
    const int32_t count = (int32_t)(m->tokens * m->chosen);
    int64_t place = 0;
    for (int32_t expert = 0; expert < m->experts; expert++) {
        const int64_t first = place;
        for (int32_t i = 0; i < count; i++) {
            const int32_t choice = m->bug == UNSTABLE_SORT ? count - 1 - i : i;
            if (m->selected[choice] == expert) m->order[place++] = choice;
        }
        m->sizes[expert] = (int32_t)(place - first);
    }
}

static float divisor(const moe *m, const float *gathered)
{
    float sum = m->deepseek ? 1e-20F : 0;
    for (int64_t k = 0; k < m->chosen; k++) sum += gathered[k];
    return m->divide ? sum : 1;
}

void routing_forward(example *e, moe *m)
{
    const int64_t E = m->experts, K = m->chosen;
    const int64_t rounded = m->variant == BF16_ROUTER ? E : 0; /* of a row */
    float *candidates = take(e, E), *group_scores = take(e, m->groups);
    if (m->gate != NULL)
        product(m->logits, E, m->tokens, E, m->emb, (matrix){m->x, m->emb, 1}, (matrix){m->gate, E, 1});
    for (int64_t t = 0; t < m->tokens; t++) {
        float *scores = m->scores + t * E, *biased = m->biased + t * E, *gathered = m->gathered + t * K;
        int32_t *selected = m->selected + t * K;
        float *logits = m->logits + t * E;
        round_bf16(logits, rounded);
        for (int64_t i = 0; i < E; i++) scores[i] = m->sigmoid ? sigmoid(logits[i]) : logits[i];
        if (m->softmax) softmax(scores, logits, E);
        round_bf16(scores, rounded);
        for (int64_t i = 0; i < E; i++) biased[i] = scores[i] + m->bias[i];
        round_bf16(biased, rounded);
        choose(m, selected, biased, candidates, group_scores);
        for (int64_t k = 0; k < K; k++)
            gathered[k] = m->weights_from_biased ? biased[selected[k]] : scores[selected[k]];
        if (!m->deepseek) softmax(gathered, gathered, K);
        for (int64_t k = 0; k < K; k++) m->weights_of[t * K + k] = gathered[k] / divisor(m, gathered) * m->factor;
        if (m->variant == BF16_ROUTER) round_bf16(m->weights_of + t * K, K);
    }
    sort_by_expert(m);
}

void routing_backward(const moe *m, float d_loss)
{
    const int64_t E = m->experts, K = m->chosen;
    for (int64_t t = 0; t < m->tokens; t++) {
        float *d_biased = m->d_biased + t * E, *d_scores = m->d_logits + t * E, *d = m->d_weights + t * K;
        const float *scores = m->scores + t * E, *gathered = m->gathered + t * K;
        const float sum = divisor(m, gathered);
        float mean = 0; /* what the division takes away */
        for (int64_t e = 0; e < E; e++)
            d_biased[e] = d_loss * m->loss_weight * (float)E * m->density[t / m->sequence * E + e] / (float)m->tokens;
        softmax_backward(d_biased, m->probabilities + t * E, E);
        memcpy(d_scores, d_biased, (size_t)E * sizeof *d_scores);
        for (int64_t k = 0; k < K && m->divide; k++) mean += d[k] * gathered[k] / sum;
        for (int64_t k = 0; k < K; k++) d[k] = m->bug == ROUTER_GRADIENT_MISSING ? 0 : (d[k] - mean) / sum * m->factor;
        if (!m->deepseek) softmax_backward(d, gathered, K);
        for (int64_t k = 0; k < K; k++) {
            d_scores[m->selected[t * K + k]] += d[k];
            if (m->weights_from_biased) d_biased[m->selected[t * K + k]] += d[k];
        }
        if (m->softmax) softmax_backward(d_scores, scores, E);
        for (int64_t e = 0; e < E && m->sigmoid; e++) d_scores[e] *= scores[e] * sigmoid(-m->logits[t * E + e]);
    }
}

float routing_balance(const moe *m, float *bias_updates)
{
    const int64_t E = m->experts, K = m->chosen;
    float loss = 0;
    for (int64_t i = 0; i < m->tokens * K; i++)
        m->density[i / (m->sequence * K) * E + m->selected[i]] += 1 / (float)m->sequence;
    for (int64_t t = 0; t < m->tokens; t++) {
        softmax(m->probabilities + t * E, m->biased + t * E, E);
        for (int64_t e = 0; e < E; e++) loss += m->density[t / m->sequence * E + e] * m->probabilities[t * E + e];
    }
    for (int64_t e = 0; e < E; e++) {
        const int64_t missing = m->tokens * K - m->sizes[e] * E;
        bias_updates[e] = missing > 0 ? m->update_rate : missing < 0 ? -m->update_rate : 0;
        if (m->bug == BIAS_UPDATES_NEGATED) bias_updates[e] = -bias_updates[e];
    }
    return loss * m->loss_weight * (float)E / (float)m->tokens;
}

void routing_set_up(example *e, moe *m)
{
    const assay_backend_request *request = e->request;
    const int64_t T = m->tokens, E = m->experts, K = m->chosen;
    float *bias = whole(e, m->weights, "gate/bias");
    const bool has_bias = bias != NULL;
    m->gate = whole(e, m->weights, "gate/kernel");
    m->bias = has_bias && m->bug != ROUTER_BIAS_DROPPED ? bias : take(e, E);
    m->loss_weight = (float)number(request, "load_balance_loss_weight");
    m->update_rate = (float)number(request, "routed_bias_update_rate");
    m->sigmoid = is(request, "routed_score_func", "sigmoid");
    m->softmax = is(request, "routed_score_func", "softmax");
    m->deepseek = is(request, "decoder_block", "deepseek");
    const bool named_deepseek2 = is(request, "model_name", "")
                                     ? m->softmax && !has_bias
                                     : strncmp(setting(request, "model_name"), "deepseek2", 9) == 0;
    const bool deepseek2 = named_deepseek2 || m->bug == BIASED_WEIGHTS;
    m->weights_from_biased = !m->deepseek || deepseek2;
    m->divide = (m->deepseek ? m->sigmoid && !deepseek2 : is(request, "norm_topk_prob", "true")) &&
                m->bug != NO_RENORMALISATION;
    m->factor = m->deepseek ? (float)number(request, "routed_scaling_factor") : 1;
    m->factor *= m->bug == SCALING_TWICE ? m->factor : 1;
    const bool grouped = m->deepseek && number(request, "n_routing_groups") > 0;
    m->groups = grouped ? (int64_t)number(request, "n_routing_groups") : 1;
    m->groups_kept = grouped ? (int64_t)number(request, "topk_routing_group") : 1;
    m->groups_by_max = is(request, "group_score", "") ? !has_bias : is(request, "group_score", "max");
    m->groups_by_max ^= m->bug == GROUP_SCORE_OTHER;
    m->logits = take(e, T * E), m->scores = take(e, T * E), m->biased = take(e, T * E);
    m->d_logits = take(e, T * E), m->d_biased = take(e, T * E);
    m->gathered = take(e, T * K), m->weights_of = take(e, T * K), m->d_weights = take(e, T * K);
    m->selected = take(e, T * K), m->order = take(e, T * K), m->sizes = take(e, E);
    m->probabilities = take(e, T * E), m->density = take(e, m->batch * E);
}
