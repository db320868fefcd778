/* The MoE block in every path and variant, forward and backward, certified in binary128 through its source and sink. */
#include "oracle/spec/tests/spec_moe_case.h"

static void certify_moe(const moe_variant *v, uint64_t seed)
{
    spec_case c;
    const spec_moe_config config = moe_case_config(v);
    moe_case_start(&c, v, seed);
    case_certify_outputs(&c, "moe", &config, OUTPUT_LIMIT);
    if (!v->replayed) case_fix_choice(&c);
    case_certify_gradients(&c, "moe", &config, GRADIENT_LIMIT);
    case_end(&c);
}

/* Each family with what it comes with, along a path. */
static void certify_families(assay_moe_path path, uint64_t seed)
{
    moe_variant table[] = {
        {.config = {.routing = {SIZES, GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID},
                    WIDTHS,
                    .shared_mlp_dim = 3},
         .gate_bias = true},
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, .score_func = ASSAY_SCORE_SOFTMAX},
                    WIDTHS,
                    .fused_weights = true,
                    .shared_mlp_dim = 14}},
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS},
                    WIDTHS,
                    .glu = ASSAY_GLU_CLAMPED,
                    .limit = .5,
                    .shared_mlp_dim = 7},
         .gate_bias = true},
        {.config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS, .hash_rows = 4},
                    WIDTHS,
                    .glu = ASSAY_GLU_CLAMPED,
                    .limit = .5,
                    .fused_weights = true}},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX,
                                .routed_scaling_factor = 16},
                    WIDTHS,
                    .activation = ASSAY_GELU,
                    .shared_mlp_dim = 1}},
        {.config = {.routing = {SIZES, NO_GROUPS, BALANCE, .family = ASSAY_ROUTER_DEFAULT}, WIDTHS}},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT, .norm_topk_prob = true},
                    WIDTHS,
                    .activation = ASSAY_GELU_EXACT}},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT},
                    WIDTHS,
                    .activation = ASSAY_SIGMOID,
                    .glu = ASSAY_GLU_GPT_OSS,
                    .limit = .75},
         .gate_bias = true,
         .expert_biases = true},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT},
                    WIDTHS,
                    .activation = ASSAY_RELU,
                    .fused_weights = true},
         .expert_biases = true},
        {.config = {.routing = {SIZES, NO_GROUPS, BALANCE, .family = ASSAY_ROUTER_GEMMA4, .norm_topk_prob = true},
                    WIDTHS,
                    .activation = ASSAY_GELU,
                    .shared_mlp_dim = 4},
         .per_expert_scale = true},
        {.config = {.routing = {SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT}, WIDTHS}, .ties = true},
        {.config = {.routing = {SIZES, GROUPS, DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID}, WIDTHS}, .ties = true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        table[i].config.path = path;
        table[i].config.fused_weights &= path == ASSAY_MOE_SPARSE; /* the others refuse them */
        table[i].config.capacity_factor = 1;                       /* dropping: one place an expert and row */
        certify_moe(&table[i], seed + i);
    }
}

static void test_dense(void **state)
{
    (void)state;
    certify_families(ASSAY_MOE_DENSE, 0);
}

static void test_sparse(void **state)
{
    (void)state;
    certify_families(ASSAY_MOE_SPARSE, 100);
}

static void test_dropping(void **state)
{
    (void)state;
    certify_families(ASSAY_MOE_DROPPING, 200);
}

static void test_llama4(void **state)
{
    (void)state;
    for (int path = 0; path < 2; path++) {
        certify_moe(&(moe_variant){.config = {.routing = {.batch = 2,
                                                          .sequence = 3,
                                                          .num_experts = 4,
                                                          .num_experts_per_tok = 1,
                                                          NO_GROUPS,
                                                          .family = ASSAY_ROUTER_LLAMA4},
                                              WIDTHS,
                                              .path = path == 0 ? ASSAY_MOE_DENSE : ASSAY_MOE_SPARSE,
                                              .shared_mlp_dim = 4}},
                    300 + (uint64_t)path);
    }
}

static void test_fused(void **state)
{
    (void)state;
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        for (int norm = 0; norm < 2; norm++) {
            certify_moe(
                &(moe_variant){.config = {.routing = {.batch = 2,
                                                      .sequence = 4,
                                                      .num_experts = 6,
                                                      .num_experts_per_tok = 2,
                                                      NO_GROUPS,
                                                      .family = ASSAY_ROUTER_FUSED,
                                                      .score_func = sigmoid ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_SOFTMAX,
                                                      .norm_topk_prob = norm},
                                          WIDTHS,
                                          .path = ASSAY_MOE_FUSED,
                                          .fused_weights = true,
                                          .shared_mlp_dim = norm ? 7 : 0},
                               .gate_bias = sigmoid},
                400 + (uint64_t)(2 * sigmoid + norm));
        }
    }
}

static void test_loads_and_choices(void **state)
{
    (void)state;
    const assay_moe_path paths[] = {ASSAY_MOE_DENSE, ASSAY_MOE_SPARSE, ASSAY_MOE_DROPPING};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        moe_variant v = {
            .config = {.routing = {SIZES, NO_GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID},
                       WIDTHS,
                       .path = paths[i],
                       .capacity_factor = 2},
            .gate_bias = true,
            .two_hot = true};
        certify_moe(&v, 600 + i);
        v.two_hot = false;
        v.replayed = true;
        certify_moe(&v, 610 + i);
        v.replayed = false;
        v.config.routing.num_experts_per_tok = v.config.routing.num_experts; /* everyone */
        certify_moe(&v, 620 + i);
        v.config.routing.score_func = ASSAY_SCORE_SOFTMAX;
        v.config.routing.num_experts_per_tok = 1;
        certify_moe(&v, 630 + i);
        v.config.capacity_factor = .5; /* no room at all in the dropping path */
        certify_moe(&v, 640 + i);
    }
}

static void test_sizes_of_one(void **state)
{
    (void)state;
    const assay_moe_path paths[] = {ASSAY_MOE_DENSE, ASSAY_MOE_SPARSE, ASSAY_MOE_DROPPING};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        certify_moe(&(moe_variant){.config = {.routing = {.batch = 1,
                                                          .sequence = 1,
                                                          .num_experts = 3,
                                                          .num_experts_per_tok = 2,
                                                          NO_GROUPS,
                                                          .family = ASSAY_ROUTER_DEFAULT},
                                              .emb_dim = 1,
                                              .moe_mlp_dim = 1,
                                              .path = paths[i],
                                              .capacity_factor = 1.5}},
                    500 + i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_dropping),
        cmocka_unit_test(test_llama4),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_sizes_of_one),
        cmocka_unit_test(test_loads_and_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
