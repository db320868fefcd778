/* Gate and up of tensor shards side by side: the layout. Blocks with it are the equivalence prefused-layouts. */
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
        assay_prefuse(laid_out, whole, 1, 6, rows[i].shards, true);
        assay_prefuse(back, laid_out, 1, 6, rows[i].shards, false);
        assert_same_bits(laid_out, rows[i].expected, 12);
        assert_same_bits(back, whole, 12);
        for (int64_t column = 0; column < 12; column++) {
            const int64_t place = assay_prefused_place(column, 6, rows[i].shards);
            assert_int_equal(assay_prefused_column(place, 6, rows[i].shards), column);
            assert_true(laid_out[place] == whole[column]);
        }
    }
}

TEST_WITH_CONTEXT(rows_are_never_cut)
{
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(2, 5, 4, 2, 5, 6);
    double numbers[6];
    c.config.fused_weights = true;
    moe_case_fill(&c, false);
    const assay_source in = test_tensors_source(&c.in);
    assay_prefused p = {{&in, NULL}, 6, 2, 1};
    const assay_source laid_out = assay_prefused_source(&p);
    assert_int_equal(laid_out.read(&ctx, laid_out.self, "weights/wi", 0, 6, numbers), ASSAY_INTERNAL);
    assert_ok(&ctx, laid_out.read(&ctx, laid_out.self, "weights/wo", 0, 6, numbers));
}
