/* What attention over a cache refuses, that threads change no bit, and that what nobody uses reaches nothing. Its numbers are the
 * second form's to check. */
#include <math.h>
#include <string.h>

#include "oracle/ops/decode_attention.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

enum { B = 3, S = 2, N = 6, KV = 3, W = 4, P = 8, K = 4, R = 5, M = 3, CACHE = P * R * KV * W, OUT = B * S * N * W };

static const int32_t table[B * M] = {5, 2, -1, 7, 0, 3, -1, 99, -1};
static const int32_t keys[B] = {6, 9, 0};
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

/* What no sequence has in its length is `unused`. */
static void decode(assay_context *ctx, const assay_decode_config *c, double unused, double *out, double *lse)
{
    double query[OUT], key[CACHE], value[CACHE];
    const assay_decode_inputs in = {
        .query = query, .key_cache = key, .value_cache = value, .block_table = table, .cache_seqlens = keys};
    const assay_decode_call call = {.config = c, .in = &in, .attention_out = out, .lse = lse};
    for (int i = 0; i < CACHE; i++) key[i] = value[i] = unused;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t j = 0; j < keys[b] * KV * W; j++) {
            const int64_t at = assay_decode_row(c, table, b, j / W % KV, j / W / KV) * W + j % W;
            key[at] = sin((double)(b + j));
            value[at] = cos((double)(b + 2 * j));
        }
    }
    for (int i = 0; i < OUT; i++) query[i] = sin(3 * i);
    for (int i = 0; i < OUT; i++) out[i] = NAN;
    for (int i = 0; i < B * S * N; i++) lse[i] = NAN;
    assert_ok(ctx, assay_decode_attend(ctx, &call));
}

TEST(threads_and_poison_change_no_bit)
{
    double one[OUT], other[OUT], lse_one[B * S * N], lse_other[B * S * N];
    assay_context single = assay_context_default(1), seven = assay_context_default(7);
    decode(&single, &config, 0, one, lse_one);
    decode(&seven, &config, NAN, other, lse_other);
    assert_memory_equal(one, other, sizeof one);
    assert_memory_equal(lse_one, lse_other, sizeof lse_one);
    assert_true(lse_one[2 * S * N] == INFINITY && one[2 * S * N * W] == 0);
}

/* The same keys elsewhere. */
TEST(heads_may_stand_before_rows)
{
    double rows[OUT], heads[OUT], lse_rows[B * S * N], lse_heads[B * S * N];
    assay_context ctx = assay_context_default(1);
    assay_decode_config other = config;
    other.heads_first = true;
    decode(&ctx, &config, NAN, rows, lse_rows);
    decode(&ctx, &other, NAN, heads, lse_heads);
    assert_memory_equal(rows, heads, sizeof rows);
    assert_memory_equal(lse_rows, lse_heads, sizeof lse_rows);
}

TEST(refuses_lengths_and_pages_that_are_none)
{
    assay_context ctx = assay_context_default(1);
    assay_decode_config bad = config;
    const int32_t long_one[B] = {6, 13, 0}, two_pages[B] = {6, 9, 5};
    assert_int_equal(assay_decode_check_table(&ctx, &config, table, long_one), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/cache_seqlens[1] is 13, expected 0 to 12 (pagedattn_max_pages_per_group "
                                     "pages of pagedattn_tokens_per_page)");
    assert_int_equal(assay_decode_check_table(&ctx, &config, table, two_pages), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/block_table[2,0] is -1, expected 0 to 7 (pagedattn_num_pages): sequence 2 "
                                     "has 5 keys");
    bad.stride = 3;
    assert_int_equal(assay_decode_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "pagedattn_page_stride is 3, expected 4 (pagedattn_tokens_per_page) or more");
    bad.stride = R;
    bad.scale = -1;
    assert_int_equal(assay_decode_check(&ctx, &bad), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "query_pre_attn_scalar is -1, expected a number above 0");
}
