/* The second form of the MoE block: a block of one dimension worked out by hand, and identities between its paths. */
#include <math.h>
#include <stdlib.h>

#include "oracle/quad/tests/quad_case.h"

/* D = H = 1, linear activation: expert e of x is x^2 times a constant of e. */
static quad_moe_config small_block(assay_router_family family, int64_t sequence, int64_t k)
{
    return (quad_moe_config){.moe = {.routing = {.batch = 1,
                                                 .sequence = sequence,
                                                 .num_experts = 3,
                                                 .num_experts_per_tok = k,
                                                 .family = family,
                                                 .score_func = ASSAY_SCORE_NONE,
                                                 .n_routing_groups = -1,
                                                 .routed_scaling_factor = 1},
                                     .emb_dim = 1,
                                     .moe_mlp_dim = 1,
                                     .path = ASSAY_MOE_SPARSE,
                                     .activation = ASSAY_LINEAR}};
}

static void add_small_experts(quad_case *c)
{
    case_values(c, "weights/wi_0", (double[]){1, 2, 3}, DIMS(3, 1, 1));
    case_values(c, "weights/wi_1", (double[]){10, 10, 10}, DIMS(3, 1, 1));
    case_values(c, "weights/wo", (double[]){1, 1, .5}, DIMS(3, 1, 1));
}

TEST(test_by_hand)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1, 2);
    config.moe.shared_mlp_dim = 2;
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){3, 1, 2}, DIMS(1, 3));
    add_small_experts(&c);
    case_values(&c, "weights/shared_experts/wi_0/kernel", (double[]){1, 2}, DIMS(1, 2));
    case_values(&c, "weights/shared_experts/wi_1/kernel", (double[]){1, 1}, DIMS(1, 2));
    case_values(&c, "weights/shared_experts/wo/kernel", (double[]){100, 1000}, DIMS(2, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    /* Logits 6, 2, 4: expert 0 gives 40, expert 2 gives 60; shared: h = (4, 8). */
    assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){0, 2});
    assert_result(&c, "outputs/y", 1, (double[]){6 * 40 + 4 * 60 + 400 + 8000}, 0);
    assert_null(quad_tensors_find(&c.out, "outputs/weights"));
    assert_result(&c, "checkpoints/mlpwi_0", 2, (double[]){2, 4}, 0);
    assert_result(&c, "checkpoints/mlpwi_1", 2, (double[]){2, 2}, 0);
    assert_result(&c, "checkpoints/mlpwo", 1, (double[]){8400}, 0);
    case_end(&c);
}

/* The same by a recipe that leaves these numbers as they are: dy is 6 and 4 times 1, da 120 and 40, db 12 and 12; the weights
 * are the logits, and the gradients of them y. */
TEST(test_quantised_moe)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1, 2);
    config.moe.recipe = (assay_recipe_config){
        .recipe = assay_quant_recipe_by_name("deepseek_v3"), .powers = true, .type = ASSAY_FLOAT32};
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){3, 1, 2}, DIMS(1, 3));
    case_values(&c, "cotangents/y", (double[]){1}, DIMS(1, 1, 1));
    add_small_experts(&c);
    assert_ok(&c.ctx, case_differentiate(&c, quad_moe, &config));
    assert_result(&c, "outputs/y", 1, (double[]){6 * 40 + 4 * 60}, 0);
    assert_result(&c, "checkpoints/moe_mlpwo_gradient", 2, (double[]){6, 4}, 1e-15);
    assert_result(&c, "checkpoints/moe_mlpwi_0_gradient", 2, (double[]){120, 40}, 1e-15);
    assert_result(&c, "gradients/weights/wi_0", 3, (double[]){240, 0, 80}, 1e-15);
    assert_result(&c, "gradients/weights/wo", 3, (double[]){240, 0, 480}, 1e-15);
    assert_result(&c, "gradients/weights/gate/kernel", 3, (double[]){80, 0, 120}, 1e-15);
    assert_result(&c, "gradients/inputs/x", 1, (double[]){720}, 1e-15);
    case_end(&c);
}

/* A gate of ln 3 / 2 times x = 2: the sigmoid of ln 3 is 3/4. */
TEST(test_shared_gate)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1, 1);
    config.moe.shared_mlp_dim = 1;
    config.moe.shared_gate = true;
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){3, 1, 2}, DIMS(1, 3));
    add_small_experts(&c);
    case_values(&c, "weights/shared_experts/wi_0/kernel", (double[]){1}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wi_1/kernel", (double[]){1}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wo/kernel", (double[]){100}, DIMS(1, 1));
    case_values(&c, "weights/shared_expert_gate/kernel", (double[]){0.5493061443340549}, DIMS(1, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    assert_result(&c, "outputs/y", 1, (double[]){6 * 40 + 0.75 * 400}, 1e-14);
    assert_result(&c, "checkpoints/mlp_intermediate", 1, (double[]){4}, 0);
    assert_result(&c, "checkpoints/moe_intermediate", 1, (double[]){40}, 0);
    case_end(&c);
}

/* The bias of wo is inside the expert, so the router's weight is on it. */
TEST(test_biases)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1, 1);
    config.moe.shared_mlp_dim = 0;
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){1, 3, 2}, DIMS(1, 3));
    add_small_experts(&c);
    case_values(&c, "weights/wi_0_bias", (double[]){100, 1, 100}, DIMS(3, 1));
    case_values(&c, "weights/wi_1_bias", (double[]){100, -2, 100}, DIMS(3, 1));
    case_values(&c, "weights/wo_bias", (double[]){100, 5, 100}, DIMS(3, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    assert_result(&c, "outputs/y", 1, (double[]){6 * (5 * 18 + 5)}, 0);
    case_end(&c);
}

/* The routed clamp does not touch the shared expert. */
TEST(test_clamp_is_for_routed_experts)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1, 1);
    config.moe.glu = ASSAY_GLU_CLAMPED;
    config.moe.limit = 3;
    config.moe.shared_mlp_dim = 1;
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){1, 3, 2}, DIMS(1, 3));
    add_small_experts(&c);
    case_values(&c, "weights/shared_experts/wi_0/kernel", (double[]){5}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wi_1/kernel", (double[]){5}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wo/kernel", (double[]){1}, DIMS(1, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    assert_result(&c, "outputs/y", 1, (double[]){6 * 9 + 100}, 0);
    case_end(&c);
}

/* Logit ln 3 scales the token by 3/4, for the routed expert alone; the weight of the sum is 1. */
TEST(test_llama4)
{
    quad_case c;
    case_start(&c, 1);
    quad_moe_config config = small_block(ASSAY_ROUTER_LLAMA4, 1, 1);
    config.moe.shared_mlp_dim = 1;
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "weights/gate/kernel", (double[]){0, 0.5493061443340548, -1}, DIMS(1, 3));
    add_small_experts(&c);
    case_values(&c, "weights/shared_experts/wi_0/kernel", (double[]){1}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wi_1/kernel", (double[]){1}, DIMS(1, 1));
    case_values(&c, "weights/shared_experts/wo/kernel", (double[]){1}, DIMS(1, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    assert_result(&c, "outputs/y", 1, (double[]){1.5 * 2 * 1.5 * 10 + 4}, 1e-15);
    case_end(&c);
}

/* In each of two rows five tokens, of weight 2, 4, ..., choose expert 2: ceil(5 / 3) = 2 places times the factor. */
TEST(test_dropping)
{
    static const struct {
        double factor;
        int64_t kept;
    } table[] = {{.1, 0}, {.5, 1}, {1, 2}, {1.4, 2}, {1.5, 3}, {2, 4}, {2.5, 5}, {100, 5}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 5, 1);
        config.moe.path = ASSAY_MOE_DROPPING;
        config.moe.routing.batch = 2;
        config.moe.capacity_factor = table[i].factor;
        case_values(&c, "inputs/x", (double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, DIMS(2, 5, 1));
        case_values(&c, "weights/gate/kernel", (double[]){0, 1, 2}, DIMS(1, 3));
        add_small_experts(&c);
        assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
        double y[10];
        for (int64_t t = 0; t < 10; t++) {
            double x = (double)(t + 1);
            y[t] = t % 5 < table[i].kept ? 2 * x * 15 * x * x : 0;
        }
        assert_result(&c, "outputs/y", 10, y, 0);
        int64_t room = (int64_t)(2 * table[i].factor);
        for (int64_t j = 0; j < 10 * 3 * room; j++) { /* [B,S,E,C] */
            bool taken = j / room % 3 == 2 && j % room == j / room / 3 % 5;
            assert_true(result_at(&c, "routing/combine_mask", j) == (taken ? 2. * (double)(j / room / 3 + 1) : 0));
            assert_int_equal(index_at(&c, "routing/dispatch_mask", j), taken);
        }
        for (int64_t j = 0; j < 3 * 2 * room; j++) { /* [E,B,C], free places made from zeros */
            bool taken = j / room / 2 == 2 && j % room < 5;
            double x = taken ? (double)(j / room % 2 * 5 + j % room + 1) : 0;
            assert_true(result_at(&c, "checkpoints/moe_mlpwi_0", j) == 3 * x);
            assert_true(result_at(&c, "checkpoints/moe_mlpwo", j) == 15 * x * x);
        }
        case_end(&c);
    }
}

static quad_moe_config random_block(quad_case *c, bool fused)
{
    const int64_t b = 2, s = 3, d = 3, h = 4, e = 4;
    quad_moe_config config = {.moe = {.routing = {.batch = b,
                                                  .sequence = s,
                                                  .num_experts = e,
                                                  .num_experts_per_tok = 2,
                                                  .family = ASSAY_ROUTER_DEEPSEEK3,
                                                  .score_func = ASSAY_SCORE_SIGMOID,
                                                  .n_routing_groups = -1,
                                                  .routed_scaling_factor = 2.5},
                                      .emb_dim = d,
                                      .moe_mlp_dim = h,
                                      .path = ASSAY_MOE_DENSE,
                                      .activation = ASSAY_SILU,
                                      .fused_weights = fused}};
    case_random(c, "inputs/x", 2, DIMS(b, s, d));
    case_random(c, "weights/gate/kernel", 1, DIMS(d, e));
    case_random(c, "weights/wo", 1, DIMS(e, h, d));
    double wi[4 * 3 * 8], wi_0[4 * 3 * 4], wi_1[4 * 3 * 4];
    for (int64_t row = 0; row < e * d; row++) {
        for (int64_t j = 0; j < 2 * h; j++) {
            wi[row * 2 * h + j] = case_draw(c);
            (j < h ? wi_0 : wi_1)[row * h + j % h] = wi[row * 2 * h + j];
        }
    }
    if (fused) {
        case_values(c, "weights/wi", wi, DIMS(e, d, 2 * h));
    } else {
        case_values(c, "weights/wi_0", wi_0, DIMS(e, d, h));
        case_values(c, "weights/wi_1", wi_1, DIMS(e, d, h));
    }
    return config;
}

TEST(test_fused_is_unfused)
{
    quad_case fused, unfused;
    case_start(&fused, 7);
    case_start(&unfused, 7);
    quad_moe_config a = random_block(&fused, true), b = random_block(&unfused, false);
    assert_ok(&fused.ctx, case_evaluate(&fused, quad_moe, &a));
    assert_ok(&unfused.ctx, case_evaluate(&unfused, quad_moe, &b));
    for (int64_t i = 0; i < 18; i++) {
        double y = result_at(&unfused, "outputs/y", i);
        assert_true(y == result_at(&fused, "outputs/y", i) && fabs(y) > 1e-6);
    }
    case_end(&fused);
    case_end(&unfused);
}

TEST(test_much_room_drops_nothing)
{
    quad_case dense, dropping;
    case_start(&dense, 9);
    case_start(&dropping, 9);
    quad_moe_config a = random_block(&dense, false), b = random_block(&dropping, false);
    b.moe.path = ASSAY_MOE_DROPPING;
    b.moe.capacity_factor = 4;
    assert_ok(&dense.ctx, case_evaluate(&dense, quad_moe, &a));
    assert_ok(&dropping.ctx, case_evaluate(&dropping, quad_moe, &b));
    for (int64_t i = 0; i < 18; i++) {
        assert_true(result_at(&dense, "outputs/y", i) == result_at(&dropping, "outputs/y", i));
    }
    case_end(&dense);
    case_end(&dropping);
}

/* y is the unpermuted sum of the sparse checkpoint, and the dense checkpoint holds the same rows at [b,s,e]. */
TEST(test_checkpoints)
{
    quad_case c;
    case_start(&c, 11);
    quad_moe_config config = random_block(&c, true);
    config.moe.path = ASSAY_MOE_SPARSE;
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    quad_case dense;
    case_start(&dense, 11);
    config = random_block(&dense, true);
    assert_ok(&dense.ctx, case_evaluate(&dense, quad_moe, &config));
    double y[18] = {0};
    for (int64_t j = 0; j < 12; j++) {
        int32_t copy = index_at(&c, "routing/sorted_selected_experts", j);
        int32_t row = copy / 2 * 4 + index_at(&c, "routing/selected_experts", copy);
        for (int64_t d = 0; d < 3; d++) {
            double value = result_at(&c, "checkpoints/moe_mlpwo", j * 3 + d);
            assert_true(value == result_at(&dense, "checkpoints/moe_mlpwo", row * 3 + d));
            y[copy / 2 * 3 + d] += result_at(&c, "routing/weights", copy) * value;
        }
        for (int64_t h = 0; h < 4; h++) {
            double a = result_at(&c, "checkpoints/moe_mlpwi_0", j * 4 + h);
            double b = result_at(&c, "checkpoints/moe_mlpwi_1", j * 4 + h);
            assert_true(a == result_at(&dense, "checkpoints/moe_mlpwi_0", row * 4 + h));
            assert_true(b == result_at(&dense, "checkpoints/moe_mlpwi_1", row * 4 + h));
            assert_true(a == result_at(&c, "checkpoints/moe_mlpwi", j * 8 + h));
            assert_true(b == result_at(&c, "checkpoints/moe_mlpwi", j * 8 + 4 + h));
        }
    }
    assert_result(&c, "outputs/y", 18, y, 1e-14);
    case_end(&dense);
    case_end(&c);
}

TEST(test_every_allocation_may_fail)
{
    quad_case c;
    case_start(&c, 5);
    quad_moe_config config = random_block(&c, true);
    config.moe.routing.n_routing_groups = 2;
    config.moe.routing.topk_routing_group = 1;
    config.moe.routing.load_balance_loss_weight = 1;
    config.moe.routing.routed_bias_update_rate = 1;
    config.moe.path = ASSAY_MOE_DROPPING;
    config.moe.capacity_factor = 1;
    config.moe.shared_mlp_dim = 1;
    case_random(&c, "weights/shared_experts/wi_0/kernel", 1, DIMS(3, 1));
    case_random(&c, "weights/shared_experts/wi_1/kernel", 1, DIMS(3, 1));
    case_random(&c, "weights/shared_experts/wo/kernel", 1, DIMS(1, 3));
    case_random(&c, "cotangents/y", 1, DIMS(2, 3, 3));
    for (int64_t n = 0;; n++) {
        assay_fail_allocation(n);
        const assay_status status = case_differentiate(&c, quad_moe, &config);
        if (had_memory(&c.ctx, status)) {
            assert_true(n > 20);
            break;
        }
    }
    case_end(&c);
}

TEST(test_refusals)
{
    quad_case c;
    case_start(&c, 5);
    quad_moe_config config = random_block(&c, true);
    config.moe.emb_dim = 4;
    assert_int_equal(case_evaluate(&c, quad_moe, &config), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "'inputs/x' has the shape [2,3,3], expected 24 elements");
    quad_tensors_free(&c.out);
    config.moe.emb_dim = 3;
    config.moe.fused_weights = false;
    assert_int_equal(case_evaluate(&c, quad_moe, &config), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "the tensor 'weights/wi_0' is missing");
    case_end(&c);
}
