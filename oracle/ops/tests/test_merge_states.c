/* What the merge of states refuses, and that threads change no bit. Its numbers are the second form's to check. */
#include <math.h>

#include "oracle/ops/merge_states.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

enum { STATES = 3, ROWS = 2 * 5 * 3, V = 7 };

static const assay_merge_states_config config = {
    .states = STATES, .batch = 2, .sequence = 5, .heads = 3, .v_dim = V, .base_2 = true, .empty_row = INFINITY};

static void merge(int threads, const double *lse, double *out, double *merged)
{
    double partial_out[STATES * ROWS * V];
    const double sinks[3] = {0.5, -1, 2};
    assay_context ctx = assay_context_default(threads);
    for (int i = 0; i < STATES * ROWS * V; i++) partial_out[i] = sin(i);
    for (int i = 0; i < ROWS * V; i++) out[i] = NAN;
    for (int i = 0; i < ROWS; i++) merged[i] = NAN;
    const assay_merge_states_inputs in = {partial_out, lse, sinks};
    assert_ok(&ctx,
              assay_merge_states_forward(&ctx, &(assay_merge_states_call){&config, &in, out, merged, NULL, NULL}));
}

TEST(threads_change_no_bit)
{
    double lse[STATES * ROWS], one[ROWS * V], seven[ROWS * V], lse_one[ROWS], lse_seven[ROWS];
    for (int i = 0; i < STATES * ROWS; i++) lse[i] = i % ROWS == 4 ? -INFINITY : 3 * cos(i);
    merge(1, lse, one, lse_one);
    merge(7, lse, seven, lse_seven);
    assert_memory_equal(one, seven, sizeof one);
    assert_memory_equal(lse_one, lse_seven, sizeof lse_one);
    assert_true(lse_one[4] == INFINITY);
}

TEST(refuses_nan_and_sizes_below_one)
{
    const double nan = NAN, zero = 0;
    const assay_merge_states_inputs in = {&zero, &nan, NULL};
    assay_merge_states_config bad = {.states = 1, .batch = 1, .sequence = 1, .heads = 1, .v_dim = 1};
    double out, lse;
    assay_context ctx = assay_context_default(1);
    assert_int_equal(assay_merge_states_forward(&ctx, &(assay_merge_states_call){&bad, &in, &out, &lse, NULL, NULL}),
                     ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message,
                        "inputs/partial_lse[0] is NaN, expected a number, or an infinity of a part without keys");
    bad.states = 0;
    assert_int_equal(assay_merge_states_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "num_states is 0, expected 1 or more");
}
