/* Paths of the MoE block against each other, and the same bits whatever does not matter. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

TEST(test_fused_weights_have_the_bits_of_separate_ones)
{
    static const char *const wanted[] = {"outputs/*", "gradients/*", "checkpoints/*", NULL};
    assay_context ctx = assay_context_default(2);
    moe_case c = moe_case_deepseek3(1, 9, 4, 2, 7, 5);
    c.expert_bias = true;
    moe_case_fill(&c, false);
    test_tensors separate = {.wanted = wanted}, fused = {.wanted = wanted};
    moe_case_run(&ctx, &c, &separate);
    moe_case_fuse(&c);
    moe_case_run(&ctx, &c, &fused);
    const int64_t rows[] = {4 * 7, 9 * 2}, width = 5;
    const char *const both[] = {"gradients/weights/wi", "checkpoints/moe_mlpwi"};
    for (int i = 0; i < 2; i++) {
        char path[2][ASSAY_PATH_SIZE];
        const double *wi = moe_case_get(&fused, both[i])->values;
        for (int half = 0; half < 2; half++) {
            snprintf(path[half], sizeof path[half], "%s_%d", both[i], half);
            const assay_tensor *own = moe_case_get(&separate, path[half]);
            assert_int_equal(own->count, rows[i] * width);
            assert_null(assay_tensor_set_find(&fused.set, path[half]));
            for (int64_t row = 0; row < rows[i]; row++)
                assert_same_bits(wi + row * 2 * width + half * width, own->values + row * width, width);
            test_tensors_remove(&separate, path[half]);
        }
    }
    assert_true(separate.set.count > 7);
    moe_case_assert_same(&fused, &separate);
    assay_tensor_set_free(&separate.set);
    assay_tensor_set_free(&fused.set);
    moe_case_free(&c);
}

TEST(test_dropping_with_room_is_sparse)
{
    static const char *const wanted[] = {"outputs/*", "gradients/*", "routing/*", NULL};
    assay_context ctx = assay_context_default(2);
    moe_case c = moe_case_deepseek3(2, 6, 4, 2, 9, 5);
    c.expert_bias = true;
    moe_case_fill(&c, false);
    test_tensors sparse = {.wanted = wanted}, dropping = {.wanted = wanted};
    moe_case_run(&ctx, &c, &sparse);
    c.config.path = ASSAY_MOE_DROPPING;
    c.config.capacity_factor = 4;
    moe_case_run(&ctx, &c, &dropping);
    moe_case_assert_same(&dropping, &sparse);
    assert_non_null(assay_tensor_set_find(&dropping.set, "routing/combine_mask"));
    assay_tensor_set_free(&sparse.set);
    assay_tensor_set_free(&dropping.set);
    moe_case_free(&c);
}

/* One block of each path with everything that it can have, and forms that some models and engines have. */
enum { FUSED_WEIGHTS, DENSE, DROPPING, FUSED, LLAMA4, GEMMA4, GATED, SLOTS, ON_INPUT, RECIPE, GIVEN, VARIANTS };

/* Choices and their weights, some of no expert, of a rank that has two of the experts. */
static void give_choices(moe_case *c)
{
    static const int32_t here[] = {1, -1, 0, -1, -1, -1};
    const assay_routing_config *routing = &c->config.routing;
    const int64_t count = routing->batch * routing->sequence * routing->num_experts_per_tok;
    int32_t *ids = test_tensors_add_i32(&c->in, "inputs/selected_experts", count);
    double *weights = test_tensors_add(&c->in, "inputs/routing_weights", count);
    for (int64_t i = 0; i < count; i++) ids[i] = i % 5 == 0 ? -1 : (int32_t)(i % routing->num_experts);
    for (int64_t i = 0; i < count; i++) weights[i] = ids[i] < 0 ? NAN : 0.25 + 0.01 * (double)i;
    c->config.local_num_experts = 2;
    memcpy(test_tensors_add_i32(&c->in, "inputs/expert_map", 6), here, sizeof here);
    test_tensors_remove(&c->in, "weights/gate/kernel");
    test_tensors_remove(&c->in, "weights/gate/bias");
}

static moe_case full_case(int variant)
{
    moe_case c = moe_case_deepseek3(2, 8, 6, 2, 67, 13);
    const assay_calibration absmax = {.factor = 1};
    c.expert_bias = true;
    c.config.shared_mlp_dim = 9;
    c.cotangent_lb_loss = variant != GIVEN;
    c.config.routing.load_balance_loss_weight = variant == GIVEN ? 0 : 0.1;
    c.config.routing.routed_bias_update_rate = variant == GIVEN ? 0 : 1e-3;
    switch (variant) {
    case FUSED_WEIGHTS:
        c.config.fused_weights = true;
        break;
    case DENSE:
        c.config.path = ASSAY_MOE_DENSE;
        break;
    case DROPPING:
        c.config.path = ASSAY_MOE_DROPPING;
        c.config.capacity_factor = 0.9;
        break;
    case FUSED:
        c.config.path = ASSAY_MOE_FUSED;
        c.config.fused_weights = true;
        c.config.routing.family = ASSAY_ROUTER_FUSED;
        break;
    case LLAMA4:
        c.config.routing.family = ASSAY_ROUTER_LLAMA4;
        c.config.routing.score_func = ASSAY_SCORE_NONE;
        c.config.routing.num_experts_per_tok = 1;
        break;
    case GEMMA4:
        c.config.routing.family = ASSAY_ROUTER_GEMMA4;
        c.config.routing.score_func = ASSAY_SCORE_NONE;
        c.config.routing.norm_topk_prob = true;
        c.per_expert_scale = true;
        c.gate_bias = false;
        break;
    case GATED:
        c.config.shared_gate = true;
        c.config.routing.z_loss_weight = 0.25;
        break;
    case SLOTS:
        c.config.shared_mlp_dim = 0;
        c.config.fused_shared_experts = 2;
        c.config.late_factor = 2.5;
        break;
    case ON_INPUT:
        c.config.weight_on_input = true;
        break;
    case RECIPE:
        c.config.recipe = (assay_quant_recipe_config){.recipe = assay_quant_recipe_by_name("fp8_full"),
                                                      .type = ASSAY_BFLOAT16,
                                                      .x = absmax,
                                                      .w = absmax,
                                                      .dy = absmax};
        break;
    default:
        break;
    }
    moe_case_fill(&c, variant == RECIPE);
    if (variant == GIVEN) give_choices(&c);
    return c;
}

TEST(test_threads_and_instructions_leave_the_bits)
{
    static const int threads[] = {2, 7};
    for (int variant = 0; variant < VARIANTS; variant++) {
        moe_case c = full_case(variant);
        assay_context ctx = assay_context_default(1);
        test_tensors expected = {0};
        moe_case_run(&ctx, &c, &expected);
        assert_true(expected.set.count > 15);
        for (int i = 0; i < 2; i++) {
            test_tensors actual = {0};
            ctx = assay_context_default(threads[i]);
            moe_case_run(&ctx, &c, &actual);
            moe_case_assert_same(&actual, &expected);
            assay_tensor_set_free(&actual.set);
        }
        for (assay_isa isa = ASSAY_ISA_SCALAR; isa <= ASSAY_ISA_AVX512; isa++) {
            test_tensors actual = {0};
            if (!assay_isa_supported(isa)) continue;
            ctx = assay_context_default(2);
            ctx.isa = isa;
            moe_case_run(&ctx, &c, &actual);
            moe_case_assert_same(&actual, &expected);
            assay_tensor_set_free(&actual.set);
        }
        assay_tensor_set_free(&expected.set);
        moe_case_free(&c);
    }
}

/* Each result alone has the bits that it has among all others. */
TEST(test_one_result_alone)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < VARIANTS; variant++) {
        moe_case c = full_case(variant);
        test_tensors all = {0};
        moe_case_run(&ctx, &c, &all);
        for (int i = 0; i < all.set.count; i++) {
            const char *const wanted[] = {all.set.items[i].spec.path, NULL};
            test_tensors one = {.wanted = wanted};
            moe_case_run(&ctx, &c, &one);
            assert_int_equal(one.set.count, 1);
            test_tensors expected = {.set = {.items = &all.set.items[i], .count = 1}};
            moe_case_assert_same(&one, &expected);
            assay_tensor_set_free(&one.set);
        }
        assay_tensor_set_free(&all.set);
        moe_case_free(&c);
    }
}

TEST(test_want_of_memory)
{
    for (int variant = 0; variant < VARIANTS; variant++) {
        assay_context ctx = assay_context_default(1);
        moe_case c = full_case(variant);
        const assay_source source = test_tensors_source(&c.in);
        int64_t n = 0;
        for (;; n++) {
            test_tensors out = {0};
            const assay_sink sink = test_tensors_sink(&out);
            assay_fail_allocation(n);
            const assay_status status = assay_moe_run(&ctx, &c.config, &source, &sink);
            assay_tensor_set_free(&out.set);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(n > 30);
        moe_case_free(&c);
    }
}

/* Weights are read once, and not at all where nothing needs them. */
TEST(test_reading)
{
    static const char *const everything[] = {"outputs/*", "gradients/*", "routing/*", NULL};
    static const char *const routing[] = {"routing/*", "outputs/lb_loss", NULL};
    assay_context ctx = assay_context_default(1);
    moe_case c = moe_case_deepseek3(1, 8, 4, 2, 6, 5);
    moe_case_fill(&c, false);
    int64_t kernels = 3 * moe_case_get(&c.in, "weights/wo")->count;
    int64_t others = 2 * 8 * 6 + 6 * 4 + 4, busy = 0;
    test_tensors out = {.wanted = everything};
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
    assay_tensor_set_free(&out.set);
    moe_case_free(&c);
}

/* Weights are taken where they lie, and gradients made where they will be, if source and sink have such places: the same bits. */
TEST(test_lent_weights_and_gradients)
{
    for (int variant = 0; variant < VARIANTS; variant++) {
        assay_context ctx = assay_context_default(1);
        moe_case c = full_case(variant);
        test_tensors expected = {0}, actual = {0};
        const assay_source lending = assay_tensor_set_source(&c.in.set);
        moe_case_run(&ctx, &c, &expected);
        for (int i = 0; i < c.in.set.count; i++) c.in.set.items[i].written = c.in.set.items[i].count;
        assert_ok(&ctx, assay_tensor_set_copy(&ctx, &expected.set, &actual.set));
        for (int i = 0; i < actual.set.count; i++) {
            assay_tensor *tensor = &actual.set.items[i];
            if (tensor->values != NULL) assay_fill_nan(tensor->values, tensor->count);
        }
        assay_tensor_set_rewind(&actual.set);
        const assay_sink sink = assay_tensor_set_sink(&actual.set);
        assert_ok(&ctx, assay_moe_run(&ctx, &c.config, &lending, &sink));
        moe_case_assert_same(&actual, &expected);
        assay_tensor_set_free(&expected.set);
        assay_tensor_set_free(&actual.set);
        moe_case_free(&c);
    }
}
