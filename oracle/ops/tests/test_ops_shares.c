/* What ranks share of attention and of gated MLPs: all of their operations, where that pays. What real runs share is held
 * against it in harness/tests/test_rank_costs.c. */
#include "oracle/ops/ops_shares.h"

#include "oracle/ops/tests/ops_test.h"

TEST(heads_have_all_operations_of_attention)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 300, .heads = 8, .kv_heads = 4, .qk_dim = 24, .v_dim = 16};
    for (int backward = 0; backward < 2; backward++) {
        assay_run_shares shares = {0};
        assay_attention_shares(&shares, 0, &config, backward);
        const assay_ranks_loop *heads = &shares.loops[ASSAY_SHARE_HEADS];
        assert_int_equal(heads->pieces, 2 * 4); /* query heads of one key go together */
        assert_true(heads->operations == assay_attention_flops(&config, backward));
        assert_int_equal(shares.loops[ASSAY_SHARE_ROWS].pieces, 0);
    }
}

TEST(products_have_all_operations_of_a_gated_mlp)
{
    for (int fused = 0; fused < 2; fused++) {
        const assay_gated_mlp_config config = {.rows = 37, .emb_dim = 24, .mlp_dim = 50, .fused = fused};
        assay_run_shares forward = {0}, backward = {0};
        assay_gated_mlp_up_shares(&forward, 0, &config, 2);
        assay_gated_mlp_down_shares(&forward, 0, &config);
        assay_gated_mlp_backward_shares(&backward, 0, &config, true, true);
        assert_true(forward.loops[ASSAY_SHARE_ROWS].operations == 3 * 2.0 * 37 * 24 * 50);
        /* dh of fused branches lies in rows with gaps, and is not shared */
        assert_true(backward.loops[ASSAY_SHARE_ROWS].operations == (fused ? 5 : 6) * 2.0 * 37 * 24 * 50);
    }
}

TEST(little_work_is_not_shared)
{
    const assay_gated_mlp_config config = {.rows = 37, .emb_dim = 24, .mlp_dim = 50};
    assay_run_shares shares = {0};
    assay_gated_mlp_up_shares(&shares, ASSAY_RANKS_LEAST, &config, 2);
    assert_int_equal(shares.loops[ASSAY_SHARE_ROWS].pieces, 0);
}
