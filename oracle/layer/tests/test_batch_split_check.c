/* What the batch-split schedule refuses; its sizes, and the batch in microbatches. */
#include <stdio.h>
#include <string.h>

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

typedef void (*change)(assay_stack_config *c);
static void factor_0(assay_stack_config *c)
{
    c->batch_split_factor = -1;
}
static void factor_17(assay_stack_config *c)
{
    c->batch_split_factor = 17;
}
static void factor_3(assay_stack_config *c)
{
    c->batch_split_factor = 3;
}
static void data_3(assay_stack_config *c)
{
    c->sharding.mesh.size[ASSAY_AXIS_DATA] = 3;
}
static void data_0(assay_stack_config *c)
{
    c->sharding.mesh.size[ASSAY_AXIS_DATA] = 0;
}
static void no_sharding(assay_stack_config *c)
{
    c->sharding = (assay_sharding){0};
}
static void huge_mesh(assay_stack_config *c)
{
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) c->sharding.mesh.size[axis] = INT64_C(1) << 40;
    c->moe.routing.num_experts = c->mla.emb_dim = c->mla.q_lora_rank = c->mla.kv_lora_rank = INT64_C(1) << 40;
}
static void one_dense_layer(assay_stack_config *c)
{
    c->single = true, c->layers = c->dense_layers = 1;
}
static void mixtral(assay_stack_config *c)
{
    c->moe.routing.family = ASSAY_ROUTER_DEFAULT;
}
static void hashes(assay_stack_config *c)
{
    c->moe.routing.hash_rows = 3;
}
static void token_chunks(assay_stack_config *c)
{
    c->sharding.token_chunks = 2;
}
static void three_layers(assay_stack_config *c)
{
    c->dense_layers = 1;
}
static void experts_3(assay_stack_config *c)
{
    c->moe.routing.num_experts = 5;
}
static void dim_7(assay_stack_config *c)
{
    c->mla.emb_dim = 7;
}
static void q_lora_5(assay_stack_config *c)
{
    c->mla.q_lora_rank = 5;
}
static void kv_lora_5(assay_stack_config *c)
{
    c->mla.kv_lora_rank = 5;
}
static void no_compression(assay_stack_config *c)
{
    c->mla.q_lora_rank = 0;
}
static void not_pairwise(assay_stack_config *c)
{
    c->mla.rope.pairwise = false;
}
static void scaled(assay_stack_config *c)
{
    c->mla.rope.attention_scaling = true;
}
static void softmax(assay_stack_config *c)
{
    c->moe.routing.score_func = ASSAY_SCORE_SOFTMAX;
}
static void group_max(assay_stack_config *c)
{
    c->moe.routing.n_routing_groups = 2, c->moe.routing.group_score = ASSAY_GROUP_MAX;
}
static void loss(assay_stack_config *c)
{
    c->moe.routing.load_balance_loss_weight = 1;
}
static void updates(assay_stack_config *c)
{
    c->moe.routing.routed_bias_update_rate = 1;
}
static void dense_path(assay_stack_config *c)
{
    c->moe.path = ASSAY_MOE_DENSE;
}
static void fused(assay_stack_config *c)
{
    c->moe.fused_weights = true;
}
static void clamped(assay_stack_config *c)
{
    c->moe.glu = ASSAY_GLU_CLAMPED;
}
static void gelu(assay_stack_config *c)
{
    c->moe.activation = ASSAY_GELU;
}
static void not_shared(assay_stack_config *c)
{
    c->moe.shared_mlp_dim = 0;
}
static void ring(assay_stack_config *c)
{
    c->sharding.ring_of_experts = true;
}
static void buffer(assay_stack_config *c)
{
    c->sharding.ragged_buffer_factor = 1;
}
static void chunks(assay_stack_config *c)
{
    c->sharding.emb_chunks = 2;
}
static void tensor(assay_stack_config *c)
{
    c->sharding.tensor_shards = 2;
}

TEST(what_it_lacks_is_refused)
{
    static const struct {
        change apply;
        const char *message;
    } table[] = {
        {factor_0, "batch_split_factor is -1, expected 1 to 16"},
        {factor_17, "batch_split_factor is 17"},
        {factor_3, "batch is 8, expected a multiple of 4 shards (mesh) times 3 (batch_split_factor)"},
        {data_3, "batch is 8, expected a multiple of 12 shards (mesh) times 2"},
        {data_0, "mesh.data is 0, expected at least 1"},
        {no_sharding, "mesh.data is 0, expected at least 1"},
        {huge_mesh, "mesh and batch_split_factor: its size does not fit in 64 bits"},
        {one_dense_layer, "needs 1 MoE layers or more, found 0"},
        {mixtral, "the routing of deepseek3"},
        {hashes, "the routing of deepseek3"},
        {token_chunks, "no chunks"},
        {three_layers, "needs 4 MoE layers or more, found 3"},
        {experts_3, "num_experts is 5, expected a multiple of mesh.expert = 2"},
        {dim_7, "base_emb_dim is 7, expected a multiple of mesh.fsdp = 2"},
        {q_lora_5, "q_lora_rank is 5, expected a multiple of mesh.fsdp = 2"},
        {kv_lora_5, "kv_lora_rank is 5, expected a multiple of mesh.fsdp = 2"},
        {no_compression, "q_lora_rank above 0"},
        {not_pairwise, "rope_pairwise=true"},
        {scaled, "rope_attention_scaling=false"},
        {softmax, "routed_score_func=sigmoid"},
        {group_max, "group_score=top2_sum"},
        {loss, "load_balance_loss_weight=0"},
        {updates, "routed_bias_update_rate=0"},
        {dense_path, "sparse_matmul=true"},
        {fused, "experts that are not fused"},
        {clamped, "mlp_activations=[silu, linear], not clamped"},
        {gelu, "mlp_activations=[silu, linear], not clamped"},
        {not_shared, "shared_experts above 0"},
        {ring, "use_ring_of_experts=false"},
        {buffer, "no ragged_buffer_factor"},
        {chunks, "no chunks"},
        {tensor, "mesh.tensor=1"},
    };
    layer_case plain = split_case_plain(4, 0, 8, 2);
    const layer_case good = split_case_of(&plain, (assay_mesh){{1, 2, 2}}, 2);
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_batch_split_check(&ctx, &good.config));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_stack_config config = good.config;
        table[i].apply(&config);
        assert_int_equal(assay_batch_split_check(&ctx, &config), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, table[i].message) == NULL) fail_msg("%s, not %s", ctx.message, table[i].message);
    }
    layer_case_free(&plain);
}

TEST(segments_are_refused)
{
    assay_context ctx = assay_context_default(1);
    layer_case plain = split_case_plain(4, 0, 2, 1);
    layer_case split = split_case_of(&plain, (assay_mesh){{1, 1, 1}}, 2);
    int32_t *segments = memory_store_add_i32(&split.in, "inputs/segment_ids", 2);
    memory_store found = {0};
    const assay_source in = memory_store_source(&split.in);
    const assay_sink out = memory_store_sink(&found);
    assert_non_null(segments);
    segments[0] = segments[1] = 1;
    assert_int_equal(assay_stack_run(&ctx, &split.config, &in, &out), ASSAY_BAD_INPUT);
    assert_non_null(strstr(ctx.message, "inputs/segment_ids: use_batch_split_schedule has none"));
    assert_int_equal(found.count, 0);
    memory_store_free(&found);
    memory_store_free(&split.in);
}
