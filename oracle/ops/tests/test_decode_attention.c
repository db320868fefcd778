/* What attention over a cache refuses, and its splits and lists. Its numbers are the second form's to check. */

#include "oracle/ops/decode_attention.h"
#include "oracle/ops/decode_internal.h"
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
TEST(chunks_of_the_context_and_the_new_tokens)
{
    const assay_decode_config c = {.batch = 2, .sequence = 3, .pages = 2, .page = 20, .parts = 6, .chunk = 4};
    const int32_t lengths[] = {13, 2}, expected[2][6][3] = {{{4, 4, 4}, {4, 4, 4}, {2, 2, 2}, {0}, {0}, {1, 2, 3}},
                                                            {{0}, {0}, {0}, {0}, {0}, {0, 1, 2}}};
    const assay_decode_inputs in = {.cache_seqlens = lengths};
    for (int i = 0; i < 2 * 6 * 3; i++) {
        const int b = i / 18, part = i / 3 % 6, token = i % 3;
        assert_int_equal(assay_decode_keys_of_split(&c, &in, part, b, token), expected[b][part][token]);
        const decode_cached d = {.config = &c, .in = &in, .sequence = b};
        if (part > 0) assert_int_equal(decode_split(&d, part).begin, decode_split(&d, part - 1).end);
    }
}

/* Pages of 3 keys in 5 rows: indices 0 to 5 are rows 0 to 2 and 5 to 7. Of two splits the first has 3 of 5 entries, or 2 of 3. */
TEST(entries_of_lists)
{
    const assay_decode_config c = {
        .batch = 2, .sequence = 1, .pages = 2, .page = 3, .stride = 5, .topk = 5, .parts = 2};
    const int32_t indices[] = {3, -1, 5, 6, 0, 1, INT32_MAX, 4, 2, INT32_MIN}, counts[] = {5, 3};
    const int rows[2][5] = {{5, -1, 7, -1, 0}, {1, -1, 6, -1, -1}}, some[2][2] = {{2, 1}, {1, 1}};
    const assay_decode_inputs in = {.indices = indices, .topk_length = counts};
    for (int i = 0; i < 2 * 5; i++)
        assert_int_equal(assay_decode_listed_row(&c, &in, i / 5, i % 5), rows[i / 5][i % 5]);
    for (int i = 0; i < 2 * 2; i++)
        assert_int_equal(assay_decode_keys_of_split(&c, &in, i % 2, i / 2, 0), some[i / 2][i % 2]);
}

TEST_WITH_CONTEXT(refuses_lengths_and_pages_that_are_none)
{
    assay_decode_config bad = config;
    const int32_t long_one[B] = {6, 13, 0}, two_pages[B] = {6, 9, 5}, entries[B] = {2, 3, 1};
    assay_decode_inputs in = {.block_table = table, .cache_seqlens = long_one, .topk_length = entries};
    assert_int_equal(assay_decode_check_table(&ctx, &config, &in), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/cache_seqlens[1] is 13, expected 0 to 12 (pagedattn_max_pages_per_group "
                                     "pages of pagedattn_tokens_per_page)");
    in.cache_seqlens = two_pages;
    assert_int_equal(assay_decode_check_table(&ctx, &config, &in), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/block_table[2,0] is -1, expected 0 to 7 (pagedattn_num_pages): sequence 2 "
                                     "has 5 keys");
    bad.topk = 2;
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
