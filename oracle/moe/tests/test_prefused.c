/* Gate and up of tensor shards side by side: the layout, and a block whose weights, gradients and checkpoints have it. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/prefused.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST(each_shard_has_its_gate_then_its_up)
{
    /* gate is 0 to 5, up 10 to 15 */
    const double whole[] = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
    static const struct {
        int64_t shards;
        double expected[12];
    } rows[] = {{1, {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15}},
                {2, {0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15}},
                {3, {0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15}},
                {6, {0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double laid_out[12], back[12];
        assay_prefuse_for_shards(laid_out, whole, 1, 6, rows[i].shards);
        assay_prefuse_whole(back, laid_out, 1, 6, rows[i].shards);
        assert_same_bits(laid_out, rows[i].expected, 12);
        assert_same_bits(back, whole, 12);
        for (int64_t column = 0; column < 12; column++) {
            const int64_t place = assay_prefused_place(column, 6, rows[i].shards);
            assert_int_equal(assay_prefused_column(place, 6, rows[i].shards), column);
            assert_true(laid_out[place] == whole[column]);
        }
    }
}

static moe_case block(void)
{
    moe_case c = moe_case_deepseek3(2, 5, 4, 2, 5, 6);
    c.config.fused_weights = true;
    c.expert_bias = true;
    moe_case_fill(&c, false);
    return c;
}

/* Of every tensor of the set that has the layout. */
static int lay_out(assay_tensor_set *set, int64_t mlp_dim, int64_t shards)
{
    int found = 0;
    for (int i = 0; i < set->count; i++) {
        assay_tensor *tensor = &set->items[i];
        if (!assay_path_is_prefused(tensor->spec.path)) continue;
        double *copy = malloc((size_t)tensor->count * sizeof *copy);
        assert_non_null(copy);
        memcpy(copy, tensor->values, (size_t)tensor->count * sizeof *copy);
        assay_prefuse_for_shards(tensor->values, copy, tensor->count / (2 * mlp_dim), mlp_dim, shards);
        free(copy);
        found++;
    }
    return found;
}

TEST(a_block_in_the_layout_has_the_same_bits)
{
    assay_context ctx = assay_context_default(1);
    for (int64_t shards = 2; shards <= 6; shards++) {
        if (6 % shards != 0) continue;
        moe_case c = block();
        test_tensors expected = {0}, out = {0};
        moe_case_run(&ctx, &c, &expected);
        assert_int_equal(lay_out(&c.in.set, 6, shards), 1);
        const assay_source in = test_tensors_source(&c.in);
        const assay_sink sink = test_tensors_sink(&out);
        assay_prefused p = {&in, &sink, 6, shards, 1};
        const assay_source laid_in = assay_prefused_source(&p);
        const assay_sink laid_out = assay_prefused_sink(&p);
        assert_ok(&ctx, assay_moe_run(&ctx, &c.config, &laid_in, &laid_out));
        assert_int_equal(lay_out(&expected.set, 6, shards), 2); /* gradient and checkpoint */
        moe_case_assert_same(&out, &expected);
        assay_tensor_set_free(&out.set);
        assay_tensor_set_free(&expected.set);
        moe_case_free(&c);
    }
}

TEST(rows_are_never_cut)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = block();
    double numbers[6];
    const assay_source in = test_tensors_source(&c.in);
    assay_prefused p = {&in, NULL, 6, 2, 1};
    const assay_source laid_out = assay_prefused_source(&p);
    assert_int_equal(laid_out.read(&ctx, laid_out.self, "weights/wi", 0, 6, numbers), ASSAY_INTERNAL);
    assert_ok(&ctx, laid_out.read(&ctx, laid_out.self, "weights/wo", 0, 6, numbers));
    moe_case_free(&c);
}
