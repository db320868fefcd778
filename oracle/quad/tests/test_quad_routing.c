/* The second form of routing against small cases worked out by hand: one token, or few. */

#include "oracle/moe/tests/one_token.h"
#include "oracle/quad/tests/quad_case.h"

static const double ln2 = 0.6931471805599453, ln3 = 1.0986122886681098, ln4 = 1.3862943611198906;

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
        OWNED_BY(case_end) quad_case c;
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
    }
}

typedef struct by_hand {
    assay_routing_config config;
    const char *given, *expected; /* NULL: refused */
} by_hand;

static void check_rows(const by_hand *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        quad_case c;
        print_message("row %zu\n", i);
        if (rows[i].expected != NULL) {
            assert_by_hand(quad_routing, &rows[i].config, rows[i].given, rows[i].expected);
            continue;
        }
        case_start(&c, 1);
        case_given(&c, rows[i].given);
        assert_int_equal(case_evaluate(&c, quad_routing, &rows[i].config), ASSAY_BAD_INPUT);
        case_end(&c);
    }
}

#define SOME(n, f, score, experts, k)                                                                                  \
    .batch = n, .sequence = n, .num_experts = experts, .num_experts_per_tok = k, .family = f, .score_func = score,     \
    .n_routing_groups = -1, .topk_routing_group = -1, .routed_scaling_factor = 1
#define ONE(f, score, experts, k) SOME(1, f, score, experts, k)
#define TENTHS "inputs/logits 0 1.0986122886681098 0.6931471805599453 1.3862943611198906" /* of softmax: .1 .3 .2 .4 */

TEST(test_choices_and_weights)
{
    static const by_hand rows[] = {
        {{ONE(ASSAY_ROUTER_LLAMA4, ASSAY_SCORE_NONE, 4, 1)}, TENTHS, "outputs/weights 1.3862943611198906"},
        {{ONE(ASSAY_ROUTER_LLAMA4, ASSAY_SCORE_NONE, 4, 2)}, TENTHS, NULL},
        {{ONE(ASSAY_ROUTER_LLAMA4, ASSAY_SCORE_NONE, 2, 1)},
         "inputs/x 2 3; weights/gate/kernel 1 10 2 20",
         "outputs/weights 80; routing/margin 36"},
        /* ln(1 + e^x) is 4 and 1 where e^x is e^4 - 1 and e - 1 */
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SQRTSOFTPLUS, 3, 2)},
         "inputs/logits 0.54132485461291811 -5 3.9815145531741134",
         "routing/selected_experts 2 0; outputs/weights 0.66666666666666667 0.33333333333333333"},
        /* the sum of the chosen scores is itself 1e-20: the extra 1e-20 halves the weight */
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 2, 1)},
         "inputs/logits -50 -46.051701859880914",
         "outputs/weights .5"},
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 2, 1), .renormalize_exactly = true},
         "inputs/logits -50 -46.051701859880914",
         "outputs/weights 1"},
    /* a bias selects but does not weigh in DeepSeek 3; elsewhere it does both: softmax of 10.1 and 9.2, of 10 and 9 + ln 2 */
#define BIASED TENTHS "; weights/gate/bias 10 -10 9 -10"
#define FIRST "routing/selected_experts 0 2; outputs/weights "
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, 4, 2)}, BIASED, FIRST ".1 .2"},
        {{ONE(ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SOFTMAX, 4, 2)}, BIASED, FIRST "10.1 9.2"},
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_SOFTMAX, 4, 2)},
         BIASED,
         FIRST "0.71094950262500396 0.28905049737499604"},
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 2)}, BIASED, FIRST "0.57611688476582911 0.42388311523417089"},
        /* the fused function adds it before the score: softmax of (ln 2, ln 3, ln 2, ln 4) */
        {{ONE(ASSAY_ROUTER_FUSED, ASSAY_SCORE_SOFTMAX, 4, 3), .norm_topk_prob = true},
         TENTHS "; weights/gate/bias 0.6931471805599453 0 0 0",
         "routing/selected_experts 3 1 0; outputs/weights 0.44444444444444444 0.33333333333333333 0.22222222222222222"},
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 4)},
         TENTHS,
         "routing/selected_experts 3 1 2 0; routing/margin inf"},
        /* of equal ones the lower */
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 5, 3)},
         "inputs/logits 1 2 1 2 1",
         "routing/selected_experts 1 3 0; routing/margin 0"},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

TEST(test_choices_that_are_given)
{
    static const by_hand rows[] = {
    /* a hashed layer has no loss; its table has as many rows as there are ids */
#define HASHED TENTHS "; weights/tid2eid # 0 1 0 2 1 2; inputs/input_ids # 2"
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, 4, 2), .hash_rows = 3, .load_balance_loss_weight = 1},
         HASHED,
         "routing/selected_experts 1 2; outputs/weights .3 .2; outputs/lb_loss -; routing/margin inf"},
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, 4, 2), .hash_rows = 2}, HASHED, NULL},
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX, 4, 2)},
         TENTHS "; routing/selected_experts # 0 3",
         "routing/selected_experts 0 3; outputs/weights .1 .4"},
    /* a slot of -1 has weight 0 and no part in the division */
#define CHOSEN TENTHS "; inputs/selected_experts # 3 -1 1"
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 3), .norm_topk_prob = true},
         CHOSEN "; cotangents/weights 3 1 0",
         "routing/selected_experts 3 -1 1; routing/group_sizes 0 1 0 1; routing/sorted_selected_experts 2 0 -1; "
         "outputs/weights 0.57142857142857143 0 0.42857142857142857; routing/margin inf; "
         "gradients/inputs/logits 0 -0.73469387755102041 0 0.73469387755102041"},
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 3), .norm_topk_prob = true, .use_random_routing = true},
         CHOSEN,
         "outputs/weights 1.3862943611198906 0 1.0986122886681098"},
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 4, 3), .norm_topk_prob = true, .use_random_routing = true},
         CHOSEN "; inputs/routing_weights .5 nan -2",
         "outputs/weights .5 0 -2"},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

TEST(test_losses)
{
    static const by_hand rows[] = {
    /* row 0 chooses 0, 0, row 1 chooses 0, 1; P of a token is (3/4, 1/4) or its mirror image. Density (1, 0), (1/2, 1/2); mean P (3/4,
         * 1/4), (1/2, 1/2): the mean of (3/4, 0, 1/4, 1/4) is 5/16, times 4 times 1/2. Over the batch density and mean P are (3/4, 1/4) and
         * (5/8, 3/8): half of their product's sum, 9/16, times 4 times 1/2 */
#define FOUR "inputs/logits 1.0986122886681098 0 1.0986122886681098 0 1.0986122886681098 0 0 1.0986122886681098"
        {{SOME(2, ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 2, 1), .load_balance_loss_weight = .5,
          .routed_bias_update_rate = .001},
         FOUR,
         "outputs/lb_loss .625; outputs/bias_updates -.001 .001"},
        {{SOME(2, ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 2, 1), .load_balance_loss_weight = .5,
          .balance_scope = ASSAY_BALANCE_BATCH},
         FOUR,
         "outputs/lb_loss .5625"},
        /* of the logits as the gate gives them, whose exponentials sum to 4: with a bias that no score comes before, unless it selects alone */
        {{ONE(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, 2, 1), .z_loss_weight = .5},
         "inputs/logits 0 1.5986122886681098; weights/gate/bias 0 -.5",
         "outputs/z_loss 0.96090602783640285"},
        {{ONE(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, 2, 1), .z_loss_weight = .5},
         "inputs/logits 0 1.0986122886681098; weights/gate/bias 0 -.5",
         "outputs/z_loss 0.96090602783640285"},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
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
        OWNED_BY(case_end) quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, 6, table[i].k);
        config.n_routing_groups = table[i].groups;
        config.topk_routing_group = table[i].kept;
        config.group_score = table[i].rule;
        case_values(&c, "inputs/logits", table[i].logits, DIMS(1, 1, 6));
        assert_ok(&c.ctx, case_evaluate(&c, quad_routing, &config));
        assert_indices(&c, "routing/selected_experts", 2, table[i].selected);
        assert_result(&c, "routing/margin", 1, &table[i].margin, 0);
    }
}

TEST(test_refusals)
{
    static const struct {
        int64_t k, groups, kept;
        double first;
    } table[] = {{5, -1, -1, 0}, {0, -1, -1, 0}, {2, 3, 1, 0}, {3, 2, 1, 0}, {2, 2, 3, 0}, {2, -1, -1, NAN}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(case_end) quad_case c;
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, 4, table[i].k);
        config.n_routing_groups = table[i].groups;
        config.topk_routing_group = table[i].kept;
        case_values(&c, "inputs/logits", (double[]){table[i].first, ln3, ln2, ln4}, DIMS(1, 1, 4));
        assert_int_equal(case_evaluate(&c, quad_routing, &config), ASSAY_BAD_INPUT);
        assert_true(c.ctx.message[0] != '\0');
    }
}
