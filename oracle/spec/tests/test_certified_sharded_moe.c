/* The MoE block over a virtual mesh, in every exchange of tokens, forward and backward, certified in binary128. */
#include "oracle/spec/tests/spec_moe_case.h"

static void certify_moe(const moe_variant *v, uint64_t seed)
{
    spec_case c;
    const spec_moe_config config = moe_case_config(v);
    moe_case_start(&c, v, seed);
    c.budget.coordinates = 2;
    case_certify_outputs(&c, "moe", &config, OUTPUT_LIMIT);
    if (!v->replayed) case_fix_choice(&c);
    case_certify_gradients(&c, "moe", &config, GRADIENT_LIMIT);
    case_end(&c);
}

/* DeepSeek-V3's block, with load balance and a shared expert. */
static moe_variant deepseek_on(int64_t batch, assay_sharding sharding)
{
    moe_variant v = {.config = {.routing = {SIZES, GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID},
                                WIDTHS,
                                .path = ASSAY_MOE_SPARSE,
                                .shared_mlp_dim = 3},
                     .sharding = sharding,
                     .gate_bias = true};
    v.config.routing.batch = batch;
    return v;
}

static const int64_t meshes[][4] = {
    /* data, fsdp, expert, batch */
    {2, 1, 1, 2}, {1, 1, 2, 2}, {1, 1, 3, 6}, {1, 2, 3, 6}, {2, 1, 2, 4}, {2, 2, 2, 8},
};
enum { MESHES = sizeof meshes / sizeof *meshes };

static moe_variant deepseek_on_mesh(int i)
{
    return deepseek_on(meshes[i][3], mesh_of(meshes[i][0], meshes[i][1], meshes[i][2]));
}

static void test_ragged_all_to_all(void **state)
{
    (void)state;
    for (int i = 0; i < MESHES; i++) {
        const moe_variant v = deepseek_on_mesh(i);
        certify_moe(&v, 1000 + (uint64_t)i);
    }
}

/* Less, just and more room than tokens need on average; the least is one row. */
static void test_dropped_copies(void **state)
{
    (void)state;
    static const double factors[] = {.17, .5, 1, 1.25};
    for (int i = 1; i < MESHES; i++) {
        moe_variant v = deepseek_on_mesh(i);
        v.sharding.ragged_buffer_factor = factors[i % 4];
        v.two_hot = i % 2 == 1; /* all to the first shard */
        certify_moe(&v, 1100 + (uint64_t)i);
    }
}

/* A batch of 1: every shard has all tokens. */
static void test_same_tokens(void **state)
{
    (void)state;
    static const int64_t shards[] = {2, 3, 6};
    for (int i = 0; i < 3; i++) {
        moe_variant v = deepseek_on(1, mesh_of(1, 1, shards[i]));
        v.sharding.weight_before_wo = i == 1;
        v.sharding.ragged_buffer_factor = i == 2 ? .5 : 0;
        certify_moe(&v, 1200 + (uint64_t)i);
    }
}

static void test_ring_of_experts(void **state)
{
    (void)state;
    for (int i = 0; i < MESHES; i++) {
        moe_variant v = deepseek_on_mesh(i);
        v.sharding.ring_of_experts = true;
        v.sharding.token_chunks = i % 2 == 0 ? 1 : 3;
        v.sharding.emb_chunks = i % 3 == 0 ? 0 : 5;
        certify_moe(&v, 1300 + (uint64_t)i);
    }
}

static void test_one_device_in_pieces(void **state)
{
    (void)state;
    moe_variant table[4];
    for (int i = 0; i < 4; i++) table[i] = deepseek_on(2, mesh_of(1, 1, 1));
    table[0].sharding.tensor_shards = 5;
    table[1].sharding.weight_before_wo = true;
    table[1].expert_biases = true;
    table[2].sharding.ring_of_experts = true;
    table[2].sharding.token_chunks = 3;
    table[3].sharding.ring_of_experts = true;
    table[3].sharding.emb_chunks = 1;
    for (int i = 0; i < 4; i++) certify_moe(&table[i], 1400 + (uint64_t)i);
}

/* Other families, and what comes with them. */
static void test_families(void **state)
{
    (void)state;
    moe_variant table[] = {
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS, .hash_rows = 4},
                    WIDTHS,
                    .glu = ASSAY_GLU_CLAMPED,
                    .limit = .5,
                    .fused_weights = true}},
        {.config = {.routing = {SIZES, NO_GROUPS, BALANCE, .family = ASSAY_ROUTER_DEFAULT},
                    WIDTHS,
                    .activation = ASSAY_SIGMOID,
                    .glu = ASSAY_GLU_GPT_OSS,
                    .limit = .75},
         .gate_bias = true,
         .expert_biases = true},
        {.config = {.routing = {SIZES, NO_GROUPS, BALANCE, .family = ASSAY_ROUTER_GEMMA4, .norm_topk_prob = true},
                    WIDTHS,
                    .activation = ASSAY_GELU,
                    .shared_mlp_dim = 4},
         .per_expert_scale = true},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_LLAMA4}, WIDTHS, .shared_mlp_dim = 4}},
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID}, WIDTHS},
         .ties = true},
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID}, WIDTHS},
         .replayed = true},
    };
    for (int form = 0; form < 3; form++) {
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            moe_variant *v = &table[i];
            v->config.path = ASSAY_MOE_SPARSE;
            if (v->config.routing.family == ASSAY_ROUTER_LLAMA4) v->config.routing.num_experts_per_tok = 1;
            v->sharding = mesh_of(1, 1, 2);
            v->sharding.ring_of_experts = form == 1;
            v->sharding.ragged_buffer_factor = form == 2 ? .75 : 0;
            certify_moe(v, 1500 + 10 * (uint64_t)form + i);
        }
    }
}

/* Computed under one configuration, certified under another; and tampered with. */
static void test_rejects(void **state)
{
    (void)state;
    moe_variant right = deepseek_on(4, mesh_of(2, 1, 2));
    right.sharding.ragged_buffer_factor = .75;
    spec_moe_config table[4];
    for (int i = 0; i < 4; i++) table[i] = moe_case_config(&right);
    table[0].sharding.ragged_buffer_factor = .25; /* drops more: shapes differ, too, where rows have them */
    table[1].moe.routing.routed_scaling_factor = 1;
    table[2].moe.routing.load_balance_loss_weight = .701;
    table[3].moe.activation = ASSAY_GELU;
    spec_case c;
    moe_case_start(&c, &right, 7);
    case_fix_choice(&c);
    for (int i = 0; i < 4; i++) {
        const double gradient = case_worst(&c, "moe", &table[i], true);
        if (!(gradient > 1e-6)) fail_msg("configuration %d: %g", i, gradient);
    }
    const spec_moe_config config = moe_case_config(&right);
    assert_true(case_worst(&c, "moe", &config, true) <= GRADIENT_LIMIT);
    /* group sizes of all and of local experts, sorted copies, shards, received rows, and traffic of one and of all */
    assert_int_equal(case_assert_off_by_one_shows(&c, "moe", &config), 7);
    /* y, lb_loss, bias_updates, weights, margin; 6 checkpoints; the gradients of x and of the gate's two, the experts'
     * three and the shared expert's three weights */
    assert_int_equal(case_assert_tampering_shows(&c, "moe", &config), 5 + 6 + 9);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ragged_all_to_all),
        cmocka_unit_test(test_dropped_copies),
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_ring_of_experts),
        cmocka_unit_test(test_one_device_in_pieces),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
