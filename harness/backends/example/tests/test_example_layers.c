/* The example backend's operations of the decoder against naive float64 loops, whose gradients are central differences.
 * Its sources are in this program, so that allocations can be made to fail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/example/tests/naive_layers.h"

/* What a case is made of, for people; the rest is in naive_config. */
typedef struct config {
    const char *op;
    bool dense, segments, padding_masked, compressed, yarn, interleave, pairwise, attention_scaling;
    int32_t step;                    /* from a position to the next */
    double size;                     /* of x: with a small one the latents show the epsilon of their norms */
    const char *activations, *limit; /* of the op mlp; NULL: silu,linear and none */
    bool gpt_oss, biases, fused;
} config;

static const config MLA = {.op = "mla",
                           .segments = true,
                           .padding_masked = true,
                           .compressed = true,
                           .yarn = true,
                           .interleave = true,
                           .step = 37,
                           .size = 1};
static const config ATTENTION = {.op = "attention", .segments = true, .padding_masked = true, .step = 1, .size = 1};
static const config ROPE_LATE = {
    .op = "yarn_rope", .padding_masked = true, .yarn = true, .interleave = true, .step = 1999, .size = 1};
static const config LAYER = {.op = "deepseek_layer",
                             .segments = true,
                             .padding_masked = true,
                             .compressed = true,
                             .yarn = true,
                             .interleave = true,
                             .pairwise = true,
                             .attention_scaling = true,
                             .step = 37,
                             .size = 1};
static const config STACK = {.op = "deepseek_stack",
                             .dense = true,
                             .padding_masked = true,
                             .compressed = true,
                             .yarn = true,
                             .interleave = true,
                             .step = 37,
                             .size = 1};

static naive_config naive; /* of the trial at hand: the objective has no other way to it */

static void add_mla(trial *t, const char *prefix, const config *c)
{
    char path[96];
#define ADD(name, center, size, ...)                                                                                   \
    snprintf(path, sizeof path, "%s" name, prefix),                                                                    \
        trial_input(t, path, center, size, true, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),        \
                    (int64_t[]){__VA_ARGS__})
    if (c->compressed) {
        ADD("wq_a/kernel", 0, 0.5, D, LQ);
        ADD("q_norm/scale", 1, 0.5, LQ);
        ADD("wq_b/kernel", 0, 0.5, LQ, N, QK);
    } else {
        ADD("query/kernel", 0, 0.25, D, N, QK);
    }
    ADD("wkv_a/kernel", 0, 0.5, D, LKV + ROPE);
    ADD("kv_norm/scale", 1, 0.5, LKV);
    ADD("wkv_b/kernel", 0, 0.5, LKV, N, NOPE + V);
    ADD("out/kernel", 0, 0.25, N, V, D);
}

static void add_layer(trial *t, const char *prefix, const config *c, bool dense)
{
    char attention[64], path[96];
    ADD("pre_self_attention_layer_norm/scale", 1, 0.5, D);
    ADD("post_self_attention_layer_norm/scale", 1, 0.5, D);
    snprintf(attention, sizeof attention, "%sself_attention/", prefix);
    add_mla(t, attention, c);
    if (dense) {
        ADD("mlp/wi_0/kernel", 0, 0.25, D, F);
        ADD("mlp/wi_1/kernel", 0, 0.25, D, F);
        ADD("mlp/wo/kernel", 0, 0.25, F, D);
        return;
    }
    ADD("moe/gate/kernel", 0, 0.5, D, E);
    ADD("moe/gate/bias", 0, 0.25, E);
    ADD("moe/wi_0", 0, 0.25, E, D, H);
    ADD("moe/wi_1", 0, 0.25, E, D, H);
    ADD("moe/wo", 0, 0.25, E, H, D);
    ADD("moe/shared_experts/wi_0/kernel", 0, 0.25, D, SHARED);
    ADD("moe/shared_experts/wi_1/kernel", 0, 0.25, D, SHARED);
    ADD("moe/shared_experts/wo/kernel", 0, 0.25, SHARED, D);
}

static void add_result(trial *t, const char *name, int32_t rank, const int64_t *dims)
{
    char path[64];
    snprintf(path, sizeof path, "outputs/%s", name);
    trial_output(t, path, true, rank, dims);
    snprintf(path, sizeof path, "cotangents/%s", name);
    trial_input(t, path, 0, 1, false, rank, dims);
}

static void add_tensors(trial *t, const config *c)
{
    const char *const prefix = "weights/";
    const bool rope = strcmp(c->op, "yarn_rope") == 0, attention = strcmp(c->op, "attention") == 0;
    char path[96];
    if (attention) {
        trial_input(t, "inputs/query", 0, 1, true, 4, (int64_t[]){B, S, N, QK});
        trial_input(t, "inputs/key", 0, 1, true, 4, (int64_t[]){B, S, N, QK});
        trial_input(t, "inputs/value", 0, 1, true, 4, (int64_t[]){B, S, N, V});
        add_result(t, "attention_out", 4, (int64_t[]){B, S, N, V});
        add_result(t, "lse", 3, (int64_t[]){B, N, S});
        return;
    }
    trial_input(t, "inputs/x", 0, c->size, true, rope ? 4 : 3,
                rope ? (int64_t[]){B, S, N, ROPE} : (int64_t[]){B, S, D});
    if (strcmp(c->op, "rms_norm") == 0) ADD("scale", 1, 0.5, D);
    if (strcmp(c->op, "mlp") == 0) {
        if (c->fused) {
            ADD("wi/kernel", 0, 0.5, D, 2 * F);
        } else {
            ADD("wi_0/kernel", 0, 0.5, D, F);
            ADD("wi_1/kernel", 0, 0.5, D, F);
        }
        ADD("wo/kernel", 0, 0.5, F, D);
    }
    if (c->biases) {
        ADD("wi_0/bias", 0, 1, F);
        ADD("wi_1/bias", 0, 1, F);
        ADD("wo/bias", 0, 1, D);
    }
    if (strcmp(c->op, "mla") == 0) add_mla(t, prefix, c);
    if (strcmp(c->op, "deepseek_layer") == 0) add_layer(t, prefix, c, c->dense);
    if (strcmp(c->op, "deepseek_stack") == 0) {
        add_layer(t, "weights/layers/0/", c, c->dense);
        add_layer(t, "weights/layers/1/", c, false);
    }
    if (strcmp(c->op, "deepseek_stack") == 0)
        trial_output(t, "routing/layers/1/selected_experts", false, 3, (int64_t[]){B, S, K});
    if (strcmp(c->op, "deepseek_layer") == 0)
        trial_output(t, "routing/selected_experts", false, 3, (int64_t[]){B, S, K});
    add_result(t, "y", rope ? 4 : 3, rope ? (int64_t[]){B, S, N, ROPE} : (int64_t[]){B, S, D});
}

static void set_settings(trial *t, const config *c)
{
    const char *const settings[][2] = {
        {"op", c->op},
        {"decoder_block", c->gpt_oss ? "gpt_oss" : "deepseek"},
        {"model_name", "deepseek3-test"},
        {"normalization_layer_epsilon", "1.0e-06"},
        {"rope_type", c->yarn ? "yarn" : "default"},
        {"rope_max_timescale", "10000"},
        {"rope_factor", "40"},
        {"beta_fast", "32"},
        {"beta_slow", "1"},
        {"original_max_position_embeddings", "4096"},
        {"max_position_embeddings", "163840"},
        {"mscale", "1"},
        {"rope_interleave", c->interleave ? "true" : "false"},
        {"rope_truncate", "true"},
        {"rope_attention_scaling", c->attention_scaling ? "true" : "false"},
        {"rope_pairwise", c->pairwise ? "true" : "false"},
        {"mask_padding", c->padding_masked ? "true" : "false"},
        {"qk_nope_head_dim", "10"},
        {"qk_rope_head_dim", "8"},
        {"kv_lora_rank", "9"},
        {"num_experts_per_tok", "2"},
        {"routed_score_func", "sigmoid"},
        {"routed_scaling_factor", "2.5"},
        {"n_routing_groups", "-1"},
        {"load_balance_loss_weight", "0"},
        {"mlp_activations", c->activations != NULL ? c->activations : "silu,linear"},
        {"mlp_activations_limit", c->limit != NULL ? c->limit : "0"},
        {"capacity_factor", "-1"},
        {"dtype", "bfloat16"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) trial_set(t, settings[i][0], settings[i][1]);
}

static trial *new_trial(const config *c)
{
    trial *t = trial_new();
    const bool positions =
        strcmp(c->op, "attention") != 0 && strcmp(c->op, "rms_norm") != 0 && strcmp(c->op, "mlp") != 0;
    naive = (naive_config){.op = c->op, .epsilon = 1e-6, .theta = 10000, .factor = 40, .beta_fast = 32, .beta_slow = 1};
    naive.original = 4096, naive.longest = 163840, naive.mscale = 1, naive.scaling = 2.5;
    naive.yarn = c->yarn, naive.interleave = c->interleave, naive.truncate = true, naive.pairwise = c->pairwise;
    naive.attention_scaling = c->attention_scaling, naive.compressed = c->compressed;
    naive.mask_padding = c->padding_masked, naive.single = strcmp(c->op, "deepseek_layer") == 0;
    naive.activations = c->activations, naive.gpt_oss = c->gpt_oss;
    naive.limit = c->limit != NULL ? atof(c->limit) : 0;
    for (int i = 0; i < T; i++) {
        naive.positions[i] = i % S * c->step;
        /* two segments, in the second row the first one again, then padding */
        naive.segment_ids[i] = !c->segments ? 1 : i % S < 5 ? 1 : i % S < 17 ? 2 : i < S ? 1 : 0;
    }
    add_tensors(t, c);
    if (positions) trial_integers(t, "inputs/positions", 2, (int64_t[]){B, S}, naive.positions);
    if (c->segments) trial_integers(t, "inputs/segment_ids", 2, (int64_t[]){B, S}, naive.segment_ids);
    set_settings(t, c);
    return t;
}

static double objective(trial *t)
{
    static naive_results r;
    const bool attention = strcmp(naive.op, "attention") == 0;
    const trial_tensor *d_y = trial_find_input(t, attention ? "cotangents/attention_out" : "cotangents/y");
    const trial_tensor *d_lse = trial_find_input(t, "cotangents/lse");
    double sum = 0;
    naive_run(t, &naive, &r);
    for (int64_t i = 0; i < trial_count(d_y); i++) sum += d_y->values[i] * r.y[i];
    for (int64_t i = 0; attention && i < trial_count(d_lse); i++) {
        if (!isinf(r.lse[i])) sum += d_lse->values[i] * r.lse[i];
    }
    return sum;
}

/* bfloat16 decides as float64 does: the inputs are drawn so that nothing nearly ties. */
static int wrong_choices(const trial_tensor *o)
{
    const int32_t *selected = naive.selected[naive.single ? 0 : 1];
    int wrong = 0;
    for (int i = 0; i < T * K; i++) wrong += !(trial_value(o, i) == selected[i]);
    return wrong;
}

/* The largest distance of any result, and whose it is. */
static double examine(trial *t, int samples, char where[96], int *wrong)
{
    static naive_results r;
    double worst = -INFINITY;
    *wrong = 0;
    naive.choose = true;
    naive_run(t, &naive, &r);
    naive.choose = false;
    for (int i = 0; i < t->output_count; i++) {
        const trial_tensor *o = &t->outputs[i];
        if (!o->written) fail_msg("%s was not written", o->path);
        if (trial_is_index(o->path)) {
            *wrong = wrong_choices(o);
            continue;
        }
        const bool gradient = strncmp(o->path, "gradients/", 10) == 0;
        const double *expected = strcmp(o->path, "outputs/lse") == 0 ? r.lse : r.y;
        /* of padding alone, or of a weight that only chooses, the gradient is 0 */
        double d = gradient ? trial_gradient_distance(t, o, objective, samples) : trial_distance(o, expected);
        if (!(d <= worst)) {
            worst = d;
            snprintf(where, 96, "%s", o->path);
        }
    }
    return worst;
}

static void assert_right(const config *c, double most)
{
    char where[96];
    int wrong;
    trial *t = new_trial(c);
    if (trial_run(t, assay_backend_run) != ASSAY_BACKEND_DONE) fail_msg("%s: %s", c->op, t->message);
    const double worst = examine(t, 11, where, &wrong);
    print_message("%s: %s is the farthest, by %.4f\n", c->op, where, worst);
    assert_int_equal(wrong, 0);
    assert_true(worst <= most);
    trial_free(t);
}

static void every_operation_is_right(void **state)
{
    (void)state;
    const config configs[] = {
        {.op = "rms_norm", .size = 1},
        {.op = "mlp", .size = 1},
        {.op = "mlp", .size = 1, .activations = "gelu,linear", .biases = true},
        {.op = "mlp", .size = 1, .activations = "gelu_exact,sigmoid", .biases = true, .fused = true},
        {.op = "mlp", .size = 1, .activations = "linear,relu", .fused = true},
        {.op = "mlp", .size = 1, .activations = "sigmoid,linear", .gpt_oss = true, .limit = "1000", .biases = true},
        {.op = "mlp", .size = 4, .activations = "gelu,gelu_exact"},
        /* at these limits rounding moves no value across */
        {.op = "mlp", .size = 1, .limit = "1.25", .biases = true},
        {.op = "mlp", .size = 1, .activations = "relu,linear"},
        {.op = "mlp", .size = 1, .activations = "sigmoid,linear", .gpt_oss = true, .limit = "1.5", .fused = true},
        {.op = "yarn_rope", .yarn = true, .interleave = true, .step = 7, .size = 1},
        {.op = "yarn_rope",
         .yarn = true,
         .interleave = true,
         .pairwise = true,
         .attention_scaling = true,
         .step = 7,
         .size = 1},
        {.op = "yarn_rope", .interleave = false, .step = 7, .size = 1},
        ROPE_LATE,
        ATTENTION,
        {.op = "attention", .size = 1},
        {.op = "attention", .segments = true, .padding_masked = false, .size = 1},
        MLA,
        {.op = "mla", .yarn = false, .interleave = false, .step = 1, .size = 1},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) assert_right(&configs[i], 0.01);
    /* dozens of roundings behind each other, and gradients in which much cancels; without roundings below 1e-4 */
    assert_right(&LAYER, 0.05);
    assert_right(&STACK, 0.05);
}

static void every_bug_shows(void **state)
{
    (void)state;
    config small_latents = MLA;
    small_latents.size = 1.0 / 64;
    const struct {
        const char *name;
        const config *c;
    } bugs[] = {
        {"mscale_missing", &MLA},          {"rope_times_mscale", &ROPE_LATE},  {"rope_times_mscale", &MLA},
        {"scale_from_hidden", &MLA},       {"yarn_not_truncated", &ROPE_LATE}, {"rope_other_pairs", &ROPE_LATE},
        {"rope_other_pairs", &MLA},        {"rope_phase_bf16", &ROPE_LATE},    {"latent_epsilon", &small_latents},
        {"lse_base_2", &ATTENTION},        {"dv_narrow_heads", &ATTENTION},    {"masked_rows_nan", &ATTENTION},
        {"masked_rows_nan", &MLA},         {"mask_off_by_one", &ATTENTION},    {"mask_off_by_one", &STACK},
        {"last_keys_dropped", &ATTENTION}, {"last_keys_dropped", &STACK},      {"kv_norm_omitted", &MLA},
        {"kv_norm_omitted", &LAYER},       {"residual_missing", &LAYER},       {"residual_missing", &STACK},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        char where[96];
        int wrong;
        trial *t = new_trial(bugs[i].c);
        assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", bugs[i].name, 1), 0);
        int code = trial_run(t, assay_backend_run);
        assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
        assert_int_equal(code, ASSAY_BACKEND_DONE);
        const double worst = examine(t, 4, where, &wrong);
        print_message("%s, %s: %s is off by %.3f\n", bugs[i].name, bugs[i].c->op, where, worst);
        assert_true(worst > 0.1);
        trial_free(t);
    }
}

/* What a query may not see may hold anything. */
static void nan_in_padding_goes_nowhere(void **state)
{
    (void)state;
    char where[96];
    int wrong;
    trial *t = new_trial(&ATTENTION);
    const char *const names[] = {"inputs/query", "inputs/key", "inputs/value", "cotangents/attention_out"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        trial_tensor *in = trial_find_input(t, names[i]);
        const int64_t row = trial_count(in) / T;
        for (int64_t j = (T - 1) * row; j < T * row; j++) ((uint16_t *)in->data)[j] = 0x7fc0;
    }
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_DONE);
    assert_true(examine(t, 11, where, &wrong) <= 0.01);
    trial_free(t);
}

static void what_it_lacks_is_unsupported(void **state)
{
    (void)state;
    trial *t = new_trial(&MLA);
    trial_find_input(t, "inputs/x")->type = ASSAY_BACKEND_FLOAT32;
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_UNSUPPORTED);
    assert_non_null(strstr(t->message, "bfloat16"));
    trial_find_input(t, "inputs/x")->type = ASSAY_BACKEND_BFLOAT16;
    trial_integers(t, "inputs/page_table", 1, (int64_t[]){1}, naive.positions);
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_UNSUPPORTED);
    assert_non_null(strstr(t->message, "inputs/page_table"));
    trial_free(t);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    int64_t n = 0;
    for (int code = ASSAY_BACKEND_ERROR; code != ASSAY_BACKEND_DONE; n++) {
        trial *t = new_trial(&STACK);
        assay_fail_allocation(n);
        code = trial_run(t, assay_backend_run);
        assay_fail_allocation(-1);
        assert_int_equal(code, assay_allocation_failed() ? ASSAY_BACKEND_ERROR : ASSAY_BACKEND_DONE);
        if (code != ASSAY_BACKEND_DONE) assert_string_equal(t->message, "out of memory");
        trial_free(t);
    }
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_right),    cmocka_unit_test(every_bug_shows),
        cmocka_unit_test(nan_in_padding_goes_nowhere), cmocka_unit_test(what_it_lacks_is_unsupported),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
