/* The same bits whatever does not matter: threads, instruction sets, what else is wanted, checkpoints that are given.
 */
#include <malloc.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/tests/sharded_case.h"
#include "tests/support/assay_test.h"

TEST(test_threads_and_instructions_leave_the_bits)
{
    static const int threads[] = {2, 7};
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        moe_case c = sharded_case_form(form, &sharding);
        assay_context ctx = assay_context_default(1);
        memory_store expected = {0};
        sharded_case_run(&ctx, &c, &sharding, &expected);
        assert_true(expected.count > 15);
        for (int i = 0; i < 2; i++) {
            memory_store actual = {0};
            ctx = assay_context_default(threads[i]);
            sharded_case_run(&ctx, &c, &sharding, &actual);
            moe_case_assert_same(&actual, &expected);
            memory_store_free(&actual);
        }
        for (assay_isa isa = ASSAY_ISA_SCALAR; isa <= ASSAY_ISA_AVX512; isa++) {
            memory_store actual = {0};
            if (!assay_isa_supported(isa)) continue;
            ctx = assay_context_default(1);
            ctx.isa = isa;
            sharded_case_run(&ctx, &c, &sharding, &actual);
            moe_case_assert_same(&actual, &expected);
            memory_store_free(&actual);
        }
        memory_store_free(&expected);
        moe_case_free(&c);
    }
}

/* Each result alone has the bits that it has among all others; memory that holds rubbish reaches none. */
TEST(test_one_result_alone)
{
    enum { RUBBISH = 0x80 }; /* memory starts as 0x7f7f..., about 1e306 */
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        moe_case c = sharded_case_form(form, &sharding);
        memory_store all = {0};
        sharded_case_run(&ctx, &c, &sharding, &all);
        mallopt(M_PERTURB, RUBBISH);
        for (int i = 0; i < all.count; i++) {
            const char *const wanted[] = {all.items[i].path, NULL};
            memory_store one = {.wanted = wanted};
            sharded_case_run(&ctx, &c, &sharding, &one);
            assert_int_equal(one.count, 1);
            sharded_case_assert_bits(&one, &all, all.items[i].path);
            memory_store_free(&one);
        }
        mallopt(M_PERTURB, 0);
        memory_store_free(&all);
        moe_case_free(&c);
    }
}

static void give(moe_case *c, const memory_tensor *tensor, double factor)
{
    double *values = memory_store_add(&c->in, tensor->path, tensor->count);
    assert_non_null(values);
    for (int64_t i = 0; i < tensor->count; i++) values[i] = factor * tensor->values[i];
}

static const char *const checkpoints[] = {"checkpoints/moe_mlpwi_0", "checkpoints/moe_mlpwi_1", "checkpoints/moe_mlpwi",
                                          "checkpoints/moe_mlpwo",   "checkpoints/mlpwi_0",     "checkpoints/mlpwi_1",
                                          "checkpoints/mlpwo"};
enum { CHECKPOINTS = sizeof checkpoints / sizeof *checkpoints };

/* Every subset of the checkpoints, given, leaves every bit. */
TEST(test_given_checkpoints)
{
    static const char *const wanted[] = {"gradients/*", "outputs/*", NULL};
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        moe_case c = sharded_case_form(form, &sharding);
        memory_store whole = {0};
        sharded_case_run(&ctx, &c, &sharding, &whole);
        for (int subset = 1; subset < 1 << CHECKPOINTS; subset++) {
            memory_store out = {.wanted = wanted};
            bool there = true;
            for (int i = 0; i < CHECKPOINTS; i++)
                there &= (subset >> i & 1) == 0 || memory_store_find(&whole, checkpoints[i]) != NULL;
            if (!there) continue;
            for (int i = 0; i < CHECKPOINTS; i++) {
                if ((subset >> i & 1) != 0) give(&c, moe_case_get(&whole, checkpoints[i]), 1);
            }
            sharded_case_run(&ctx, &c, &sharding, &out);
            assert_true(out.count > 5);
            for (int i = 0; i < out.count; i++) sharded_case_assert_bits(&out, &whole, out.items[i].path);
            memory_store_free(&out);
            for (int i = 0; i < CHECKPOINTS; i++) memory_store_remove(&c.in, checkpoints[i]);
        }
        memory_store_free(&whole);
        moe_case_free(&c);
    }
}

/* A wrong one is felt: nothing computes it behind the caller's back. */
TEST(test_given_checkpoints_are_used)
{
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_sharding sharding;
        moe_case c = sharded_case_form(form, &sharding);
        memory_store whole = {0};
        sharded_case_run(&ctx, &c, &sharding, &whole);
        for (int i = 0; i < CHECKPOINTS; i++) {
            const memory_tensor *tensor = memory_store_find(&whole, checkpoints[i]);
            memory_store out = {0};
            if (tensor == NULL) continue;
            give(&c, tensor, 1.5);
            sharded_case_run(&ctx, &c, &sharding, &out);
            const memory_tensor *y = moe_case_get(&out, "outputs/y");
            if (memcmp(y->values, moe_case_get(&whole, y->path)->values, (size_t)y->count * sizeof(double)) == 0)
                fail_msg("form %d: %s is not used", form, checkpoints[i]);
            memory_store_free(&out);
            memory_store_remove(&c.in, checkpoints[i]);
        }
        memory_store_free(&whole);
        moe_case_free(&c);
    }
}
