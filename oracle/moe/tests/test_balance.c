#include "oracle/moe/balance.h"

#include "oracle/arithmetic/arithmetic.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

TEST(test_maxtext_bias_updates)
{
    const assay_routing_config config = {
        .batch = 2, .sequence = 4, .num_experts = 4, .num_experts_per_tok = 2, .routed_bias_update_rate = 0.01};
    const int32_t group_sizes[] = {5, 4, 3, 4};
    const double expected[] = {-0.01, 0.0, 0.01, 0.0};
    double updates[4];
    assay_fill_nan(updates, 4);
    assay_balance_bias_updates(updates, group_sizes, &config);
    assert_same_bits(updates, expected, 4);
}

/* Counts that neither bfloat16 nor float32 can tell from the mean, and a mean that is no whole number. */
TEST(test_signs_are_exact)
{
    const assay_routing_config large = {
        .batch = 1, .sequence = 3 << 25, .num_experts = 3, .num_experts_per_tok = 1, .routed_bias_update_rate = 1e-3};
    const int32_t near_mean[] = {(1 << 25) + 1, 1 << 25, (1 << 25) - 1};
    const double signs[] = {-1e-3, 0.0, 1e-3};
    double updates[3];
    assay_balance_bias_updates(updates, near_mean, &large);
    assert_same_bits(updates, signs, 3);
    const assay_routing_config thirds = {
        .batch = 1, .sequence = 5, .num_experts = 3, .num_experts_per_tok = 2, .routed_bias_update_rate = 1.0};
    const int32_t sizes[] = {4, 3, 3}; /* mean 10/3 */
    const double expected[] = {-1.0, 1.0, 1.0};
    assay_balance_bias_updates(updates, sizes, &thirds);
    assert_same_bits(updates, expected, 3);
}

/* By hand: two sequences of two tokens, two experts of three chosen. */
TEST(test_loss_by_hand)
{
    assay_context ctx = assay_context_default(1);
    const assay_routing_config config = {
        .batch = 2, .sequence = 2, .num_experts = 3, .num_experts_per_tok = 2, .load_balance_loss_weight = 0.5};
    const int32_t selected[] = {0, 1, 1, 0, 2, 0, 1, 2};
    const double probabilities[] = {0.5, 0.25, 0.25, 0.25, 0.5, 0.25, 0.125, 0.125, 0.75, 0.25, 0.25, 0.5};
    const double expected_density[] = {1.0, 1.0, 0.0, 0.5, 0.5, 1.0};
    double density[6], lb_loss = 0.0;
    assay_fill_nan(density, 6);
    assay_balance_density(density, selected, &config);
    assert_same_bits(density, expected_density, 6);
    assert_ok(&ctx, assay_balance_loss(&ctx, &lb_loss, probabilities, density, &config));
    /* Sequence 0: 0.375 + 0.375; sequence 1: 0.5 * 0.1875 * 2 + 0.625; mean over 6, times 9 * 0.5. */
    const double expected = (0.75 + 0.8125) / 6.0 * 4.5;
    assert_close(&lb_loss, &expected, 1, 1e-15, 0.0);
    /* Means per sequence are not those of the whole batch, which would give another number. */
    const double of_batch = 9.0 * 0.5 / 3.0 * (0.75 * 0.28125 + 0.75 * 0.28125 + 0.5 * 0.4375);
    assert_false(assay_is_close(&lb_loss, &of_batch, 1, 1e-3, 0.0));
    assert_true(assay_balance_coefficient(&config) == 0.5 * 3.0 / 4.0);
    assay_routing_config batch = config;
    batch.balance_scope = ASSAY_BALANCE_BATCH;
    assay_balance_density(density, selected, &batch);
    assert_same_bits(density, ((const double[]){0.75, 0.75, 0.5}), 3);
    assert_ok(&ctx, assay_balance_loss(&ctx, &lb_loss, probabilities, density, &batch));
    assert_close(&lb_loss, &of_batch, 1, 1e-15, 0.0);
}

/* A perfectly even load has the loss K * weight, whatever the number of experts. */
TEST(test_even_load)
{
    assay_context ctx = assay_context_default(2);
    const assay_routing_config config = {
        .batch = 1, .sequence = 7, .num_experts = 7, .num_experts_per_tok = 1, .load_balance_loss_weight = 0.25};
    int32_t selected[7];
    double probabilities[49], density[7], lb_loss = 0.0;
    for (int i = 0; i < 7; i++) selected[i] = (i * 3) % 7;
    for (int i = 0; i < 49; i++) probabilities[i] = 1.0 / 7.0;
    assay_balance_density(density, selected, &config);
    assert_ok(&ctx, assay_balance_loss(&ctx, &lb_loss, probabilities, density, &config));
    const double expected = 0.25;
    assert_close(&lb_loss, &expected, 1, 1e-15, 0.0);
    assay_fail_allocation(0);
    const assay_status failed = assay_balance_loss(&ctx, &lb_loss, probabilities, density, &config);
    assay_fail_allocation(-1);
    assert_int_equal(failed, ASSAY_NO_MEMORY);
}

/* Two experts with logits 0 and ln 3: the sum of exponentials is 4; both at 1000, where they overflow: 1000 + ln 2. */
TEST(test_z_loss_by_hand)
{
    const assay_routing_config config = {
        .batch = 1, .sequence = 2, .num_experts = 2, .num_experts_per_tok = 1, .z_loss_weight = 0.5};
    const double logits[] = {0.0, 1.0986122886681098, 1000.0, 1000.0};
    const double less[] = {0.0, 1.5986122886681098, 1000.0, 1000.5}, bias[] = {0.0, -0.5}; /* the same together */
    const double logs[] = {1.3862943611198906, 1000.6931471805599};
    const double expected = 0.25 * (logs[0] * logs[0] + logs[1] * logs[1]);
    const double gradient[] = {0.25 * logs[0] * 0.5, 0.75 * logs[0] * 0.5, 0.25 * logs[1] + 1, 0.25 * logs[1] + 1};
    for (int threads = 1; threads <= 7; threads += 3) {
        assay_context ctx = assay_context_default(threads);
        for (int biased = 0; biased < 2; biased++) {
            const double *x = biased ? less : logits, *b = biased ? bias : NULL;
            double log_sums[2], d_logits[] = {0, 0, 1, 1};
            const double loss = assay_z_loss(&ctx, log_sums, x, b, &config);
            assert_close(log_sums, logs, 2, 1e-15, 0.0);
            assert_close(&loss, &expected, 1, 1e-15, 0.0);
            assay_z_loss_backward(&ctx, d_logits, 1.0, log_sums, x, b, &config);
            assert_close(d_logits, gradient, 4, 1e-13, 0.0);
        }
    }
}
