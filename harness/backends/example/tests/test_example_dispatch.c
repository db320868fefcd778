/* The example backend's steps of a MoE block (routing, permute, gmm, unpermute) against naive float64 loops, whose
 * gradients are central differences. Its sources are in this program, so that allocations can be made to fail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/example/tests/backend_trial.h"

enum { B = 2, S = 7, T = B * S, D = 20, E = 8, K = 3, COPIES = T * K };
enum { M = 23, G = 5, KD = 20, N = 13, IN_GROUPS = 16 };

static const int32_t SIZES[G] = {4, 0, 9, 3, 0}; /* 7 rows belong to none */

typedef enum operation { ROUTING, ROUTING_OF_LOGITS, PERMUTE, GMM, UNPERMUTE, UNPERMUTE_ONE } operation;

/* Of the trial at hand: the objective has no other way to it. */
static operation op;
static int32_t selected[COPIES], order[COPIES];

static int64_t chosen(void)
{
    return op == UNPERMUTE_ONE ? 1 : K;
}

/* ---- the naive operations: results into y, lb_loss returned ---- */

static const double *values(trial *t, const char *path)
{
    const trial_tensor *in = trial_find_input(t, path);
    return in == NULL ? NULL : in->values;
}

static void naive_gmm(trial *t, double *y)
{
    const double *lhs = values(t, "inputs/lhs"), *rhs = values(t, "weights/rhs");
    int64_t row = 0;
    memset(y, 0, sizeof(double) * M * N);
    for (int64_t g = 0; g < G; g++)
        for (int64_t end = row + SIZES[g]; row < end; row++)
            for (int64_t j = 0; j < N; j++)
                for (int64_t k = 0; k < KD; k++) y[row * N + j] += lhs[row * KD + k] * rhs[(g * KD + k) * N + j];
}

static void naive_permute(trial *t, double *y)
{
    for (int64_t i = 0; i < COPIES * D; i++) y[i] = values(t, "inputs/x")[order[i / D] / K * D + i % D];
}

static void naive_unpermute(trial *t, double *y)
{
    const int64_t copies = T * chosen();
    memset(y, 0, sizeof(double) * T * D);
    for (int64_t i = 0; i < copies * D; i++) {
        const int32_t choice = order[i / D];
        y[choice / chosen() * D + i % D] += values(t, "inputs/weights")[choice] * values(t, "inputs/sorted")[i];
    }
}

static void naive_choice(const double *biased, int32_t *of_token)
{
    bool taken[E] = {false};
    for (int k = 0; k < K; k++) {
        int best = -1;
        for (int e = 0; e < E; e++)
            if (!taken[e] && (best < 0 || biased[e] > biased[best])) best = e;
        taken[best] = true;
        of_token[k] = best;
    }
}

/* DeepSeek 3's router, factor 2.5, with a balance loss of weight 0.1. */
static double naive_routing(trial *t, double *weights, bool choose)
{
    const double *gate = values(t, "weights/gate/kernel"), *bias = values(t, "weights/gate/bias");
    double loss = 0, probability[B][E] = {{0}}, times[B][E] = {{0}};
    for (int token = 0; token < T; token++) {
        double biased[E], scores[E], all = 0, sum = 0;
        for (int e = 0; e < E; e++) {
            double logit = op == ROUTING_OF_LOGITS ? values(t, "inputs/logits")[token * E + e] : 0;
            for (int i = 0; op == ROUTING && i < D; i++)
                logit += values(t, "inputs/x")[token * D + i] * gate[i * E + e];
            scores[e] = 1 / (1 + exp(-logit));
            biased[e] = scores[e] + bias[e];
            all += exp(biased[e]);
        }
        int32_t *of_token = selected + token * K;
        if (choose) naive_choice(biased, of_token);
        for (int k = 0; k < K; k++) sum += scores[of_token[k]];
        for (int k = 0; k < K; k++) {
            weights[token * K + k] = 2.5 * scores[of_token[k]] / sum;
            times[token / S][of_token[k]] += 1.0 / S;
        }
        for (int e = 0; e < E; e++) probability[token / S][e] += exp(biased[e]) / all / S;
    }
    for (int b = 0; b < B; b++)
        for (int e = 0; e < E; e++) loss += times[b][e] * probability[b][e] / (B * E);
    return loss * E * E * 0.1;
}

static double naive_run(trial *t, double *y, bool choose)
{
    if (op == PERMUTE) naive_permute(t, y);
    if (op == GMM) naive_gmm(t, y);
    if (op == UNPERMUTE || op == UNPERMUTE_ONE) naive_unpermute(t, y);
    return op == ROUTING || op == ROUTING_OF_LOGITS ? naive_routing(t, y, choose) : 0;
}

/* ---- trials ---- */

static void add_result(trial *t, const char *name, int32_t rank, const int64_t *dims)
{
    char path[64];
    snprintf(path, sizeof path, "outputs/%s", name);
    trial_output(t, path, true, rank, dims);
    snprintf(path, sizeof path, "cotangents/%s", name);
    trial_input(t, path, rank == 0 ? 2 : 0, rank == 0 ? 0 : 1, false, rank, dims);
}

static void add_routing(trial *t)
{
    if (op == ROUTING) {
        trial_input(t, "inputs/x", 0, 1, true, 3, (int64_t[]){B, S, D});
        trial_input(t, "weights/gate/kernel", 0, 0.5, true, 2, (int64_t[]){D, E});
    } else {
        trial_input(t, "inputs/logits", 0, 2, true, 3, (int64_t[]){B, S, E});
    }
    trial_input(t, "weights/gate/bias", 0, 0.5, true, 1, (int64_t[]){E});
    add_result(t, "weights", 3, (int64_t[]){B, S, K});
    add_result(t, "lb_loss", 0, NULL);
    trial_output(t, "outputs/bias_updates", true, 1, (int64_t[]){E});
    trial_output(t, "routing/selected_experts", true, 3, (int64_t[]){B, S, K});
    trial_output(t, "routing/sorted_selected_experts", true, 1, (int64_t[]){COPIES});
    trial_output(t, "routing/group_sizes", true, 1, (int64_t[]){E});
}

static void add_permute(trial *t)
{
    trial_input(t, "inputs/x", 0, 1, true, 2, (int64_t[]){T, D});
    trial_integers(t, "inputs/selected_experts", 2, (int64_t[]){T, K}, selected);
    add_result(t, "sorted_inputs", 2, (int64_t[]){COPIES, D});
    trial_output(t, "outputs/sorted_selected_experts", true, 1, (int64_t[]){COPIES});
    trial_output(t, "outputs/group_sizes", true, 1, (int64_t[]){E});
}

static void add_unpermute(trial *t)
{
    const int64_t copies = T * chosen();
    for (int32_t i = 0; i < copies; i++) order[i] = (int32_t)((i * 11 + 5) % copies);
    trial_input(t, "inputs/sorted", 0, 1, true, 2, (int64_t[]){copies, D});
    trial_input(t, "inputs/weights", 1.5, 0.5, true, 2, (int64_t[]){T, chosen()});
    trial_integers(t, "inputs/sorted_selected_experts", 1, (int64_t[]){copies}, order);
    add_result(t, "y", 2, (int64_t[]){T, D});
}

/* Rows of no group hold NaN. */
static void poison_tail(trial *t, const char *path, int64_t width)
{
    uint16_t *codes = trial_find_input(t, path)->data;
    for (int64_t i = IN_GROUPS * width; i < M * width; i++) codes[i] = 0x7fc0;
}

static void add_gmm(trial *t)
{
    trial_input(t, "inputs/lhs", 0, 1, true, 2, (int64_t[]){M, KD});
    trial_input(t, "weights/rhs", 0, 1, true, 3, (int64_t[]){G, KD, N});
    trial_integers(t, "inputs/group_sizes", 1, (int64_t[]){G}, SIZES);
    add_result(t, "y", 2, (int64_t[]){M, N});
    poison_tail(t, "inputs/lhs", KD);
    poison_tail(t, "cotangents/y", N);
}

static trial *new_trial(operation o)
{
    static const char *const names[] = {"routing", "routing", "permute", "gmm", "unpermute", "unpermute"};
    const char *const settings[][2] = {
        {"op", names[o]},
        {"decoder_block", "deepseek"},
        {"model_name", "deepseek3-test"},
        {"routed_score_func", "sigmoid"},
        {"routed_scaling_factor", "2.5"},
        {"load_balance_loss_weight", "0.1"},
        {"routed_bias_update_rate", "0.001"},
        {"num_experts", "8"},
        {"num_experts_per_tok", "3"},
    };
    trial *t = trial_new();
    op = o;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) trial_set(t, settings[i][0], settings[i][1]);
    for (int i = 0; i < COPIES; i++) selected[i] = (i / K * 5 + i % K * 2) % (E - 1); /* none for the last expert */
    if (op == ROUTING || op == ROUTING_OF_LOGITS) add_routing(t);
    if (op == PERMUTE) add_permute(t);
    if (op == GMM) add_gmm(t);
    if (op == UNPERMUTE || op == UNPERMUTE_ONE) add_unpermute(t);
    return t;
}

/* ---- held against each other ---- */

static void sort_naively(int32_t sizes[E])
{
    int place = 0;
    for (int e = 0; e < E; e++) {
        sizes[e] = 0;
        for (int i = 0; i < COPIES; i++) {
            if (selected[i] != e) continue;
            sizes[e]++;
            order[place++] = i;
        }
    }
}

static double objective(trial *t)
{
    static double y[COPIES * D];
    const trial_tensor *d_loss = trial_find_input(t, "cotangents/lb_loss"), *d_y = NULL;
    const double loss = naive_run(t, y, false);
    double sum = d_loss != NULL ? d_loss->values[0] * loss : 0;
    for (int i = 0; i < t->input_count; i++)
        if (strncmp(t->inputs[i].path, "cotangents/", 11) == 0 && t->inputs[i].rank > 0) d_y = &t->inputs[i];
    const int64_t count = op == GMM ? IN_GROUPS * N : trial_count(d_y);
    for (int64_t i = 0; i < count; i++) sum += d_y->values[i] * y[i];
    return sum;
}

static int count_wrong(const trial_tensor *o, const int32_t *sizes)
{
    const int32_t *expected = strstr(o->path, "group_sizes") != NULL ? sizes
                              : strstr(o->path, "sorted_") != NULL   ? order
                                                                     : selected;
    int wrong = 0;
    for (int64_t i = 0; i < trial_count(o); i++) wrong += !(trial_value(o, i) == expected[i]);
    return wrong;
}

static int count_wrong_updates(const trial_tensor *o, const int32_t *sizes)
{
    int wrong = 0;
    for (int e = 0; e < E; e++) {
        const double rate = (double)0.001F, expected = COPIES > sizes[e] * E ? rate : COPIES < sizes[e] * E ? -rate : 0;
        wrong += !(trial_value(o, e) == expected);
    }
    return wrong;
}

/* The largest distance of any result, and how many integers and updates are wrong. */
static double examine(trial *t, int *wrong)
{
    static double y[COPIES * D];
    int32_t sizes[E];
    double worst = 0;
    *wrong = 0;
    naive_run(t, y, true);
    if (op != UNPERMUTE && op != UNPERMUTE_ONE) sort_naively(sizes);
    const double loss = naive_run(t, y, false); /* with the order of what was chosen */
    for (int i = 0; i < t->output_count; i++) {
        const trial_tensor *o = &t->outputs[i];
        if (!o->written) fail_msg("%s was not written", o->path);
        if (trial_is_index(o->path)) {
            *wrong += count_wrong(o, sizes);
        } else if (strcmp(o->path, "outputs/bias_updates") == 0) {
            *wrong += count_wrong_updates(o, sizes);
        } else {
            const bool gradient = strncmp(o->path, "gradients/", 10) == 0;
            const double *expected = o->rank == 0 ? &loss : y;
            const double d = gradient ? trial_gradient_distance(t, o, objective, 61) : trial_distance(o, expected);
            worst = d <= worst ? worst : d;
        }
    }
    return worst;
}

static void every_operation_is_right(void **state)
{
    (void)state;
    for (operation o = ROUTING; o <= UNPERMUTE_ONE; o++) {
        int wrong;
        trial *t = new_trial(o);
        if (trial_run(t, assay_backend_run) != ASSAY_BACKEND_DONE) fail_msg("%s", t->message);
        const double worst = examine(t, &wrong);
        print_message("%s: off by %.4f\n", t->settings[0].value, worst);
        assert_int_equal(wrong, 0);
        assert_true(worst <= 0.01); /* bfloat16: 2^-8 = 0.004 */
        trial_free(t);
    }
}

/* What padding gives is 0, not something small, and so are the gradients of groups without rows. */
static void nothing_comes_of_padding(void **state)
{
    (void)state;
    trial *t = new_trial(GMM);
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_DONE);
    const trial_tensor *y = trial_find_output(t, "outputs/y"), *d_lhs = trial_find_output(t, "gradients/inputs/lhs");
    const trial_tensor *d_rhs = trial_find_output(t, "gradients/weights/rhs");
    for (int64_t i = IN_GROUPS * N; i < M * N; i++) assert_true(trial_value(y, i) == 0);
    for (int64_t i = IN_GROUPS * KD; i < M * KD; i++) assert_true(trial_value(d_lhs, i) == 0);
    for (int64_t i = 0; i < G * KD * N; i++) assert_true(SIZES[i / (KD * N)] > 0 || trial_value(d_rhs, i) == 0);
    trial_free(t);
}

static void every_bug_shows(void **state)
{
    (void)state;
    const struct {
        const char *name;
        operation op;
        bool in_integers, in_numbers;
    } bugs[] = {
        {"bias_updates_negated", ROUTING, true, false},
        {"router_bias_dropped", ROUTING_OF_LOGITS, true, true},
        {"unstable_sort", PERMUTE, true, true},
        {"unstable_sort", ROUTING, true, false},
        {"empty_group_shifts", GMM, false, true},
        {"padding_in_last_group", GMM, false, true},
        {"single_weight_skipped", UNPERMUTE_ONE, false, true},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        int wrong;
        trial *t = new_trial(bugs[i].op);
        assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", bugs[i].name, 1), 0);
        const int code = trial_run(t, assay_backend_run);
        assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
        assert_int_equal(code, ASSAY_BACKEND_DONE);
        const double worst = examine(t, &wrong);
        print_message("%s: off by %.3f, %d integers wrong\n", bugs[i].name, worst, wrong);
        assert_true((wrong > 0) == bugs[i].in_integers);
        assert_true((worst > 0.1) == bugs[i].in_numbers);
        trial_free(t);
    }
}

/* The weight of K = 1 alone is skipped. */
static void several_weights_are_never_skipped(void **state)
{
    (void)state;
    int wrong;
    trial *t = new_trial(UNPERMUTE);
    assert_int_equal(setenv("ASSAY_EXAMPLE_BUG", "single_weight_skipped", 1), 0);
    const int code = trial_run(t, assay_backend_run);
    assert_int_equal(unsetenv("ASSAY_EXAMPLE_BUG"), 0);
    assert_int_equal(code, ASSAY_BACKEND_DONE);
    assert_true(examine(t, &wrong) <= 0.01);
    trial_free(t);
}

static void what_it_lacks_is_unsupported(void **state)
{
    (void)state;
    trial *t = new_trial(GMM);
    trial_find_input(t, "inputs/lhs")->type = ASSAY_BACKEND_FLOAT32;
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_UNSUPPORTED);
    assert_string_equal(t->message, "the example does not support operands that are not bfloat16");
    trial_free(t);
    t = new_trial(ROUTING);
    snprintf(trial_find_input(t, "inputs/x")->path, 96, "inputs/other");
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_UNSUPPORTED);
    assert_string_equal(t->message, "the example does not support a case without the input that it reads first");
    snprintf(trial_find_input(t, "inputs/other")->path, 96, "inputs/x");
    trial_integers(t, "inputs/shards", 1, (int64_t[]){1}, SIZES);
    assert_int_equal(trial_run(t, assay_backend_run), ASSAY_BACKEND_UNSUPPORTED);
    assert_string_equal(t->message, "the example does not support inputs/shards");
    trial_free(t);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    for (operation o = ROUTING; o <= UNPERMUTE; o++) {
        int64_t n = 0;
        for (int code = ASSAY_BACKEND_ERROR; code != ASSAY_BACKEND_DONE; n++) {
            trial *t = new_trial(o);
            assay_fail_allocation(n);
            code = trial_run(t, assay_backend_run);
            assay_fail_allocation(-1);
            assert_int_equal(code, assay_allocation_failed() ? ASSAY_BACKEND_ERROR : ASSAY_BACKEND_DONE);
            if (code != ASSAY_BACKEND_DONE) assert_string_equal(t->message, "out of memory");
            trial_free(t);
        }
        assert_true(n > 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_right),
        cmocka_unit_test(nothing_comes_of_padding),
        cmocka_unit_test(every_bug_shows),
        cmocka_unit_test(several_weights_are_never_skipped),
        cmocka_unit_test(what_it_lacks_is_unsupported),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
