#include "oracle/moe/balance.h"
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
