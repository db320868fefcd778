#include "oracle/layer/tests/layer_case.h"

#include <inttypes.h>

#include "tests/support/assay_test.h"

double layer_case_uniform(uint64_t *state)
{
    return ((double)(test_bits(state) >> 12) + 0.5) * 0x1p-51 - 1;
}

layer_case layer_case_make(int64_t layers, int64_t dense, int64_t batch, int64_t sequence)
{
    const int64_t dim = 8;
    const assay_rope_config rope = {2, true, 10000, 40, 32, 1, 163840, 4096, true, true, false, false, NULL};
    const assay_mla_config mla = {.batch = batch,
                                  .sequence = sequence,
                                  .emb_dim = dim,
                                  .heads = 2,
                                  .qk_nope_head_dim = 4,
                                  .v_head_dim = 3,
                                  .q_lora_rank = 6,
                                  .kv_lora_rank = 5,
                                  .epsilon = 1e-6,
                                  .mscale = 1,
                                  .rope = rope,
                                  .mask_padding = true};
    layer_case c = {
        .config =
            {.layers = layers,
             .dense_layers = dense,
             .mla = mla,
             .mlp = {.rows = batch * sequence, .emb_dim = dim, .mlp_dim = 7, .activation = {ASSAY_SILU, ASSAY_LINEAR}},
             .moe = {.routing = {.batch = batch,
                                 .sequence = sequence,
                                 .num_experts = 4,
                                 .num_experts_per_tok = 2,
                                 .family = ASSAY_ROUTER_DEEPSEEK3,
                                 .score_func = ASSAY_SCORE_SIGMOID,
                                 .n_routing_groups = -1,
                                 .topk_routing_group = -1,
                                 .routed_scaling_factor = 2.5},
                     .emb_dim = dim,
                     .moe_mlp_dim = 5,
                     .path = ASSAY_MOE_SPARSE,
                     .capacity_factor = -1,
                     .activation = ASSAY_SILU,
                     .shared_mlp_dim = 5},
             .epsilon = 1e-6},
        .seed = 1,
    };
    c.config.policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] = ASSAY_DEVICE;
    return c;
}

layer_case layer_case_gqa(int64_t layers, int64_t batch, int64_t sequence)
{
    const int64_t dim = 8;
    layer_case c = layer_case_make(layers, 0, batch, sequence);
    c.config.attention = ASSAY_LAYER_GQA;
    c.config.windows = ASSAY_WINDOWS_EVEN;
    c.config.gqa = (assay_gqa_config){.batch = batch,
                                      .sequence = sequence,
                                      .emb_dim = dim,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 2,
                                      .window = 2,
                                      .query_scale = 0.75,
                                      .fused_qkv = true,
                                      .bias = true,
                                      .qk_norm = true,
                                      .sinks = true,
                                      .epsilon = 1e-6,
                                      .rope = c.config.mla.rope,
                                      .mask_padding = true};
    c.config.mla = (assay_mla_config){0};
    c.config.moe.routing.family = ASSAY_ROUTER_DEFAULT;
    c.config.moe.routing.score_func = ASSAY_SCORE_NONE;
    c.config.moe.routing.routed_scaling_factor = 1;
    c.config.moe.shared_mlp_dim = 0;
    return c;
}

static void fill(layer_case *c, const char *path, int64_t count, double scale, double mean)
{
    if (count == 0) return;
    double *values = test_tensors_add(&c->in, path, count);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = mean + scale * layer_case_uniform(&c->seed);
}

/* All weights of a block, each as large as a trained one. */
static void fill_block(layer_case *c, const char *prefix, const assay_tensor_table *table)
{
    for (int i = 0; i < table->count; i++) {
        const assay_tensor_row *row = &table->rows[i];
        char path[ASSAY_PATH_SIZE];
        const bool kernel = row->kind == ASSAY_KERNEL;
        if (row->name == NULL || row->kind == ASSAY_BIAS) continue;
        assay_tensor_path("weights/", prefix, row, path);
        fill(c, path, assay_tensor_row_count(row), kernel ? 1.5 / sqrt((double)row->fan_in) : 0.3,
             row->kind == ASSAY_NORM_SCALE ? 1 : 0);
    }
}

static void fill_moe(layer_case *c, const char *layer)
{
    const assay_moe_config *m = &c->config.moe;
    const assay_gated_mlp_config expert = assay_moe_expert_config(m, 0), shared = assay_moe_shared_config(m, 0);
    const assay_tensor_table shared_table = assay_mlp_weight_table(&shared, ASSAY_MLP_SHARED);
    assay_tensor_table routed = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    const int64_t e = m->routing.num_experts;
    char block[48], path[ASSAY_PATH_SIZE];
    snprintf(block, sizeof block, "%smoe/", layer);
    for (int i = 0; i < routed.count; i++) routed.rows[i] = assay_tensor_row_below("E", &e, routed.rows[i]);
    fill_block(c, block, &routed);
    if (m->shared_mlp_dim > 0) fill_block(c, block, &shared_table);
    snprintf(path, sizeof path, "weights/%sshared_expert_gate/kernel", block);
    if (m->shared_gate) fill(c, path, m->emb_dim, 1.5 / sqrt((double)m->emb_dim), 0);
    snprintf(path, sizeof path, "weights/%sgate/kernel", block);
    fill(c, path, m->emb_dim * e, 1.5 / sqrt((double)m->emb_dim), 0);
    snprintf(path, sizeof path, "weights/%sgate/bias", block);
    fill(c, path, e, 1.5, 0);
}

void layer_case_fill(layer_case *c)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(&c->config);
    const int64_t tokens = sizes.batch * sizes.sequence, size = tokens * sizes.emb_dim;
    fill(c, "inputs/x", size, 1, 0);
    fill(c, "cotangents/y", size, 1, 0);
    int32_t *positions = test_tensors_add_i32(&c->in, "inputs/positions", tokens);
    assert_non_null(positions);
    for (int64_t t = 0; t < tokens; t++) positions[t] = (int32_t)(t % sizes.sequence);
    for (int64_t layer = 0; layer < c->config.layers; layer++) {
        char prefix[ASSAY_LAYER_PREFIX_SIZE];
        assay_layer_prefix(&c->config, layer, prefix);
        graph g;
        assay_layer_graph(&g, &c->config, layer);
        const assay_tensor_table table = graph_weight_table(&g);
        fill_block(c, prefix, &table);
        if (layer >= c->config.dense_layers) fill_moe(c, prefix);
    }
}

void layer_case_free(layer_case *c)
{
    assay_tensor_set_free(&c->in.set);
}

void layer_case_run(assay_context *ctx, layer_case *c, test_tensors *out)
{
    const assay_source in = test_tensors_source(&c->in);
    const assay_sink sink = test_tensors_sink(out);
    assert_ok(ctx, assay_stack_run(ctx, &c->config, &in, &sink));
}

const assay_tensor *layer_case_get(const test_tensors *store, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(&store->set, path);
    if (tensor == NULL) fail_msg("there is no '%s'", path);
    return tensor;
}

void layer_case_assert_same(const test_tensors *actual, const test_tensors *expected)
{
    for (int i = 0; i < actual->set.count; i++) {
        const assay_tensor *found = &actual->set.items[i];
        if (strncmp(found->spec.path, "remat/", 6) == 0) continue;
        const assay_tensor *other = layer_case_get(expected, found->spec.path);
        assert_int_equal(found->count, other->count);
        if (found->values == NULL) {
            assert_memory_equal(found->indices, other->indices, (size_t)found->count * sizeof *found->indices);
        } else if (memcmp(found->values, other->values, (size_t)found->count * sizeof(double)) != 0) {
            fail_msg("'%s' has other bits", found->spec.path);
        }
    }
}
