/* The example backend against a MoE layer in naive float64 loops, whose gradients are central differences. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/example/tests/naive_moe.h"

static const moe_config DEEPSEEK3 = {.decoder_block = "deepseek",
                                     .model_name = "deepseek3-671b",
                                     .score_func = "sigmoid",
                                     .scaling = "2.5",
                                     .groups = "4",
                                     .groups_kept = "2",
                                     .loss_weight = "0.1",
                                     .update_rate = "0.001",
                                     .bias = true,
                                     .shared = true};

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

static moe_trial *current; /* the one that objective is asked about */

/* What is differentiated: the cotangents' product with the outputs. */
static double objective(trial *t)
{
    static double y[T * D], weights[T * K];
    double sum = naive_moe(current, false, y, weights);
    sum *= trial_find_input(t, "cotangents/lb_loss") != NULL ? trial_find_input(t, "cotangents/lb_loss")->values[0] : 0;
    for (int i = 0; i < T * D; i++) sum += trial_find_input(t, "cotangents/y")->values[i] * y[i];
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
    for (int i = 0; i < T * m->k; i++) {
        f->wrong_choices += !(trial_value(selected, i) == m->selected[i]);
        sizes[m->selected[i]]++;
    }
    for (int e = 0; e < E; e++) {
        f->wrong_choices += !(trial_value(counts, e) == sizes[e]);
        for (int i = 0; i < T * m->k; i++)
            if (m->selected[i] == e) f->wrong_choices += !(trial_value(order, place++) == i);
        f->empty_experts += sizes[e] == 0;
        for (int64_t i = 0; i < H * D && sizes[e] == 0; i++) {
            double zero = trial_value(trial_find_output(m->t, "gradients/weights/wo"), e * H * D + i);
            f->wrong_empty_gradients += !(zero == 0);
        }
    }
    const trial_tensor *updates = trial_find_output(m->t, "outputs/bias_updates");
    for (int e = 0; updates != NULL && e < E; e++) {
        double rate = (double)(float)atof(m->c.update_rate), missing = (double)T * m->k / E - sizes[e];
        f->wrong_choices += !(trial_value(updates, e) == (missing > 0 ? rate : missing < 0 ? -rate : 0));
    }
}

/* combine_mask [T,E,places] has the weight of a choice at its place, dispatch_mask a 1. */
static int wrong_places(const moe_trial *m, const double *weights)
{
    const trial_tensor *combine = trial_find_output(m->t, "routing/combine_mask");
    const trial_tensor *taken = trial_find_output(m->t, "routing/dispatch_mask");
    int wrong = 0;
    for (int64_t cell = 0; combine != NULL && cell < trial_count(combine); cell++) {
        const int64_t token = cell / m->places / E, e = cell / m->places % E;
        double expected = 0;
        for (int64_t i = token * m->k; i < (token + 1) * m->k; i++)
            if (m->selected[i] == e && m->place[i] == cell % m->places) expected = weights[i];
        wrong += !(fabs(trial_value(combine, cell) - expected) <= 1e-5 * fabs(expected));
        wrong += !(trial_value(taken, cell) == (expected != 0));
    }
    return wrong;
}

static bool is_mask(const char *path)
{
    return strstr(path, "_mask") != NULL;
}

static findings examine(moe_trial *m)
{
    static double y[T * D], weights[T * K];
    findings f = {.worst = 0};
    const double loss = naive_moe(m, true, y, weights);
    check_choices(m, &f);
    f.wrong_choices += wrong_places(m, weights);
    current = m;
    for (int i = 0; i < m->t->output_count; i++) {
        const trial_tensor *o = &m->t->outputs[i];
        const double *expected = NULL;
        if (!o->written) fail_msg("%s was not written", o->path);
        if (trial_is_index(o->path) || is_mask(o->path) || strcmp(o->path, "outputs/bias_updates") == 0) continue;
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

static void assert_right(const moe_config *c)
{
    moe_trial m = moe_trial_new(c);
    if (run_backend(m.t) != ASSAY_BACKEND_DONE) fail_msg("%s", m.t->message);
    findings f = examine(&m);
    print_message("%s %s: %s is the farthest, by %.4f\n", c->decoder_block, m.c.model_name, f.where, f.worst);
    assert_int_equal(f.wrong_choices, 0);
    assert_true(f.worst <= 0.01); /* bfloat16: 2^-8 = 0.004 */
    assert_true(f.empty_experts > 0);
    assert_int_equal(f.wrong_empty_gradients, 0);
    trial_free(m.t);
}

static const moe_config FAMILIES[] = {
    {.decoder_block = "deepseek", .model_name = "deepseek3-671b", .score_func = "sigmoid", .bias = true, .fused = true},
    {.decoder_block = "deepseek",
     .score_func = "sigmoid",
     .scaling = "2.5",
     .groups = "4",
     .groups_kept = "1",
     .loss_weight = "1000",
     .bias = true,
     .fused = true,
     .shared = true},
    {.decoder_block = "deepseek",
     .model_name = "deepseek2-236b",
     .score_func = "softmax",
     .scaling = "16",
     .groups = "4",
     .groups_kept = "2",
     .loss_weight = "1000",
     .shared = true},
    {.decoder_block = "deepseek",
     .score_func = "softmax",
     .group_score = "max",
     .scaling = "16",
     .fused = true,
     .shared = true},
    {.decoder_block = "mixtral", .model_name = "mixtral-8x7b", .loss_weight = "1000"},
    {.decoder_block = "default", .scaling = "3", .update_rate = "0.001", .bias = true, .fused = true, .shared = true},
    {.decoder_block = "qwen3_moe", .model_name = "qwen3-30b-a3b", .norm_topk_prob = "true"},
    {.decoder_block = "deepseek4",
     .score_func = "sqrtsoftplus",
     .scaling = "1.5",
     .loss_weight = "1000",
     .update_rate = "0.001",
     .bias = true,
     .shared = true},
    {.decoder_block = "deepseek4",
     .model_name = "deepseek4-flash",
     .score_func = "sqrtsoftplus",
     .scaling = "1.5",
     .groups = "4",
     .groups_kept = "2",
     .bias = true,
     .shared = true,
     .hash = true},
    {.decoder_block = "gemma4",
     .norm_topk_prob = "true",
     .scaling = "3",
     .groups = "4",
     .groups_kept = "2",
     .loss_weight = "1000",
     .shared = true},
    {.decoder_block = "gemma4", .loss_weight = "1000", .update_rate = "0.001", .bias = true},
    {.decoder_block = "llama4",
     .score_func = "sigmoid",
     .scaling = "3",
     .loss_weight = "1000",
     .shared = true,
     .one_expert = true},
    {.decoder_block = "llama4", .scaling = "3", .bias = true, .fused = true, .one_expert = true},
    {.decoder_block = "gpt_oss", .bias = true, .activations = "sigmoid,linear", .limit = "1000", .biases = true},
    {.decoder_block = "mixtral",
     .loss_weight = "1000",
     .activations = "gelu,linear",
     .limit = "1",
     .biases = true,
     .capacity = "1"}, /* only deepseek's and GPT-OSS's experts are clamped */
    {.decoder_block = "deepseek",
     .score_func = "sigmoid",
     .scaling = "2.5",
     .update_rate = "0.001",
     .bias = true,
     .shared = true,
     .capacity = "0.5"},
    {.decoder_block = "qwen3_moe",
     .score_func = "softmax",
     .scaling = "3",
     .groups = "4",
     .groups_kept = "2",
     .bias = true,
     .fused = true,
     .fused_func = true},
    {.decoder_block = "llama4", .scaling = "3", .fused = true, .fused_func = true},
    {.decoder_block = "gemma4",
     .score_func = "sigmoid",
     .norm_topk_prob = "true",
     .scaling = "3",
     .bias = true,
     .fused = true,
     .shared = true,
     .fused_func = true},
    {.decoder_block = "deepseek",
     .model_name = "deepseek3-671b",
     .score_func = "sigmoid",
     .scaling = "3",
     .groups = "4",
     .groups_kept = "1",
     .bias = true,
     .fused = true,
     .shared = true,
     .fused_func = true},
    /* at these limits rounding moves no value across */
    {.decoder_block = "deepseek4", .score_func = "sigmoid", .bias = true, .shared = true, .limit = "2.5"},
    {.decoder_block = "gpt_oss", .bias = true, .activations = "sigmoid,linear", .limit = "2.5", .biases = true},
};

static void every_family_is_right(void **state)
{
    (void)state;
    assert_right(&DEEPSEEK3);
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) assert_right(&FAMILIES[i]);
}

static void every_bug_shows(void **state)
{
    (void)state;
    const char *const bugs[] = {"biased_weights", "group_fill_zero",        "group_score_other", "no_renormalisation",
                                "scaling_twice",  "empty_expert_unwritten", "last_tile_dropped", "gate_up_swapped",
                                "dx_without_up",  "router_gradient_missing"};
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        moe_trial m = moe_trial_new(&DEEPSEEK3);
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
    moe_trial m = moe_trial_new(&DEEPSEEK3);
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
        {"mlp_activations", "tanh,linear", "tanh,linear"},
        {"mlp_activations", "silu,gel", "silu,gel"},
        {"mlp_activations", "silu", "silu"},
        {"ragged_buffer_factor", "1.5", "ragged_buffer_factor"},
    };
    moe_trial m = moe_trial_new(&DEEPSEEK3);
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
    moe_trial m = moe_trial_new(&DEEPSEEK3), again = moe_trial_new(&DEEPSEEK3);
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
