#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/routing_cases.h"
#include "oracle/moe/tests/routing_reference.h"
#include "tests/support/assay_test.h"

static void poison(assay_routing *r, const assay_routing_config *config)
{
    const int64_t count = config->num_experts_per_tok;
    assay_fill_nan(r->weights, TOKENS * count);
    assay_fill_nan(r->margin, TOKENS);
    assay_fill_nan(r->scores, TOKENS * EXPERTS);
    assay_fill_nan(r->gathered, TOKENS * count);
    if (r->probabilities != NULL) assay_fill_nan(r->probabilities, TOKENS * EXPERTS);
    if (r->density != NULL) assay_fill_nan(r->density, BATCH * EXPERTS);
    if (r->bias_updates != NULL) assay_fill_nan(r->bias_updates, EXPERTS);
    memset(r->selected_experts, -1, sizeof(int32_t) * (size_t)(TOKENS * count));
    memset(r->group_sizes, -1, sizeof(int32_t) * EXPERTS);
    r->lb_loss = NAN;
}

static void run_forward(assay_routing *r, const case_data *data, int threads)
{
    assay_context ctx = assay_context_default(threads);
    assert_ok(&ctx, assay_routing_alloc(&ctx, r, &data->config));
    poison(r, &data->config);
    assert_ok(&ctx, assay_routing_forward(&ctx, r, &data->in, &data->config));
}

static void widen(quad *wide, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) wide[i] = x[i];
}

TEST(test_forward)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing r;
        quad logits[TOKENS * EXPERTS], bias[EXPERTS], scale[EXPERTS], weights[MOST_CHOSEN];
        double expected[TOKENS * MOST_CHOSEN];
        int32_t sizes[EXPERTS] = {0};
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        const int64_t count = data.config.num_experts_per_tok;
        widen(logits, data.logits, TOKENS * EXPERTS);
        widen(bias, data.bias, EXPERTS);
        widen(scale, data.expert_scale, EXPERTS);
        const reference_inputs wide = {logits, CASES[c].bias ? bias : NULL, CASES[c].expert_scale ? scale : NULL};
        for (int t = 0; t < TOKENS; t++) {
            reference_weights(weights, &wide, t, r.selected_experts + t * count, &data.config);
            for (int64_t k = 0; k < count; k++) {
                expected[t * count + k] = (double)weights[k];
                sizes[r.selected_experts[t * count + k]]++;
            }
            assert_true(r.margin[t] >= 0.0);
        }
        if (!assay_is_close(r.weights, expected, TOKENS * count, 4e-15, 0.0)) print_error("%s\n", CASES[c].name);
        assert_close(r.weights, expected, TOKENS * count, 4e-15, 0.0);
        assert_memory_equal(r.group_sizes, sizes, sizeof sizes);
        const double lb_loss =
            has_balance(&data) ? (double)reference_lb_loss(&wide, r.selected_experts, &data.config) : 0.0;
        assert_close(&r.lb_loss, &lb_loss, 1, 1e-14, 0.0);
        assert_true((r.bias_updates != NULL) == (has_balance(&data) && data.config.routed_bias_update_rate > 0.0));
        for (int e = 0; r.bias_updates != NULL && e < EXPERTS; e++) {
            const double gap = (double)(TOKENS * count) / EXPERTS - sizes[e];
            assert_true(r.bias_updates[e] == (gap > 0.0 ? 1e-3 : gap < 0.0 ? -1e-3 : 0.0));
        }
        assay_routing_free(&r);
    }
}

/* The largest magnitude: gradients are held to a part of their tensor's scale. */
static double scale_of(const double *x, int64_t count)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

static void check_gradient(const char *name, const double *actual, const double *expected, int64_t count)
{
    const double tolerance = 1e-14 * scale_of(expected, count) + 1e-19; /* 1e-19: of the differences themselves */
    if (!assay_is_close(actual, expected, count, 0.0, tolerance)) print_error("%s\n", name);
    assert_close(actual, expected, count, 0.0, tolerance);
}

/* Weights alone, the loss alone, both: against central differences in binary128 with the experts held. */
TEST(test_backward)
{
    static const double D_LB_LOSS[] = {0.0, 1.3, -0.8};
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing r;
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        for (int part = 0; part < 3; part++) {
            assay_context ctx = assay_context_default(1);
            const double *d_weights = part == 1 ? NULL : data.d_weights;
            double d_logits[TOKENS * EXPERTS], d_bias[EXPERTS], d_scale[EXPERTS];
            double logits[TOKENS * EXPERTS], bias[EXPERTS] = {0}, scale[EXPERTS] = {0};
            assay_fill_nan(d_logits, TOKENS * EXPERTS);
            assay_fill_nan(d_bias, EXPERTS);
            assay_fill_nan(d_scale, EXPERTS);
            assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, d_scale, d_weights, D_LB_LOSS[part], &r,
                                                   &data.in, &data.config));
            reference_gradients(logits, CASES[c].bias ? bias : NULL, CASES[c].expert_scale ? scale : NULL, d_weights,
                                has_balance(&data) ? D_LB_LOSS[part] : 0.0, r.selected_experts, &data.in, &data.config);
            check_gradient(CASES[c].name, d_logits, logits, TOKENS * EXPERTS);
            if (CASES[c].bias) check_gradient(CASES[c].name, d_bias, bias, EXPERTS);
            if (CASES[c].expert_scale) check_gradient(CASES[c].name, d_scale, scale, EXPERTS);
        }
        assay_routing_free(&r);
    }
}

/* In deepseek3 the bias selects and does nothing else; in the other families it has a gradient. */
TEST(test_bias_gradient)
{
    const double zeros[EXPERTS] = {0};
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing r;
        assay_context ctx = assay_context_default(1);
        double d_logits[TOKENS * EXPERTS], d_bias[EXPERTS];
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, data.d_weights, 0.0, &r, &data.in,
                                               &data.config));
        const bool one_is_all = data.config.family == ASSAY_ROUTER_DEFAULT && data.config.num_experts_per_tok == 1;
        if (data.config.family == ASSAY_ROUTER_DEEPSEEK3) {
            assert_same_bits(d_bias, zeros, EXPERTS);
            assert_true(scale_of(d_logits, TOKENS * EXPERTS) > 0.0);
        } else if (one_is_all) { /* a softmax over one: 1, whatever the logit */
            assert_same_bits(d_bias, zeros, EXPERTS);
        } else {
            assert_true(scale_of(d_bias, EXPERTS) > 1e-3);
        }
        assay_routing_free(&r);
    }
}

TEST(test_same_bits_for_any_threads)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        static const int THREADS[] = {1, 2, 7};
        assay_routing r[3];
        double d_logits[3][TOKENS * EXPERTS], d_bias[3][EXPERTS];
        case_data data;
        fill_case(&data, &CASES[c]);
        const int64_t choices = TOKENS * data.config.num_experts_per_tok;
        for (int i = 0; i < 3; i++) {
            assay_context ctx = assay_context_default(THREADS[i]);
            run_forward(&r[i], &data, THREADS[i]);
            assert_ok(&ctx, assay_routing_backward(&ctx, d_logits[i], d_bias[i], NULL, data.d_weights, 0.9, &r[i],
                                                   &data.in, &data.config));
            assert_memory_equal(r[i].selected_experts, r[0].selected_experts, sizeof(int32_t) * (size_t)choices);
            assert_same_bits(r[i].weights, r[0].weights, choices);
            assert_same_bits(r[i].margin, r[0].margin, TOKENS);
            assert_same_bits(&r[i].lb_loss, &r[0].lb_loss, 1);
            assert_same_bits(d_logits[i], d_logits[0], TOKENS * EXPERTS);
            assert_same_bits(d_bias[i], d_bias[0], EXPERTS);
        }
        for (int i = 0; i < 3; i++) assay_routing_free(&r[i]);
    }
}

/* A given choice keeps its order; evaluating with one's own choice changes nothing; the margin stays the free one. */
TEST(test_given_choice)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing own, again;
        fill_case(&data, &CASES[c]);
        const int64_t choices = TOKENS * data.config.num_experts_per_tok;
        run_forward(&own, &data, 1);
        if (CASES[c].given) {
            assert_memory_equal(own.selected_experts, data.given, sizeof(int32_t) * (size_t)choices);
            data.in.given_experts = NULL;
            run_forward(&again, &data, 1);
            assert_same_bits(again.margin, own.margin, TOKENS);
            assert_true(memcmp(again.selected_experts, data.given, sizeof(int32_t) * (size_t)choices) != 0);
        } else {
            memcpy(data.given, own.selected_experts, sizeof(int32_t) * (size_t)choices);
            data.in.given_experts = data.given;
            run_forward(&again, &data, 1);
            assert_same_bits(again.weights, own.weights, choices);
            assert_same_bits(again.margin, own.margin, TOKENS);
            assert_same_bits(&again.lb_loss, &own.lb_loss, 1);
        }
        assay_routing_free(&own);
        assay_routing_free(&again);
    }
}

/* Hash routing takes the table's rows as they stand and has no margin. */
TEST(test_hash)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        if (CASES[c].config.hash_rows == 0) continue;
        case_data data;
        assay_routing r;
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        const int64_t count = data.config.num_experts_per_tok;
        for (int t = 0; t < TOKENS; t++) {
            assert_memory_equal(r.selected_experts + t * count, data.table + data.input_ids[t] * count,
                                sizeof(int32_t) * (size_t)count);
            assert_true(r.margin[t] == INFINITY);
        }
        assert_null(r.probabilities);
        assert_null(r.bias_updates);
        assay_routing_free(&r);
    }
}

/* Softmax over all, divided by the chosen ones' sum, is a softmax over the chosen; sigmoid likewise is deepseek3's. */
TEST(test_fused_equals_sparse)
{
    static const char *const PAIRS[][2] = {{"fused", "default"}, {"fused sigmoid", "deepseek3 exactly"}};
    for (int p = 0; p < 2; p++) {
        assay_routing r[2];
        case_data data;
        for (int i = 0; i < 2; i++) {
            fill_case(&data, case_named(PAIRS[p][i]));
            data.config.num_experts_per_tok = 4;
            data.config.load_balance_loss_weight = data.config.routed_bias_update_rate = 0.0;
            data.config.routed_scaling_factor = 1.0;
            data.in.bias = NULL;
            run_forward(&r[i], &data, 1);
        }
        assert_memory_equal(r[0].selected_experts, r[1].selected_experts, sizeof(int32_t) * TOKENS * 4);
        assert_close(r[0].weights, r[1].weights, TOKENS * 4, 1e-14, 0.0);
        assay_routing_free(&r[0]);
        assay_routing_free(&r[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_bias_gradient),
        cmocka_unit_test(test_same_bits_for_any_threads),
        cmocka_unit_test(test_given_choice),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_fused_equals_sparse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
