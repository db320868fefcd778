#include "oracle/moe/tests/moe_case.h"
#include "oracle/base/dtype.h"
#include "tests/support/assay_test.h"

/* In (-1,1). */
static double uniform(uint64_t *state)
{
    return ((double)(test_bits(state) >> 12) + 0.5) * 0x1p-51 - 1;
}

static double normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += uniform(state);
    return sum / 2;
}

moe_case moe_case_deepseek3(int64_t batch, int64_t sequence, int64_t experts, int64_t per_token, int64_t emb_dim,
                            int64_t mlp_dim)
{
    return (moe_case){
        .config = {.routing = {.batch = batch,
                               .sequence = sequence,
                               .num_experts = experts,
                               .num_experts_per_tok = per_token,
                               .family = ASSAY_ROUTER_DEEPSEEK3,
                               .score_func = ASSAY_SCORE_SIGMOID,
                               .n_routing_groups = -1,
                               .topk_routing_group = -1,
                               .routed_scaling_factor = 2.5},
                   .emb_dim = emb_dim,
                   .moe_mlp_dim = mlp_dim,
                   .path = ASSAY_MOE_SPARSE,
                   .capacity_factor = -1,
                   .activation = ASSAY_SILU},
        .gate_bias = true,
        .seed = 1,
    };
}

static void fill(moe_case *c, const char *path, int64_t count, double scale, double mean, bool bf16)
{
    double *values = test_tensors_add(&c->in, path, count);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = mean + scale * normal(&c->seed);
    if (bf16) assay_dtype_round_many(ASSAY_BFLOAT16, count, values, values);
}

/* Distinct experts in every row of the hash table. */
static void fill_hash(moe_case *c)
{
    const assay_routing_config *r = &c->config.routing;
    int64_t k = r->num_experts_per_tok, tokens = r->batch * r->sequence;
    int32_t *table = test_tensors_add_i32(&c->in, "weights/tid2eid", r->hash_rows * k);
    int32_t *ids = test_tensors_add_i32(&c->in, "inputs/input_ids", tokens);
    for (int64_t v = 0; v < r->hash_rows; v++) {
        for (int64_t i = 0; i < k; i++) table[v * k + i] = (int32_t)((v * 5 + i) % r->num_experts);
    }
    for (int64_t t = 0; t < tokens; t++) ids[t] = (int32_t)(t * 7 % r->hash_rows);
}

/* wi from wi_0 and wi_1. */
static void fuse(moe_case *c)
{
    int64_t e = c->config.routing.num_experts, d = c->config.emb_dim, h = c->config.moe_mlp_dim;
    double *wi = test_tensors_add(&c->in, "weights/wi", e * d * 2 * h);
    const double *wi_0 = moe_case_get(&c->in, "weights/wi_0")->values;
    const double *wi_1 = moe_case_get(&c->in, "weights/wi_1")->values;
    for (int64_t row = 0; row < e * d; row++) {
        memcpy(wi + row * 2 * h, wi_0 + row * h, (size_t)h * sizeof *wi);
        memcpy(wi + row * 2 * h + h, wi_1 + row * h, (size_t)h * sizeof *wi);
    }
    test_tensors_remove(&c->in, "weights/wi_0");
    test_tensors_remove(&c->in, "weights/wi_1");
}

void moe_case_fill(moe_case *c, bool bf16)
{
    const assay_moe_config *config = &c->config;
    int64_t tokens = config->routing.batch * config->routing.sequence, gates = config->routing.num_experts;
    int64_t e = assay_moe_experts(config), d = config->emb_dim, h = config->moe_mlp_dim, f = config->shared_mlp_dim;
    double down = 1 / sqrt((double)d), up = 1 / sqrt((double)h);
    fill(c, "inputs/x", tokens * d, 1, 0, bf16);
    fill(c, "weights/gate/kernel", d * gates, 1.5 / sqrt((double)d), 0, bf16);
    if (c->gate_bias) fill(c, "weights/gate/bias", gates, 0.3, 0, bf16);
    if (c->per_expert_scale) fill(c, "weights/per_expert_scale", gates, 0.3, 1, bf16);
    fill(c, "weights/wi_0", e * d * h, down, 0, bf16);
    fill(c, "weights/wi_1", e * d * h, down, 0, bf16);
    fill(c, "weights/wo", e * h * d, up, 0, bf16);
    if (c->expert_bias) {
        fill(c, "weights/wi_0_bias", e * h, 0.4, 0, bf16);
        fill(c, "weights/wi_1_bias", e * h, 0.4, 0, bf16);
        fill(c, "weights/wo_bias", e * d, 0.4, 0, bf16);
    }
    if (f > 0) {
        fill(c, "weights/shared_experts/wi_0/kernel", d * f, down, 0, bf16);
        fill(c, "weights/shared_experts/wi_1/kernel", d * f, down, 0, bf16);
        fill(c, "weights/shared_experts/wo/kernel", f * d, 1 / sqrt((double)f), 0, bf16);
    }
    if (config->shared_gate) fill(c, "weights/shared_expert_gate/kernel", d, down, 0, bf16);
    fill(c, "cotangents/y", tokens * d, 1, 0, bf16);
    if (c->cotangent_lb_loss) fill(c, "cotangents/lb_loss", 1, 0, 0.75, bf16);
    if (config->routing.z_loss_weight > 0) fill(c, "cotangents/z_loss", 1, 0, 0.75, bf16);
    if (config->routing.hash_rows > 0) fill_hash(c);
    if (config->fused_weights) fuse(c);
}

void moe_case_free(moe_case *c)
{
    assay_tensor_set_free(&c->in.set);
}

void moe_case_run(assay_context *ctx, moe_case *c, test_tensors *out)
{
    assay_source source = test_tensors_source(&c->in);
    assay_sink sink = test_tensors_sink(out);
    assert_ok(ctx, assay_moe_run(ctx, &c->config, &assay_one_device, &source, &sink));
}

const assay_tensor *moe_case_get(const test_tensors *store, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(&store->set, path);
    if (tensor == NULL) fail_msg("there is no '%s'", path);
    return tensor;
}

void moe_case_assert_same(const test_tensors *actual, const test_tensors *expected)
{
    for (int i = 0; i < expected->set.count; i++) {
        const assay_tensor *b = &expected->set.items[i], *a = moe_case_get(actual, b->spec.path);
        assert_int_equal(a->count, b->count);
        if (b->values != NULL) {
            assert_non_null(a->values);
            if (memcmp(a->values, b->values, (size_t)b->count * sizeof *b->values) != 0)
                fail_msg("'%s' has other bits", b->spec.path);
        } else {
            assert_non_null(a->indices);
            assert_memory_equal(a->indices, b->indices, (size_t)b->count * sizeof *b->indices);
        }
    }
}

void moe_case_assert_close(const test_tensors *actual, const test_tensors *expected, const char *path, double relative)
{
    const assay_tensor *a = moe_case_get(actual, path), *b = moe_case_get(expected, path);
    assert_int_equal(a->count, b->count);
    double largest = 0;
    for (int64_t i = 0; i < b->count; i++) largest = fmax(largest, fabs(b->values[i]));
    for (int64_t i = 0; i < b->count; i++) {
        if (!(fabs(a->values[i] - b->values[i]) <= relative * largest)) {
            fail_msg("'%s'[%lld] is %.17g, expected %.17g (largest %g)", path, (long long)i, a->values[i], b->values[i],
                     largest);
        }
    }
}
