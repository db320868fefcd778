/* The router: which experts a token goes to, with which weights, and the loss that balances them. */
#include "example.h"

#include <math.h>
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

static void sort_by_expert(const moe *m)
{
    const int32_t count = (int32_t)(m->tokens * m->chosen);
    int64_t place = 0;
    for (int32_t expert = 0; expert < m->experts; expert++) {
        const int64_t first = place;
        for (int32_t i = 0; i < count; i++) {
            const int32_t choice = m->variant == LAST_TOKENS_FIRST ? count - 1 - i : i;
            if (m->selected[choice] == expert) m->order[place++] = choice;
        }
        m->sizes[expert] = (int32_t)(place - first);
    }
}

/* [E] of one token, from its logits, to which a bias inside is added. */
static void score(const moe *m, float *scores, float *biased, float *logits)
{
    const int64_t E = m->experts, rounded = m->variant == BF16_ROUTER ? E : 0;
    if (m->bias_inside) add(logits, m->bias, E);
    round_bf16(logits, rounded);
    for (int64_t i = 0; i < E; i++) {
        scores[i] = m->sigmoid ? sigmoid(logits[i]) : logits[i];
        if (m->sqrtsoftplus) scores[i] = sqrtf(fmaxf(logits[i], 0) + log1pf(expf(-fabsf(logits[i]))));
    }
    if (m->softmax) softmax(scores, logits, E);
    round_bf16(scores, rounded);
    for (int64_t i = 0; i < E; i++)
        biased[i] = m->select_scores ? scores[i] : m->bias_inside ? logits[i] : scores[i] + m->bias[i];
    round_bf16(biased, rounded);
}

static float divisor(const moe *m, const float *gathered)
{
    float sum = m->epsilon;
    for (int64_t k = 0; k < m->chosen; k++) sum += gathered[k];
    return m->divide ? sum : 1;
}

void routing_forward(example *e, moe *m)
{
    const int64_t E = m->experts, K = m->chosen;
    float *candidates = take(&e->memory, E), *group_scores = take(&e->memory, m->groups);
    product(m->logits, E, m->tokens, E, m->emb, (matrix){m->x, m->emb, 1}, (matrix){m->gate, E, 1});
    for (int64_t t = 0; t < m->tokens; t++) {
        float *scores = m->scores + t * E, *biased = m->biased + t * E, *gathered = m->gathered + t * K;
        int32_t *selected = m->selected + t * K;
        score(m, scores, biased, m->logits + t * E);
        if (m->expert_table == NULL) choose(m, selected, biased, candidates, group_scores);
        for (int64_t k = 0; k < K && m->expert_table != NULL; k++)
            selected[k] = m->expert_table[m->token_ids[t] * K + k];
        for (int64_t k = 0; k < K; k++)
            gathered[k] = m->weights_from_biased ? biased[selected[k]] : scores[selected[k]];
        if (m->softmax_chosen) softmax(gathered, gathered, K);
        for (int64_t k = 0; k < K; k++)
            m->weights_of[t * K + k] = gathered[k] / divisor(m, gathered) * m->factor * m->expert_scale[selected[k]];
        if (m->variant == BF16_ROUTER) round_bf16(m->weights_of + t * K, K);
    }
    sort_by_expert(m);
}

/* d [K], the gradient of a token's weights, becomes that of its chosen values. */
static void weights_backward(const moe *m, float *d, const float *gathered, const int32_t *selected)
{
    const int64_t K = m->chosen;
    const float sum = divisor(m, gathered);
    float mean = 0; /* what the division takes away */
    for (int64_t k = 0; k < K; k++) {
        if (m->d_expert_scale != NULL) m->d_expert_scale[selected[k]] += d[k] * gathered[k] / sum * m->factor;
        d[k] *= m->expert_scale[selected[k]];
    }
    for (int64_t k = 0; k < K && m->divide; k++) mean += d[k] * gathered[k] / sum;
    for (int64_t k = 0; k < K; k++) d[k] = m->bug == ROUTER_GRADIENT_MISSING ? 0 : (d[k] - mean) / sum * m->factor;
    if (m->softmax_chosen) softmax_backward(d, gathered, K);
}

/* d [E], the gradient of a token's scores, becomes that of what they were taken of. */
static void score_backward(const moe *m, float *d, const float *scores, const float *logits)
{
    if (m->softmax) softmax_backward(d, scores, m->experts);
    for (int64_t e = 0; e < m->experts && m->sigmoid; e++) d[e] *= scores[e] * sigmoid(-logits[e]);
    for (int64_t e = 0; e < m->experts && m->sqrtsoftplus; e++)
        d[e] *= scores[e] > 0 ? sigmoid(logits[e]) / (2 * scores[e]) : 0; /* 0: it underflowed */
}

void routing_backward(const moe *m, float d_loss)
{
    const int64_t E = m->experts, K = m->chosen;
    for (int64_t e = 0; e < E && m->d_expert_scale != NULL; e++) m->d_expert_scale[e] = 0;
    for (int64_t t = 0; t < m->tokens; t++) {
        float *d_biased = m->d_biased + t * E, *d_scores = m->d_logits + t * E, *d = m->d_weights + t * K;
        for (int64_t e = 0; e < E; e++)
            d_biased[e] = d_loss * m->loss_weight * (float)E * m->density[t / m->sequence * E + e] / (float)m->tokens;
        softmax_backward(d_biased, m->probabilities + t * E, E);
        for (int64_t e = 0; e < E; e++) d_scores[e] = m->bias_inside ? 0 : d_biased[e];
        weights_backward(m, d, m->gathered + t * K, m->selected + t * K);
        for (int64_t k = 0; k < K; k++) {
            d_scores[m->selected[t * K + k]] += d[k];
            if (m->weights_from_biased) d_biased[m->selected[t * K + k]] += d[k];
        }
        score_backward(m, d_scores, m->scores + t * E, m->logits + t * E);
        for (int64_t e = 0; e < E && m->bias_inside; e++) d_biased[e] = d_scores[e] += d_biased[e];
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

/* DeepSeek's versions go by the name of the model, or, without one, by how it scores. */
static void family_set_up(const example *e, moe *m, bool has_bias)
{
    const assay_backend_request *request = e->request;
    const char *block = setting(request, "decoder_block"), *name = setting(request, "model_name");
    const bool softmax_named = is(request, "routed_score_func", "softmax");
    const bool fused = is(request, "fused_moe_func", "true"), divided = is(request, "norm_topk_prob", "true");
    const bool llama4 = strcmp(block, "llama4") == 0, gemma4 = strcmp(block, "gemma4") == 0;
    const bool like_deepseek3 = strcmp(block, "glm4_moe") == 0 || strcmp(block, "kimi_k2") == 0;
    const bool deepseek = (like_deepseek3 || strncmp(block, "deepseek", 8) == 0) && !fused;
    const bool deepseek2 = deepseek && !like_deepseek3 &&
                           (name[0] == '\0' ? softmax_named && !has_bias : strncmp(name, "deepseek2", 9) == 0);
    m->sigmoid = is(request, "routed_score_func", "sigmoid");
    m->sqrtsoftplus = is(request, "routed_score_func", "sqrtsoftplus");
    m->softmax = softmax_named || (gemma4 && !fused) || (fused && is(request, "routed_score_func", ""));
    m->bias_inside = fused || gemma4, m->select_scores = fused;
    m->weights_from_biased = !m->bias_inside && (!deepseek || deepseek2 || m->bug == BIASED_WEIGHTS);
    m->softmax_chosen = !deepseek && !fused && !llama4 && !gemma4;
    m->divide = divided || (fused && !llama4 && !gemma4);
    if (deepseek) m->divide = (m->sigmoid || m->sqrtsoftplus) && m->bug != BIASED_WEIGHTS;
    m->divide &= m->bug != NO_RENORMALISATION;
    m->epsilon = deepseek ? 1e-20F : 0;
    m->scales_tokens = llama4 && !fused;
    m->factor = deepseek ? (float)number(request, "routed_scaling_factor") : 1;
    m->factor *= m->bug == SCALING_TWICE ? m->factor : 1;
    const bool grouped = deepseek && number(request, "n_routing_groups") > 0;
    m->groups = grouped ? (int64_t)number(request, "n_routing_groups") : 1;
    m->groups_kept = grouped ? (int64_t)number(request, "topk_routing_group") : 1;
    m->groups_by_max = is(request, "group_score", "") ? !has_bias : is(request, "group_score", "max");
    m->groups_by_max ^= m->bug == GROUP_SCORE_OTHER;
}

void routing_set_up(example *e, moe *m)
{
    const int64_t T = m->tokens, E = m->experts, K = m->chosen;
    const assay_backend_tensor *ids = tensor(e->request, "inputs/input_ids");
    const assay_backend_tensor *table = tensor(e->request, "weights/tid2eid");
    const float *bias = whole(e, "weights/gate/bias"), *expert_scale = whole(e, "weights/per_expert_scale");
    float *ones = take(&e->memory, E);
    for (int64_t i = 0; i < E; i++) ones[i] = 1;
    m->gate = whole(e, "weights/gate/kernel");
    m->bias = bias != NULL && m->bug != ROUTER_BIAS_DROPPED ? bias : take(&e->memory, E);
    m->expert_scale = expert_scale != NULL ? expert_scale : ones;
    m->d_expert_scale = gradient(e, "weights/per_expert_scale", 0);
    m->token_ids = ids == NULL ? NULL : ids->data, m->expert_table = table == NULL ? NULL : table->data;
    m->loss_weight = (float)number(e->request, "load_balance_loss_weight");
    m->update_rate = (float)number(e->request, "routed_bias_update_rate");
    family_set_up(e, m, bias != NULL);
    m->logits = take(&e->memory, T * E), m->scores = take(&e->memory, T * E), m->biased = take(&e->memory, T * E);
    m->d_logits = take(&e->memory, T * E), m->d_biased = take(&e->memory, T * E);
    m->gathered = take(&e->memory, T * K), m->weights_of = take(&e->memory, T * K),
    m->d_weights = take(&e->memory, T * K);
    m->selected = take(&e->memory, T * K), m->order = take(&e->memory, T * K), m->sizes = take(&e->memory, E);
    m->probabilities = take(&e->memory, T * E), m->density = take(&e->memory, m->batch * E);
}
