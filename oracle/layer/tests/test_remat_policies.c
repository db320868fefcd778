/* Rematerialisation over a stack of four layers: whatever the policy, the same bits of every result; and the report is
 * what the sizes say. */

#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { LAYERS = 4, DENSE = 1, BATCH = 2, SEQUENCE = 5, TOKENS = BATCH * SEQUENCE };

static layer_case four_layers(void)
{
    layer_case c = layer_case_make(LAYERS, DENSE, BATCH, SEQUENCE);
    layer_case_fill(&c);
    return c;
}

static void assert_report(const test_tensors *out, const assay_remat_report *expected)
{
    assert_true(layer_case_get(out, "remat/bytes_kept")->values[0] == (double)expected->bytes_kept);
    assert_true(layer_case_get(out, "remat/bytes_offloaded")->values[0] == (double)expected->bytes_offloaded);
    assert_true(layer_case_get(out, "remat/operations_recomputed")->values[0] == expected->operations_recomputed);
}

static void check_policy(assay_context *ctx, layer_case *c, const assay_remat_policy *policy,
                         const test_tensors *expected)
{
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    assay_remat_report model;
    c->config.policy = *policy;
    layer_case_run(ctx, c, &out);
    assert_int_equal(out.set.count, expected->set.count);
    layer_case_assert_same(&out, expected);
    assert_ok(ctx, assay_stack_remat_model(ctx, &c->config, &model));
    assert_report(&out, &model);
}

/* Each name alone, each way; then draws of all names together. */
static void check_same_bits(layer_case c)
{
    enum { DRAWS = 60 };
    assay_context ctx = assay_context_default(2);
    const assay_remat_policy full = c.config.policy;
    uint64_t seed = 7;
    OWNED_BY(test_tensors_free) test_tensors expected = {0};
    layer_case_run(&ctx, &c, &expected);
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) {
        for (int action = ASSAY_DEVICE; action <= ASSAY_OFFLOAD; action++) {
            assay_remat_policy policy = full;
            policy.action[name] = (assay_remat_action)action;
            check_policy(&ctx, &c, &policy, &expected);
        }
    }
    for (int draw = 0; draw < DRAWS; draw++) {
        assay_remat_policy policy = full;
        for (int name = 0; name < ASSAY_REMAT_NAMES; name++)
            policy.action[name] = (assay_remat_action)(int)(1.5 * (1 + layer_case_uniform(&seed)));
        if (policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] == ASSAY_REMAT)
            policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] = ASSAY_OFFLOAD;
        check_policy(&ctx, &c, &policy, &expected);
    }
    layer_case_free(&c);
}

TEST(test_same_bits)
{
    layer_case gqa = layer_case_gqa(3, BATCH, SEQUENCE);
    layer_case_fill(&gqa);
    check_same_bits(four_layers());
    check_same_bits(gqa);
}

/* The other forms of MoE blocks, each with everything kept and with everything offloaded. */
TEST_WITH_CONTEXT(test_forms)
{
    static const assay_moe_path paths[] = {ASSAY_MOE_DENSE, ASSAY_MOE_DROPPING};
    for (int path = 0; path < 2; path++) {
        OWNED_BY(layer_case_free) layer_case c = four_layers();
        OWNED_BY(test_tensors_free) test_tensors expected = {0};
        c.config.moe.path = paths[path];
        c.config.moe.capacity_factor = 1;
        layer_case_run(&ctx, &c, &expected);
        for (int action = ASSAY_DEVICE; action <= ASSAY_OFFLOAD; action++) {
            OWNED_BY(test_tensors_free) test_tensors out = {0};
            for (int name = 0; name < ASSAY_REMAT_NAMES; name++)
                c.config.policy.action[name] = (assay_remat_action)action;
            layer_case_run(&ctx, &c, &out);
            layer_case_assert_same(&out, &expected);
        }
    }
}

/* Numbers in each checkpoint of a layer, counted by hand: D 8, N 2, Dn 4, Dr 2, Dv 3, Lq 6, Lkv 5, F 7, H 5, K 2. */
static const struct {
    int name;
    int dense, moe;
} sizes[] = {
    {ASSAY_REMAT_DECODER_LAYER_INPUT, 80, 80},
    {ASSAY_REMAT_QUERY_WA_PROJ, 60, 60},
    {ASSAY_REMAT_MLA_Q, 60, 60},
    {ASSAY_REMAT_KV_WA_PROJ, 70, 70},
    {ASSAY_REMAT_MLA_KV, 50, 50},
    {ASSAY_REMAT_QUERY_PROJ, 120, 120},
    {ASSAY_REMAT_KEY_PROJ, 120, 120},
    {ASSAY_REMAT_VALUE_PROJ, 60, 60},
    {ASSAY_REMAT_ATTENTION_OUT, 60 + 20, 60 + 20}, /* and lse */
    {ASSAY_REMAT_QKV_PROJ, 0, 0},
    {ASSAY_REMAT_CONTEXT, 60 + 20, 60 + 20},
    {ASSAY_REMAT_OUT_PROJ, 80, 80},
    {ASSAY_REMAT_MLPWI, 0, 0},
    {ASSAY_REMAT_MLPWI_0, 70, 50}, /* of the shared expert in a MoE layer */
    {ASSAY_REMAT_MLPWI_1, 70, 50},
    {ASSAY_REMAT_MLPWO, 80, 80},
    {ASSAY_REMAT_MOE_MLPWI, 0, 0},
    {ASSAY_REMAT_MOE_MLPWI_0, 0, 100},
    {ASSAY_REMAT_MOE_MLPWI_1, 0, 100},
    {ASSAY_REMAT_MOE_MLPWO, 0, 160},
};

/* What each name alone keeps, and what keeping it spares. Multiply-adds of one layer, times 2. */
TEST_WITH_CONTEXT(test_report)
{
    static const struct {
        int name;
        int dense, moe;
    } spared[] = {
        {ASSAY_REMAT_QUERY_WA_PROJ, TOKENS * 8 * 6, TOKENS * 8 * 6},
        {ASSAY_REMAT_KV_WA_PROJ, TOKENS * 8 * 7, TOKENS * 8 * 7},
        {ASSAY_REMAT_QUERY_PROJ, TOKENS * 6 * 12, TOKENS * 6 * 12},
        {ASSAY_REMAT_KEY_PROJ, TOKENS * 5 * 8, TOKENS * 5 * 8},
        {ASSAY_REMAT_VALUE_PROJ, TOKENS * 5 * 6, TOKENS * 5 * 6},
        {ASSAY_REMAT_OUT_PROJ, TOKENS * 6 * 8, TOKENS * 6 * 8},
        {ASSAY_REMAT_MLPWI_0, TOKENS * 8 * 7, TOKENS * 8 * 5},
        {ASSAY_REMAT_MLPWO, 0, 0}, /* backward never needs it */
        {ASSAY_REMAT_MOE_MLPWI_1, 0, TOKENS * 2 * 8 * 5},
        {ASSAY_REMAT_MOE_MLPWO, 0, TOKENS * 2 * 8 * 5},
    };
    OWNED_BY(layer_case_free) layer_case c = four_layers();
    const assay_remat_policy full = c.config.policy;
    assay_remat_report none, one;
    assert_ok(&ctx, assay_stack_remat_model(&ctx, &c.config, &none));
    assert_int_equal(none.bytes_kept, 8 * 80 * LAYERS);
    assert_int_equal(none.bytes_offloaded, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int bytes = 8 * (sizes[i].dense * DENSE + sizes[i].moe * (LAYERS - DENSE));
        c.config.policy = full;
        c.config.policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] = ASSAY_OFFLOAD;
        c.config.policy.action[sizes[i].name] = ASSAY_DEVICE;
        assert_ok(&ctx, assay_stack_remat_model(&ctx, &c.config, &one));
        assert_int_equal(one.bytes_kept, bytes);
    }
    for (size_t i = 0; i < sizeof spared / sizeof *spared; i++) {
        c.config.policy = full;
        c.config.policy.action[spared[i].name] = ASSAY_DEVICE;
        assert_ok(&ctx, assay_stack_remat_model(&ctx, &c.config, &one));
        const int expected = 2 * (spared[i].dense * DENSE + spared[i].moe * (LAYERS - DENSE));
        assert_true(none.operations_recomputed - one.operations_recomputed == expected);
    }
}
