/* Stacks over a virtual mesh: layer after layer with their MoE blocks spread, and under the batch-split schedule;
 * forward and backward, certified in binary128. */
#include <string.h>

#include "oracle/spec/tests/spec_layer_case.h"
#include "oracle/spec/tests/spec_sharded_case.h"

static void certify(const layer_variant *v, uint64_t seed)
{
    const char *operation = v->config.single ? "deepseek_layer" : "deepseek_stack";
    spec_case c;
    layer_case_start(&c, v, seed);
    c.budget.coordinates = v->config.layers > 2 ? 1 : 2;
    case_certify_outputs(&c, operation, &v->config, OUTPUT_LIMIT);
    case_fix_choice(&c);
    case_certify_gradients(&c, operation, &v->config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_stack_on_a_mesh(void **state)
{
    (void)state;
    layer_variant table[3];
    for (int i = 0; i < 3; i++) table[i] = small_stack(2, 1, 4, 2);
    for (int i = 0; i < 3; i++) table[i].config.sharding = mesh_of(2, 1, 2);
    table[1].config.sharding.ragged_buffer_factor = .75;
    table[2].config.sharding.ring_of_experts = true;
    table[2].config.sharding.token_chunks = 2;
    for (int i = 0; i < 3; i++) certify(&table[i], 30 + (uint64_t)i);
}

/* What the schedule's model has. */
static layer_variant small_schedule(int64_t layers, int64_t dense, int64_t batch, int64_t factor,
                                    assay_sharding sharding)
{
    layer_variant v = small_stack(layers, dense, batch, 2);
    v.config.single = layers == 1;
    v.config.sharding = sharding;
    v.config.batch_split_factor = factor;
    v.config.mla.q_lora_rank = 4;
    v.config.mla.rope.pairwise = true;
    v.config.moe.routing.renormalize_exactly = true;
    v.config.moe.routing.load_balance_loss_weight = 0;
    v.config.moe.routing.routed_bias_update_rate = 0;
    return v;
}

static void test_one_layer_in_microbatches(void **state)
{
    (void)state;
    static const int64_t table[][5] = {
        /* data, fsdp, expert, batch, factor */
        {1, 1, 1, 1, 1}, {1, 1, 1, 3, 3}, {1, 1, 2, 8, 2}, {1, 2, 2, 4, 1}, {2, 1, 4, 16, 2}, {2, 2, 1, 8, 2},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const int64_t *row = table[i];
        const layer_variant v = small_schedule(1, 0, row[3], row[4], mesh_of(row[0], row[1], row[2]));
        certify(&v, 40 + i);
    }
}

static void test_scan_of_layers(void **state)
{
    (void)state;
    const layer_variant v = small_schedule(5, 1, 4, 2, mesh_of(1, 1, 2));
    certify(&v, 50);
}

/* What is computed under one configuration is certified under no other; and tampered with. */
static void test_rejects(void **state)
{
    (void)state;
    const layer_variant right = small_schedule(1, 0, 8, 2, mesh_of(1, 2, 2));
    spec_case c;
    layer_case_start(&c, &right, 60);
    assay_stack_config other = right.config;
    other.moe.routing.routed_scaling_factor = 1;
    assert_true(case_worst(&c, "deepseek_layer", &other, false) > 1e-6);
    case_fix_choice(&c);
    assert_true(case_worst(&c, "deepseek_layer", &other, true) > 1e-6);
    assert_int_equal(case_assert_off_by_one_shows(&c, "deepseek_layer", &right.config), 1); /* group_sizes */
    /* y, weights, margin; 6 checkpoints; the gradients of x and of all 17 weights but the gate's bias, which is 0 */
    assert_int_equal(case_assert_tampering_shows(&c, "deepseek_layer", &right.config), 3 + 6 + 17);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack_on_a_mesh),
        cmocka_unit_test(test_one_layer_in_microbatches),
        cmocka_unit_test(test_scan_of_layers),
        cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
