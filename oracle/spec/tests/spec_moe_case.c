#include "oracle/spec/tests/spec_moe_case.h"

#include <math.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/spec/tests/spec_stream.h"

static void make_whole(spec_case *c, const char *path)
{
    const spec_tensor *tensor = spec_tensors_find(&c->in, path);
    for (int64_t i = 0; i < assay_shape_count(&tensor->shape); i++) {
        tensor->values[i] = nearbyint(2 * (double)tensor->values[i]);
    }
}

static void add_experts(spec_case *c, const moe_variant *v)
{
    const assay_moe_config *config = &v->config;
    int64_t e = config->routing.num_experts, d = config->emb_dim, h = config->moe_mlp_dim, f = config->shared_mlp_dim;
    if (config->fused_weights) {
        case_variable(c, "weights/wi", 1, DIMS(e, d, 2 * h));
    } else {
        case_variable(c, "weights/wi_0", 1, DIMS(e, d, h));
        case_variable(c, "weights/wi_1", 1, DIMS(e, d, h));
    }
    case_variable(c, "weights/wo", 1, DIMS(e, h, d));
    if (v->expert_biases) {
        case_variable(c, "weights/wi_0_bias", 1, DIMS(e, h));
        case_variable(c, "weights/wi_1_bias", 1, DIMS(e, h));
        case_variable(c, "weights/wo_bias", 1, DIMS(e, d));
    }
    if (f > 0) {
        case_variable(c, "weights/shared_experts/wi_0/kernel", 1, DIMS(d, f));
        case_variable(c, "weights/shared_experts/wi_1/kernel", 1, DIMS(d, f));
        case_variable(c, "weights/shared_experts/wo/kernel", 1, DIMS(f, d));
    }
}

static void add_routing(spec_case *c, const moe_variant *v)
{
    const assay_routing_config *routing = &v->config.routing;
    int64_t b = routing->batch, s = routing->sequence, e = routing->num_experts, k = routing->num_experts_per_tok;
    case_variable(c, "weights/gate/kernel", 1, DIMS(v->config.emb_dim, e));
    if (v->gate_bias) case_variable(c, "weights/gate/bias", .5, DIMS(e));
    const spec_tensor *bias = spec_tensors_find(&c->in, "weights/gate/bias");
    for (int64_t i = 0; v->two_hot && i < 2; i++) bias->values[i] += 50;
    if (v->per_expert_scale) case_variable(c, "weights/per_expert_scale", 2, DIMS(e));
    if (routing->hash_rows > 0) {
        assert_true(routing->hash_rows == 4 && k == 2 && b * s == 6);
        case_indices(c, "weights/tid2eid", (int32_t[]){0, 1, 5, 3, 2, 5, 3, 0}, DIMS(4, 2));
        case_indices(c, "inputs/input_ids", (int32_t[]){3, 1, 1, 0, 3, 1}, DIMS(b, s));
    }
    if (v->replayed) {
        assert_true(k == 2 && b * s == 6);
        case_indices(c, "routing/selected_experts", (int32_t[]){3, 1, 1, 0, 5, 3, 0, 3, 1, 5, 0, 5}, DIMS(b, s, k));
    }
    case_want_indices(c, "routing/selected_experts", DIMS(b, s, k));
    case_want(c, "routing/weights", DIMS(b, s, k));
    case_want(c, "routing/margin", DIMS(b, s));
}

static bool is_sharded(const moe_variant *v)
{
    return assay_is_sharded(&v->config, &v->sharding);
}

static void want_row(spec_case *c, const char *path, assay_shape rows, int64_t width)
{
    rows.dims[rows.rank++] = width;
    case_want(c, path, rows);
}

static void want_checkpoints(spec_case *c, const moe_variant *v)
{
    const assay_moe_config *config = &v->config;
    const assay_routing_config *routing = &config->routing;
    int64_t b = routing->batch, s = routing->sequence, e = routing->num_experts, h = config->moe_mlp_dim;
    assay_shape rows = DIMS(b * s * routing->num_experts_per_tok);
    if (config->path == ASSAY_MOE_DENSE) rows = DIMS(b, s, e);
    if (config->path == ASSAY_MOE_DROPPING) {
        int64_t room = assay_expert_capacity(routing, config->capacity_factor);
        rows = DIMS(e, b, room);
        case_want(c, "routing/combine_mask", DIMS(b, s, e, room));
        case_want_indices(c, "routing/dispatch_mask", DIMS(b, s, e, room));
    }
    if (is_sharded(v)) {
        const assay_shard_sizes sizes = assay_shard_sizes_of(config, &v->sharding);
        rows = sharded_shape(&sizes, sizes.buffer);
    }
    if (config->fused_weights) {
        want_row(c, "checkpoints/moe_mlpwi", rows, 2 * h);
    } else {
        want_row(c, "checkpoints/moe_mlpwi_0", rows, h);
        want_row(c, "checkpoints/moe_mlpwi_1", rows, h);
    }
    want_row(c, "checkpoints/moe_mlpwo", rows, config->emb_dim);
    if (config->shared_mlp_dim == 0) return;
    want_row(c, "checkpoints/mlpwi_0", DIMS(b, s), config->shared_mlp_dim);
    want_row(c, "checkpoints/mlpwi_1", DIMS(b, s), config->shared_mlp_dim);
    want_row(c, "checkpoints/mlpwo", DIMS(b, s), config->emb_dim);
}

spec_moe_config moe_case_config(const moe_variant *v)
{
    return (spec_moe_config){.moe = v->config, .sharding = v->sharding};
}

static void run(spec_case *c, const moe_variant *v)
{
    spec_stream stream = {.c = c};
    const assay_source in = spec_stream_source(&stream);
    const assay_sink out = spec_stream_sink(&stream);
    if (is_sharded(v)) {
        assert_ok(&c->ctx, assay_sharded_moe_check(&c->ctx, &v->config, &v->sharding));
        assert_ok(&c->ctx, assay_sharded_moe_run(&c->ctx, &v->config, &v->sharding, &in, &out));
    } else {
        assert_ok(&c->ctx, assay_moe_check(&c->ctx, &v->config));
        assert_ok(&c->ctx, assay_moe_run(&c->ctx, &v->config, &in, &out, NULL, 0));
    }
    assert_all_written(&stream);
}

void moe_case_start(spec_case *c, const moe_variant *v, uint64_t seed)
{
    case_start(c, seed);
    c->ctx = assay_context_default(1);
    const assay_moe_config *config = &v->config;
    assay_shape tokens = DIMS(config->routing.batch, config->routing.sequence, config->emb_dim);
    case_variable(c, "inputs/x", 1.5, tokens);
    add_routing(c, v);
    want_balance(c, "", config, &v->sharding);
    want_routing_lists(c, "", config, &v->sharding);
    add_experts(c, v);
    if (v->ties) make_whole(c, "inputs/x");
    if (v->ties) make_whole(c, "weights/gate/kernel");
    case_random(c, "cotangents/y", 1, tokens);
    case_want(c, "outputs/y", tokens);
    want_checkpoints(c, v);
    run(c, v);
}
