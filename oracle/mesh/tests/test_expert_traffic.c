/* What a shard receives and how it sorts it, by the explicit numbers of MaxText's tests (tests/unit/moe_test.py) and by counting. */

#include "oracle/mesh/expert_traffic.h"
#include "tests/support/assay_test.h"

enum { P = 4, MOST = 28 };

typedef struct lists {
    int32_t indices[MOST], groups[2], received[MOST][2];
} lists;

static assay_status sort(assay_context *ctx, lists *l, const assay_local_permute_args *args)
{
    memset(l, 0x7f, sizeof *l);
    return assay_local_permute(ctx, l->indices, l->groups, l->received, args);
}

/* test_get_all_to_all_params_sharded_batch: rows of each sender for each shard, the first of them, and where it lands. */
static const int32_t split_batch[P][P] = {{1, 2, 0, 3}, {4, 0, 1, 2}, {0, 3, 2, 1}, {2, 1, 4, 0}};
static const int32_t input_offsets[P][P] = {{0, 1, 3, 3}, {0, 4, 4, 5}, {0, 0, 3, 5}, {0, 2, 3, 7}};
static const int32_t output_offsets[P][P] = {{0, 0, 0, 0}, {1, 2, 0, 3}, {5, 2, 1, 5}, {5, 5, 3, 6}};

static void check_sent(assay_context *ctx, int32_t buffer, bool truncate, const int32_t sent[P][P])
{
    for (int64_t shard = 0; shard < P; shard++) {
        lists l;
        int32_t count = 0;
        assert_ok(ctx, sort(ctx, &l,
                            &(assay_local_permute_args){.group_sizes = &split_batch[0][0],
                                                        .senders = P,
                                                        .num_experts = P,
                                                        .local_experts = 1,
                                                        .shard = shard,
                                                        .rows = buffer,
                                                        .batch_sharded = true,
                                                        .truncate = truncate}));
        for (int32_t sender = 0; sender < P; sender++) {
            for (int32_t i = 0; i < sent[sender][shard]; i++, count++) {
                const int32_t *row = l.received[output_offsets[sender][shard] + i];
                assert_int_equal(row[0], sender);
                assert_int_equal(row[1], input_offsets[sender][shard] + i);
            }
        }
        assert_int_equal(l.groups[0], count);
        for (; count < buffer; count++) assert_int_equal(l.received[count][0], -1);
        for (int32_t i = 0; i < buffer; i++) assert_int_equal(l.indices[i], i);
    }
}

/* Columns of split_batch add up to 7, 6, 7 and 6; buffers of 5 rows cut the last senders. */
TEST_WITH_CONTEXT(rows_of_a_split_batch)
{
    static const int32_t cut[P][P] = {{1, 2, 0, 3}, {4, 0, 1, 2}, {0, 3, 2, 0}, {0, 0, 2, 0}};
    static const int32_t none[P][P];
    check_sent(&ctx, 7, false, split_batch);
    check_sent(&ctx, 8, true, split_batch);
    check_sent(&ctx, 5, true, cut);
    check_sent(&ctx, 0, true, none);
}

TEST_WITH_CONTEXT(more_rows_than_there_is_room_for_are_refused)
{
    lists l;
    const assay_local_permute_args args = {&split_batch[0][0], P, P, 1, 2, 6, true, false};
    assert_bad_input(&ctx, sort(&ctx, &l, &args), "shard 2 of mesh.expert is sent more rows than the 6 of its buffer");
}

/* test_local_permute_no_offset: expert e has e tokens, one sender; four shards of two experts. */
TEST_WITH_CONTEXT(rows_of_one_sender_are_sorted_already)
{
    static const int32_t sizes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t shard = 0; shard < P; shard++) {
        const int32_t first = sizes[2 * shard], second = sizes[2 * shard + 1], rows = first + second;
        const assay_local_permute_args args = {sizes, 1, 8, 2, shard, rows, true, false};
        lists l;
        assert_ok(&ctx, sort(&ctx, &l, &args));
        assert_int_equal(l.groups[0], first);
        assert_int_equal(l.groups[1], second);
        for (int32_t row = 0; row < rows; row++) assert_int_equal(l.indices[row], row);
    }
}

/* test_local_permute_offset: all tokens are on every shard, sorted by expert; a shard takes those of its two experts. With two experts of
 * each shard together the last is test_get_all_to_all_params_unsharded_batch: parts of 6, 7, 6 and 7 rows from 0, 6, 13 and 19 on. */
TEST_WITH_CONTEXT(rows_of_other_shards_come_last)
{
    static const int32_t tables[3][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 0, 2, 2}, {6, 0, 3, 4, 0, 6, 7, 0}};
    for (int t = 0; t < 3; t++) {
        int32_t rows = 0, before = 0;
        for (int32_t e = 0; e < 8; e++) rows += tables[t][e];
        for (int32_t shard = 0; shard < P; shard++) {
            const int32_t first = tables[t][2 * shard], own = first + tables[t][2 * shard + 1];
            const assay_local_permute_args args = {tables[t], 1, 8, 2, shard, rows, false, false};
            lists l;
            assert_ok(&ctx, sort(&ctx, &l, &args));
            assert_int_equal(l.groups[0], first);
            assert_int_equal(l.groups[1], own - first);
            for (int32_t row = 0; row < rows; row++) {
                const int32_t other = row - own, index = row < own ? before + row : other < before ? other : row;
                assert_int_equal(l.indices[row], index);
                assert_int_equal(l.received[index][0], row < own ? 0 : -1);
                assert_int_equal(l.received[index][1], row < own ? index : -1);
            }
            before += own;
        }
    }
}

/* Two senders, each sorted by expert: shard 1 has experts 2 and 3; rows beyond the six tokens are padding. */
TEST_WITH_CONTEXT(rows_of_two_senders_are_merged)
{
    static const int32_t sizes[2][4] = {{5, 0, 2, 1}, {0, 1, 1, 2}};
    static const int32_t expected[8] = {0, 1, 3, 2, 4, 5, 6, 7}, cut_groups[2] = {3, 1};
    static const int32_t received[6][2] = {{0, 5}, {0, 6}, {0, 7}, {1, 1}, {1, 2}, {1, 3}};
    lists l;
    assay_local_permute_args args = {&sizes[0][0], 2, 4, 2, 1, 8, true, false};
    assert_ok(&ctx, sort(&ctx, &l, &args));
    assert_memory_equal(l.indices, expected, sizeof expected);
    assert_memory_equal(l.received, received, sizeof received);
    assert_int_equal(l.groups[0], 3);
    assert_int_equal(l.groups[1], 3);
    /* In a buffer of four the second sender's two rows of expert 3 are missing. */
    args.rows = 4;
    args.truncate = true;
    assert_ok(&ctx, sort(&ctx, &l, &args));
    assert_memory_equal(l.indices, expected, 4 * sizeof *expected);
    assert_memory_equal(l.groups, cut_groups, sizeof cut_groups);
}
