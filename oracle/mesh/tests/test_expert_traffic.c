/* What is sent where, by the explicit numbers of MaxText's tests (tests/unit/moe_test.py) and by counting. */

#include "oracle/mesh/expert_traffic.h"
#include "oracle/mesh/ragged_buffer.h"
#include "tests/support/assay_test.h"

enum { P = 4 };

typedef struct params {
    int32_t input_offsets[P], send_sizes[P], output_offsets[P], recv_sizes[P];
} params;

static params params_of(int64_t shard, const assay_traffic *traffic)
{
    params p;
    int32_t truncated[P * P];
    memset(&p, 0x7f, sizeof p);
    assay_all_to_all_params(p.input_offsets, p.send_sizes, p.output_offsets, p.recv_sizes, shard, traffic, truncated);
    return p;
}

static void assert_params(const params *found, const int32_t expected[4][P])
{
    assert_memory_equal(found->input_offsets, expected[0], sizeof found->input_offsets);
    assert_memory_equal(found->send_sizes, expected[1], sizeof found->send_sizes);
    assert_memory_equal(found->output_offsets, expected[2], sizeof found->output_offsets);
    assert_memory_equal(found->recv_sizes, expected[3], sizeof found->recv_sizes);
}

/* test_get_all_to_all_params_sharded_batch */
static const int32_t split_batch[P][P] = {{1, 2, 0, 3}, {4, 0, 1, 2}, {0, 3, 2, 1}, {2, 1, 4, 0}};

TEST(params_of_a_split_batch)
{
    static const int32_t expected[P][4][P] = {
        {{0, 1, 3, 3}, {1, 2, 0, 3}, {0, 0, 0, 0}, {1, 4, 0, 2}},
        {{0, 4, 4, 5}, {4, 0, 1, 2}, {1, 2, 0, 3}, {2, 0, 3, 1}},
        {{0, 0, 3, 5}, {0, 3, 2, 1}, {5, 2, 1, 5}, {0, 1, 2, 4}},
        {{0, 2, 3, 7}, {2, 1, 4, 0}, {5, 5, 3, 6}, {3, 2, 1, 0}},
    };
    const assay_traffic traffic = {&split_batch[0][0], P, true, -1, ASSAY_DISPATCH};
    for (int64_t shard = 0; shard < P; shard++) {
        const params found = params_of(shard, &traffic);
        assert_params(&found, expected[shard]);
    }
}

/* test_get_all_to_all_params_unsharded_batch */
TEST(params_of_a_whole_batch)
{
    static const int32_t sizes[P] = {6, 7, 6, 7}, offsets[P] = {0, 6, 13, 19};
    const assay_traffic traffic = {sizes, P, false, -1, ASSAY_COMBINE};
    for (int64_t shard = 0; shard < P; shard++) {
        const params found = params_of(shard, &traffic);
        const int32_t size = sizes[shard], offset = offsets[shard];
        const int32_t expected[4][P] = {
            {0, 0, 0, 0}, {size, size, size, size}, {offset, offset, offset, offset}, {6, 7, 6, 7}};
        assert_params(&found, expected);
    }
}

/* What was dispatched comes back to where it was, so the combine is the dispatch of the transposed matrix. */
TEST(a_combine_is_the_way_back)
{
    int32_t transposed[P][P];
    for (int i = 0; i < P; i++)
        for (int j = 0; j < P; j++) transposed[j][i] = split_batch[i][j];
    const assay_traffic combine = {&split_batch[0][0], P, true, -1, ASSAY_COMBINE};
    const assay_traffic dispatch = {&transposed[0][0], P, true, -1, ASSAY_DISPATCH};
    for (int64_t shard = 0; shard < P; shard++) {
        const params back = params_of(shard, &combine), forth = params_of(shard, &dispatch);
        assert_memory_equal(&back, &forth, sizeof back);
    }
}

/* Columns of split_batch add up to 7, 6, 7 and 6; buffers of 5 rows cut the last senders. */
TEST(traffic_is_cut_at_the_buffer)
{
    static const int32_t expected[P][P] = {{1, 2, 0, 3}, {4, 0, 1, 2}, {0, 3, 2, 0}, {0, 0, 2, 0}};
    static const int32_t none[P][P];
    int32_t truncated[P][P];
    memset(truncated, 0x7f, sizeof truncated);
    assay_truncate_traffic(&truncated[0][0], &split_batch[0][0], P, 5);
    assert_memory_equal(truncated, expected, sizeof expected);
    assay_truncate_traffic(&truncated[0][0], &split_batch[0][0], P, 7);
    assert_memory_equal(truncated, split_batch, sizeof split_batch);
    assay_truncate_traffic(&truncated[0][0], &split_batch[0][0], P, 0);
    assert_memory_equal(truncated, none, sizeof none);
}

/* A dispatch still reads from where the uncut rows lie, and a combine writes to there. */
TEST(cut_traffic_keeps_its_places)
{
    static const int32_t dispatch_of_2[4][P] = {{0, 0, 3, 5}, {0, 3, 2, 0}, {5, 2, 1, 5}, {0, 1, 2, 2}};
    static const int32_t combine_of_2[4][P] = {{0, 0, 1, 3}, {0, 1, 2, 2}, {3, 4, 3, 3}, {0, 3, 2, 0}};
    const assay_traffic dispatch = {&split_batch[0][0], P, true, 5, ASSAY_DISPATCH};
    const assay_traffic combine = {&split_batch[0][0], P, true, 5, ASSAY_COMBINE};
    params found = params_of(2, &dispatch);
    assert_params(&found, dispatch_of_2);
    found = params_of(2, &combine);
    assert_params(&found, combine_of_2);
}

/* test_local_permute_no_offset: expert e has e tokens, one sender; four shards of two experts. */
TEST_WITH_CONTEXT(rows_of_one_sender_are_sorted_already)
{
    static const int32_t sizes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t shard = 0; shard < 4; shard++) {
        const int32_t first = sizes[2 * shard], second = sizes[2 * shard + 1], rows = first + second;
        int32_t indices[13], groups[2], ids[13];
        const assay_local_permute_args args = {.global_group_sizes = sizes,
                                               .senders = 1,
                                               .num_experts = 8,
                                               .local_experts = 2,
                                               .shard = shard,
                                               .rows = rows};
        memset(ids, 0x7f, sizeof ids);
        assert_ok(&ctx, assay_local_permute(&ctx, indices, groups, ids, &args));
        assert_int_equal(groups[0], first);
        assert_int_equal(groups[1], second);
        for (int32_t row = 0; row < rows; row++) {
            assert_int_equal(indices[row], row);
            assert_int_equal(ids[row], row >= first);
        }
    }
}

/* test_local_permute_offset: all tokens are on every shard, sorted by expert; a shard takes those of its two experts.
 */
TEST_WITH_CONTEXT(rows_of_other_shards_come_last)
{
    static const int32_t tables[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 0, 2, 2}};
    for (int t = 0; t < 2; t++) {
        int32_t experts[28], rows = 0, before = 0;
        for (int32_t e = 0; e < 8; e++)
            for (int32_t i = 0; i < tables[t][e]; i++) experts[rows++] = e;
        for (int32_t shard = 0; shard < 4; shard++) {
            const int32_t first = tables[t][2 * shard], own = first + tables[t][2 * shard + 1];
            int32_t indices[28], groups[2], ids[28];
            const assay_local_permute_args args = {.global_group_sizes = tables[t],
                                                   .senders = 1,
                                                   .num_experts = 8,
                                                   .local_experts = 2,
                                                   .shard = shard,
                                                   .rows = rows,
                                                   .sorted_experts = experts};
            assert_ok(&ctx, assay_local_permute(&ctx, indices, groups, ids, &args));
            assert_int_equal(groups[0], first);
            assert_int_equal(groups[1], own - first);
            for (int32_t row = 0; row < rows; row++) {
                const int32_t other = row - own;
                assert_int_equal(indices[row], row < own ? before + row : other < before ? other : row);
                assert_int_equal(ids[row], row < own ? row >= first : 2);
            }
            before += own;
        }
    }
}

/* Two senders, each sorted by expert: shard 1 has experts 2 and 3; rows beyond the six tokens are padding. */
TEST_WITH_CONTEXT(rows_of_two_senders_are_merged)
{
    static const int32_t sizes[2][4] = {{5, 0, 2, 1}, {0, 1, 1, 2}};
    static const int32_t expected[8] = {0, 1, 3, 2, 4, 5, 6, 7}, labels[8] = {0, 0, 0, 1, 1, 1, 1, 1};
    static const int32_t cut_groups[2] = {3, 1};
    int32_t indices[8], groups[2], ids[8];
    assay_local_permute_args args = {
        .global_group_sizes = &sizes[0][0], .senders = 2, .num_experts = 4, .local_experts = 2, .shard = 1, .rows = 8};
    assert_ok(&ctx, assay_local_permute(&ctx, indices, groups, ids, &args));
    assert_memory_equal(indices, expected, sizeof expected);
    assert_memory_equal(ids, labels, sizeof labels);
    assert_int_equal(groups[0], 3);
    assert_int_equal(groups[1], 3);
    /* In a buffer of four the second sender's two rows of expert 3 are missing. */
    args.rows = 4;
    args.truncate = true;
    assert_ok(&ctx, assay_local_permute(&ctx, indices, groups, NULL, &args));
    assert_memory_equal(indices, expected, 4 * sizeof *expected);
    assert_memory_equal(groups, cut_groups, sizeof cut_groups);
}

/* test_ragged_buffer_balanced, _larger, test_small_ep_worst_case, test_large_ep_worst_case */
TEST(buffers_have_room)
{
    static const struct {
        int64_t expert_shards;
        double factor;
        int64_t expected;
    } table[] = {{4, 1.0, 32768}, {4, 2.0, 65536}, {4, -1.0, 131072}, {128, -1.0, 1048576}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(assay_ragged_buffer_rows(32768, table[i].expert_shards, 256, 8, table[i].factor),
                         table[i].expected);
    }
}
