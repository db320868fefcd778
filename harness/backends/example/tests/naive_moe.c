#include "harness/backends/example/tests/naive_moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/example/tests/naive_glu.h"

/* ---- the request ---- */

static bool is_block(const moe_config *c, const char *name)
{
    return strcmp(c->decoder_block, name) == 0;
}

static void add_weights(trial *t, const moe_config *c)
{
    trial_input(t, "weights/gate/kernel", 0, 1, true, 2, (int64_t[]){D, E});
    if (c->bias) trial_input(t, "weights/gate/bias", -1.5, 0.25, true, 1, (int64_t[]){E});
    if (c->fused) {
        trial_input(t, "weights/wi", 0, 1, true, 3, (int64_t[]){E, D, 2 * H});
    } else {
        trial_input(t, "weights/wi_0", 0, 1, true, 3, (int64_t[]){E, D, H});
        trial_input(t, "weights/wi_1", 0, 1, true, 3, (int64_t[]){E, D, H});
    }
    trial_input(t, "weights/wo", 0, 1, true, 3, (int64_t[]){E, H, D});
    if (c->biases) {
        trial_input(t, "weights/wi_0_bias", 0, 1, true, 2, (int64_t[]){E, H});
        trial_input(t, "weights/wi_1_bias", 0, 1, true, 2, (int64_t[]){E, H});
        trial_input(t, "weights/wo_bias", 0, 4, true, 2, (int64_t[]){E, D});
    }
    if (c->shared) {
        trial_input(t, "weights/shared_experts/wi_0/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        trial_input(t, "weights/shared_experts/wi_1/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        trial_input(t, "weights/shared_experts/wo/kernel", 0, 1, true, 2, (int64_t[]){F, D});
    }
    if (is_block(c, "gemma4") && !c->fused_func)
        trial_input(t, "weights/per_expert_scale", 1, 0.5, true, 1, (int64_t[]){E});
}

static void add_hash(trial *t, int k)
{
    int32_t ids[T], table[VOCABULARY * K];
    for (int i = 0; i < T; i++) ids[i] = i * 5 % VOCABULARY;
    for (int i = 0; i < VOCABULARY * k; i++) table[i] = (i / k * 3 + i % k * 5) % (E - 1); /* the last stays empty */
    trial_integers(t, "inputs/input_ids", 2, (int64_t[]){B, S}, ids);
    trial_integers(t, "weights/tid2eid", 2, (int64_t[]){VOCABULARY, k}, table);
}

static void add_results(moe_trial *m)
{
    trial *t = m->t;
    trial_input(t, "cotangents/y", 0, 1, false, 3, (int64_t[]){B, S, D});
    trial_output(t, "outputs/y", true, 3, (int64_t[]){B, S, D});
    if (strcmp(m->c.loss_weight, "0") != 0) {
        trial_input(t, "cotangents/lb_loss", 2, 0, false, 0, NULL);
        trial_output(t, "outputs/lb_loss", true, 0, NULL);
    }
    if (strcmp(m->c.update_rate, "0") != 0) trial_output(t, "outputs/bias_updates", true, 1, (int64_t[]){E});
    trial_output(t, "routing/selected_experts", true, 3, (int64_t[]){B, S, m->k});
    trial_output(t, "routing/weights", true, 3, (int64_t[]){B, S, m->k});
    trial_output(t, "routing/group_sizes", true, 1, (int64_t[]){E});
    trial_output(t, "routing/sorted_selected_experts", true, 1, (int64_t[]){T * m->k});
    if (m->c.capacity == NULL) return;
    trial_output(t, "routing/combine_mask", true, 4, (int64_t[]){B, S, E, m->places});
    trial_output(t, "routing/dispatch_mask", true, 4, (int64_t[]){B, S, E, m->places});
}

static void set_settings(trial *t, const moe_config *c)
{
    const char *const settings[][2] = {
        {"op", "moe"},
        {"decoder_block", c->decoder_block},
        {"model_name", c->model_name},
        {"routed_score_func", c->score_func},
        {"group_score", c->group_score},
        {"norm_topk_prob", c->norm_topk_prob},
        {"routed_scaling_factor", c->scaling},
        {"n_routing_groups", c->groups},
        {"topk_routing_group", c->groups_kept},
        {"load_balance_loss_weight", c->loss_weight},
        {"routed_bias_update_rate", c->update_rate},
        {"num_experts_per_tok", c->one_expert ? "1" : "3"},
        {"mlp_activations", c->activations},
        {"mlp_activations_limit", c->limit},
        {"sparse_matmul", c->capacity != NULL ? "false" : "true"},
        {"capacity_factor", c->capacity != NULL ? c->capacity : "-1"},
        {"fused_moe_func", c->fused_func ? "true" : "false"},
        {"dtype", "bfloat16"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) trial_set(t, settings[i][0], settings[i][1]);
}

static void set_default(const char **setting, const char *value)
{
    if (*setting == NULL) *setting = value;
}

moe_trial moe_trial_new(const moe_config *given)
{
    moe_trial m = {.t = trial_new(), .c = *given, .k = given->one_expert ? 1 : K, .places = S * K};
    moe_config *c = &m.c;
    const char **const empty[] = {&c->model_name, &c->score_func, &c->group_score};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) set_default(empty[i], "");
    set_default(&c->norm_topk_prob, "false"), set_default(&c->scaling, "1");
    set_default(&c->groups, "-1"), set_default(&c->groups_kept, "-1");
    set_default(&c->loss_weight, "0"), set_default(&c->update_rate, "0");
    set_default(&c->activations, "silu,linear"), set_default(&c->limit, "0");
    if (c->capacity != NULL) m.places = (int)fmax(ceil((double)S * m.k / E) * atof(c->capacity), atof(c->capacity));
    trial_input(m.t, "inputs/x", 0, 1, true, 3, (int64_t[]){B, S, D});
    add_weights(m.t, c);
    if (c->hash) add_hash(m.t, m.k);
    add_results(&m);
    set_settings(m.t, c);
    return m;
}

/* ---- the block ---- */

static const double *values(moe_trial *m, const char *path)
{
    const trial_tensor *in = trial_find_input(m->t, path);
    return in == NULL ? NULL : in->values;
}

static double score_of(const char *score_func, const double *logits, int e)
{
    if (strcmp(score_func, "sigmoid") == 0) return 1 / (1 + exp(-logits[e]));
    if (strcmp(score_func, "sqrtsoftplus") == 0) return sqrt(log(1 + exp(logits[e])));
    if (strcmp(score_func, "softmax") != 0) return logits[e];
    double sum = 0;
    for (int i = 0; i < E; i++) sum += exp(logits[i] - logits[e]);
    return 1 / sum;
}

static void select_naively(const moe_config *c, const double *biased, int k_count, int32_t *selected)
{
    const bool grouped = strncmp(c->decoder_block, "deepseek", 8) == 0 && !c->fused_func && atoi(c->groups) > 0;
    const int groups = grouped ? atoi(c->groups) : 1, kept = grouped ? atoi(c->groups_kept) : 1, size = E / groups;
    double group_scores[E];
    for (int g = 0; g < groups; g++) {
        double best = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++)
            for (int j = c->bias ? i + 1 : i; j < (c->bias ? (g + 1) * size : i + 1); j++) /* top two, or the top */
                best = fmax(best, c->bias ? biased[i] + biased[j] : biased[i]);
        group_scores[g] = best;
    }
    bool taken[E] = {false};
    for (int k = 0; k < k_count; k++) {
        int best = -1;
        for (int e = 0; e < E; e++) {
            int better_groups = 0;
            for (int g = 0; g < groups; g++) better_groups += group_scores[g] > group_scores[e / size];
            if (better_groups < kept && !taken[e] && (best < 0 || biased[e] > biased[best])) best = e;
        }
        taken[best] = true;
        selected[k] = best;
    }
}

/* Its weights, of which a row has `row` numbers, and biases or NULL. */
typedef struct expert {
    const double *wi_0, *wi_1, *wo, *bias_0, *bias_1, *bias_o;
    int row, hidden;
    double limit;
    bool gpt_oss;
} expert;

/* y [D] += weight * expert(scale * x [D]). */
static void add_expert(double *y, double weight, double scale, const double *x, const expert *w, const moe_config *c)
{
    for (int j = 0; j < w->hidden; j++) {
        double a = w->bias_0 != NULL ? w->bias_0[j] : 0, b = w->bias_1 != NULL ? w->bias_1[j] : 0;
        for (int i = 0; i < D; i++) {
            a += scale * x[i] * w->wi_0[i * w->row + j];
            b += scale * x[i] * w->wi_1[i * w->row + j];
        }
        const double h = naive_glu(c->activations, w->limit, w->gpt_oss, a, b);
        for (int i = 0; i < D; i++) y[i] += weight * h * w->wo[j * D + i];
    }
    for (int i = 0; i < D && w->bias_o != NULL; i++) y[i] += weight * w->bias_o[i];
}

static void add_experts(moe_trial *m, double *y, const double *x, int token, const double *weights)
{
    const moe_config *c = &m->c;
    const int row = c->fused ? 2 * H : H;
    const bool scales = is_block(c, "llama4") && !c->fused_func;
    for (int i = 0; i < D; i++) y[i] = 0;
    for (int i = token * m->k; i < (token + 1) * m->k; i++) {
        const int e = m->selected[i];
        const double weight = weights[i - token * m->k];
        expert w = {.row = row, .hidden = H, .gpt_oss = is_block(c, "gpt_oss")};
        if (w.gpt_oss || strncmp(c->decoder_block, "deepseek", 8) == 0) w.limit = atof(c->limit);
        w.wi_0 = values(m, c->fused ? "weights/wi" : "weights/wi_0") + e * D * row;
        w.wi_1 = c->fused ? w.wi_0 + H : values(m, "weights/wi_1") + e * D * row;
        w.wo = values(m, "weights/wo") + e * H * D;
        if (c->biases) w.bias_0 = values(m, "weights/wi_0_bias") + e * H;
        if (c->biases) w.bias_1 = values(m, "weights/wi_1_bias") + e * H;
        if (c->biases) w.bias_o = values(m, "weights/wo_bias") + e * D;
        if (m->place[i] < m->places) add_expert(y, scales ? 1 : weight, scales ? 1 / (1 + exp(-weight)) : 1, x, &w, c);
    }
    const expert shared = {.wi_0 = values(m, "weights/shared_experts/wi_0/kernel"),
                           .wi_1 = values(m, "weights/shared_experts/wi_1/kernel"),
                           .wo = values(m, "weights/shared_experts/wo/kernel"),
                           .row = F,
                           .hidden = F};
    if (c->shared) add_expert(y, 1, 1, x, &shared, c);
}

/* scores and what experts are chosen by, [E] of a token. */
static void score_token(moe_trial *m, const double *x, double *scores, double *selecting)
{
    const moe_config *c = &m->c;
    const bool gemma4 = is_block(c, "gemma4") && !c->fused_func, inside = c->fused_func || gemma4;
    const char *func = gemma4 || (c->fused_func && strcmp(c->score_func, "") == 0) ? "softmax" : c->score_func;
    const double *gate = values(m, "weights/gate/kernel"), *bias = values(m, "weights/gate/bias");
    double logits[E] = {0};
    for (int e = 0; e < E; e++) {
        for (int i = 0; i < D; i++) logits[e] += x[i] * gate[i * E + e];
        if (inside && bias != NULL) logits[e] += bias[e];
    }
    for (int e = 0; e < E; e++) {
        scores[e] = score_of(func, logits, e);
        selecting[e] = scores[e] + (bias != NULL ? bias[e] : 0);
        if (gemma4) selecting[e] = logits[e];
        if (c->fused_func) selecting[e] = scores[e];
    }
}

static void weigh(moe_trial *m, const int32_t *selected, const double *scores, const double *selecting, double *weights)
{
    const moe_config *c = &m->c;
    const bool fused = c->fused_func, deepseek = strncmp(c->decoder_block, "deepseek", 8) == 0 && !fused;
    const bool gemma4 = is_block(c, "gemma4"), llama4 = is_block(c, "llama4");
    const bool from_scores = deepseek ? c->bias || strcmp(c->score_func, "softmax") != 0 : fused || gemma4;
    const double *expert_scale = values(m, "weights/per_expert_scale");
    bool divided = deepseek ? strcmp(c->score_func, "softmax") != 0 : strcmp(c->norm_topk_prob, "true") == 0;
    if (fused && !gemma4 && !llama4) divided = true;
    double sum = 0;
    for (int k = 0; k < m->k; k++) {
        weights[k] = from_scores ? scores[selected[k]] : selecting[selected[k]];
        if (!deepseek && !fused && !gemma4 && !llama4) weights[k] = exp(weights[k]), divided = true;
        sum += weights[k];
    }
    for (int k = 0; k < m->k; k++) {
        weights[k] *= (divided ? 1 / sum : 1) * (deepseek ? atof(c->scaling) : 1);
        if (expert_scale != NULL) weights[k] *= expert_scale[selected[k]];
    }
}

static void place_choices(moe_trial *m)
{
    for (int i = 0; i < T * m->k; i++) {
        m->place[i] = 0;
        for (int before = i / (S * m->k) * S * m->k; before < i; before++)
            m->place[i] += m->selected[before] == m->selected[i];
    }
}

double naive_moe(moe_trial *m, bool choose, double *y, double *weights)
{
    double loss = 0, probability[B][E] = {{0}}, times[B][E] = {{0}};
    for (int token = 0; token < T; token++) {
        int32_t *selected = m->selected + token * m->k;
        double scores[E], selecting[E], all = 0;
        score_token(m, values(m, "inputs/x") + token * D, scores, selecting);
        if (choose) select_naively(&m->c, selecting, m->k, selected);
        for (int k = 0; k < m->k && m->c.hash; k++) {
            const int32_t id = ((const int32_t *)trial_find_input(m->t, "inputs/input_ids")->data)[token];
            selected[k] = ((const int32_t *)trial_find_input(m->t, "weights/tid2eid")->data)[id * m->k + k];
        }
        weigh(m, selected, scores, selecting, weights + token * m->k);
        for (int k = 0; k < m->k; k++) times[token / S][selected[k]] += 1.0 / S;
        for (int e = 0; e < E; e++) all += exp(selecting[e]);
        for (int e = 0; e < E; e++) probability[token / S][e] += exp(selecting[e]) / all / S;
    }
    place_choices(m);
    for (int token = 0; token < T; token++)
        add_experts(m, y + token * D, values(m, "inputs/x") + token * D, token, weights + token * m->k);
    for (int b = 0; b < B; b++)
        for (int e = 0; e < E; e++) loss += times[b][e] * probability[b][e] / (B * E);
    return loss * E * E * atof(m->c.loss_weight);
}
