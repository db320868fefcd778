/* Checkpoints that are given leave the bits. */

#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

static void give(moe_case *c, const assay_tensor *tensor, double factor)
{
    double *values = test_tensors_add(&c->in, tensor->spec.path, tensor->count);
    assert_non_null(values);
    for (int64_t i = 0; i < tensor->count; i++) values[i] = factor * tensor->values[i];
}

static const char *const checkpoints[] = {"checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_1", "checkpoints/moe_mlpwi",
                                          "checkpoints/moe_mlpwo",   "checkpoints/mlpwi_0",     "checkpoints/mlpwi_1",
                                          "checkpoints/mlpwo"};
enum { CHECKPOINTS = sizeof checkpoints / sizeof *checkpoints };

/* Every subset of the checkpoints, given, leaves every bit. */
TEST_WITH_CONTEXT(test_given_checkpoints)
{
    static const char *const wanted[] = {"gradients/*", "outputs/*", NULL};
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        OWNED_BY(moe_case_free) moe_case c = sharded_case_form(form, &sharding);
        OWNED_BY(test_tensors_free) test_tensors whole = {0};
        sharded_case_run(&ctx, &c, &sharding, &whole);
        for (int subset = 1; subset < 1 << CHECKPOINTS; subset++) {
            test_tensors out = {.wanted = wanted};
            bool there = true;
            for (int i = 0; i < CHECKPOINTS; i++)
                there &= (subset >> i & 1) == 0 || assay_tensor_set_find(&whole.set, checkpoints[i]) != NULL;
            if (!there) continue;
            for (int i = 0; i < CHECKPOINTS; i++) {
                if ((subset >> i & 1) != 0) give(&c, moe_case_get(&whole, checkpoints[i]), 1);
            }
            sharded_case_run(&ctx, &c, &sharding, &out);
            assert_true(out.set.count > 5);
            for (int i = 0; i < out.set.count; i++) sharded_case_assert_bits(&out, &whole, out.set.items[i].spec.path);
            assay_tensor_set_free(&out.set);
            for (int i = 0; i < CHECKPOINTS; i++) test_tensors_remove(&c.in, checkpoints[i]);
        }
    }
}

/* A wrong one is felt: nothing computes it behind the caller's back. */
TEST_WITH_CONTEXT(test_given_checkpoints_are_used)
{
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        OWNED_BY(moe_case_free) moe_case c = sharded_case_form(form, &sharding);
        OWNED_BY(test_tensors_free) test_tensors whole = {0};
        sharded_case_run(&ctx, &c, &sharding, &whole);
        for (int i = 0; i < CHECKPOINTS; i++) {
            const assay_tensor *tensor = assay_tensor_set_find(&whole.set, checkpoints[i]);
            test_tensors out = {0};
            if (tensor == NULL) continue;
            give(&c, tensor, 1.5);
            sharded_case_run(&ctx, &c, &sharding, &out);
            const assay_tensor *y = moe_case_get(&out, "outputs/y");
            if (memcmp(y->values, moe_case_get(&whole, y->spec.path)->values, (size_t)y->count * sizeof(double)) == 0)
                fail_msg("form %d: %s is not used", form, checkpoints[i]);
            assay_tensor_set_free(&out.set);
            test_tensors_remove(&c.in, checkpoints[i]);
        }
    }
}
