#include "oracle/moe/tests/one_token.h"
#include "oracle/quad/tests/quad_case.h"

TEST_LABELS(threads);

/* One token, 3 of 6 experts, sigmoid scores: what the tables below change one thing of. */
static assay_routing_config plain_config(void)
{
    assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 6, 3);
    config.routed_scaling_factor = 2.5;
    return config;
}

/* The gradient of sum d_weights * weights of one token, by central differences of the second form. */
static void differences(quad_case *c, const assay_routing_config *config, const double *d_weights, double *d_logits)
{
    const quad step = 0x1p-34Q;
    for (int e = 0; e < 6; e++) {
        quad *x = &quad_tensors_find(&c->in, "inputs/logits")->values[e], at = *x, slope = 0;
        for (int side = -1; side <= 1; side += 2) {
            *x = at + side * step;
            assert_ok(&c->ctx, case_evaluate(c, quad_routing, config));
            const quad *weights = quad_tensors_find(&c->out, "outputs/weights")->values;
            for (int k = 0; k < 3; k++) slope += side * weights[k] * d_weights[k] / (2 * step);
        }
        *x = at;
        d_logits[e] = (double)slope;
    }
}

/* Far out on every score function: relative accuracy of weights and gradients, no NaN, no cancellation. */
TEST(test_far_logits)
{
    static const double LOGITS[][6] = {{-18, -18.5, -17, -19, -40.5, -39.5}, {-300, -301, -299, -302, -310, -298},
                                       {40, 41, 39, 38, 45, 36.5},           {30, -30, 0, 20, -20, 35},
                                       {-39.9, -40.1, -40, -41, -38, -37},   {700, -700, 1, 690, -1, 699},
                                       {-800, -801, -790, -810, -900, -795}};
    static const assay_score_func FUNCTIONS[] = {ASSAY_SCORE_SIGMOID, ASSAY_SCORE_SQRTSOFTPLUS, ASSAY_SCORE_SOFTMAX};
    const double d_weights[] = {1.0, -2.0, 0.5};
    for (int f = 0; f < 3; f++) {
        for (size_t i = 0; i < sizeof LOGITS / sizeof LOGITS[0]; i++) {
            /* The sigmoid itself is no number of float64 there; the root of softplus is. */
            if (FUNCTIONS[f] == ASSAY_SCORE_SIGMOID && LOGITS[i][0] < -700.0) continue;
            assay_routing_config config = plain_config();
            config.score_func = FUNCTIONS[f];
            config.renormalize_exactly = true;
            const assay_routing_inputs in = {.logits = LOGITS[i]};
            assay_context ctx = assay_context_default(1);
            OWNED_BY(assay_routing_free) assay_routing r = {0};
            double d_logits[6], d_expected[6];
            assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
            assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
            quad_case c;
            case_start(&c, 1);
            case_values(&c, "inputs/logits", LOGITS[i], DIMS(1, 1, 6));
            case_indices(&c, "routing/selected_experts", r.selected_experts, DIMS(1, 1, 3));
            assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
            for (int k = 0; k < 3; k++) {
                const double expected = result_at(&c, "outputs/weights", k);
                assert_close(&r.weights[k], &expected, 1, 4e-15, 0.0);
            }
            assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, NULL, NULL, d_weights, 0.0, 0, &r, &in, &config));
            differences(&c, &config, d_weights, d_expected);
            /* Element by element: what is small is not drowned by what is large. */
            assert_close(d_logits, d_expected, 6, 1e-13, 1e-22);
            case_end(&c);
        }
    }
}

/* One expert and a division: the weight is the factor, and the router learns nothing but through the 1e-20. */
TEST(test_one_expert_divided)
{
    const double logits[6] = {-18, -19, -20, -17.5, -18.5, -21}, d_weight = 3.0, factor = 2.5;
    for (int exactly = 0; exactly < 2; exactly++) {
        assay_routing_config config = plain_config();
        config.num_experts_per_tok = 1;
        config.renormalize_exactly = exactly;
        const assay_routing_inputs in = {.logits = logits};
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_routing_free) assay_routing r;
        double d_logits[6], expected[6] = {0};
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
        assert_int_equal(r.selected_experts[0], 3);
        assert_close(r.weights, &factor, 1, 1e-11, 0.0);
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, NULL, NULL, &d_weight, 0.0, 0, &r, &in, &config));
        if (exactly) {
            assert_true(r.weights[0] == factor);
            assert_same_bits(d_logits, expected, 6);
        } else {
            const double s = 1.0 / (1.0 + exp(17.5));
            expected[3] = d_weight * factor * 1e-20 * s * (1.0 - s) / ((s + 1e-20) * (s + 1e-20));
            assert_close(d_logits, expected, 6, 1e-14, 0.0);
        }
    }
}

/* Softmax over 125 experts, and weights over their sum: what the chosen get adds up to 0, so the others learn nothing but by
 * the roundings of what the chosen get. Those of the mean itself must not be many times larger. */
TEST(test_others_learn_nothing_of_weights_over_their_sum)
{
    enum { EXPERTS = 125, CHOSEN = 8 };
    const double d_weights[CHOSEN] = {0.3, -1.1, 0.7, 0.2, -0.4, 1.3, -0.6, 0.9};
    double worst = 0.0;
    for (int draw = 0; draw < 20; draw++) {
        assay_routing_config config = plain_config();
        config.num_experts = EXPERTS;
        config.num_experts_per_tok = CHOSEN;
        config.family = ASSAY_ROUTER_GEMMA4;
        config.score_func = ASSAY_SCORE_NONE;
        config.norm_topk_prob = true;
        double logits[EXPERTS], d_logits[EXPERTS], learnt = 0.0, others = 0.0;
        for (int e = 0; e < EXPERTS; e++) logits[e] = 2 * sin(1.7 * e + draw) + (e == 7 ? 4 : 0);
        const assay_routing_inputs in = {.logits = logits};
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_routing_free) assay_routing r;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, NULL, NULL, d_weights, 0.0, 0, &r, &in, &config));
        for (int k = 0; k < CHOSEN; k++) {
            learnt += fabs(d_logits[r.selected_experts[k]]);
            d_logits[r.selected_experts[k]] = 0.0;
        }
        for (int e = 0; e < EXPERTS; e++) others += fabs(d_logits[e]);
        worst = fmax(worst, others / learnt);
    }
    print_message("others: %g of what the chosen learn\n", worst);
    assert_true(worst < 0x1p-53);
}

/* Softmax over 38 experts of which one is chosen: each gradient is accurate, whether its probability is near 1 or small. */
TEST(test_gradient_of_one_probability_of_many)
{
    enum { EXPERTS = 38 };
    static const double ADVANTAGE[] = {0.2, 0.5, 1.5, 3.0, 20.0};
    for (size_t i = 0; i < sizeof ADVANTAGE / sizeof *ADVANTAGE; i++) {
        assay_routing_config config = plain_config();
        config.num_experts = EXPERTS;
        config.num_experts_per_tok = 1;
        config.family = ASSAY_ROUTER_DEEPSEEK2;
        config.score_func = ASSAY_SCORE_SOFTMAX;
        config.routed_scaling_factor = 1.0;
        double logits[EXPERTS], d_logits[EXPERTS];
        long double shares[EXPERTS], others = 0;
        for (int e = 0; e < EXPERTS; e++) logits[e] = e == 24 ? ADVANTAGE[i] : 0.01 * e - 0.2;
        for (int e = 0; e < EXPERTS; e++) shares[e] = expl((long double)logits[e]);
        for (int e = 0; e < EXPERTS; e++) others += e == 24 ? 0 : shares[e];
        const long double sum = others + shares[24];
        const double d_weight = 0.3;
        const assay_routing_inputs in = {.logits = logits};
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_routing_free) assay_routing r;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, NULL, NULL, &d_weight, 0.0, 0, &r, &in, &config));
        for (int e = 0; e < EXPERTS; e++) {
            const long double p = shares[e] / sum;
            const double expected = (double)(d_weight * p * (e == 24 ? others : -shares[24]) / sum);
            assert_close(&d_logits[e], &expected, 1, 3e-15, 0.0);
        }
    }
}

static void assert_refused(assay_context *ctx, assay_status status, const char *const *parts)
{
    assert_int_equal(status, ASSAY_BAD_INPUT);
    for (int i = 0; i < 3 && parts[i] != NULL; i++) {
        if (strstr(ctx->message, parts[i]) == NULL) print_error("\"%s\" lacks \"%s\"\n", ctx->message, parts[i]);
        assert_non_null(strstr(ctx->message, parts[i]));
    }
    assert_null(strchr(ctx->message, '\n'));
}

TEST(test_refused_inputs)
{
    enum { T = 2, E = 6, K = 3, V = 2 };
    const double zeros[T * E] = {0}, scale[E] = {0};
    const double nan_logit[T * E] = {[9] = NAN}, minus_infinite[T * E] = {[6] = -INFINITY}, huge[T * E] = {[2] = 1e308};
    const double nan_bias[E] = {[4] = NAN}, infinite_bias[E] = {[1] = INFINITY}, huge_bias[E] = {[2] = 1e308};
    const int32_t outside[T * K] = {0, 1, 2, 3, 6, 4}, negative[T * K] = {0, -2, 2, 3, 5, 4},
                              twice[T * K] = {0, 1, 2, 5, 4, 5};
    const int32_t beside_nan[T * K] = {-1, 1, 2, 3, 5, 4};
    const double nan_weight[T * K] = {[0] = NAN, [4] = NAN};
    const int32_t ids[T] = {1, 0}, ids_outside[T] = {0, 2}, ids_negative[T] = {-1, 0};
    const struct {
        assay_routing_inputs in;
        int64_t hash_rows;
        const char *parts[3];
    } table[] = {
        {{.logits = nan_logit}, 0, {"token 1, expert 3", "nan"}},
        {{.logits = minus_infinite}, 0, {"token 1, expert 0", "-inf"}},
        {{.logits = huge, .bias = huge_bias}, 0, {"token 0, expert 2", "1e+308"}},
        {{.logits = zeros, .bias = nan_bias}, 0, {"gate/bias", "expert 4", "nan"}},
        {{.logits = zeros, .bias = infinite_bias}, 0, {"gate/bias", "expert 1", "inf"}},
        {{.logits = zeros, .per_expert_scale = scale}, 0, {"per_expert_scale", "deepseek3"}},
        {{.logits = zeros, .given_experts = outside}, 0, {"selected_experts row 1", "expert 6", "num_experts-1=5"}},
        {{.logits = zeros, .given_experts = negative}, 0, {"selected_experts row 0", "expert -2"}},
        {{.logits = zeros, .given_experts = twice}, 0, {"selected_experts row 1", "expert 5 twice"}},
        {{.given_experts = outside, .given_weights = zeros, .choice_is_input = true},
         0,
         {"selected_experts row 1", "expert 6", "-1 to num_experts-1=5"}},
        {{.given_experts = negative, .given_weights = nan_logit}, 0, {"selected_experts row 0", "expert -2"}},
        {{.given_experts = beside_nan, .given_weights = nan_weight, .choice_is_input = true},
         0,
         {"routing_weights[4] is nan", "expert 5"}},
        {{.logits = zeros, .input_ids = ids}, V, {"hash", "tid2eid"}},
        {{.logits = zeros, .tid2eid = outside}, V, {"hash", "input_ids"}},
        {{.logits = zeros, .tid2eid = outside, .input_ids = ids}, V, {"tid2eid row 1", "expert 6"}},
        {{.logits = zeros, .tid2eid = twice, .input_ids = ids}, V, {"tid2eid row 1", "expert 5 twice"}},
        {{.logits = zeros, .tid2eid = twice, .input_ids = ids_outside}, V, {"input_ids of token 1 is 2", "0 to 1"}},
        {{.logits = zeros, .tid2eid = twice, .input_ids = ids_negative}, V, {"input_ids of token 0 is -1"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        assay_context ctx = assay_context_default(2);
        assay_routing_config config = plain_config();
        OWNED_BY(assay_routing_free) assay_routing r;
        config.sequence = T;
        config.hash_rows = table[i].hash_rows;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_refused(&ctx, assay_routing_forward(&ctx, &r, &table[i].in, &config), table[i].parts);
    }
}

/* The same struct serves a second step with other logits: nothing of the first is left in it. */
TEST_WITH_CONTEXT(test_run_twice)
{
    const double first[6] = {5, 4, 3, 2, 1, 0}, second[6] = {-1, 0, 1, 2, 3, 4};
    assay_routing_config config = plain_config();
    config.load_balance_loss_weight = config.routed_bias_update_rate = 1.0;
    const assay_routing_inputs steps[] = {{.logits = first}, {.logits = second}};
    OWNED_BY(assay_routing_free) assay_routing used, fresh;
    assert_ok(&ctx, assay_routing_alloc(&ctx, &used, &config));
    assert_ok(&ctx, assay_routing_alloc(&ctx, &fresh, &config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &used, &steps[0], &config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &used, &steps[1], &config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &fresh, &steps[1], &config));
    assert_memory_equal(used.selected_experts, fresh.selected_experts, 3 * sizeof(int32_t));
    assert_memory_equal(used.group_sizes, fresh.group_sizes, 6 * sizeof(int32_t));
    assert_same_bits(used.weights, fresh.weights, 3);
    assert_same_bits(used.bias_updates, fresh.bias_updates, 6);
    assert_same_bits(&used.lb_loss, &fresh.lb_loss, 1);
}
