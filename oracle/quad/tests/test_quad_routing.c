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
