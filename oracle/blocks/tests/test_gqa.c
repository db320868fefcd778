/* Grouped-query attention, as every block is; harness/tests/test_certified.c has it against the second form. */
#include "oracle/blocks/gqa.h"
#include "oracle/blocks/tests/block_problem.h"

/* Several blocks of a product and of attention, sizes that no block divides, and everything on. */
static const assay_gqa_config EVERYTHING = {
    .batch = 1,
    .sequence = 137,
    .emb_dim = 29,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 10,
    .window = 21,
    .query_scale = 0.3,
    .bias = true,
    .qk_norm = true,
    .sinks = true,
    .epsilon = 1e-3,
    .rope = {10, true, 10000, 32, 32, 1, 160, 64, false, false, true, false, NULL},
    .mask_padding = true};

static assay_gqa_config of_length(int64_t sequence, bool fused)
{
    assay_gqa_config config = EVERYTHING;
    config.sequence = sequence;
    config.window = sequence < config.window ? 4 : config.window;
    config.fused_qkv = fused;
    return config;
}

static void graph_of(int64_t sequence, bool fused, graph *g)
{
    const assay_gqa_config config = of_length(sequence, fused);
    assay_gqa_graph(g, &config);
}

TEST(test_any_checkpoints_can_be_computed_again)
{
    for (int fused = 0; fused < 2; fused++) {
        graph g;
        graph_of(14, fused, &g);
        block_check_recomputing(&g, true);
    }
}

/* Without biases: the gradient of one takes a product that is not counted, a sum. */
TEST(test_operations_are_those_of_the_products)
{
    for (int fused = 0; fused < 2; fused++) {
        assay_gqa_config config = of_length(14, fused);
        graph g;
        config.bias = false;
        assay_gqa_graph(&g, &config);
        block_check_operations(&g);
    }
}

TEST(test_padding_reaches_nobody)
{
    graph g;
    graph_of(14, false, &g);
    block_check_padding(&g);
}

TEST(test_intermediates_lie_on_the_grid)
{
    graph g;
    graph_of(14, true, &g);
    block_check_grid(&g);
}
