/* What is sharded, the sizes that follow, and what a run refuses; harness/tests/test_plan.c has what a plan does. */

#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

TEST(test_what_is_sharded)
{
    moe_case c = moe_case_deepseek3(2, 6, 4, 2, 4, 2);
    assay_sharding s = {0};
    assert_false(assay_is_sharded(&c.config, &s));
    s = sharded_case_mesh(1, 1, 1);
    assert_false(assay_is_sharded(&c.config, &s));
    for (int key = 0; key < 11; key++) {
        s = sharded_case_mesh(1 + (key == 0), 1 + (key == 1), 1 + (key == 2));
        s.tensor_shards = 1 + (key == 3);
        s.ring_of_experts = key == 4;
        s.ragged_buffer_factor = key == 5 ? 0.5 : -1;
        s.emb_chunks = key == 6;
        s.token_chunks = 1 + (key == 7);
        s.weight_before_wo = key == 8;
        s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 1 + (key == 9);
        s.weights_on_shards = key == 10;
        c.config.path = ASSAY_MOE_SPARSE;
        assert_true(assay_is_sharded(&c.config, &s));
        c.config.path = ASSAY_MOE_FUSED;
        assert_true(assay_is_sharded(&c.config, &s));
        c.config.path = ASSAY_MOE_DENSE;
        assert_false(assay_is_sharded(&c.config, &s));
        c.config.path = ASSAY_MOE_DROPPING;
        assert_false(assay_is_sharded(&c.config, &s));
    }
}

TEST(test_sizes)
{
    moe_case c = moe_case_deepseek3(8, 6, 16, 4, 4, 2);
    assay_sharding sharding = sharded_case_mesh(2, 1, 2);
    assay_shard_sizes s = assay_shard_sizes_of(&c.config, &sharding);
    assert_int_equal(s.shards, 4);
    assert_int_equal(s.expert_shards, 2);
    assert_true(s.batch_sharded);
    assert_int_equal(s.own_batch, 2);
    assert_int_equal(s.batch, 2);
    assert_int_equal(s.copies, 2 * 6 * 4);
    assert_int_equal(s.buffer, 2 * s.copies);
    assert_int_equal(s.local_experts, 8);
    sharding.ragged_buffer_factor = 1.3;
    assert_int_equal(assay_shard_sizes_of(&c.config, &sharding).buffer, 62); /* int(62.4) */
    sharding.ragged_buffer_factor = -1;
    sharding.ring_of_experts = true;
    sharding.token_chunks = 3;
    s = assay_shard_sizes_of(&c.config, &sharding);
    assert_int_equal(s.own_batch, 2);
    assert_int_equal(s.batch, 4);
    assert_int_equal(s.chunks, 3);
    assert_int_equal(s.sequence, 2);
    assert_int_equal(s.copies, 4 * 2 * 4);
    assert_int_equal(s.buffer, s.copies);
    c.config.routing.batch = 1;
    sharding = sharded_case_mesh(1, 1, 8);
    s = assay_shard_sizes_of(&c.config, &sharding);
    assert_false(s.batch_sharded);
    assert_int_equal(s.own_batch, 1);
    assert_int_equal(s.batch, 1);
    assert_int_equal(s.buffer, 6 * 4);
    assert_int_equal(s.local_experts, 2);
}

static void refuse(moe_case *c, const assay_sharding *sharding, const char *text)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    assay_source source = test_tensors_source(&c->in);
    assay_sink sink = test_tensors_sink(&out);
    assert_bad_input(&ctx, assay_moe_run(&ctx, &c->config, sharding, &source, &sink), text);
    moe_case_free(c);
}

TEST(test_missing_tensors_and_experts_are_refused)
{
    moe_case c;
    assay_sharding s = sharded_case_mesh(1, 1, 1);
    s.ring_of_experts = true;
    static const char *const needed[] = {"inputs/x", "weights/gate/kernel", "weights/wi_0", "weights/wi_1",
                                         "weights/wo"};
    for (int i = 0; i < 5; i++) {
        c = moe_case_deepseek3(2, 6, 4, 2, 3, 2);
        moe_case_fill(&c, false);
        test_tensors_remove(&c.in, needed[i]);
        refuse(&c, &s, needed[i]);
    }
    /* A choice outside the experts. */
    s = sharded_case_mesh(2, 1, 1);
    c = moe_case_deepseek3(2, 1, 4, 2, 3, 2);
    moe_case_fill(&c, false);
    memcpy(test_tensors_add_i32(&c.in, "routing/selected_experts", 4), (int32_t[]){0, 1, 4, 2}, 4 * sizeof(int32_t));
    refuse(&c, &s, "expert");
}

/* The numbers of MaxText's tests of get_ragged_buffer_size (DeepSeek-V3, 32768 copies a shard), where it is FSDP beside expert
 * parallelism that leaves a shard so many: the other axes count for nothing. */
TEST(test_ragged_buffers_with_fsdp)
{
    static const struct {
        int64_t mesh[4];
        double factor;
        int64_t buffer;
    } table[] = {
        {{1, 1, 4, 1}, 1.0, 32768},   {{1, 4, 4, 1}, 1.0, 32768},   {{2, 8, 4, 1}, 2.0, 65536},
        {{1, 4, 4, 2}, -1.0, 131072}, {{2, 2, 4, 8}, -1.0, 131072}, {{1, 2, 128, 1}, -1.0, 1048576},
        {{4, 16, 1, 1}, -1.0, 32768},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const int64_t *mesh = table[i].mesh, shards = mesh[0] * mesh[1] * mesh[2];
        assay_context ctx = assay_context_default(1);
        const moe_case c = moe_case_deepseek3(shards, 4096, 256, 8, 64, 64);
        assay_sharding s = sharded_case_mesh(mesh[0], mesh[1], mesh[2]);
        s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = mesh[3];
        s.ragged_buffer_factor = table[i].factor;
        assert_ok(&ctx, assay_sharded_moe_check(&ctx, &c.config, &s));
        assert_int_equal(assay_shard_sizes_of(&c.config, &s).copies, 32768);
        assert_int_equal(assay_shard_sizes_of(&c.config, &s).buffer, table[i].buffer);
    }
}
