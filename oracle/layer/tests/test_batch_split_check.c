/* Sizes of the batch-split schedule, and the batch in microbatches; harness/tests/test_plan.c has what it refuses. */

#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/tests/split_case.h"
#include "tests/support/assay_test.h"

/* Row r of a shard goes to microbatch r mod f. */
TEST(rows_alternate)
{
    enum { SHARDS = 2, FACTOR = 3, ROWS = 2, WIDTH = 2, COUNT = SHARDS * FACTOR * ROWS * WIDTH };
    const bs_run run = {.factor = FACTOR, .sizes = {.shards = SHARDS, .rows = ROWS}};
    double x[COUNT], back[COUNT], parts[FACTOR][SHARDS * ROWS * WIDTH];
    int32_t y[COUNT], y_back[COUNT], y_parts[FACTOR][SHARDS * ROWS * WIDTH];
    for (int i = 0; i < COUNT; i++) y[i] = i, x[i] = i;
    assay_fill_nan(&parts[0][0], COUNT);
    assay_fill_nan(back, COUNT);
    for (int m = 0; m < FACTOR; m++) {
        bs_move_rows(&run, m, x, parts[m], WIDTH * sizeof *x, false);
        bs_move_rows(&run, m, y, y_parts[m], WIDTH * sizeof *y, false);
        bs_move_rows(&run, m, back, parts[m], WIDTH * sizeof *x, true);
        bs_move_rows(&run, m, y_back, y_parts[m], WIDTH * sizeof *y, true);
    }
    for (int i = 0; i < COUNT; i++) {
        const int row = i / WIDTH % (FACTOR * ROWS), shard = i / WIDTH / (FACTOR * ROWS);
        const int at = (shard * ROWS + row / FACTOR) * WIDTH + i % WIDTH;
        assert_true(parts[row % FACTOR][at] == x[i]);
        assert_int_equal(y_parts[row % FACTOR][at], y[i]);
    }
    assert_memory_equal(back, x, sizeof x);
    assert_memory_equal(y_back, y, sizeof y);
}

/* Of a microbatch: 24 rows on 12 shards, of them 4 along expert, 5 tokens a row. */
TEST(sizes_of_a_microbatch)
{
    layer_case c = layer_case_make(4, 0, 48, 5);
    c.config.moe.routing.num_experts = 8;
    c.config.moe.routing.num_experts_per_tok = 3;
    c.config.batch_split_factor = 2;
    c.config.sharding.mesh = (assay_mesh){{3, 1, 4}};
    const assay_batch_split_sizes s = assay_batch_split_sizes_of(&c.config);
    assert_int_equal(s.shards, 12);
    assert_int_equal(s.expert_shards, 4);
    assert_int_equal(s.rows, 2);
    assert_int_equal(s.tokens, 2 * 5);
    assert_int_equal(s.gathered, 4 * 2 * 5);
    assert_int_equal(s.copies, 4 * 2 * 5 * 3);
    assert_int_equal(s.capacity, 4 * 2 * 5 * 3 / 4 * 2);
    assert_int_equal(s.local_experts, 2);
}

TEST_WITH_CONTEXT(segments_are_refused)
{
    layer_case plain = split_case_plain(4, 0, 2, 1);
    layer_case split = split_case_of(&plain, (assay_mesh){{1, 1, 1}}, 2);
    int32_t *segments = test_tensors_add_i32(&split.in, "inputs/segment_ids", 2);
    OWNED_BY(test_tensors_free) test_tensors found = {0};
    const assay_source in = test_tensors_source(&split.in);
    const assay_sink out = test_tensors_sink(&found);
    assert_non_null(segments);
    segments[0] = segments[1] = 1;
    assert_bad_input(&ctx, assay_stack_run(&ctx, &split.config, &in, &out),
                     "inputs/segment_ids: use_batch_split_schedule has none");
    assert_int_equal(found.set.count, 0);
    assay_tensor_set_free(&split.in.set);
}
