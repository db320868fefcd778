/* The second form of routing against small cases worked out by hand: one token, or few. */
#include <math.h>
#include <stdlib.h>

#include "oracle/quad/tests/quad_case.h"

static const double ln2 = 0.6931471805599453, ln3 = 1.0986122886681098, ln4 = 1.3862943611198906;

static assay_routing_config one_token(assay_router_family family, assay_score_func f, int64_t experts, int64_t k)
{
    return (assay_routing_config){.batch = 1,
                                  .sequence = 1,
                                  .num_experts = experts,
                                  .num_experts_per_tok = k,
                                  .family = family,
                                  .score_func = f,
                                  .n_routing_groups = -1,
                                  .topk_routing_group = -1,
                                  .routed_scaling_factor = 1};
}

/* Softmax of these logits is (.1, .3, .2, .4). */
static void add_tenths(quad_case *c)
{
    case_values(c, "inputs/logits", (double[]){0, ln3, ln2, ln4}, DIMS(1, 1, 4));
}

TEST(test_families)
{
    static const struct {
        assay_router_family family;
        assay_score_func f;
        bool norm, scale;
        double weights[2];
    } table[] = {
        {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, false, false, {1, .75}},                       /* times 2.5 */
        {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, false, false, {2.5 * 16 / 31, 2.5 * 15 / 31}}, /* of 4/5, 3/4 */
        {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, false, false, {2.5 * 1.3862943611198906, 2.5 * 1.0986122886681098}},
        {ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SOFTMAX, false, false, {1, .75}},
        {ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SIGMOID, false, false, {2.5 * 16 / 31, 2.5 * 15 / 31}},
        {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, false, false, {4. / 7, 3. / 7}},
        {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, true, true, {16. / 7, 6. / 7}},
        {ASSAY_ROUTER_GEMMA4, ASSAY_SCORE_NONE, false, false, {.4, .3}},
        {ASSAY_ROUTER_GEMMA4, ASSAY_SCORE_NONE, true, false, {4. / 7, 3. / 7}},
        {ASSAY_ROUTER_GEMMA4, ASSAY_SCORE_NONE, false, true, {1.6, .6}},
        {ASSAY_ROUTER_FUSED, ASSAY_SCORE_SOFTMAX, true, false, {4. / 7, 3. / 7}},
        {ASSAY_ROUTER_FUSED, ASSAY_SCORE_SIGMOID, true, false, {16. / 31, 15. / 31}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(table[i].family, table[i].f, 4, 2);
        config.routed_scaling_factor = 2.5;
        config.norm_topk_prob = table[i].norm;
        add_tenths(&c);
        if (table[i].scale) case_values(&c, "weights/per_expert_scale", (double[]){1, 2, 3, 4}, DIMS(4));
        assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
        assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){3, 1});
        assert_result(&c, "outputs/weights", 2, table[i].weights, 2e-15);
        assert_result(&c, "routing/weights", 2, table[i].weights, 2e-15);
        assert_indices(&c, "routing/group_sizes", 4, (int32_t[]){0, 1, 0, 1});
        assert_indices(&c, "routing/sorted_selected_experts", 2, (int32_t[]){1, 0});
        assert_null(quad_tensors_find(&c.out, "outputs/lb_loss"));
        assert_null(quad_tensors_find(&c.out, "outputs/bias_updates"));
        case_end(&c);
    }
}

TEST(test_llama4)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_LLAMA4, ASSAY_SCORE_NONE, 4, 1);
    add_tenths(&c);
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_result(&c, "outputs/weights", 1, &ln4, 0);
    quad_tensors_free(&c.out);
    config.num_experts_per_tok = 2;
    assert_int_equal(case_evaluate(&c, quad_routing, &config), ASSAY_BAD_INPUT);
    case_end(&c);
}

TEST(test_sqrtsoftplus)
{
    /* ln(1 + e^x) is 4 and 1 where e^x is e^4 - 1 and e - 1. */
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SQRTSOFTPLUS, 3, 2);
    case_values(&c, "inputs/logits", (double[]){0.54132485461291811, -5, 3.9815145531741134}, DIMS(1, 1, 3));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){2, 0});
    assert_result(&c, "outputs/weights", 2, (double[]){2. / 3, 1. / 3}, 1e-15);
    case_end(&c);
}

/* The sum of the chosen scores is itself 1e-20 (sigmoid of -46.05170185988091): the extra 1e-20 halves the weight. */
TEST(test_division_by_almost_nothing)
{
    for (int exactly = 0; exactly < 2; exactly++) {
        quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 2, 1);
        config.renormalize_exactly = exactly;
        case_values(&c, "inputs/logits", (double[]){-50, -46.051701859880914}, DIMS(1, 1, 2));
        assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
        assert_result(&c, "outputs/weights", 1, exactly ? (double[]){1} : (double[]){.5}, 1e-14);
        case_end(&c);
    }
}

/* A bias selects but does not weigh in DeepSeek 3; elsewhere it does both. */
TEST(test_bias)
{
    static const struct {
        assay_router_family family;
        assay_score_func f;
        double weights[2];
    } table[] = {
        {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, {.1, .2}},
        {ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SOFTMAX, {10.1, 9.2}},
        {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_SOFTMAX, {0.71094950262500396, 0.28905049737499604}}, /* of 10.1, 9.2 */
        {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, {0.57611688476582911, 0.42388311523417089}},    /* of 10, 9 + ln 2 */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(table[i].family, table[i].f, 4, 2);
        add_tenths(&c);
        case_values(&c, "weights/gate/bias", (double[]){10, -10, 9, -10}, DIMS(4));
        assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
        assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){0, 2});
        assert_result(&c, "outputs/weights", 2, table[i].weights, 1e-14);
        case_end(&c);
    }
    /* The fused function adds it before the score: softmax of (ln 2, ln 3, ln 2, ln 4). */
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_FUSED, ASSAY_SCORE_SOFTMAX, 4, 3);
    config.norm_topk_prob = true;
    add_tenths(&c);
    case_values(&c, "weights/gate/bias", (double[]){ln2, 0, 0, 0}, DIMS(4));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 3, (int32_t[]){3, 1, 0});
    assert_result(&c, "outputs/weights", 3, (double[]){4. / 9, 3. / 9, 2. / 9}, 1e-15);
    case_end(&c);
}

TEST(test_groups)
{
    static const struct {
        assay_group_score rule;
        double logits[6];
        int64_t groups, kept, k;
        int32_t selected[2];
        double margin;
    } table[] = {
        /* Two groups of two or three; by the sum of the best two the second, by the largest the first. */
        {ASSAY_GROUP_TOP2_SUM, {5, 0, -9, 3, 3.5, -9}, 2, 1, 2, {4, 3}, .375},
        {ASSAY_GROUP_MAX, {5, 0, -9, 3, 3.5, -9}, 2, 1, 2, {0, 1}, .75},
        /* All negative: what is not allowed must not win. */
        {ASSAY_GROUP_TOP2_SUM, {-3, -4, -9, -1, -8, -8.5}, 2, 1, 2, {0, 1}, .5},
        {ASSAY_GROUP_TOP2_SUM, {-3, -4, -9, -1, -8, -8.5}, 2, 2, 2, {3, 0}, .5}, /* nothing cut: -3 against -4 */
        {ASSAY_GROUP_TOP2_SUM, {1, 2, 3, 4, 5, 7}, 6, 2, 2, {5, 4}, .5},         /* groups of one */
        /* Ties: the lower group, the lower expert. */
        {ASSAY_GROUP_TOP2_SUM, {1, 3, 0, 2, 2, 2}, 2, 1, 2, {1, 0}, 0},
        {ASSAY_GROUP_MAX, {3, 3, 3, 1, 1, 1}, 2, 1, 2, {0, 1}, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, 6, table[i].k);
        config.n_routing_groups = table[i].groups;
        config.topk_routing_group = table[i].kept;
        config.group_score = table[i].rule;
        case_values(&c, "inputs/logits", table[i].logits, DIMS(1, 1, 6));
        assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
        assert_indices(&c, "routing/selected_experts", 2, table[i].selected);
        assert_result(&c, "routing/margin", 1, &table[i].margin, 0);
        case_end(&c);
    }
}

TEST(test_margin_is_infinite_where_all_are_chosen)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 4);
    add_tenths(&c);
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 4, (int32_t[]){3, 1, 2, 0});
    assert_true(isinf(result_at(&c, "routing/margin", 0)));
    case_end(&c);
}

TEST(test_ties_take_the_lower_index)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 5, 3);
    case_values(&c, "inputs/logits", (double[]){1, 2, 1, 2, 1}, DIMS(1, 1, 5));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 3, (int32_t[]){1, 3, 0});
    assert_result(&c, "routing/margin", 1, (double[]){0}, 0);
    case_end(&c);
}

TEST(test_hash_and_given_choice)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, 4, 2);
    config.hash_rows = 3;
    config.load_balance_loss_weight = 1; /* a hashed layer has none */
    add_tenths(&c);
    case_indices(&c, "weights/tid2eid", (int32_t[]){0, 1, 0, 2, 1, 2}, DIMS(3, 2));
    case_indices(&c, "inputs/input_ids", (int32_t[]){2}, DIMS(1, 1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){1, 2});
    assert_result(&c, "outputs/weights", 2, (double[]){.3, .2}, 1e-15);
    assert_null(quad_tensors_find(&c.out, "outputs/lb_loss"));
    quad_tensors_free(&c.out);

    config.hash_rows = 2;
    assert_int_equal(case_evaluate(&c, quad_routing, &config), ASSAY_BAD_INPUT);
    quad_tensors_free(&c.out);
    case_end(&c);

    case_start(&c, 1);
    config.hash_rows = 0;
    add_tenths(&c);
    case_indices(&c, "routing/selected_experts", (int32_t[]){0, 3}, DIMS(1, 1, 2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 2, (int32_t[]){0, 3});
    assert_result(&c, "outputs/weights", 2, (double[]){.1, .4}, 1e-15);
    case_end(&c);
}

/* The choice, or the choice and its weights, as inputs; a slot of -1 has weight 0 and no part in the division. */
TEST(test_choice_as_input)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 3);
    config.norm_topk_prob = true;
    case_values(&c, "inputs/logits", (double[]){0, ln2, ln3, ln4}, DIMS(1, 1, 4));
    case_indices(&c, "inputs/selected_experts", (int32_t[]){3, -1, 1}, DIMS(1, 1, 3));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_indices(&c, "routing/selected_experts", 3, (int32_t[]){3, -1, 1});
    assert_indices(&c, "routing/group_sizes", 4, (int32_t[]){0, 1, 0, 1});
    assert_indices(&c, "routing/sorted_selected_experts", 3, (int32_t[]){2, 0, -1});
    assert_result(&c, "outputs/weights", 3, (double[]){2. / 3, 0, 1. / 3}, 1e-15);
    assert_result(&c, "routing/margin", 1, (double[]){INFINITY}, 0);
    quad_tensors_free(&c.out);

    config.use_random_routing = true;
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_result(&c, "outputs/weights", 3, (double[]){ln4, 0, ln2}, 1e-15);
    quad_tensors_free(&c.out);

    case_values(&c, "inputs/routing_weights", (double[]){.5, NAN, -2}, DIMS(1, 1, 3));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_result(&c, "outputs/weights", 3, (double[]){.5, 0, -2}, 0);
    case_end(&c);
}

/* Two rows of two tokens over two experts: row 0 chooses 0, 0, row 1 chooses 0, 1. P of a token is (3/4, 1/4) or its
 * mirror image. */
TEST(test_balance)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 2, 1);
    config.batch = 2;
    config.sequence = 2;
    config.load_balance_loss_weight = .5;
    config.routed_bias_update_rate = .001;
    case_values(&c, "inputs/logits", (double[]){ln3, 0, ln3, 0, ln3, 0, 0, ln3}, DIMS(2, 2, 2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    /* density (1, 0), (1/2, 1/2); mean P (3/4, 1/4), (1/2, 1/2): mean of (3/4, 0, 1/4, 1/4) is 5/16; * 4 * 1/2 */
    assert_result(&c, "outputs/lb_loss", 1, (double[]){.625}, 1e-15);
    assert_result(&c, "outputs/bias_updates", 2, (double[]){-.001, .001}, 0);
    case_end(&c);
}

TEST(test_logits_from_x)
{
    quad_case c;
    case_start(&c, 1);
    assay_routing_config config = one_token(ASSAY_ROUTER_LLAMA4, ASSAY_SCORE_NONE, 2, 1);
    case_values(&c, "inputs/x", (double[]){2, 3}, DIMS(1, 1, 2));
    case_values(&c, "weights/gate/kernel", (double[]){1, 10, 2, 20}, DIMS(2, 2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
    assert_result(&c, "outputs/weights", 1, (double[]){80}, 0);
    assert_result(&c, "routing/margin", 1, (double[]){36}, 0);
    case_end(&c);
}

TEST(test_refusals)
{
    static const struct {
        int64_t k, groups, kept;
        double first;
    } table[] = {{5, -1, -1, 0}, {0, -1, -1, 0}, {2, 3, 1, 0}, {3, 2, 1, 0}, {2, 2, 3, 0}, {2, -1, -1, NAN}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, 4, table[i].k);
        config.n_routing_groups = table[i].groups;
        config.topk_routing_group = table[i].kept;
        case_values(&c, "inputs/logits", (double[]){table[i].first, ln3, ln2, ln4}, DIMS(1, 1, 4));
        assert_int_equal(case_evaluate(&c, quad_routing, &config), ASSAY_BAD_INPUT);
        assert_true(c.ctx.message[0] != '\0');
        case_end(&c);
    }
}
