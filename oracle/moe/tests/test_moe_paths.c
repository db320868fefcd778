/* Paths of the MoE block against each other, and the same bits whatever does not matter. */
#include <math.h>
#include <stdio.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

static const assay_precision bf16 = {"bf16", 0x1p-8, 0, 0x1p-24, 0x1p-24, 0x1p-22, .least = 0};
static const assay_precision f32 = {"f32", 0x1p-24, 0, 0x1p-24, 0x1p-24, 0x1p-22, .least = 0};

TEST(test_fused_weights_have_the_bits_of_separate_ones)
{
    static const char *const wanted[] = {"outputs/*", "gradients/*", "checkpoints/*", "error_scale/*", NULL};
    assay_context ctx = assay_context_default(2);
    moe_case c = moe_case_deepseek3(1, 9, 4, 2, 7, 5);
    c.expert_bias = true;
    moe_case_fill(&c, false);
    test_tensors separate = {.wanted = wanted}, fused = {.wanted = wanted};
    moe_case_run(&ctx, &c, &separate, &bf16, 1);
    moe_case_fuse(&c);
    moe_case_run(&ctx, &c, &fused, &bf16, 1);
    const int64_t rows[] = {4 * 7, 4 * 7, 9 * 2, 9 * 2}, width = 5;
    const char *const both[] = {"gradients/weights/wi", "error_scale/bf16/gradients/weights/wi",
                                "checkpoints/moe_mlpwi", "error_scale/bf16/checkpoints/moe_mlpwi"};
    for (int i = 0; i < 4; i++) {
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
    assert_true(separate.set.count > 10);
    moe_case_assert_same(&fused, &separate);
    assay_tensor_set_free(&separate.set);
    assay_tensor_set_free(&fused.set);
    moe_case_free(&c);
}

TEST(test_dropping_with_room_is_sparse)
{
    static const char *const wanted[] = {"outputs/*", "gradients/*", "error_scale/*puts/*", "error_scale/*gradients/*",
                                         "routing/*", NULL};
    assay_context ctx = assay_context_default(2);
    moe_case c = moe_case_deepseek3(2, 6, 4, 2, 9, 5);
    c.expert_bias = true;
    moe_case_fill(&c, false);
    test_tensors sparse = {.wanted = wanted}, dropping = {.wanted = wanted};
    moe_case_run(&ctx, &c, &sparse, &bf16, 1);
    c.config.path = ASSAY_MOE_DROPPING;
    c.config.capacity_factor = 4;
    moe_case_run(&ctx, &c, &dropping, &bf16, 1);
    moe_case_assert_same(&dropping, &sparse);
    assert_non_null(assay_tensor_set_find(&dropping.set, "routing/combine_mask"));
    assay_tensor_set_free(&sparse.set);
    assay_tensor_set_free(&dropping.set);
    moe_case_free(&c);
}

/* One block of each path with everything that it can have. */
static moe_case full_case(int variant)
{
    moe_case c = moe_case_deepseek3(2, 8, 6, 2, 67, 13);
    c.expert_bias = true;
    c.config.shared_mlp_dim = 9;
    c.cotangent_lb_loss = true;
    c.config.routing.load_balance_loss_weight = 0.1;
    c.config.routing.routed_bias_update_rate = 1e-3;
    switch (variant) {
    case 0:
        c.config.fused_weights = true;
        break;
    case 1:
        c.config.path = ASSAY_MOE_DENSE;
        break;
    case 2:
        c.config.path = ASSAY_MOE_DROPPING;
        c.config.capacity_factor = 0.9;
        break;
    case 3:
        c.config.path = ASSAY_MOE_FUSED;
        c.config.fused_weights = true;
        c.config.routing.family = ASSAY_ROUTER_FUSED;
        break;
    case 4:
        c.config.routing.family = ASSAY_ROUTER_LLAMA4;
        c.config.routing.score_func = ASSAY_SCORE_NONE;
        c.config.routing.num_experts_per_tok = 1;
        break;
    default:
        c.config.routing.family = ASSAY_ROUTER_GEMMA4;
        c.config.routing.score_func = ASSAY_SCORE_NONE;
        c.config.routing.norm_topk_prob = true;
        c.per_expert_scale = true;
        c.gate_bias = false;
        break;
    }
    moe_case_fill(&c, false);
    return c;
}
enum { VARIANTS = 6 };

TEST(test_threads_and_instructions_leave_the_bits)
{
    static const int threads[] = {2, 7};
    const assay_precision precisions[] = {bf16, f32};
    for (int variant = 0; variant < VARIANTS; variant++) {
        moe_case c = full_case(variant);
        assay_context ctx = assay_context_default(1);
        test_tensors expected = {0};
        moe_case_run(&ctx, &c, &expected, precisions, 2);
        assert_true(expected.set.count > 40);
        for (int i = 0; i < 2; i++) {
            test_tensors actual = {0};
            ctx = assay_context_default(threads[i]);
            moe_case_run(&ctx, &c, &actual, precisions, 2);
            moe_case_assert_same(&actual, &expected);
            assay_tensor_set_free(&actual.set);
        }
        for (assay_isa isa = ASSAY_ISA_SCALAR; isa <= ASSAY_ISA_AVX512; isa++) {
            test_tensors actual = {0};
            if (!assay_isa_supported(isa)) continue;
            ctx = assay_context_default(2);
            ctx.isa = isa;
            moe_case_run(&ctx, &c, &actual, precisions, 2);
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
        moe_case_run(&ctx, &c, &all, &bf16, 1);
        for (int i = 0; i < all.set.count; i++) {
            const char *const wanted[] = {all.set.items[i].spec.path, NULL};
            test_tensors one = {.wanted = wanted};
            moe_case_run(&ctx, &c, &one, &bf16, 1);
            assert_int_equal(one.set.count, 1);
            test_tensors expected = {.set = {.items = &all.set.items[i], .count = 1}};
            moe_case_assert_same(&one, &expected);
            assay_tensor_set_free(&one.set);
        }
        assay_tensor_set_free(&all.set);
        moe_case_free(&c);
    }
}

/* Weights are read once, and not at all where nothing needs them. */
TEST(test_reading)
{
    static const char *const everything[] = {"outputs/*", "gradients/*", "error_scale/*", "routing/*", NULL};
    static const char *const routing[] = {"routing/*", "outputs/lb_loss", NULL};
    assay_context ctx = assay_context_default(1);
    const assay_precision precisions[] = {bf16, f32};
    moe_case c = moe_case_deepseek3(1, 8, 4, 2, 6, 5);
    moe_case_fill(&c, false);
    int64_t kernels = 3 * moe_case_get(&c.in, "weights/wo")->count;
    int64_t others = 2 * 8 * 6 + 6 * 4 + 4, busy = 0;
    test_tensors out = {.wanted = everything};
    c.in.reads = 0;
    moe_case_run(&ctx, &c, &out, precisions, 2);
    const int32_t *sizes = moe_case_get(&out, "routing/group_sizes")->indices;
    for (int e = 0; e < 4; e++) busy += sizes[e] > 0;
    assert_int_equal(busy, 3);
    assert_int_equal(c.in.reads, kernels / 4 * busy + others);
    assay_tensor_set_free(&out.set);
    out.wanted = routing;
    c.in.reads = 0;
    moe_case_run(&ctx, &c, &out, precisions, 2);
    assert_int_equal(c.in.reads, 8 * 6 + 6 * 4 + 4);
    assert_int_equal(out.set.count, 6);
    assay_tensor_set_free(&out.set);
    moe_case_free(&c);
}
