#include "oracle/arithmetic/emulated.h"
#include "oracle/moe/tests/one_token.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* The weights of a token share the error of the sum that they are divided by; one weight is a quotient of equal numbers. */
TEST(test_emulated_weights_share_an_error)
{
    enum { SEEDS = 128 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {0.25, -0.5, 0.7, 0.1};
    for (int k = 1; k <= 2; k++) {
        assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, k);
        config.norm_topk_prob = true;
        const assay_routing_inputs in = {.logits = logits};
        double squares = 0, exact = 0;
        for (uint64_t seed = 0; seed <= SEEDS; seed++) {
            double sum = 0;
            const assay_emulation emulation = {
                .precision = {.accumulate = unit}, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
            assay_context ctx = assay_context_default(1);
            OWNED_BY(assay_routing_free) assay_routing r = {0};
            if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
            assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
            assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
            for (int i = 0; i < k; i++) sum += r.weights[i];
            if (seed == 0) exact = sum;
            squares += (sum / exact - 1) * (sum / exact - 1);
        }
        const double error = sqrt(squares / SEEDS) / unit;
        if (!(k == 1 ? error == 0 : error > 0.75 && error < 1.25)) fail_msg("%d: %g roundings", k, error);
    }
}

/* Logit plus bias is a number of its own, whose rounding a large bias makes large: weights of the softmax over the chosen have it. */
TEST(test_emulated_sums_with_a_large_bias)
{
    enum { SEEDS = 128 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {0.3, -0.2}, bias[] = {34.5, 34.4};
    const assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 2, 2);
    const assay_routing_inputs in = {.logits = logits, .bias = bias};
    double squares = 0, exact = 0;
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        const assay_emulation emulation = {
            .precision = {.router = unit}, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_routing_free) assay_routing r = {0};
        if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
        if (seed == 0) exact = r.weights[0];
        squares += (r.weights[0] - exact) * (r.weights[0] - exact) / SEEDS;
    }
    const double error =
        sqrt(squares) / (exact * (1 - exact) * 34.5 * sqrt(2.0)) / unit; /* of the difference of two sums */
    if (!(error > 0.5 && error < 2)) fail_msg("%g roundings", error);
}

/* The gradients of a router of one token, exact with the seed 0, else of an emulated run in float32. */
static void run_backward(double *d_logits, double *d_bias, const assay_routing_config *config,
                         const assay_routing_inputs *in, const double *d_weights, double d_lb_loss, uint64_t seed)
{
    const double unit = 0x1p-24 / sqrt(3.0);
    const assay_emulation emulation = {.precision = {.accumulate = unit, .router = unit, .elementary = unit},
                                       .seed = seed};
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_routing_free) assay_routing r = {0};
    if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
    assert_ok(&ctx, assay_routing_alloc(&ctx, &r, config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &r, in, config));
    assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, d_weights, d_lb_loss, 0, &r, in, config));
}

/* Where a gradient cancels, what cancels is rounded: s (1 - s) of a sigmoid near 1, a softmax whose gradients are all the same. */
TEST(test_emulated_gradients_where_they_cancel)
{
    enum { SEEDS = 64 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {12, 11.5}, zeros[] = {0, 0}, d_weights[] = {1, 0};
    for (int balance = 0; balance <= 1; balance++) {
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 2, 2);
        config.load_balance_loss_weight = balance;
        const assay_routing_inputs in = {.logits = logits, .bias = zeros};
        double squares = 0, exact = 0;
        for (uint64_t seed = 0; seed <= SEEDS; seed++) {
            double d_logits[2], d_bias[2];
            const double *found = balance == 1 ? d_bias : d_logits;
            run_backward(d_logits, d_bias, &config, &in, balance == 1 ? NULL : d_weights, balance, seed);
            if (seed == 0) exact = found[0];
            squares += (found[0] - exact) * (found[0] - exact) / SEEDS;
        }
        /* the gradient of a probability is 2 here; that of the weight is relative to 1 - s */
        const double size = balance == 1 ? 1 : exact / (1 - 1 / (1 + exp(-logits[0])));
        const double error = sqrt(squares) / fabs(size) / unit;
        if (!(error > 0.5 && error < 3)) fail_msg("%d: %g roundings", balance, error);
        if (balance == 1) assert_true(exact == 0);
    }
}

/* A softmax over the chosen whose first weight is nearly 1: its mean has the errors of the first gradient, which the naive form
 * does not have. */
TEST(test_emulated_gradients_of_a_sure_choice)
{
    enum { SEEDS = 64 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {12, 0, -1}, d_weights[] = {1, 0};
    const assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 3, 2);
    const assay_routing_inputs in = {.logits = logits};
    double squares[3] = {0}, exact[3] = {0};
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        double d_logits[3];
        run_backward(d_logits, NULL, &config, &in, d_weights, 0, seed);
        for (int e = 0; e < 3; e++) {
            if (seed == 0) exact[e] = d_logits[e];
            squares[e] += (d_logits[e] - exact[e]) * (d_logits[e] - exact[e]) / SEEDS;
        }
    }
    const double error = sqrt(squares[0]) / unit;
    if (!(error > 0.5 && error < 4)) fail_msg("%g roundings", error);
    assert_true(exact[2] == 0 && squares[2] > 0);
}
