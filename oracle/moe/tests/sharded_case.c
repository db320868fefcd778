#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

assay_sharding sharded_case_mesh(int64_t data, int64_t fsdp, int64_t expert)
{
    return (assay_sharding){
        .mesh = {{data, fsdp, expert}}, .tensor_shards = 1, .ragged_buffer_factor = -1, .token_chunks = 1};
}

static moe_case make_case(int variant, int64_t batch, bool wide)
{
    moe_case c = moe_case_deepseek3(batch, 6, 8, variant == SHARDED_CASE_LLAMA4 ? 1 : 3, 12, 5);
    assay_routing_config *routing = &c.config.routing;
    c.expert_bias = variant % 2 == 1;
    switch (variant) {
    case 0: /* DeepSeek-V3 with groups and a shared expert */
        routing->n_routing_groups = 4;
        routing->topk_routing_group = 3;
        c.config.shared_mlp_dim = 7;
        break;
    case 1: /* GPT-OSS */
        routing->family = ASSAY_ROUTER_DEFAULT;
        routing->score_func = ASSAY_SCORE_NONE;
        c.config.glu = ASSAY_GLU_GPT_OSS;
        c.config.activation = ASSAY_SIGMOID;
        c.config.limit = 0.8;
        break;
    case SHARDED_CASE_LLAMA4:
        routing->family = ASSAY_ROUTER_LLAMA4;
        routing->score_func = ASSAY_SCORE_NONE;
        c.gate_bias = false;
        c.config.shared_mlp_dim = 3;
        break;
    case 3: /* Gemma 4 */
        routing->family = ASSAY_ROUTER_GEMMA4;
        routing->score_func = ASSAY_SCORE_NONE;
        routing->norm_topk_prob = true;
        c.config.activation = ASSAY_GELU;
        c.gate_bias = false;
        c.per_expert_scale = true;
        break;
    case 4: /* hash routing */
        routing->hash_rows = 11;
        routing->score_func = ASSAY_SCORE_SQRTSOFTPLUS;
        c.config.glu = ASSAY_GLU_CLAMPED;
        c.config.limit = 0.9;
        break;
    case 5:
        c.config.fused_weights = true;
        c.config.shared_mlp_dim = 2;
        break;
    case 6: /* Qwen 3 */
        routing->family = ASSAY_ROUTER_DEFAULT;
        routing->score_func = ASSAY_SCORE_NONE;
        routing->norm_topk_prob = true;
        break;
    case SHARDED_CASE_FUSED:
        c.config.path = ASSAY_MOE_FUSED;
        c.config.fused_weights = true;
        c.config.shared_mlp_dim = 2;
        routing->family = ASSAY_ROUTER_FUSED;
        routing->score_func = ASSAY_SCORE_NONE;
        routing->norm_topk_prob = true;
        break;
    default:
        routing->family = ASSAY_ROUTER_DEEPSEEK2;
        routing->score_func = ASSAY_SCORE_SOFTMAX;
        break;
    }
    if (wide) c.config.moe_mlp_dim = 6;
    if (wide && c.config.shared_mlp_dim > 0) c.config.shared_mlp_dim = 12;
    c.seed = 17 + (uint64_t)variant;
    moe_case_fill(&c, false);
    return c;
}

moe_case sharded_case(int variant, int64_t batch)
{
    return make_case(variant, batch, false);
}

moe_case sharded_case_wide(int variant, int64_t batch)
{
    return make_case(variant, batch, true);
}

void sharded_case_run(assay_context *ctx, moe_case *c, const assay_sharding *sharding, test_tensors *out)
{
    assay_source source = test_tensors_source(&c->in);
    assay_sink sink = test_tensors_sink(out);
    assert_ok(ctx, assay_moe_run(ctx, &c->config, sharding, &source, &sink));
}

void sharded_case_assert_gradients(const test_tensors *actual, const test_tensors *expected, double relative)
{
    int compared = 0;
    for (int i = 0; i < expected->set.count; i++) {
        const char *path = expected->set.items[i].spec.path;
        if (strncmp(path, "gradients/", 10) != 0) continue;
        moe_case_assert_close(actual, expected, path, relative);
        compared++;
    }
    assert_true(compared >= 5);
}

void sharded_case_assert_bits(const test_tensors *actual, const test_tensors *expected, const char *path)
{
    test_tensors one = {.set = {.items = assay_tensor_set_find(&expected->set, path), .count = 1}};
    if (one.set.items == NULL) fail_msg("there is no '%s'", path);
    moe_case_assert_same(actual, &one);
}

static const struct {
    int variant;
    int64_t batch, mesh[4];
    bool ring;
    int64_t emb, tokens, tensor;
    double factor;
    bool before_wo, on_shards;
} forms[] = {
    {0, 8, {2, 1, 4}, false, 0, 1, 1, -1, false, false},  {1, 4, {1, 1, 4, 2}, false, 0, 1, 2, 1.2, true, false},
    {5, 4, {1, 2, 2, 3}, true, 3, 2, 2, -1, false, true}, {2, 4, {1, 1, 2, 6}, true, 2, 1, 1, -1, false, false},
    {3, 1, {1, 1, 4}, false, 0, 1, 1, -1, true, false},   {4, 2, {2, 1, 1}, false, 0, 1, 1, -1, false, false},
    {5, 1, {1, 1, 2}, false, 0, 1, 1, -1, false, false},  {0, 2, {1, 1, 2}, true, 4, 3, 3, -1, true, true},
    {9, 8, {2, 1, 4}, false, 0, 1, 1, -1, false, false},  {9, 8, {1, 2, 1, 3}, false, 0, 1, 1, -1, false, false},
};
_Static_assert(sizeof forms / sizeof *forms == SHARDED_FORMS, "sharded_case.h");

moe_case sharded_case_form(int form, assay_sharding *sharding)
{
    const int64_t *mesh = forms[form].mesh;
    moe_case c = make_case(forms[form].variant, forms[form].batch, mesh[3] > 1);
    *sharding = sharded_case_mesh(mesh[0], mesh[1], mesh[2]);
    sharding->mesh.size[ASSAY_AXIS_MLP_TENSOR] = mesh[3];
    sharding->ring_of_experts = forms[form].ring;
    sharding->emb_chunks = forms[form].emb;
    sharding->token_chunks = forms[form].tokens;
    sharding->tensor_shards = forms[form].tensor;
    sharding->ragged_buffer_factor = forms[form].factor;
    sharding->weight_before_wo = forms[form].before_wo;
    sharding->weights_on_shards = forms[form].on_shards;
    if (c.config.routing.hash_rows == 0 && c.config.path != ASSAY_MOE_FUSED) {
        c.config.routing.load_balance_loss_weight = 0.1;
        c.config.routing.routed_bias_update_rate = 0.01;
    }
    const int64_t shards = assay_mesh_shards(&sharding->mesh);
    double *d_lb_loss = test_tensors_add(&c.in, "cotangents/lb_loss", shards);
    for (int64_t shard = 0; shard < shards; shard++) d_lb_loss[shard] = 0.5 + (double)shard;
    return c;
}
