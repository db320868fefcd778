/* Grouped-query attention, as every block is; harness/tests/test_certified.c has it against the second form. */
#include "oracle/blocks/gqa.h"

#include "oracle/blocks/tests/block_problem.h"

/* Several blocks of a product and of attention, sizes that no block divides, and everything on. */
static const assay_gqa_config EVERYTHING = {.batch = 1,
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
                                            .rope = {10, true, 10000, 32, 32, 1, 160, 64, false, false, true, false},
                                            .mask_padding = true};

static assay_gqa_config of_length(int64_t sequence, bool fused)
{
    assay_gqa_config config = EVERYTHING;
    config.sequence = sequence;
    config.window = sequence < config.window ? 4 : config.window;
    config.fused_qkv = fused;
    return config;
}

static graph graph_of(int64_t sequence, bool fused)
{
    const assay_gqa_config config = of_length(sequence, fused);
    graph g;
    assay_gqa_graph(&g, &config);
    return g;
}

TEST(test_any_checkpoints_can_be_computed_again)
{
    for (int fused = 0; fused < 2; fused++) {
        const graph g = graph_of(14, fused);
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
    const graph g = graph_of(14, false);
    block_check_padding(&g);
}

TEST(test_intermediates_lie_on_the_grid)
{
    const graph g = graph_of(14, true);
    block_check_grid(&g);
}

TEST_WITH_CONTEXT(test_refusals)
{
    static const struct {
        const char *words;
        size_t offset;
        int64_t value;
    } rows[] = {
        {"base_emb_dim is 0, expected 1 or more", offsetof(assay_gqa_config, emb_dim), 0},
        {"base_num_kv_heads is 0, expected 1 or more", offsetof(assay_gqa_config, kv_heads), 0},
        {"base_num_kv_heads is 4, expected a divisor of base_num_query_heads (6)", offsetof(assay_gqa_config, kv_heads),
         4},
        {"base_num_kv_heads is 12, expected a divisor", offsetof(assay_gqa_config, kv_heads), 12},
        {"sliding_window_size is -1, expected 1 or more", offsetof(assay_gqa_config, window), -1},
        {"head_dim is 0, expected 1 or more", offsetof(assay_gqa_config, head_dim), 0},
        {"inputs/x: ", offsetof(assay_gqa_config, emb_dim), INT64_MAX / 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_gqa_config config = EVERYTHING;
        *(int64_t *)(void *)((char *)&config + rows[i].offset) = rows[i].value;
        assert_int_not_equal(assay_gqa_check(&ctx, &config), ASSAY_OK);
        if (strstr(ctx.message, rows[i].words) == NULL) fail_msg("%s: %s", rows[i].words, ctx.message);
    }
    assay_gqa_config config = EVERYTHING;
    config.query_scale = NAN;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    config = EVERYTHING;
    config.epsilon = -1;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    assert_ok(&ctx, assay_gqa_check(&ctx, &EVERYTHING));
}
