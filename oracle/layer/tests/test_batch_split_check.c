/* What the batch-split schedule refuses; its sizes, and the batch in microbatches. */

#include "oracle/arithmetic/arithmetic.h"
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
    double *const split[FACTOR] = {parts[0], parts[1], parts[2]};
    int32_t *const y_split[FACTOR] = {y_parts[0], y_parts[1], y_parts[2]};
    for (int i = 0; i < COUNT; i++) y[i] = i, x[i] = i;
    assay_fill_nan(&parts[0][0], COUNT);
    assay_fill_nan(back, COUNT);
    bs_split(split, x, &run, WIDTH);
    bs_split_i32(y_split, y, &run, WIDTH);
    for (int i = 0; i < COUNT; i++) {
        const int row = i / WIDTH % (FACTOR * ROWS), shard = i / WIDTH / (FACTOR * ROWS);
        const int at = (shard * ROWS + row / FACTOR) * WIDTH + i % WIDTH;
        assert_true(parts[row % FACTOR][at] == x[i]);
        assert_int_equal(y_parts[row % FACTOR][at], y[i]);
    }
    bs_merge(back, (const double *const *)split, &run, WIDTH);
    bs_merge_i32(y_back, (const int32_t *const *)y_split, &run, WIDTH);
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

/* Says so in its message; then *c is as it was before. */
static void refuse(assay_stack_config *c, const assay_stack_config *good, const char *message)
{
    assay_context ctx = assay_context_default(1);
    assert_bad_input(&ctx, assay_batch_split_check(&ctx, c), message);
    *c = *good;
}

TEST_WITH_CONTEXT(what_it_lacks_is_refused)
{
    OWNED_BY(layer_case_free) layer_case plain = split_case_plain(4, 0, 8, 2);
    const assay_stack_config good = split_case_of(&plain, (assay_mesh){{1, 2, 2}}, 2).config;
    assay_stack_config c = good;
    assert_ok(&ctx, assay_batch_split_check(&ctx, &good));
    c.batch_split_factor = -1;
    refuse(&c, &good, "batch_split_factor is -1, expected 1 to 16");
    c.batch_split_factor = 17;
    refuse(&c, &good, "batch_split_factor is 17");
    c.batch_split_factor = 3;
    refuse(&c, &good, "batch is 8, expected a multiple of 4 shards (mesh) times 3 (batch_split_factor)");
    c.sharding.mesh.size[ASSAY_AXIS_DATA] = 3;
    refuse(&c, &good, "batch is 8, expected a multiple of 12 shards (mesh) times 2");
    c.sharding.mesh.size[ASSAY_AXIS_DATA] = 0;
    refuse(&c, &good, "mesh.data is 0, expected at least 1");
    c.sharding = (assay_sharding){0};
    refuse(&c, &good, "mesh.data is 0, expected at least 1");
    for (int axis = 0; axis <= ASSAY_AXIS_EXPERT; axis++) c.sharding.mesh.size[axis] = INT64_C(1) << 40;
    c.moe.routing.num_experts = c.mla.emb_dim = c.mla.q_lora_rank = c.mla.kv_lora_rank = INT64_C(1) << 40;
    refuse(&c, &good, "mesh and batch_split_factor: its size does not fit in 64 bits");
    c.single = true;
    c.layers = c.dense_layers = 1;
    refuse(&c, &good, "needs 1 MoE layers or more, found 0");
    c.moe.routing.family = ASSAY_ROUTER_DEFAULT;
    refuse(&c, &good, "the routing of deepseek3");
    c.moe.routing.hash_rows = 3;
    refuse(&c, &good, "the routing of deepseek3");
    c.sharding.token_chunks = 2;
    refuse(&c, &good, "no chunks");
    c.dense_layers = 1;
    refuse(&c, &good, "needs 4 MoE layers or more, found 3");
    c.moe.routing.num_experts = 5;
    refuse(&c, &good, "num_experts is 5, expected a multiple of mesh.expert = 2");
    c.mla.emb_dim = 7;
    refuse(&c, &good, "base_emb_dim is 7, expected a multiple of mesh.fsdp = 2");
    c.mla.q_lora_rank = 5;
    refuse(&c, &good, "q_lora_rank is 5, expected a multiple of mesh.fsdp = 2");
    c.mla.kv_lora_rank = 5;
    refuse(&c, &good, "kv_lora_rank is 5, expected a multiple of mesh.fsdp = 2");
    c.mla.q_lora_rank = 0;
    refuse(&c, &good, "q_lora_rank above 0");
    c.mla.rope.pairwise = false;
    refuse(&c, &good, "rope_pairwise=true");
    c.mla.rope.attention_scaling = true;
    refuse(&c, &good, "rope_attention_scaling=false");
    c.moe.routing.score_func = ASSAY_SCORE_SOFTMAX;
    refuse(&c, &good, "routed_score_func=sigmoid");
    c.moe.routing.n_routing_groups = 2;
    c.moe.routing.group_score = ASSAY_GROUP_MAX;
    refuse(&c, &good, "group_score=top2_sum");
    c.moe.routing.load_balance_loss_weight = 1;
    refuse(&c, &good, "load_balance_loss_weight=0");
    c.moe.routing.routed_bias_update_rate = 1;
    refuse(&c, &good, "routed_bias_update_rate=0");
    c.moe.path = ASSAY_MOE_DENSE;
    refuse(&c, &good, "sparse_matmul=true");
    c.moe.fused_weights = true;
    refuse(&c, &good, "experts that are not fused");
    c.moe.glu = ASSAY_GLU_CLAMPED;
    refuse(&c, &good, "mlp_activations=[silu, linear], not clamped");
    c.moe.activation = ASSAY_GELU;
    refuse(&c, &good, "mlp_activations=[silu, linear], not clamped");
    c.moe.shared_mlp_dim = 0;
    refuse(&c, &good, "shared_experts above 0");
    c.sharding.ring_of_experts = true;
    refuse(&c, &good, "use_ring_of_experts=false");
    c.sharding.ragged_buffer_factor = 1;
    refuse(&c, &good, "no ragged_buffer_factor");
    c.sharding.emb_chunks = 2;
    refuse(&c, &good, "no chunks");
    c.sharding.tensor_shards = 2;
    refuse(&c, &good, "mesh.tensor=1");
    c.sharding.weights_on_shards = true;
    refuse(&c, &good, "weights_on_shards=false");
    c.sharding.fsdp_transpose = 2;
    refuse(&c, &good, "mesh.fsdp_transpose=1");
    c.sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 2;
    refuse(&c, &good, "mesh.mlp_tensor=1");
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
