/* The DeepSeek layer and stacks of it, forward and backward, certified in binary128 through their source and sink. */
#include "oracle/spec/tests/spec_layer_case.h"

static void certify(const layer_variant *v, uint64_t seed)
{
    const char *operation = v->config.single ? "deepseek_layer" : "deepseek_stack";
    spec_case c;
    layer_case_start(&c, v, seed);
    case_certify_outputs(&c, operation, &v->config, OUTPUT_LIMIT);
    if (v->config.dense_layers < v->config.layers) case_fix_choice(&c);
    case_certify_gradients(&c, operation, &v->config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_stack(void **state)
{
    (void)state;
    certify(&(layer_variant){.config = small_stack(3, 1, 2, 4).config}, 1);
}

/* Rematerialised or kept, the gradients are the same. */
static void test_kept(void **state)
{
    (void)state;
    layer_variant v = small_stack(3, 1, 1, 5);
    v.segments = SCATTERED;
    for (int i = 0; i < ASSAY_REMAT_NAMES; i++) v.config.policy.action[i] = i % 2 == 0 ? ASSAY_DEVICE : ASSAY_OFFLOAD;
    certify(&v, 2);
}

static void test_variants(void **state)
{
    (void)state;
    layer_variant table[7];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) table[i] = small_stack(2, 1, 1, 4);
    table[0].config.mla.q_lora_rank = 0;
    table[1].config.mlp.fused = true;
    table[1].config.moe.fused_weights = true;
    table[2].config.moe.shared_mlp_dim = 0;
    table[2].config.mla.rope.pairwise = true;
    table[3].config.dense_layers = 0;
    table[3].segments = PADDED_TAIL;
    table[4].config.dense_layers = 2;
    table[5].segments = SCATTERED;
    table[5].config.mla.mask_padding = false;
    table[6] = small_stack(1, 0, 1, 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify(&table[i], 10 + i);
}

static void test_single_layer(void **state)
{
    (void)state;
    for (int dense = 0; dense < 2; dense++) {
        layer_variant v = small_stack(1, dense, 2, 5);
        v.config.single = true;
        certify(&v, 20);
    }
}

/* Computed under one configuration, certified under another; and tampered with. */
static void test_rejects(void **state)
{
    (void)state;
    const layer_variant right = small_stack(2, 1, 1, 2);
    assay_stack_config table[6];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) table[i] = right.config;
    table[0].epsilon = 1e-3;
    table[1].mla.epsilon = 1e-3;
    table[2].mlp.activation[0] = ASSAY_GELU;
    table[3].moe.activation = ASSAY_GELU;
    table[4].moe.routing.routed_scaling_factor = 1;
    table[5].mla.rope.interleave = false;
    spec_case c;
    layer_case_start(&c, &right, 5);
    case_fix_choice(&c);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double output = case_worst(&c, "deepseek_stack", &table[i], false);
        double gradient = case_worst(&c, "deepseek_stack", &table[i], true);
        if (!(output > 1e-6 && gradient > 1e-6)) fail_msg("configuration %d: %g, %g", (int)i, output, gradient);
    }
    assert_true(case_worst(&c, "deepseek_stack", &right.config, false) <= OUTPUT_LIMIT);
    assert_true(case_worst(&c, "deepseek_stack", &right.config, true) <= GRADIENT_LIMIT);
    /* y, lb_loss, bias_updates, routing weights and margin; 11 checkpoints of each attention, 3 of the dense half and
     * 6 of the other; the gradients of x and of 12 and 17 weights */
    assert_int_equal(case_assert_tampering_shows(&c, "deepseek_stack", &right.config), 5 + 22 + 9 + 30);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack),        cmocka_unit_test(test_kept),    cmocka_unit_test(test_variants),
        cmocka_unit_test(test_single_layer), cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
