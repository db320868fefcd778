/* The example backend against a MoE layer in naive float64 loops, whose gradients are central differences. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/example/tests/backend_trial.h"

enum { B = 2, S = 7, T = B * S, D = 20, H = 12, F = 9, E = 16, K = 3 };

typedef struct config {
    const char *decoder_block, *model_name, *score_func, *group_score, *norm_topk_prob;
    const char *scaling, *groups, *groups_kept, *loss_weight, *update_rate;
    bool bias, fused, shared;
} config;

static const config DEEPSEEK3 = {"deepseek", "deepseek3-671b", "sigmoid", "",    "false", "2.5", "4", "2",
                                 "0.1",      "0.001",          true,      false, true};

/* A trial of this configuration; what the naive layer chose. */
typedef struct moe_trial {
    trial *t;
    config c;
    int32_t selected[T * K];
} moe_trial;

static moe_trial new_trial(const config *c)
{
    trial *t = trial_new();
    trial_input(t, "inputs/x", 0, 1, true, 3, (int64_t[]){B, S, D});
    trial_input(t, "weights/gate/kernel", 0, 1, true, 2, (int64_t[]){D, E});
    if (c->bias) trial_input(t, "weights/gate/bias", -1.5, 0.25, true, 1, (int64_t[]){E});
    if (c->fused) {
        trial_input(t, "weights/wi", 0, 1, true, 3, (int64_t[]){E, D, 2 * H});
    } else {
        trial_input(t, "weights/wi_0", 0, 1, true, 3, (int64_t[]){E, D, H});
        trial_input(t, "weights/wi_1", 0, 1, true, 3, (int64_t[]){E, D, H});
    }
    trial_input(t, "weights/wo", 0, 1, true, 3, (int64_t[]){E, H, D});
    if (c->shared) {
        trial_input(t, "weights/shared_experts/wi_0/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        trial_input(t, "weights/shared_experts/wi_1/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        trial_input(t, "weights/shared_experts/wo/kernel", 0, 1, true, 2, (int64_t[]){F, D});
    }
    trial_input(t, "cotangents/y", 0, 1, false, 3, (int64_t[]){B, S, D});
    trial_output(t, "outputs/y", true, 3, (int64_t[]){B, S, D});
    if (strcmp(c->loss_weight, "0") != 0) {
        trial_input(t, "cotangents/lb_loss", 2, 0, false, 0, NULL);
        trial_output(t, "outputs/lb_loss", true, 0, NULL);
    }
    if (strcmp(c->update_rate, "0") != 0) trial_output(t, "outputs/bias_updates", true, 1, (int64_t[]){E});
    trial_output(t, "routing/selected_experts", true, 3, (int64_t[]){B, S, K});
    trial_output(t, "routing/weights", true, 3, (int64_t[]){B, S, K});
    trial_output(t, "routing/group_sizes", true, 1, (int64_t[]){E});
    trial_output(t, "routing/sorted_selected_experts", true, 1, (int64_t[]){T * K});
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
        {"num_experts_per_tok", "3"},
        {"mlp_activations", "silu,linear"},
        {"capacity_factor", "-1"},
        {"dtype", "bfloat16"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) trial_set(t, settings[i][0], settings[i][1]);
    return (moe_trial){.t = t, .c = *c};
}

static int run_backend(trial *t)
{
    void *library = dlopen(EXAMPLE_BACKEND, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    int (*run)(const assay_backend_request *) = NULL;
    *(void **)&run = dlsym(library, "assay_backend_run");
    assert_non_null(run);
    int code = trial_run(t, run);
    assert_int_equal(dlclose(library), 0);
    return code;
}

/* ---- the naive layer ---- */

static double at(moe_trial *m, const char *path, int64_t i)
{
    return trial_find_input(m->t, path)->values[i];
}

static double score_of(const config *c, const double *logits, int e)
{
    if (strcmp(c->score_func, "sigmoid") == 0) return 1 / (1 + exp(-logits[e]));
    if (strcmp(c->score_func, "softmax") != 0) return logits[e];
    double sum = 0;
    for (int i = 0; i < E; i++) sum += exp(logits[i] - logits[e]);
    return 1 / sum;
}

static void select_naively(const config *c, const double *biased, int32_t *selected)
{
    const int groups = atoi(c->groups) > 0 ? atoi(c->groups) : 1, size = E / groups;
    const int kept = atoi(c->groups) > 0 ? atoi(c->groups_kept) : 1;
    double group_scores[E];
    for (int g = 0; g < groups; g++) {
        double best = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++)
            for (int j = c->bias ? i + 1 : i; j < (c->bias ? (g + 1) * size : i + 1); j++) /* top two, or the top */
                best = fmax(best, c->bias ? biased[i] + biased[j] : biased[i]);
        group_scores[g] = best;
    }
    bool taken[E] = {false};
    for (int k = 0; k < K; k++) {
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

/* y [D] += weight * expert(x [D]). */
static void add_expert(double *y, double weight, const double *x, const double *wi_0, const double *wi_1, int64_t row,
                       const double *wo, int64_t hidden)
{
    for (int64_t j = 0; j < hidden; j++) {
        double a = 0, b = 0;
        for (int64_t i = 0; i < D; i++) {
            a += x[i] * wi_0[i * row + j];
            b += x[i] * wi_1[i * row + j];
        }
        for (int64_t i = 0; i < D; i++) y[i] += weight * (a / (1 + exp(-a)) * b) * wo[j * D + i];
    }
}

static void add_experts(moe_trial *m, double *y, const double *x, const int32_t *selected, const double *weights)
{
    const int64_t row = m->c.fused ? 2 * H : H;
    for (int i = 0; i < D; i++) y[i] = 0;
    for (int k = 0; k < K; k++) {
        const int64_t e = selected[k];
        const double *wi_0 = trial_find_input(m->t, m->c.fused ? "weights/wi" : "weights/wi_0")->values + e * D * row;
        const double *wi_1 = m->c.fused ? wi_0 + H : trial_find_input(m->t, "weights/wi_1")->values + e * D * row;
        add_expert(y, weights[k], x, wi_0, wi_1, row, trial_find_input(m->t, "weights/wo")->values + e * H * D, H);
    }
    if (m->c.shared) {
        add_expert(y, 1, x, trial_find_input(m->t, "weights/shared_experts/wi_0/kernel")->values,
                   trial_find_input(m->t, "weights/shared_experts/wi_1/kernel")->values, F,
                   trial_find_input(m->t, "weights/shared_experts/wo/kernel")->values, F);
    }
}

/* y [T,D], weights [T,K] and the balance loss; chooses experts when `choose`, else keeps those of the trial. */
static double naive_forward(moe_trial *m, bool choose, double *y, double *weights)
{
    const config *c = &m->c;
    const bool deepseek = strcmp(c->decoder_block, "deepseek") == 0;
    const double *gate = trial_find_input(m->t, "weights/gate/kernel")->values;
    const bool from_scores = deepseek && (c->bias || strcmp(c->score_func, "softmax") != 0);
    double loss = 0, probability[B][E] = {{0}}, times[B][E] = {{0}};
    for (int token = 0; token < T; token++) {
        const double *x = trial_find_input(m->t, "inputs/x")->values + token * D;
        int32_t *selected = m->selected + token * K;
        double logits[E] = {0}, scores[E], biased[E], gathered[K], sum = 0, all = 0;
        for (int e = 0; e < E; e++)
            for (int i = 0; i < D; i++) logits[e] += x[i] * gate[i * E + e];
        for (int e = 0; e < E; e++) {
            scores[e] = score_of(c, logits, e);
            biased[e] = scores[e] + (c->bias ? at(m, "weights/gate/bias", e) : 0);
            all += exp(biased[e]);
        }
        if (choose) select_naively(c, biased, selected);
        for (int k = 0; k < K; k++) {
            gathered[k] = from_scores ? scores[selected[k]] : biased[selected[k]];
            if (!deepseek) gathered[k] = exp(gathered[k]);
            sum += gathered[k];
            times[token / S][selected[k]] += 1.0 / S;
        }
        for (int e = 0; e < E; e++) probability[token / S][e] += exp(biased[e]) / all / S;
        for (int k = 0; k < K; k++) {
            bool divided = !deepseek || strcmp(c->score_func, "sigmoid") == 0;
            weights[token * K + k] = gathered[k] / (divided ? sum : 1) * (deepseek ? atof(c->scaling) : 1);
        }
        add_experts(m, y + token * D, x, selected, weights + token * K);
    }
    for (int b = 0; b < B; b++)
        for (int e = 0; e < E; e++) loss += times[b][e] * probability[b][e] / (B * E);
    return loss * E * E * atof(c->loss_weight);
}

static moe_trial *current; /* the one that objective is asked about */

/* What is differentiated: the cotangents' product with the outputs. */
static double objective(trial *t)
{
    static double y[T * D], weights[T * K];
    double sum = naive_forward(current, false, y, weights);
    sum *= trial_find_input(t, "cotangents/lb_loss") != NULL ? at(current, "cotangents/lb_loss", 0) : 0;
    for (int i = 0; i < T * D; i++) sum += at(current, "cotangents/y", i) * y[i];
    return sum;
}

/* ---- held against each other ---- */

typedef struct findings {
    double worst; /* the largest distance of any result */
    char where[96];
    int wrong_choices, empty_experts, wrong_empty_gradients;
} findings;

static void check_choices(moe_trial *m, findings *f)
{
    int32_t sizes[E] = {0}, place = 0;
    const trial_tensor *selected = trial_find_output(m->t, "routing/selected_experts"),
                       *counts = trial_find_output(m->t, "routing/group_sizes");
    const trial_tensor *order = trial_find_output(m->t, "routing/sorted_selected_experts");
    for (int i = 0; i < T * K; i++) {
        f->wrong_choices += !(trial_value(selected, i) == m->selected[i]);
        sizes[m->selected[i]]++;
    }
    for (int e = 0; e < E; e++) {
        f->wrong_choices += !(trial_value(counts, e) == sizes[e]);
        for (int i = 0; i < T * K; i++)
            if (m->selected[i] == e) f->wrong_choices += !(trial_value(order, place++) == i);
        f->empty_experts += sizes[e] == 0;
        for (int64_t i = 0; i < H * D && sizes[e] == 0; i++) {
            double zero = trial_value(trial_find_output(m->t, "gradients/weights/wo"), e * H * D + i);
            f->wrong_empty_gradients += !(zero == 0);
        }
    }
    const trial_tensor *updates = trial_find_output(m->t, "outputs/bias_updates");
    for (int e = 0; updates != NULL && e < E; e++) {
        double rate = (double)(float)atof(m->c.update_rate), missing = (double)T * K / E - sizes[e];
        f->wrong_choices += !(trial_value(updates, e) == (missing > 0 ? rate : missing < 0 ? -rate : 0));
    }
}

static findings examine(moe_trial *m)
{
    static double y[T * D], weights[T * K];
    findings f = {.worst = 0};
    const double loss = naive_forward(m, true, y, weights);
    check_choices(m, &f);
    current = m;
    for (int i = 0; i < m->t->output_count; i++) {
        const trial_tensor *o = &m->t->outputs[i];
        const double *expected = NULL;
        if (!o->written) fail_msg("%s was not written", o->path);
        if (trial_is_index(o->path) || strcmp(o->path, "outputs/bias_updates") == 0) continue;
        if (strcmp(o->path, "outputs/y") == 0) expected = y;
        if (strcmp(o->path, "outputs/lb_loss") == 0) expected = &loss;
        if (strcmp(o->path, "routing/weights") == 0) expected = weights;
        double d = expected != NULL ? trial_distance(o, expected) : trial_gradient_distance(m->t, o, objective, 61);
        if (!(d <= f.worst)) {
            f.worst = d;
            snprintf(f.where, sizeof f.where, "%s", o->path);
        }
    }
    return f;
}

static void assert_right(const config *c)
{
    moe_trial m = new_trial(c);
    if (run_backend(m.t) != ASSAY_BACKEND_DONE) fail_msg("%s", m.t->message);
    findings f = examine(&m);
    print_message("%s %s: %s is the farthest, by %.4f\n", c->decoder_block, c->model_name, f.where, f.worst);
    assert_int_equal(f.wrong_choices, 0);
    assert_true(f.worst <= 0.01); /* bfloat16: 2^-8 = 0.004 */
    assert_true(f.empty_experts > 0);
    assert_int_equal(f.wrong_empty_gradients, 0);
    trial_free(m.t);
}

static void every_family_is_right(void **state)
{
    (void)state;
    const config configs[] = {
        DEEPSEEK3,
        {"deepseek", "deepseek3-671b", "sigmoid", "", "false", "1", "-1", "-1", "0", "0", true, true, false},
        {"deepseek", "", "sigmoid", "", "false", "2.5", "4", "1", "0.1", "0", true, true, true},
        {"deepseek", "deepseek2-236b", "softmax", "", "false", "16", "4", "2", "0.1", "0", false, false, true},
        {"deepseek", "", "softmax", "max", "false", "16", "-1", "-1", "0", "0", false, true, true},
        {"mixtral", "mixtral-8x7b", "", "", "false", "1", "-1", "-1", "0.1", "0", false, false, false},
        {"default", "", "", "", "false", "3", "-1", "-1", "0", "0.001", true, true, true},
        {"qwen3_moe", "qwen3-30b-a3b", "", "", "true", "1", "-1", "-1", "0", "0", false, false, false},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) assert_right(&configs[i]);
}

static void every_bug_shows(void **state)
{
    (void)state;
    const char *const bugs[] = {"biased_weights", "group_fill_zero",        "group_score_other", "no_renormalisation",
                                "scaling_twice",  "empty_expert_unwritten", "last_tile_dropped", "gate_up_swapped",
                                "dx_without_up",  "router_gradient_missing"};
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        moe_trial m = new_trial(&DEEPSEEK3);
        assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", bugs[i], 1), 0);
        int code = run_backend(m.t);
        assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
        assert_int_equal(code, ASSAY_BACKEND_DONE);
        findings f = examine(&m);
        print_message("%s: %s is off by %.3f, %d wrong choices\n", bugs[i], f.where, f.worst, f.wrong_choices);
        assert_true(f.worst > 0.1);
        bool choices_differ = strncmp(bugs[i], "group_", 6) == 0;
        assert_true((f.wrong_choices > 0) == choices_differ);
        if (!choices_differ)
            assert_true((f.wrong_empty_gradients > 0) == (strcmp(bugs[i], "empty_expert_unwritten") == 0));
        trial_free(m.t);
    }
}

static void an_unknown_bug_is_an_error(void **state)
{
    (void)state;
    moe_trial m = new_trial(&DEEPSEEK3);
    assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", "gate_up", 1), 0);
    assert_int_equal(run_backend(m.t), ASSAY_BACKEND_ERROR);
    assert_non_null(strstr(m.t->message, "biased_weights"));
    assert_non_null(strstr(m.t->message, "router_gradient_missing"));
    assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", "", 1), 0);
    assert_int_equal(run_backend(m.t), ASSAY_BACKEND_DONE);
    assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
    trial_free(m.t);
}

static void what_it_lacks_is_unsupported(void **state)
{
    (void)state;
    const char *const settings[][3] = {
        {"op", "rms_norm_moe", "rms_norm_moe"},
        {"decoder_block", "llama4", "llama4"},
        {"decoder_block", "gpt_oss", "gpt_oss"},
        {"mlp_activations", "gelu,linear", "gelu,linear"},
        {"mlp_activations_limit", "7", "mlp_activations_limit"},
        {"routed_score_func", "sqrtsoftplus", "sqrtsoftplus"},
        {"fused_moe_func", "true", "fused_moe_func"},
        {"capacity_factor", "1.5", "capacity_factor"},
        {"num_moe_token_chunks", "2", "num_moe_token_chunks"},
    };
    moe_trial m = new_trial(&DEEPSEEK3);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *before = "";
        for (int n = 0; n < m.t->setting_count; n++)
            if (strcmp(m.t->settings[n].key, settings[i][0]) == 0) before = m.t->settings[n].value;
        trial_set(m.t, settings[i][0], settings[i][1]);
        assert_int_equal(run_backend(m.t), ASSAY_BACKEND_UNSUPPORTED);
        trial_set(m.t, settings[i][0], before);
        assert_non_null(strstr(m.t->message, settings[i][2]));
    }
    trial_output(m.t, "checkpoints/moe_mlpwo", false, 2, (int64_t[]){T * K, D}); /* may be left alone */
    assert_int_equal(run_backend(m.t), ASSAY_BACKEND_DONE);
    assert_false(trial_find_output(m.t, "checkpoints/moe_mlpwo")->written);
    trial_output(m.t, "checkpoints/moe_mlpwi_0", true, 2, (int64_t[]){T * K, H});
    assert_int_equal(run_backend(m.t), ASSAY_BACKEND_UNSUPPORTED);
    assert_non_null(strstr(m.t->message, "checkpoints/moe_mlpwi_0"));
    trial_free(m.t);
}

static void it_gives_the_same_bytes_twice(void **state)
{
    (void)state;
    moe_trial m = new_trial(&DEEPSEEK3), again = new_trial(&DEEPSEEK3);
    assert_int_equal(run_backend(m.t), ASSAY_BACKEND_DONE);
    assert_int_equal(run_backend(again.t), ASSAY_BACKEND_DONE);
    for (int i = 0; i < m.t->output_count; i++) {
        const trial_tensor *o = &m.t->outputs[i];
        assert_memory_equal(o->data, again.t->outputs[i].data, (size_t)trial_count(o) * 8);
    }
    trial_free(m.t);
    trial_free(again.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_right),         cmocka_unit_test(every_bug_shows),
        cmocka_unit_test(an_unknown_bug_is_an_error),    cmocka_unit_test(what_it_lacks_is_unsupported),
        cmocka_unit_test(it_gives_the_same_bytes_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
