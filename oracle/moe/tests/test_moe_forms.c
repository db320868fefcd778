/* Forms of a block that some models and engines have: what each is where it changes nothing, its bits, want of memory. */
#include <stdio.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { GATED, SLOTS, ON_INPUT, RECIPE, FORMS };

static assay_recipe_config fp8_full(void)
{
    const assay_calibration absmax = {.factor = 1};
    return (assay_recipe_config){.recipe = assay_quant_recipe_by_name("fp8_full"),
                                 .type = ASSAY_BFLOAT16,
                                 .x = absmax,
                                 .w = absmax,
                                 .dy = absmax};
}

static moe_case form_case(int form)
{
    moe_case c = moe_case_deepseek3(2, 3, 5, 2, 7, 4);
    assay_moe_config *config = &c.config;
    config->routing.load_balance_loss_weight = 0.5;
    config->routing.balance_scope = ASSAY_BALANCE_BATCH;
    config->routing.z_loss_weight = 0.25;
    c.cotangent_lb_loss = true;
    config->shared_mlp_dim = form == SLOTS ? 0 : 3;
    config->shared_gate = form == GATED;
    config->fused_shared_experts = form == SLOTS ? 2 : 0;
    config->late_factor = form == SLOTS ? 2.5 : 0;
    config->weight_on_input = form == ON_INPUT;
    c.expert_bias = form == RECIPE;
    if (form == RECIPE) config->recipe = fp8_full();
    moe_case_fill(&c, form == RECIPE);
    return c;
}

static void assert_same_results(const test_tensors *actual, const test_tensors *expected, const char *const paths[],
                                int count)
{
    for (int i = 0; i < count; i++) {
        const assay_tensor *tensor = moe_case_get(expected, paths[i]);
        assert_same_bits(moe_case_get(actual, paths[i])->values, tensor->values, tensor->count);
    }
}

/* The sigmoid of 0 is 1/2, which a wo of twice the size takes back, to the bit. */
TEST(test_gate_of_one_half)
{
    static const char *const same[] = {"outputs/y", "gradients/weights/shared_experts/wi_0/kernel",
                                       "gradients/weights/shared_experts/wi_1/kernel", "gradients/weights/gate/kernel",
                                       "gradients/weights/wo"};
    assay_context ctx = assay_context_default(2);
    moe_case c = form_case(GATED);
    test_tensors with = {0}, without = {0};
    assay_tensor *wo = assay_tensor_set_find(&c.in.set, "weights/shared_experts/wo/kernel");
    assay_tensor *gate = assay_tensor_set_find(&c.in.set, "weights/shared_expert_gate/kernel");
    memset(gate->values, 0, (size_t)gate->count * sizeof *gate->values);
    c.config.shared_gate = false;
    moe_case_run(&ctx, &c, &without, NULL, 0);
    c.config.shared_gate = true;
    for (int64_t i = 0; i < wo->count; i++) wo->values[i] *= 2;
    moe_case_run(&ctx, &c, &with, NULL, 0);
    assert_same_results(&with, &without, same, sizeof same / sizeof *same);
    const assay_tensor *d_gate = moe_case_get(&with, "gradients/weights/shared_expert_gate/kernel");
    for (int64_t d = 0; d < d_gate->count; d++) assert_true(d_gate->values[d] != 0);
    assay_tensor_set_free(&with.set);
    assay_tensor_set_free(&without.set);
    moe_case_free(&c);
}

/* The weight of the one choice of a softmax is 1, on whichever side of the expert. */
TEST(test_weight_of_one_on_either_side)
{
    static const char *const same[] = {"outputs/y", "gradients/weights/wi_0", "gradients/weights/wi_1",
                                       "gradients/weights/wo"};
    assay_context ctx = assay_context_default(2);
    moe_case c = form_case(ON_INPUT);
    test_tensors before = {0}, behind = {0};
    c.config.routing.family = ASSAY_ROUTER_DEFAULT;
    c.config.routing.score_func = ASSAY_SCORE_NONE;
    c.config.routing.num_experts_per_tok = 1;
    moe_case_run(&ctx, &c, &before, NULL, 0);
    c.config.weight_on_input = false;
    moe_case_run(&ctx, &c, &behind, NULL, 0);
    assert_same_results(&before, &behind, same, sizeof same / sizeof *same);
    assay_tensor_set_free(&before.set);
    assay_tensor_set_free(&behind.set);
    moe_case_free(&c);
}

/* Every token has the last two experts, in the slots behind its choices. */
TEST(test_slots)
{
    enum { TOKENS = 6, CHOICES = 2, EXPERTS = 5, ALL = 7, EACH = 4 };
    assay_context ctx = assay_context_default(1);
    moe_case c = form_case(SLOTS);
    test_tensors out = {0};
    moe_case_run(&ctx, &c, &out, NULL, 0);
    const int32_t *ids = moe_case_get(&out, "routing/topk_ids")->indices;
    const int32_t *chosen = moe_case_get(&out, "routing/selected_experts")->indices;
    const int32_t *sizes = moe_case_get(&out, "routing/group_sizes")->indices;
    const double *weights = moe_case_get(&out, "routing/topk_weights")->values;
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < EACH; k++) {
            const int32_t expected = k < CHOICES ? chosen[t * CHOICES + k] : EXPERTS + k - CHOICES;
            assert_int_equal(ids[t * EACH + k], expected);
        }
        assert_true(weights[t * EACH + 2] == 0.4 && weights[t * EACH + 3] == 0.4);
    }
    assert_int_equal(moe_case_get(&out, "routing/group_sizes")->count, ALL);
    assert_int_equal(sizes[5], TOKENS);
    assert_int_equal(sizes[6], TOKENS);
    assay_tensor_set_free(&out.set);
    moe_case_free(&c);
}

enum { ROWS = 12, JOINED = 5, DIM = 7, WIDTH = 4 };

/* A linear layer of the experts is the grouped product of all their rows. */
static void check_layer(const moe_case *c, const test_tensors *out, const double *x, const char *weight, const char *y,
                        const char *dy, const assay_gmm_dims *dims)
{
    char of_weight[ASSAY_PATH_SIZE];
    assay_context ctx = assay_context_default(2);
    snprintf(of_weight, sizeof of_weight, "gradients/%s", weight);
    const assay_recipe_given given = {.x = x,
                                      .w = moe_case_get(&c->in, weight)->values,
                                      .dy = moe_case_get(out, dy)->values,
                                      .group_sizes = moe_case_get(out, "routing/group_sizes")->indices};
    assay_recipe_operands o;
    double product[ROWS * DIM], dw[JOINED * DIM * WIDTH];
    assert_ok(&ctx, assay_recipe_quantise(&ctx, &o, &given, dims, &c->config.recipe));
    assert_ok(&ctx, assay_gmm_forward(&ctx, product, o.x, o.w, given.group_sizes, dims));
    assert_ok(&ctx, assay_gmm_backward(&ctx, NULL, dw, o.dw_dy, o.dw_x, NULL, given.group_sizes, dims));
    assert_same_bits(moe_case_get(out, y)->values, product, dims->m * dims->n);
    assert_same_bits(moe_case_get(out, of_weight)->values, dw, dims->groups * dims->k * dims->n);
    assay_recipe_operands_free(&o);
}

/* The rows are those of a token for each choice, by expert; one expert has none, and in the end one has them all. */
TEST(test_a_recipe_joins_the_experts)
{
    enum { CHOICES = 2 };
    const assay_gmm_dims up = {.m = ROWS, .k = DIM, .n = WIDTH, .groups = JOINED},
                         down = {.m = ROWS, .k = WIDTH, .n = DIM, .groups = JOINED};
    for (int crowded = 0; crowded < 2; crowded++) {
        assay_context ctx = assay_context_default(2);
        moe_case c = moe_case_deepseek3(2, 3, JOINED, CHOICES, DIM, WIDTH);
        c.config.recipe = fp8_full();
        moe_case_fill(&c, true);
        double *bias = assay_tensor_set_find(&c.in.set, "weights/gate/bias")->values;
        bias[2] = -50;
        bias[0] = crowded ? 50 : 0;
        test_tensors out = {0};
        moe_case_run(&ctx, &c, &out, NULL, 0);
        assert_int_equal(moe_case_get(&out, "routing/group_sizes")->indices[2], 0);
        if (crowded) assert_int_equal(moe_case_get(&out, "routing/group_sizes")->indices[0], ROWS / CHOICES);
        double x[ROWS * DIM];
        const int32_t *order = moe_case_get(&out, "routing/sorted_selected_experts")->indices;
        for (int i = 0; i < ROWS * DIM; i++)
            x[i] = moe_case_get(&c.in, "inputs/x")->values[order[i / DIM] / CHOICES * DIM + i % DIM];
        const double *h = moe_case_get(&out, "checkpoints/moe_intermediate")->values;
        check_layer(&c, &out, x, "weights/wi_0", "checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_0_gradient", &up);
        check_layer(&c, &out, x, "weights/wi_1", "checkpoints/moe_mlpwi_1", "checkpoints/moe_mlpwi_1_gradient", &up);
        check_layer(&c, &out, h, "weights/wo", "checkpoints/moe_mlpwo", "checkpoints/moe_mlpwo_gradient", &down);
        assay_tensor_set_free(&out.set);
        moe_case_free(&c);
    }
}

TEST(test_same_bits)
{
    for (int which = 0; which < FORMS; which++) {
        assay_context ctx = assay_context_default(1);
        moe_case c = form_case(which);
        test_tensors expected = {0};
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
}

TEST(test_want_of_memory)
{
    for (int which = 0; which < FORMS; which++) {
        assay_context ctx = assay_context_default(1);
        moe_case c = form_case(which);
        assay_source source = test_tensors_source(&c.in);
        int64_t n = 0;
        for (;; n++) {
            test_tensors out = {0};
            assay_sink sink = test_tensors_sink(&out);
            assay_fail_allocation(n);
            assay_status status = assay_moe_run(&ctx, &c.config, &source, &sink, NULL);
            assay_tensor_set_free(&out.set);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(n > 40);
        moe_case_free(&c);
    }
}
