/* What is sharded, the sizes that follow, and what is refused. */

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/tests/sharded_case.h"
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
    assert_bad_input(&ctx, assay_sharded_moe_run(&ctx, &c->config, sharding, &source, &sink), text);
    assert_int_equal(out.set.count, 0);
}

/* One of the sharding's keys after the other is wrong. */
TEST(test_refused_shardings)
{
    moe_case c = moe_case_deepseek3(4, 6, 4, 2, 12, 2);
    const assay_sharding ring = {.mesh = {{2, 1, 2}}, .tensor_shards = 1, .ring_of_experts = true, .token_chunks = 1};
    const assay_sharding ragged = {.mesh = {{2, 1, 2}}, .tensor_shards = 1, .token_chunks = 1};
    const assay_sharding zeroed = {0};
    assay_sharding s;
    refuse(&c, &zeroed, "mesh.data is 0, expected at least 1");
#define REFUSED(from, member, value, text)                                                                             \
    do {                                                                                                               \
        s = (from);                                                                                                    \
        s.member = (value);                                                                                            \
        refuse(&c, &s, text);                                                                                          \
    } while (0)
    REFUSED(ragged, mesh.size[ASSAY_AXIS_FSDP], -1, "mesh.fsdp is -1");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_EXPERT], 0, "mesh.expert is 0");
    REFUSED(ragged, tensor_shards, 0, "mesh.tensor is 0");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_MLP_TENSOR], -1, "mesh.mlp_tensor is -1");
    REFUSED(ring, emb_chunks, -1, "num_moe_emb_chunks is -1, expected at least 0");
    REFUSED(ring, token_chunks, 0, "num_moe_token_chunks is 0, expected at least 1");
    REFUSED(ragged, ragged_buffer_factor, NAN, "ragged_buffer_factor is ");
    REFUSED(ragged, ragged_buffer_factor, INFINITY, "ragged_buffer_factor is inf, expected a finite number");
    REFUSED(ragged, emb_chunks, 2, "num_moe_emb_chunks is 2, which needs use_ring_of_experts=true");
    REFUSED(ragged, token_chunks, 2, "num_moe_token_chunks is 2, which needs use_ring_of_experts=true");
    REFUSED(ring, ragged_buffer_factor, 1.5, "ragged_buffer_factor is 1.5, which needs mesh.expert of 2 or more");
    REFUSED(ragged, ragged_buffer_factor, 0.05, "makes a buffer of 0 rows for 12 copies");
    REFUSED(ragged, ragged_buffer_factor, 1e300, "expected 1 to 2147483647");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_DATA], 3, "batch is 4, expected a multiple of the mesh's 6 shards");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_FSDP], 4, "batch is 4, expected a multiple of the mesh's 16 shards");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_DATA], INT64_MAX, "mesh: its size does not fit");
    REFUSED(ragged, tensor_shards, 5, "emb_dim is 12, expected a multiple of mesh.tensor, which is 5");
    REFUSED(ragged, mesh.size[ASSAY_AXIS_MLP_TENSOR], 4,
            "moe_mlp_dim is 2, expected a multiple of mesh.mlp_tensor, which is 4");
    REFUSED(ring, emb_chunks, 5, "num_moe_emb_chunks, which is 5");
    REFUSED(ring, token_chunks, 4, "sequence is 6, expected a multiple of num_moe_token_chunks, which is 4");
    REFUSED(ring, token_chunks, 12, "num_moe_token_chunks, which is 12");
    s = ragged;
    s.mesh.size[ASSAY_AXIS_EXPERT] = 1;
    s.ragged_buffer_factor = 1;
    refuse(&c, &s, "found mesh.expert=1 and use_ring_of_experts=false");
    s = ragged;
    s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 5;
    c.config.moe_mlp_dim = 10;
    refuse(&c, &s, "emb_dim (psum_scatter) is 12, expected a multiple of mesh.mlp_tensor, which is 5");
    s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 2;
    c.config.shared_mlp_dim = 5;
    refuse(&c, &s, "width of the shared expert is 5, expected a multiple of mesh.mlp_tensor, which is 2");
    c.config.moe_mlp_dim = 2;
    c.config.shared_mlp_dim = 0;
    s = ring;
    s.tensor_shards = 3;
    s.emb_chunks = 3;
    refuse(&c, &s, "emb_dim is 12 (mesh.tensor 3)");
#undef REFUSED
}

TEST(test_refused_with_fused_moe_func)
{
    OWNED_BY(moe_case_free) moe_case c = sharded_case(SHARDED_CASE_FUSED, 8);
    assay_sharding s = sharded_case_mesh(3, 1, 2);
    refuse(&c, &s, "batch is 8, expected a multiple of the 3 shards of data and fsdp");
    s = sharded_case_mesh(1, 1, 2);
    s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 5;
    refuse(&c, &s, "is parallel over mesh.expert or over mesh.mlp_tensor, found 2 and 5");
    s = sharded_case_mesh(1, 1, 1);
    s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 2;
    refuse(&c, &s, "moe_mlp_dim is 5, expected a multiple of mesh.mlp_tensor, which is 2");
    s = sharded_case_mesh(1, 1, 3);
    refuse(&c, &s, "num_experts is 8, expected a multiple of mesh.expert, which is 3");
    for (int key = 0; key < 6; key++) {
        static const char *const names[] = {"mesh.tensor",        "use_ring_of_experts",  "ragged_buffer_factor",
                                            "num_moe_emb_chunks", "num_moe_token_chunks", "weight_before_wo"};
        char text[128];
        s = sharded_case_mesh(1, 1, 2);
        s.tensor_shards = 1 + (key == 0);
        s.ring_of_experts = key == 1;
        s.ragged_buffer_factor = key == 2 ? 1 : -1;
        s.emb_chunks = key == 3 ? 2 : 0;
        s.token_chunks = key == 4 ? 2 : 1;
        s.weight_before_wo = key == 5;
        snprintf(text, sizeof text, "fused_moe_func=true goes without %s, found it", names[key]);
        refuse(&c, &s, text);
    }
}

TEST(test_refused_blocks)
{
    assay_sharding s = sharded_case_mesh(1, 1, 2);
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 6, 4, 2, 12, 2);
    s.ring_of_experts = true;
    refuse(&c, &s, "batch is 1, expected a multiple of the mesh's 2 shards");
    s = sharded_case_mesh(2, 1, 2);
    refuse(&c, &s, "batch is 1, expected a multiple of the mesh's 4 shards");
    s = sharded_case_mesh(1, 1, 3);
    refuse(&c, &s, "num_experts is 4, expected a multiple of mesh.expert, which is 3");
    c = moe_case_deepseek3(4, 4, 4, 5, 12, 2);
    refuse(&c, &s, "num_experts_per_tok");
    s = sharded_case_mesh(1, 1, 2);
    c = moe_case_deepseek3(4, 4, 4, 2, 12, 2);
    c.config.path = ASSAY_MOE_DENSE;
    refuse(&c, &s, "needs sparse_matmul=true, found the dense path");
    c.config.path = ASSAY_MOE_DROPPING;
    c.config.capacity_factor = 1;
    refuse(&c, &s, "found the dropping path");
    c = moe_case_deepseek3(4, 4, 4, 1, 12, 2);
    c.config.routing.family = ASSAY_ROUTER_LLAMA4;
    c.config.routing.score_func = ASSAY_SCORE_NONE;
    s.weight_before_wo = true;
    refuse(&c, &s, "decoder_block=llama4");
    c = moe_case_deepseek3(1 << 15, 1 << 15, 4, 1, 1, 1);
    s = sharded_case_mesh(1, 1, 2);
    s.ragged_buffer_factor = 4;
    refuse(&c, &s, "makes a buffer of 2147483648 rows");

    s = sharded_case_mesh(1, 1, 1);
    s.ring_of_experts = true;
    static const char *const needed[] = {"inputs/x", "weights/gate/kernel", "weights/wi_0", "weights/wi_1",
                                         "weights/wo"};
    for (int i = 0; i < 5; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(test_tensors_free) test_tensors out = {0};
        c = moe_case_deepseek3(2, 6, 4, 2, 3, 2);
        moe_case_fill(&c, false);
        test_tensors_remove(&c.in, needed[i]);
        assay_source source = test_tensors_source(&c.in);
        assay_sink sink = test_tensors_sink(&out);
        assert_bad_input(&ctx, assay_sharded_moe_run(&ctx, &c.config, &s, &source, &sink), needed[i]);
        moe_case_free(&c);
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
