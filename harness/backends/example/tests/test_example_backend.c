/* The example backend against a MoE layer in naive float64 loops, whose gradients are central differences. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <assay/backend.h>

#include "tests/support/assay_test.h"

enum { B = 2, S = 7, T = B * S, D = 20, H = 12, F = 9, E = 16, K = 3, MOST = 24, LARGEST = E * D * 2 * H };

typedef struct config {
    const char *decoder_block, *model_name, *score_func, *group_score, *norm_topk_prob;
    const char *scaling, *groups, *groups_kept, *loss_weight, *update_rate;
    bool bias, fused, shared;
} config;

static const config DEEPSEEK3 = {"deepseek", "deepseek3-671b", "sigmoid", "",    "false", "2.5", "4", "2",
                                 "0.1",      "0.001",          true,      false, true};

/* A tensor of the case in float64 and as the backend sees it. */
typedef struct input {
    char path[96];
    int64_t dims[3];
    int rank;
    double values[LARGEST];
    uint16_t codes[LARGEST];
} input;

typedef struct output {
    char path[96];
    int64_t dims[3];
    int rank;
    double values[LARGEST];                                       /* float64 at last */
    unsigned char data[LARGEST * 8] __attribute__((aligned(64))); /* what the backend wrote */
    assay_backend_type type;
    bool written;
} output;

typedef struct trial {
    config c;
    input inputs[MOST];
    output outputs[MOST];
    int input_count, output_count;
    int32_t selected[T * K];
    char message[256];
} trial;

static uint32_t random_state;

/* Multiples of 1/64 up to `size`: exact in bfloat16 for sizes up to 2. */
static double random_value(double size) {
    random_state = random_state * 1664525U + 1013904223U;
    return floor((random_state / 4294967296.0 * 2 - 1) * size * 64) / 64;
}

static int64_t count_of(int rank, const int64_t *dims) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= dims[i];
    return count;
}

static void add_output(trial *t, const char *path, int rank, const int64_t *dims) {
    output *o = &t->outputs[t->output_count++];
    snprintf(o->path, sizeof o->path, "%s", path);
    o->rank = rank;
    for (int i = 0; i < rank; i++)
        o->dims[i] = dims[i];
}

static void add_input(trial *t, const char *path, double center, double size, bool differentiated, int rank,
                      const int64_t *dims) {
    input *in = &t->inputs[t->input_count++];
    char gradient[96];
    snprintf(in->path, sizeof in->path, "%s", path);
    in->rank = rank;
    for (int i = 0; i < rank; i++)
        in->dims[i] = dims[i];
    for (int64_t i = 0; i < count_of(rank, dims); i++) {
        float value = (float)(center + random_value(size));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        assert_int_equal(bits & 0xffff, 0);
        in->codes[i] = (uint16_t)(bits >> 16);
        in->values[i] = (double)value;
    }
    snprintf(gradient, sizeof gradient, "gradients/%.80s", path);
    if (differentiated) add_output(t, gradient, rank, dims);
}

static trial *new_trial(const config *c) {
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->c = *c;
    random_state = 1;
    add_input(t, "inputs/x", 0, 1, true, 3, (int64_t[]){B, S, D});
    add_input(t, "weights/gate/kernel", 0, 1, true, 2, (int64_t[]){D, E});
    if (c->bias) add_input(t, "weights/gate/bias", -1.5, 0.25, true, 1, (int64_t[]){E});
    if (c->fused) {
        add_input(t, "weights/wi", 0, 1, true, 3, (int64_t[]){E, D, 2 * H});
    } else {
        add_input(t, "weights/wi_0", 0, 1, true, 3, (int64_t[]){E, D, H});
        add_input(t, "weights/wi_1", 0, 1, true, 3, (int64_t[]){E, D, H});
    }
    add_input(t, "weights/wo", 0, 1, true, 3, (int64_t[]){E, H, D});
    if (c->shared) {
        add_input(t, "weights/shared_experts/wi_0/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        add_input(t, "weights/shared_experts/wi_1/kernel", 0, 1, true, 2, (int64_t[]){D, F});
        add_input(t, "weights/shared_experts/wo/kernel", 0, 1, true, 2, (int64_t[]){F, D});
    }
    add_input(t, "cotangents/y", 0, 1, false, 3, (int64_t[]){B, S, D});
    add_output(t, "outputs/y", 3, (int64_t[]){B, S, D});
    if (strcmp(c->loss_weight, "0") != 0) {
        add_input(t, "cotangents/lb_loss", 2, 0, false, 0, NULL);
        add_output(t, "outputs/lb_loss", 0, NULL);
    }
    if (strcmp(c->update_rate, "0") != 0) add_output(t, "outputs/bias_updates", 1, (int64_t[]){E});
    add_output(t, "routing/selected_experts", 3, (int64_t[]){B, S, K});
    add_output(t, "routing/weights", 3, (int64_t[]){B, S, K});
    add_output(t, "routing/group_sizes", 1, (int64_t[]){E});
    add_output(t, "routing/sorted_selected_experts", 1, (int64_t[]){T * K});
    return t;
}

static input *find_input(trial *t, const char *path) {
    for (int i = 0; i < t->input_count; i++)
        if (strcmp(t->inputs[i].path, path) == 0) return &t->inputs[i];
    return NULL;
}

static output *find_output(trial *t, const char *path) {
    for (int i = 0; i < t->output_count; i++)
        if (strcmp(t->outputs[i].path, path) == 0) return &t->outputs[i];
    return NULL;
}

static bool is_index(const char *path) {
    return strstr(path, "group_sizes") != NULL || strstr(path, "selected_experts") != NULL;
}

/* Runs the backend; `extra` overrides one setting, `required` names one more result. */
static int run_backend(trial *t, const char *extra_key, const char *extra_value, const char *required) {
    const config *c = &t->c;
    assay_backend_setting settings[] = {
        {extra_key, extra_value}, /* found first */
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
    assay_backend_tensor tensors[MOST];
    assay_backend_result results[MOST];
    const int64_t scalar_dims[1] = {0};
    for (int i = 0; i < t->input_count; i++) {
        input *in = &t->inputs[i];
        tensors[i] = (assay_backend_tensor){in->path, ASSAY_BACKEND_BFLOAT16, in->rank, in->dims, in->codes};
    }
    for (int i = 0; i < t->output_count; i++) {
        output *o = &t->outputs[i];
        assay_backend_type type = is_index(o->path) ? ASSAY_BACKEND_INT32 : ASSAY_BACKEND_FLOAT32;
        memset(o->data, 0xff, sizeof o->data);
        results[i] = (assay_backend_result){o->path, type, o->rank, o->dims, o->data, 1, 1};
    }
    int result_count = t->output_count;
    double unused[1] = {NAN};
    if (required != NULL) {
        results[result_count++] =
            (assay_backend_result){required, ASSAY_BACKEND_FLOAT32, 0, scalar_dims, unused, required[0] != '?', 1};
    }
    assay_backend_request request = {.version = ASSAY_BACKEND_VERSION,
                                     .setting_count = sizeof settings / sizeof *settings,
                                     .tensor_count = t->input_count,
                                     .result_count = result_count,
                                     .settings = settings,
                                     .tensors = tensors,
                                     .results = results,
                                     .message = t->message,
                                     .message_size = sizeof t->message};
    void *library = dlopen(EXAMPLE_BACKEND, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    int (*run)(const assay_backend_request *) = NULL;
    *(void **)&run = dlsym(library, "assay_backend_run");
    assert_non_null(run);
    t->message[0] = '\0';
    int code = run(&request);
    if (required != NULL && code == ASSAY_BACKEND_DONE) assert_int_equal(results[result_count - 1].written, 0);
    for (int i = 0; i < t->output_count; i++) {
        t->outputs[i].type = results[i].type;
        t->outputs[i].written = results[i].written != 0;
    }
    assert_int_equal(dlclose(library), 0);
    return code;
}

static double written_value(const output *o, int64_t i) {
    if (o->type == ASSAY_BACKEND_INT32) return ((const int32_t *)(const void *)o->data)[i];
    if (o->type == ASSAY_BACKEND_FLOAT32) return (double)((const float *)(const void *)o->data)[i];
    assert_int_equal(o->type, ASSAY_BACKEND_BFLOAT16);
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)o->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* ---- the naive layer ---- */

static double at(trial *t, const char *path, int64_t i) {
    return find_input(t, path)->values[i];
}

static double score_of(const config *c, const double *logits, int e) {
    if (strcmp(c->score_func, "sigmoid") == 0) return 1 / (1 + exp(-logits[e]));
    if (strcmp(c->score_func, "softmax") != 0) return logits[e];
    double sum = 0;
    for (int i = 0; i < E; i++)
        sum += exp(logits[i] - logits[e]);
    return 1 / sum;
}

static void select_naively(const config *c, const double *biased, int32_t *selected) {
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
            for (int g = 0; g < groups; g++)
                better_groups += group_scores[g] > group_scores[e / size];
            if (better_groups < kept && !taken[e] && (best < 0 || biased[e] > biased[best])) best = e;
        }
        taken[best] = true;
        selected[k] = best;
    }
}

/* y [D] += weight * expert(x [D]). */
static void add_expert(double *y, double weight, const double *x, const double *wi_0, const double *wi_1, int64_t row,
                       const double *wo, int64_t hidden) {
    for (int64_t j = 0; j < hidden; j++) {
        double a = 0, b = 0;
        for (int64_t i = 0; i < D; i++) {
            a += x[i] * wi_0[i * row + j];
            b += x[i] * wi_1[i * row + j];
        }
        for (int64_t i = 0; i < D; i++)
            y[i] += weight * (a / (1 + exp(-a)) * b) * wo[j * D + i];
    }
}

static void add_experts(trial *t, double *y, const double *x, const int32_t *selected, const double *weights) {
    const int64_t row = t->c.fused ? 2 * H : H;
    for (int i = 0; i < D; i++)
        y[i] = 0;
    for (int k = 0; k < K; k++) {
        const int64_t e = selected[k];
        const double *wi_0 = find_input(t, t->c.fused ? "weights/wi" : "weights/wi_0")->values + e * D * row;
        const double *wi_1 = t->c.fused ? wi_0 + H : find_input(t, "weights/wi_1")->values + e * D * row;
        add_expert(y, weights[k], x, wi_0, wi_1, row, find_input(t, "weights/wo")->values + e * H * D, H);
    }
    if (t->c.shared) {
        add_expert(y, 1, x, find_input(t, "weights/shared_experts/wi_0/kernel")->values,
                   find_input(t, "weights/shared_experts/wi_1/kernel")->values, F,
                   find_input(t, "weights/shared_experts/wo/kernel")->values, F);
    }
}

/* y [T,D], weights [T,K] and the balance loss; chooses experts when `choose`, else keeps those of the trial. */
static double naive_forward(trial *t, bool choose, double *y, double *weights) {
    const config *c = &t->c;
    const bool deepseek = strcmp(c->decoder_block, "deepseek") == 0;
    const double *gate = find_input(t, "weights/gate/kernel")->values;
    const bool from_scores = deepseek && (c->bias || strcmp(c->score_func, "softmax") != 0);
    double loss = 0, probability[B][E] = {{0}}, times[B][E] = {{0}};
    for (int token = 0; token < T; token++) {
        const double *x = find_input(t, "inputs/x")->values + token * D;
        int32_t *selected = t->selected + token * K;
        double logits[E] = {0}, scores[E], biased[E], gathered[K], sum = 0, all = 0;
        for (int e = 0; e < E; e++)
            for (int i = 0; i < D; i++)
                logits[e] += x[i] * gate[i * E + e];
        for (int e = 0; e < E; e++) {
            scores[e] = score_of(c, logits, e);
            biased[e] = scores[e] + (c->bias ? at(t, "weights/gate/bias", e) : 0);
            all += exp(biased[e]);
        }
        if (choose) select_naively(c, biased, selected);
        for (int k = 0; k < K; k++) {
            gathered[k] = from_scores ? scores[selected[k]] : biased[selected[k]];
            if (!deepseek) gathered[k] = exp(gathered[k]);
            sum += gathered[k];
            times[token / S][selected[k]] += 1.0 / S;
        }
        for (int e = 0; e < E; e++)
            probability[token / S][e] += exp(biased[e]) / all / S;
        for (int k = 0; k < K; k++) {
            bool divided = !deepseek || strcmp(c->score_func, "sigmoid") == 0;
            weights[token * K + k] = gathered[k] / (divided ? sum : 1) * (deepseek ? atof(c->scaling) : 1);
        }
        add_experts(t, y + token * D, x, selected, weights + token * K);
    }
    for (int b = 0; b < B; b++)
        for (int e = 0; e < E; e++)
            loss += times[b][e] * probability[b][e] / (B * E);
    return loss * E * E * atof(c->loss_weight);
}

/* What is differentiated: the cotangents' product with the outputs. */
static double objective(trial *t) {
    static double y[T * D], weights[T * K];
    double sum = naive_forward(t, false, y, weights);
    sum *= find_input(t, "cotangents/lb_loss") != NULL ? at(t, "cotangents/lb_loss", 0) : 0;
    for (int i = 0; i < T * D; i++)
        sum += at(t, "cotangents/y", i) * y[i];
    return sum;
}

/* ---- held against each other ---- */

/* |error| / |expected| over the elements (for gradients: over a sample of them); infinite where one is not finite. */
static double distance(trial *t, const output *o, const double *expected) {
    double error = 0, size = 0;
    const int64_t count = count_of(o->rank, o->dims), step = expected == NULL ? count / 61 | 1 : 1;
    for (int64_t i = 0; i < count; i += step) {
        double reference;
        if (expected != NULL) {
            reference = expected[i];
        } else {
            double *place = find_input(t, o->path + strlen("gradients/"))->values + i, before = *place;
            *place = before + 0x1p-14;
            reference = objective(t);
            *place = before - 0x1p-14;
            reference = (reference - objective(t)) * 0x1p13;
            *place = before;
        }
        double actual = written_value(o, i);
        if (!isfinite(actual)) return INFINITY;
        error += (actual - reference) * (actual - reference);
        size += reference * reference;
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

typedef struct findings {
    double worst; /* the largest distance of any result */
    char where[96];
    int wrong_choices, empty_experts, wrong_empty_gradients;
} findings;

static void check_choices(trial *t, findings *f) {
    int32_t sizes[E] = {0}, place = 0;
    const output *selected = find_output(t, "routing/selected_experts"),
                 *counts = find_output(t, "routing/group_sizes");
    const output *order = find_output(t, "routing/sorted_selected_experts");
    for (int i = 0; i < T * K; i++) {
        f->wrong_choices += !(written_value(selected, i) == t->selected[i]);
        sizes[t->selected[i]]++;
    }
    for (int e = 0; e < E; e++) {
        f->wrong_choices += !(written_value(counts, e) == sizes[e]);
        for (int i = 0; i < T * K; i++)
            if (t->selected[i] == e) f->wrong_choices += !(written_value(order, place++) == i);
        f->empty_experts += sizes[e] == 0;
        for (int64_t i = 0; i < H * D && sizes[e] == 0; i++) {
            double zero = written_value(find_output(t, "gradients/weights/wo"), e * H * D + i);
            f->wrong_empty_gradients += !(zero == 0);
        }
    }
    const output *updates = find_output(t, "outputs/bias_updates");
    for (int e = 0; updates != NULL && e < E; e++) {
        double rate = (double)(float)atof(t->c.update_rate), missing = (double)T * K / E - sizes[e];
        f->wrong_choices += !(written_value(updates, e) == (missing > 0 ? rate : missing < 0 ? -rate : 0));
    }
}

static findings examine(trial *t) {
    static double y[T * D], weights[T * K];
    findings f = {.worst = 0};
    const double loss = naive_forward(t, true, y, weights);
    check_choices(t, &f);
    for (int i = 0; i < t->output_count; i++) {
        const output *o = &t->outputs[i];
        const double *expected = NULL;
        if (!o->written) fail_msg("%s was not written", o->path);
        if (is_index(o->path) || strcmp(o->path, "outputs/bias_updates") == 0) continue;
        if (strcmp(o->path, "outputs/y") == 0) expected = y;
        if (strcmp(o->path, "outputs/lb_loss") == 0) expected = &loss;
        if (strcmp(o->path, "routing/weights") == 0) expected = weights;
        double d = distance(t, o, expected);
        if (!(d <= f.worst)) {
            f.worst = d;
            snprintf(f.where, sizeof f.where, "%s", o->path);
        }
    }
    return f;
}

static void assert_right(const config *c) {
    trial *t = new_trial(c);
    if (run_backend(t, "", "", NULL) != ASSAY_BACKEND_DONE) fail_msg("%s", t->message);
    findings f = examine(t);
    print_message("%s %s: %s is the farthest, by %.4f\n", c->decoder_block, c->model_name, f.where, f.worst);
    assert_int_equal(f.wrong_choices, 0);
    assert_true(f.worst <= 0.01); /* bfloat16: 2^-8 = 0.004 */
    assert_true(f.empty_experts > 0);
    assert_int_equal(f.wrong_empty_gradients, 0);
    free(t);
}

static void every_family_is_right(void **state) {
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
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        assert_right(&configs[i]);
}

static void every_bug_shows(void **state) {
    (void)state;
    const char *const bugs[] = {"biased_weights", "group_fill_zero",        "group_score_other", "no_renormalisation",
                                "scaling_twice",  "empty_expert_unwritten", "last_tile_dropped", "gate_up_swapped",
                                "dx_without_up",  "router_gradient_missing"};
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        trial *t = new_trial(&DEEPSEEK3);
        assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", bugs[i], 1), 0);
        int code = run_backend(t, "", "", NULL);
        assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
        assert_int_equal(code, ASSAY_BACKEND_DONE);
        findings f = examine(t);
        print_message("%s: %s is off by %.3f, %d wrong choices\n", bugs[i], f.where, f.worst, f.wrong_choices);
        assert_true(f.worst > 0.1);
        bool choices_differ = strncmp(bugs[i], "group_", 6) == 0;
        assert_true((f.wrong_choices > 0) == choices_differ);
        if (!choices_differ)
            assert_true((f.wrong_empty_gradients > 0) == (strcmp(bugs[i], "empty_expert_unwritten") == 0));
        free(t);
    }
}

static void an_unknown_bug_is_an_error(void **state) {
    (void)state;
    trial *t = new_trial(&DEEPSEEK3);
    assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", "gate_up", 1), 0);
    assert_int_equal(run_backend(t, "", "", NULL), ASSAY_BACKEND_ERROR);
    assert_non_null(strstr(t->message, "biased_weights"));
    assert_non_null(strstr(t->message, "router_gradient_missing"));
    assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", "", 1), 0);
    assert_int_equal(run_backend(t, "", "", NULL), ASSAY_BACKEND_DONE);
    assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
    free(t);
}

static void what_it_lacks_is_unsupported(void **state) {
    (void)state;
    const char *const settings[][3] = {
        {"op", "mla", "mla"},
        {"decoder_block", "llama4", "llama4"},
        {"decoder_block", "gpt_oss", "gpt_oss"},
        {"mlp_activations", "gelu,linear", "gelu,linear"},
        {"mlp_activations_limit", "7", "mlp_activations_limit"},
        {"routed_score_func", "sqrtsoftplus", "sqrtsoftplus"},
        {"fused_moe_func", "true", "fused_moe_func"},
        {"capacity_factor", "1.5", "capacity_factor"},
        {"num_moe_token_chunks", "2", "num_moe_token_chunks"},
    };
    trial *t = new_trial(&DEEPSEEK3);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_int_equal(run_backend(t, settings[i][0], settings[i][1], NULL), ASSAY_BACKEND_UNSUPPORTED);
        assert_non_null(strstr(t->message, settings[i][2]));
    }
    assert_int_equal(run_backend(t, "", "", "checkpoints/moe_mlpwi_0"), ASSAY_BACKEND_UNSUPPORTED);
    assert_non_null(strstr(t->message, "checkpoints/moe_mlpwi_0"));
    assert_int_equal(run_backend(t, "", "", "?checkpoints/moe_mlpwo"), ASSAY_BACKEND_DONE); /* may be left alone */
    free(t);
}

static void it_gives_the_same_bytes_twice(void **state) {
    (void)state;
    trial *t = new_trial(&DEEPSEEK3), *again = new_trial(&DEEPSEEK3);
    assert_int_equal(run_backend(t, "", "", NULL), ASSAY_BACKEND_DONE);
    assert_int_equal(run_backend(again, "", "", NULL), ASSAY_BACKEND_DONE);
    for (int i = 0; i < t->output_count; i++)
        assert_memory_equal(t->outputs[i].data, again->outputs[i].data, sizeof t->outputs[i].data);
    free(t);
    free(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_right),         cmocka_unit_test(every_bug_shows),
        cmocka_unit_test(an_unknown_bug_is_an_error),    cmocka_unit_test(what_it_lacks_is_unsupported),
        cmocka_unit_test(it_gives_the_same_bytes_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
