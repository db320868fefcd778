/* What the certificate of a MoE block is worth: a block computed under one configuration and certified under another,
 * or with a result tampered with, must be far from certified. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/spec/tests/spec_moe_case.h"

/* Nothing wrong comes closer than this; what is right stays below 1e-14 and 1e-12. */
static const double far = 1e-6;

static const moe_variant deepseek = {
    .config = {.routing = {SIZES, GROUPS, DEEPSEEK3, BALANCE, .score_func = ASSAY_SCORE_SIGMOID},
               WIDTHS,
               .path = ASSAY_MOE_SPARSE,
               .glu = ASSAY_GLU_CLAMPED,
               .limit = .5,
               .fused_weights = true,
               .shared_mlp_dim = 3},
    .gate_bias = true};

static void other_family(assay_moe_config *config)
{
    config->routing.family = ASSAY_ROUTER_DEEPSEEK2; /* weights from biased scores, not divided */
}

static void other_score(assay_moe_config *config)
{
    config->routing.score_func = ASSAY_SCORE_SQRTSOFTPLUS;
}

static void no_factor(assay_moe_config *config)
{
    config->routing.routed_scaling_factor = 1;
}

static void no_groups(assay_moe_config *config)
{
    config->routing.n_routing_groups = -1;
}

static void other_group_score(assay_moe_config *config)
{
    config->routing.group_score = ASSAY_GROUP_MAX;
}

static void other_loss_weight(assay_moe_config *config)
{
    config->routing.load_balance_loss_weight *= 1 + 0x1p-8;
}

static void no_clamp(assay_moe_config *config)
{
    config->glu = ASSAY_GLU_PLAIN;
}

static void other_clamp(assay_moe_config *config)
{
    config->glu = ASSAY_GLU_GPT_OSS;
}

static void other_activation(assay_moe_config *config)
{
    config->activation = ASSAY_GELU;
}

static void no_shared_expert(assay_moe_config *config)
{
    config->shared_mlp_dim = 0;
}

static void some_dropped(assay_moe_config *config)
{
    config->path = ASSAY_MOE_DROPPING;
    config->capacity_factor = 1;
}

/* Their shapes depend on the configuration, and would tell by themselves. */
static void drop_checkpoints(spec_case *c)
{
    int kept = 0;
    for (int i = 0; i < c->results.count; i++) {
        spec_tensor tensor = c->results.items[i];
        if (strncmp(tensor.path, "checkpoints/", strlen("checkpoints/")) != 0) {
            c->results.items[kept++] = tensor;
            continue;
        }
        free(tensor.values);
        free(tensor.indices);
    }
    c->results.count = kept;
}

static double worst(spec_case *c, const assay_moe_config *moe, bool gradients)
{
    const spec_moe_config config = {.moe = *moe};
    return case_worst(c, "moe", &config, gradients);
}

static void test_other_configurations(void **state)
{
    (void)state;
    static const struct {
        void (*change)(assay_moe_config *config);
        bool outputs, gradients; /* which of them show it, at the golden choice for gradients */
    } table[] = {
        {other_family, true, true}, {other_score, true, true},        {no_factor, true, true},
        {no_groups, true, false},   {other_group_score, true, false}, {other_loss_weight, true, true},
        {no_clamp, true, true},     {other_clamp, true, true},        {other_activation, true, true},
        {some_dropped, true, true},
    };
    spec_case c;
    moe_case_start(&c, &deepseek, 4);
    drop_checkpoints(&c);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_moe_config config = deepseek.config;
        table[i].change(&config);
        assert_true(!table[i].outputs || worst(&c, &config, false) > far);
    }
    assert_true(worst(&c, &deepseek.config, false) <= OUTPUT_LIMIT);
    case_fix_choice(&c);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_moe_config config = deepseek.config;
        table[i].change(&config);
        assert_true(!table[i].gradients || worst(&c, &config, true) > far);
    }
    assert_true(worst(&c, &deepseek.config, true) <= GRADIENT_LIMIT);
    /* Without its shared expert the block has no gradient for it: zero where the certificate sees none. */
    assay_moe_config config = deepseek.config;
    no_shared_expert(&config);
    assert_true(worst(&c, &config, false) > far);
    assert_true(worst(&c, &config, true) > far);
    case_end(&c);
}

static void test_tampering(void **state)
{
    (void)state;
    spec_case c;
    moe_case_start(&c, &deepseek, 4);
    case_fix_choice(&c);
    drop_checkpoints(&c);
    /* y, lb_loss, bias_updates, weights, margin, and the gradients of x, of the gate's two and the experts' five
     * weights */
    const spec_moe_config config = {.moe = deepseek.config};
    assert_int_equal(case_assert_tampering_shows(&c, "moe", &config), 5 + 8);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_configurations),
        cmocka_unit_test(test_tampering),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
