#include "oracle/spec/tests/spec_layer_case.h"

#include <stdio.h>

#include "oracle/layer/batch_split.h"
#include "oracle/spec/tests/spec_sharded_case.h"
#include "oracle/spec/tests/spec_stream.h"

enum { DIM = 8 };

layer_variant small_stack(int64_t layers, int64_t dense, int64_t batch, int64_t sequence)
{
    layer_variant v = {
        .config =
            {.layers = layers,
             .dense_layers = dense,
             .mla = {.batch = batch,
                     .sequence = sequence,
                     .emb_dim = DIM,
                     .heads = 2,
                     .qk_nope_head_dim = 3,
                     .v_head_dim = 2,
                     .q_lora_rank = 3,
                     .kv_lora_rank = 4,
                     .epsilon = 1e-6,
                     .mscale = 1,
                     .rope = deepseek3_rope(4),
                     .mask_padding = true},
             .mlp = {.rows = batch * sequence, .emb_dim = DIM, .mlp_dim = 7, .activation = {ASSAY_SILU, ASSAY_LINEAR}},
             .moe = {.routing = {.batch = batch,
                                 .sequence = sequence,
                                 .num_experts = 4,
                                 .num_experts_per_tok = 2,
                                 .family = ASSAY_ROUTER_DEEPSEEK3,
                                 .score_func = ASSAY_SCORE_SIGMOID,
                                 .n_routing_groups = -1,
                                 .topk_routing_group = -1,
                                 .routed_scaling_factor = 2.5,
                                 .load_balance_loss_weight = .7,
                                 .routed_bias_update_rate = 1e-3},
                     .emb_dim = DIM,
                     .moe_mlp_dim = 5,
                     .path = ASSAY_MOE_SPARSE,
                     .activation = ASSAY_SILU,
                     .shared_mlp_dim = 3},
             .epsilon = 1e-5},
    };
    v.config.policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] = ASSAY_DEVICE;
    return v;
}

typedef struct layer_prefix {
    char text[32];
} layer_prefix;

static layer_prefix prefix_of(const layer_variant *v, int64_t layer)
{
    layer_prefix prefix = {""};
    if (!v->config.single) snprintf(prefix.text, sizeof prefix.text, "layers/%d/", (int)layer);
    return prefix;
}

/* A layer's tensor at FOLDERPREFIXname. */
static case_path path_of(const layer_variant *v, const char *folder, int64_t layer, const char *name)
{
    return case_path_of(folder, prefix_of(v, layer).text, name);
}

/* Of the schedule (batch_split.h), which keeps less of what a layer computes. */
static bool is_split(const layer_variant *v, int64_t layer)
{
    return v->config.batch_split_factor > 0 && layer >= v->config.dense_layers;
}

#define WEIGHT(name, ...) case_variable(c, path_of(v, "weights/", layer, name).text, 1, DIMS(__VA_ARGS__))
#define CHECKPOINT(name, ...) case_want(c, path_of(v, "checkpoints/", layer, name).text, DIMS(__VA_ARGS__))

static void add_attention(spec_case *c, const layer_variant *v, int64_t layer)
{
    const assay_mla_config *mla = &v->config.mla;
    const int64_t b = mla->batch, s = mla->sequence, n = mla->heads, lq = mla->q_lora_rank, lkv = mla->kv_lora_rank;
    const int64_t nope = mla->qk_nope_head_dim, rope = mla->rope.dim, value = mla->v_head_dim;
    WEIGHT("pre_self_attention_layer_norm/scale", DIM);
    if (lq > 0) {
        WEIGHT("self_attention/wq_a/kernel", DIM, lq);
        WEIGHT("self_attention/q_norm/scale", lq);
        WEIGHT("self_attention/wq_b/kernel", lq, n, nope + rope);
    } else {
        WEIGHT("self_attention/query/kernel", DIM, n, nope + rope);
    }
    WEIGHT("self_attention/wkv_a/kernel", DIM, lkv + rope);
    WEIGHT("self_attention/kv_norm/scale", lkv);
    WEIGHT("self_attention/wkv_b/kernel", lkv, n, nope + value);
    WEIGHT("self_attention/out/kernel", n, value, DIM);
    WEIGHT("post_self_attention_layer_norm/scale", DIM);
    CHECKPOINT("decoder_layer_input", b, s, DIM);
    CHECKPOINT("attention_out", b, s, n, value);
    CHECKPOINT("lse", b, n, s);
    if (is_split(v, layer)) {
        CHECKPOINT("mla_out", b, s, DIM);
        return;
    }
    if (lq > 0) {
        CHECKPOINT("query_wa_proj", b, s, lq);
        CHECKPOINT("mla_q", b, s, lq);
    }
    CHECKPOINT("kv_wa_proj", b, s, lkv + rope);
    CHECKPOINT("mla_kv", b, s, lkv);
    CHECKPOINT("query_proj", b, s, n, nope + rope);
    CHECKPOINT("key_proj", b, s, n, nope + rope);
    CHECKPOINT("value_proj", b, s, n, value);
    CHECKPOINT("out_proj", b, s, DIM);
}

static void add_dense(spec_case *c, const layer_variant *v, int64_t layer)
{
    const int64_t b = v->config.mla.batch, s = v->config.mla.sequence, f = v->config.mlp.mlp_dim;
    if (v->config.mlp.fused) {
        WEIGHT("mlp/wi/kernel", DIM, 2 * f);
        CHECKPOINT("mlpwi", b, s, 2 * f);
    } else {
        WEIGHT("mlp/wi_0/kernel", DIM, f);
        WEIGHT("mlp/wi_1/kernel", DIM, f);
        CHECKPOINT("mlpwi_0", b, s, f);
        CHECKPOINT("mlpwi_1", b, s, f);
    }
    WEIGHT("mlp/wo/kernel", f, DIM);
    CHECKPOINT("mlpwo", b, s, DIM);
}

static void add_routing(spec_case *c, const layer_variant *v, int64_t layer)
{
    const assay_routing_config *routing = &v->config.moe.routing;
    const int64_t b = routing->batch, s = routing->sequence, e = routing->num_experts, k = routing->num_experts_per_tok;
    WEIGHT("moe/gate/kernel", DIM, e);
    WEIGHT("moe/gate/bias", e);
    case_want_indices(c, path_of(v, "routing/", layer, "selected_experts").text, DIMS(b, s, k));
    case_want(c, path_of(v, "routing/", layer, "weights").text, DIMS(b, s, k));
    case_want(c, path_of(v, "routing/", layer, "margin").text, DIMS(b, s));
    if (is_split(v, layer)) {
        const assay_batch_split_sizes sizes = assay_batch_split_sizes_of(&v->config);
        case_want_indices(c, path_of(v, "routing/", layer, "group_sizes").text,
                          DIMS(sizes.shards, v->config.batch_split_factor, sizes.local_experts));
        return;
    }
    want_routing_lists(c, prefix_of(v, layer).text, &v->config.moe, &v->config.sharding);
    want_balance(c, prefix_of(v, layer).text, &v->config.moe, &v->config.sharding);
}

static void want_row(spec_case *c, const layer_variant *v, int64_t layer, const char *name, int64_t width)
{
    const assay_moe_config *moe = &v->config.moe;
    const assay_routing_config *r = &moe->routing;
    assay_shape rows = DIMS(r->batch * r->sequence * r->num_experts_per_tok);
    if (is_split(v, layer)) {
        const assay_batch_split_sizes sizes = assay_batch_split_sizes_of(&v->config);
        rows = DIMS(sizes.shards, v->config.batch_split_factor, sizes.copies);
    } else if (assay_is_sharded(moe, &v->config.sharding)) {
        const assay_shard_sizes sizes = assay_shard_sizes_of(moe, &v->config.sharding);
        rows = sharded_shape(&sizes, sizes.buffer);
    }
    rows.dims[rows.rank++] = width;
    case_want(c, path_of(v, "checkpoints/", layer, name).text, rows);
}

static void add_moe(spec_case *c, const layer_variant *v, int64_t layer)
{
    const assay_moe_config *moe = &v->config.moe;
    const int64_t b = moe->routing.batch, s = moe->routing.sequence, e = moe->routing.num_experts;
    const int64_t h = moe->moe_mlp_dim, f = moe->shared_mlp_dim;
    add_routing(c, v, layer);
    if (moe->fused_weights) {
        WEIGHT("moe/wi", e, DIM, 2 * h);
        want_row(c, v, layer, "moe_mlpwi", 2 * h);
    } else {
        WEIGHT("moe/wi_0", e, DIM, h);
        WEIGHT("moe/wi_1", e, DIM, h);
        want_row(c, v, layer, "moe_mlpwi_0", h);
        want_row(c, v, layer, "moe_mlpwi_1", h);
    }
    WEIGHT("moe/wo", e, h, DIM);
    if (!is_split(v, layer)) want_row(c, v, layer, "moe_mlpwo", DIM);
    if (f == 0) return;
    WEIGHT("moe/shared_experts/wi_0/kernel", DIM, f);
    WEIGHT("moe/shared_experts/wi_1/kernel", DIM, f);
    WEIGHT("moe/shared_experts/wo/kernel", f, DIM);
    if (is_split(v, layer)) return;
    CHECKPOINT("mlpwi_0", b, s, f);
    CHECKPOINT("mlpwi_1", b, s, f);
    CHECKPOINT("mlpwo", b, s, DIM);
}

void layer_case_start(spec_case *c, const layer_variant *v, uint64_t seed)
{
    const int64_t b = v->config.mla.batch, s = v->config.mla.sequence;
    int32_t positions[64];
    mla_case_start(c, seed);
    assert_true(b * s <= 64 && v->config.moe.path == ASSAY_MOE_SPARSE);
    for (int64_t i = 0; i < b * s; i++) positions[i] = (int32_t)(900 * (i % s));
    case_variable(c, "inputs/x", 1, DIMS(b, s, DIM));
    case_indices(c, "inputs/positions", positions, DIMS(b, s));
    case_segments(c, v->segments, b, s);
    case_random(c, "cotangents/y", 1, DIMS(b, s, DIM));
    case_want(c, "outputs/y", DIMS(b, s, DIM));
    for (int64_t layer = 0; layer < v->config.layers; layer++) {
        add_attention(c, v, layer);
        if (layer < v->config.dense_layers) {
            add_dense(c, v, layer);
        } else {
            add_moe(c, v, layer);
        }
    }
    spec_stream stream = {.c = c};
    const assay_source in = spec_stream_source(&stream);
    const assay_sink out = spec_stream_sink(&stream);
    assert_ok(&c->ctx, assay_stack_check(&c->ctx, &v->config));
    assert_ok(&c->ctx, assay_stack_run(&c->ctx, &v->config, &in, &out));
    assert_all_written(&stream);
}
