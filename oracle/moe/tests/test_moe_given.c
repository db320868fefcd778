/* Checkpoints that the source gives are used in place of the products that make them, and change no bit. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

static const char *const names[] = {"checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_1", "checkpoints/moe_mlpwi",
                                    "checkpoints/moe_mlpwo",   "checkpoints/mlpwi_0",     "checkpoints/mlpwi_1"};
enum { NAMES = sizeof names / sizeof *names };

static moe_case block(assay_moe_path path, bool fused)
{
    moe_case c = moe_case_deepseek3(2, 5, 4, 2, 5, 3);
    c.config.path = path;
    c.config.capacity_factor = path == ASSAY_MOE_DROPPING ? 1 : -1;
    c.config.fused_weights = fused;
    c.config.shared_mlp_dim = 7;
    c.expert_bias = true;
    moe_case_fill(&c, false);
    return c;
}

static void give(moe_case *c, const assay_tensor *tensor, double factor)
{
    double *values = test_tensors_add(&c->in, tensor->spec.path, tensor->count);
    assert_non_null(values);
    for (int64_t i = 0; i < tensor->count; i++) values[i] = factor * tensor->values[i];
}

static const struct {
    assay_moe_path path;
    bool fused;
} forms[] = {
    {ASSAY_MOE_SPARSE, false}, {ASSAY_MOE_SPARSE, true}, {ASSAY_MOE_DENSE, false}, {ASSAY_MOE_DROPPING, false}};

/* Every subset of the checkpoints. */
TEST(test_same_bits)
{
    static const char *const wanted[] = {"gradients/*", NULL};
    assay_context ctx = assay_context_default(2);
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        moe_case c = block(forms[form].path, forms[form].fused);
        test_tensors whole = {0};
        moe_case_run(&ctx, &c, &whole, NULL, 0);
        for (int subset = 0; subset < 1 << NAMES; subset++) {
            test_tensors out = {.wanted = wanted};
            for (int i = 0; i < NAMES; i++) {
                const assay_tensor *tensor = assay_tensor_set_find(&whole.set, names[i]);
                if ((subset >> i & 1) != 0 && tensor != NULL) give(&c, tensor, 1);
            }
            moe_case_run(&ctx, &c, &out, NULL, 0);
            for (int i = 0; i < out.set.count; i++) {
                const assay_tensor *expected = moe_case_get(&whole, out.set.items[i].spec.path);
                assert_int_equal(out.set.items[i].count, expected->count);
                assert_same_bits(out.set.items[i].values, expected->values, expected->count);
            }
            assert_true(out.set.count > 8);
            assay_tensor_set_free(&out.set);
            for (int i = 0; i < NAMES; i++) test_tensors_remove(&c.in, names[i]);
        }
        assay_tensor_set_free(&whole.set);
        moe_case_free(&c);
    }
}

/* A wrong one is felt: nothing computes it behind the caller's back. */
TEST(test_used)
{
    assay_context ctx = assay_context_default(1);
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        moe_case c = block(forms[form].path, forms[form].fused);
        test_tensors whole = {0};
        moe_case_run(&ctx, &c, &whole, NULL, 0);
        for (int i = 0; i < NAMES; i++) {
            const assay_tensor *tensor = assay_tensor_set_find(&whole.set, names[i]);
            const char *felt = strcmp(names[i], "checkpoints/moe_mlpwo") == 0 ? "gradients/weights/gate/kernel"
                               : strncmp(names[i], "checkpoints/moe", 15) == 0
                                   ? "gradients/weights/wo"
                                   : "gradients/weights/shared_experts/wo/kernel";
            test_tensors out = {0};
            if (tensor == NULL) continue;
            give(&c, tensor, 1.5);
            moe_case_run(&ctx, &c, &out, NULL, 0);
            const assay_tensor *expected = moe_case_get(&whole, felt), *found = moe_case_get(&out, felt);
            if (memcmp(found->values, expected->values, (size_t)found->count * sizeof(double)) == 0)
                fail_msg("%s is not used", names[i]);
            assay_tensor_set_free(&out.set);
            test_tensors_remove(&c.in, names[i]);
        }
        assay_tensor_set_free(&whole.set);
        moe_case_free(&c);
    }
}
