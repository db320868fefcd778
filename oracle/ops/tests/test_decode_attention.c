/* What attention over a cache refuses, and its splits and lists. Its numbers are the second form's to check. */

#include "oracle/ops/decode_attention.h"
#include "oracle/ops/tests/ops_test.h"

enum { B = 3, S = 2, N = 6, KV = 3, W = 4, P = 8, K = 4, R = 5, M = 3 };

static const int32_t table[B * M] = {5, 2, -1, 7, 0, 3, -1, 99, -1};
static const assay_decode_config config = {.batch = B,
                                           .sequence = S,
                                           .heads = N,
                                           .kv_heads = KV,
                                           .width = W,
                                           .v_dim = W,
                                           .pages = P,
                                           .page = K,
                                           .stride = R,
                                           .max_pages = M,
                                           .scale = 0.5,
                                           .base_2 = true,
                                           .lse_tokens_first = true,
                                           .empty_row = INFINITY};

/* Of 13 keys and 3 tokens: ten keys before these in chunks of 4, then their own; a sequence of two keys has no context. */
TEST_WITH_CONTEXT(chunks_of_the_context_and_the_new_tokens)
{
    assay_decode_config c = config;
    const int32_t lengths[B] = {13, 2, 0}, expected[2][6][3] = {{{4, 4, 4}, {4, 4, 4}, {2, 2, 2}, {0}, {0}, {1, 2, 3}},
                                                                {{0}, {0}, {0}, {0}, {0}, {0, 1, 2}}};
    const assay_decode_inputs in = {.lengths = lengths};
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    c.sequence = 3, c.pages = B, c.page = c.stride = 20, c.max_pages = 0, c.splits = 6, c.chunk = 4;
    assert_ok(&ctx, assay_decode_plan_make(&ctx, &c, &in, &plan));
    for (int i = 0; i < 2 * 6 * 3; i++) {
        const assay_key_range *seen = &plan.seen[i];
        assert_int_equal(seen->end - seen->begin, expected[i / 18][i % 6][i / 6 % 3]);
    }
    assert_int_equal(plan.rows[plan.longest + 1], 21);
}

/* Pages of 3 keys in 5 rows: indices 0 to 5 are rows 0 to 2 and 5 to 7. Of two splits the first has 3 of 5 entries, or 2 of 3. */
TEST_WITH_CONTEXT(entries_of_lists)
{
    assay_decode_config c = config;
    const int32_t indices[] = {3, -1, 5, 6, 0, 1, INT32_MAX, 4, 2, INT32_MIN}, counts[] = {5, 3};
    const int rows[2][3] = {{5, 7, 0}, {1, 6}}, starts[2][3] = {{0, 2, 3}, {0, 1, 2}};
    const assay_decode_inputs in = {.lengths = counts, .places = indices};
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    c.batch = c.pages = c.splits = 2, c.sequence = 1, c.page = 3, c.stride = c.topk = 5;
    assert_ok(&ctx, assay_decode_plan_make(&ctx, &c, &in, &plan));
    for (int i = 0; i < 2 * 3; i++) {
        assert_int_equal(plan.starts[i], starts[i / 3][i % 3]);
        if (i % 3 < starts[i / 3][2]) assert_int_equal(plan.rows[i / 3 * plan.longest + i % 3], rows[i / 3][i % 3]);
    }
}

TEST_WITH_CONTEXT(refuses_lengths_and_pages_that_are_none)
{
    assay_decode_config bad = config;
    const int32_t long_one[B] = {6, 13, 0}, two_pages[B] = {6, 9, 5}, entries[B] = {2, 3, 1};
    assay_decode_inputs in = {.lengths = long_one, .places = table};
    assert_int_equal(assay_decode_check_table(&ctx, &config, &in), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/cache_seqlens[1] is 13, expected 0 to 12 (pagedattn_max_pages_per_group "
                                     "pages of pagedattn_tokens_per_page)");
    in.lengths = two_pages;
    assert_int_equal(assay_decode_check_table(&ctx, &config, &in), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/block_table[2,0] is -1, expected 0 to 7 (pagedattn_num_pages): sequence 2 "
                                     "has 5 keys");
    bad.topk = 2;
    in.lengths = entries;
    assert_int_equal(assay_decode_check_table(&ctx, &bad, &in), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/topk_length[1] is 3, expected 0 to 2 (indexer_topk)");
    bad.pages = INT32_MAX;
    assert_int_equal(assay_decode_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "the cache has more than 2^31 rows, expected what indices may name");
    bad = config;
    bad.stride = 3;
    assert_int_equal(assay_decode_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "pagedattn_page_stride is 3, expected 4 (pagedattn_tokens_per_page) or more");
    bad.stride = R;
    bad.scale = -1;
    assert_int_equal(assay_decode_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "query_pre_attn_scalar is -1, expected a number above 0");
}
