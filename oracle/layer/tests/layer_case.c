#include "oracle/layer/tests/layer_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/assay_test.h"

double layer_case_uniform(uint64_t *state)
{
    return ((double)(test_bits(state) >> 12) + 0.5) * 0x1p-51 - 1;
}

layer_case layer_case_make(int64_t layers, int64_t dense, int64_t batch, int64_t sequence)
{
    const int64_t dim = 8;
    layer_case c = {
        .config =
            {.layers = layers,
             .dense_layers = dense,
             .mla = {.batch = batch,
                     .sequence = sequence,
                     .emb_dim = dim,
                     .heads = 2,
                     .qk_nope_head_dim = 4,
                     .v_head_dim = 3,
                     .q_lora_rank = 6,
                     .kv_lora_rank = 5,
                     .epsilon = 1e-6,
                     .mscale = 1,
                     .rope = {.dim = 2,
                              .yarn = true,
                              .rope_max_timescale = 10000,
                              .rope_factor = 40,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .max_position_embeddings = 163840,
                              .original_max_position_embeddings = 4096,
                              .interleave = true,
                              .truncate = true},
                     .mask_padding = true},
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

static void fill(layer_case *c, const char *path, int64_t count, double scale, double mean)
{
    if (count == 0) return;
    double *values = test_tensors_add(&c->in, path, count);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = mean + scale * layer_case_uniform(&c->seed);
}

static void fill_weight(layer_case *c, const char *prefix, const char *name, int64_t fan_in, int64_t fan_out)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "weights/%s%s", prefix, name);
    fill(c, path, fan_in * fan_out, 1.5 / sqrt((double)(fan_in > 0 ? fan_in : 1)), 0);
}

static void fill_scale(layer_case *c, const char *prefix, const char *name, int64_t count)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "weights/%s%s", prefix, name);
    fill(c, path, count, 0.3, 1);
}

static void fill_attention(layer_case *c, const char *prefix)
{
    const assay_mla_config *m = &c->config.mla;
    const int64_t query = m->heads * (m->qk_nope_head_dim + m->rope.dim);
    fill_scale(c, prefix, "pre_self_attention_layer_norm/scale", m->emb_dim);
    fill_scale(c, prefix, "post_self_attention_layer_norm/scale", m->emb_dim);
    if (m->q_lora_rank > 0) {
        fill_weight(c, prefix, "self_attention/wq_a/kernel", m->emb_dim, m->q_lora_rank);
        fill_scale(c, prefix, "self_attention/q_norm/scale", m->q_lora_rank);
        fill_weight(c, prefix, "self_attention/wq_b/kernel", m->q_lora_rank, query);
    } else {
        fill_weight(c, prefix, "self_attention/query/kernel", m->emb_dim, query);
    }
    fill_weight(c, prefix, "self_attention/wkv_a/kernel", m->emb_dim, m->kv_lora_rank + m->rope.dim);
    fill_scale(c, prefix, "self_attention/kv_norm/scale", m->kv_lora_rank);
    fill_weight(c, prefix, "self_attention/wkv_b/kernel", m->kv_lora_rank,
                m->heads * (m->qk_nope_head_dim + m->v_head_dim));
    fill_weight(c, prefix, "self_attention/out/kernel", m->heads * m->v_head_dim, m->emb_dim);
}

static void fill_dense(layer_case *c, const char *prefix)
{
    const assay_gated_mlp_config *m = &c->config.mlp;
    if (m->fused) {
        fill_weight(c, prefix, "mlp/wi/kernel", m->emb_dim, 2 * m->mlp_dim);
    } else {
        fill_weight(c, prefix, "mlp/wi_0/kernel", m->emb_dim, m->mlp_dim);
        fill_weight(c, prefix, "mlp/wi_1/kernel", m->emb_dim, m->mlp_dim);
    }
    fill_weight(c, prefix, "mlp/wo/kernel", m->mlp_dim, m->emb_dim);
}

static void fill_moe(layer_case *c, const char *prefix)
{
    const assay_moe_config *m = &c->config.moe;
    const int64_t e = m->routing.num_experts, d = m->emb_dim, h = m->moe_mlp_dim, f = m->shared_mlp_dim;
    fill_weight(c, prefix, "moe/gate/kernel", d, e);
    fill_weight(c, prefix, "moe/gate/bias", 1, e);
    if (m->fused_weights) {
        fill_weight(c, prefix, "moe/wi", d, e * 2 * h);
    } else {
        fill_weight(c, prefix, "moe/wi_0", d, e * h);
        fill_weight(c, prefix, "moe/wi_1", d, e * h);
    }
    fill_weight(c, prefix, "moe/wo", h, e * d);
    fill_weight(c, prefix, "moe/shared_experts/wi_0/kernel", d, f);
    fill_weight(c, prefix, "moe/shared_experts/wi_1/kernel", d, f);
    fill_weight(c, prefix, "moe/shared_experts/wo/kernel", f, d);
}

void layer_case_fill(layer_case *c)
{
    const assay_mla_config *m = &c->config.mla;
    const int64_t tokens = m->batch * m->sequence, size = tokens * m->emb_dim;
    fill(c, "inputs/x", size, 1, 0);
    fill(c, "cotangents/y", size, 1, 0);
    int32_t *positions = test_tensors_add_i32(&c->in, "inputs/positions", tokens);
    assert_non_null(positions);
    for (int64_t t = 0; t < tokens; t++) positions[t] = (int32_t)(t % m->sequence);
    for (int64_t layer = 0; layer < c->config.layers; layer++) {
        char prefix[32] = "";
        if (!c->config.single) snprintf(prefix, sizeof prefix, "layers/%" PRId64 "/", layer);
        fill_attention(c, prefix);
        if (layer < c->config.dense_layers) {
            fill_dense(c, prefix);
        } else {
            fill_moe(c, prefix);
        }
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
