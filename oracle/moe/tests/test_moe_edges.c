/* Empty experts, dropped choices, what is read, refusals and costs. */
#include <inttypes.h>

#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* Fixes the choice: [T,K] ids. */
static void choose(moe_case *c, const int32_t *experts)
{
    const assay_routing_config *r = &c->config.routing;
    int64_t count = r->batch * r->sequence * r->num_experts_per_tok;
    int32_t *selected = test_tensors_add_i32(&c->in, "routing/selected_experts", count);
    assert_non_null(selected);
    memcpy(selected, experts, (size_t)count * sizeof *selected);
}

/* Experts 0, 2 and 4 have no token: exact zeros for them, and numbers for the others. */
TEST(test_empty_experts)
{
    static const int32_t experts[] = {1, 3, 3, 1, 1, 3, 3, 1};
    static const char *const gradients[] = {"gradients/weights/wi_0",      "gradients/weights/wi_1",
                                            "gradients/weights/wo",        "gradients/weights/wi_0_bias",
                                            "gradients/weights/wi_1_bias", "gradients/weights/wo_bias"};
    const assay_moe_path paths[] = {ASSAY_MOE_SPARSE, ASSAY_MOE_DENSE, ASSAY_MOE_DROPPING};
    assay_context ctx = assay_context_default(2);
    for (int path = 0; path < 3; path++) {
        OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 4, 5, 2, 3, 2);
        OWNED_BY(test_tensors_free) test_tensors out = {0};
        c.expert_bias = true;
        c.config.path = paths[path];
        c.config.capacity_factor = 5;
        moe_case_fill(&c, false);
        choose(&c, experts);
        moe_case_run(&ctx, &c, &out);
        for (int i = 0; i < 6; i++) {
            const assay_tensor *tensor = moe_case_get(&out, gradients[i]);
            int64_t size = tensor->count / 5;
            for (int64_t at = 0; at < tensor->count; at++) {
                int64_t expert = at / size;
                bool busy = expert == 1 || expert == 3;
                if (busy ? tensor->values[at] == 0 : tensor->values[at] != 0 || signbit(tensor->values[at]))
                    fail_msg("'%s' is %g with expert %d", gradients[i], tensor->values[at], (int)expert);
            }
        }
    }
}

/* A capacity of 0: nothing is kept, everything that comes through the experts is 0. */
TEST(test_no_room)
{
    assay_context ctx = assay_context_default(2);
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 3, 3, 1, 4, 2);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    c.config.path = ASSAY_MOE_DROPPING;
    c.config.capacity_factor = 0.3;
    moe_case_fill(&c, false);
    moe_case_run(&ctx, &c, &out);
    static const char *const zeros[] = {"outputs/y", "gradients/inputs/x", "gradients/weights/gate/kernel",
                                        "gradients/weights/wo"};
    for (int i = 0; i < 4; i++) {
        const assay_tensor *tensor = moe_case_get(&out, zeros[i]);
        assert_true(tensor->count > 0);
        for (int64_t at = 0; at < tensor->count; at++) assert_true(tensor->values[at] == 0);
    }
    assert_int_equal(moe_case_get(&out, "routing/selected_experts")->count, 3);
}

/* Without cotangents/y nothing comes through y. */
TEST_WITH_CONTEXT(test_output_without_a_cotangent)
{
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 6, 4, 2, 3, 2);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    c.config.routing.load_balance_loss_weight = 0.1;
    c.cotangent_lb_loss = true;
    moe_case_fill(&c, false);
    test_tensors_remove(&c.in, "cotangents/y");
    moe_case_run(&ctx, &c, &out);
    const assay_tensor *wo = moe_case_get(&out, "gradients/weights/wo");
    for (int64_t i = 0; i < wo->count; i++) assert_true(wo->values[i] == 0);
    assert_true(moe_case_get(&out, "gradients/weights/gate/kernel")->values[0] != 0);
}

/* Weights are read once, and not at all where nothing needs them. */
TEST_WITH_CONTEXT(test_reading)
{
    static const char *const everything[] = {"outputs/*", "gradients/*", "routing/*", NULL};
    static const char *const routing[] = {"routing/*", "outputs/lb_loss", NULL};
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 8, 4, 2, 6, 5);
    moe_case_fill(&c, false);
    int64_t kernels = 3 * moe_case_get(&c.in, "weights/wo")->count;
    int64_t others = 2 * 8 * 6 + 6 * 4 + 4, busy = 0;
    OWNED_BY(test_tensors_free) test_tensors out = {.wanted = everything};
    c.in.reads = 0;
    moe_case_run(&ctx, &c, &out);
    const int32_t *sizes = moe_case_get(&out, "routing/group_sizes")->indices;
    for (int e = 0; e < 4; e++) busy += sizes[e] > 0;
    assert_int_equal(busy, 3);
    assert_int_equal(c.in.reads, kernels / 4 * busy + others);
    assay_tensor_set_free(&out.set);
    out.wanted = routing;
    c.in.reads = 0;
    moe_case_run(&ctx, &c, &out);
    assert_int_equal(c.in.reads, 8 * 6 + 6 * 4 + 4);
    assert_int_equal(out.set.count, 6);
}

static void refuse(moe_case *c, const char *text)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    assay_source source = test_tensors_source(&c->in);
    assay_sink sink = test_tensors_sink(&out);
    assert_bad_input(&ctx, assay_moe_run(&ctx, &c->config, &assay_one_device, &source, &sink), text);
    moe_case_free(c);
}

TEST(test_missing_tensors_and_experts_are_refused)
{
    moe_case c;
    static const char *const needed[] = {"inputs/x", "weights/gate/kernel", "weights/wi_0", "weights/wi_1",
                                         "weights/wo"};
    for (int i = 0; i < 5; i++) {
        c = moe_case_deepseek3(2, 6, 4, 2, 3, 2);
        moe_case_fill(&c, false);
        test_tensors_remove(&c.in, needed[i]);
        refuse(&c, needed[i]);
    }
    c = moe_case_deepseek3(1, 2, 4, 2, 3, 2);
    moe_case_fill(&c, false);
    choose(&c, (const int32_t[]){0, 1, 4, 2});
    refuse(&c, "expert");
}

TEST(test_cost)
{
    moe_case c = moe_case_deepseek3(2, 3, 5, 2, 7, 11);
    c.config.shared_mlp_dim = 13;
    double products = 6 * 7 * 5 + 3 * 6 * 2 * 7 * 11 + 3 * 6 * 7 * 13;
    assert_true(assay_moe_flops(&c.config, false) == 2 * products);
    assert_true(assay_moe_flops(&c.config, true) == 4 * products);
    /* DeepSeek-V3: 90 GB of weights in float64, and the block in well under 6 GiB. */
    moe_case large = moe_case_deepseek3(1, 64, 256, 8, 7168, 2048);
    large.config.shared_mlp_dim = 2048;
    assert_true(assay_moe_memory(&large.config, &assay_one_device) > (int64_t)3 * 7168 * 2048 * 8);
    assert_true(assay_moe_memory(&large.config, &assay_one_device) < INT64_C(4) << 30);
}
