/* Forms of a block that some models and engines have: what each is where it changes nothing, its bits, want of memory. */
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

static moe_case gated_case(void)
{
    moe_case c = moe_case_deepseek3(2, 3, 5, 2, 7, 4);
    c.config.shared_mlp_dim = 3;
    c.config.shared_gate = true;
    c.cotangent_lb_loss = true;
    c.config.routing.load_balance_loss_weight = 0.5;
    c.config.routing.balance_scope = ASSAY_BALANCE_BATCH;
    c.config.routing.z_loss_weight = 0.25;
    moe_case_fill(&c, false);
    *test_tensors_add(&c.in, "cotangents/z_loss", 1) = 0.75;
    return c;
}

static double *gate_of(moe_case *c)
{
    double *gate = test_tensors_add(&c->in, "weights/shared_expert_gate/kernel", c->config.emb_dim);
    for (int64_t d = 0; d < c->config.emb_dim; d++) gate[d] = 0.3 * (double)(d % 3 - 1);
    return gate;
}

/* The sigmoid of 0 is 1/2, which a wo of twice the size takes back, to the bit. */
TEST(test_gate_of_one_half)
{
    static const char *const same[] = {"outputs/y", "gradients/weights/shared_experts/wi_0/kernel",
                                       "gradients/weights/shared_experts/wi_1/kernel", "gradients/weights/gate/kernel",
                                       "gradients/weights/wo"};
    assay_context ctx = assay_context_default(2);
    moe_case c = gated_case();
    test_tensors with = {0}, without = {0};
    assay_tensor *wo = assay_tensor_set_find(&c.in.set, "weights/shared_experts/wo/kernel");
    memset(gate_of(&c), 0, (size_t)c.config.emb_dim * sizeof(double));
    c.config.shared_gate = false;
    moe_case_run(&ctx, &c, &without, NULL, 0);
    c.config.shared_gate = true;
    for (int64_t i = 0; i < wo->count; i++) wo->values[i] *= 2;
    moe_case_run(&ctx, &c, &with, NULL, 0);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const assay_tensor *expected = moe_case_get(&without, same[i]);
        assert_same_bits(moe_case_get(&with, same[i])->values, expected->values, expected->count);
    }
    const assay_tensor *gate = moe_case_get(&with, "gradients/weights/shared_expert_gate/kernel");
    for (int64_t d = 0; d < gate->count; d++) assert_true(gate->values[d] != 0);
    assay_tensor_set_free(&with.set);
    assay_tensor_set_free(&without.set);
    moe_case_free(&c);
}

TEST(test_same_bits)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = gated_case();
    test_tensors expected = {0};
    gate_of(&c);
    moe_case_run(&ctx, &c, &expected, NULL, 0);
    for (int form = 0; test_next_context(&form, &ctx);) {
        test_tensors actual = {0};
        moe_case_run(&ctx, &c, &actual, NULL, 0);
        moe_case_assert_same(&actual, &expected);
        assay_tensor_set_free(&actual.set);
    }
    assay_tensor_set_free(&expected.set);
    moe_case_free(&c);
}

TEST(test_want_of_memory)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = gated_case();
    assay_source source = test_tensors_source(&c.in);
    int64_t n = 0;
    gate_of(&c);
    for (;; n++) {
        test_tensors out = {0};
        assay_sink sink = test_tensors_sink(&out);
        assay_fail_allocation(n);
        assay_status status = assay_moe_run(&ctx, &c.config, &source, &sink, NULL);
        assay_tensor_set_free(&out.set);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(n > 50);
    moe_case_free(&c);
}
