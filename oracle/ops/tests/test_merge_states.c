/* What the merge of states refuses. Its numbers are the second form's to check. */

#include "oracle/ops/merge_states.h"
#include "oracle/ops/tests/ops_test.h"

TEST_WITH_CONTEXT(refuses_nan)
{
    const double nan = NAN, zero = 0;
    const assay_merge_states_inputs in = {&zero, &nan, NULL};
    const assay_merge_states_config config = {.states = 1, .batch = 1, .sequence = 1, .heads = 1, .v_dim = 1};
    double out, lse;
    assert_int_equal(assay_merge_states_forward(&ctx, &out, &lse, &in, &config), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message,
                        "inputs/partial_lse[0] is NaN, expected a number, or an infinity of a part without keys");
}
