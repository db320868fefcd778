#include "oracle/moe/tests/one_token.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* Selection alone: no score function, so that what selects is logits + bias to the bit. */
static assay_routing_config selection_config(int64_t tokens, int64_t experts, int64_t per_token, int64_t groups,
                                             int64_t kept, assay_group_score group_score)
{
    assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_NONE, experts, per_token);
    config.sequence = tokens;
    config.n_routing_groups = groups;
    config.topk_routing_group = kept;
    config.group_score = group_score;
    return config;
}

static void route(assay_routing *r, const double *logits, const double *bias, const assay_routing_config *config)
{
    assay_context ctx = assay_context_default(2);
    const assay_routing_inputs in = {.logits = logits, .bias = bias};
    assert_ok(&ctx, assay_routing_alloc(&ctx, r, config));
    assert_ok(&ctx, assay_routing_forward(&ctx, r, &in, config));
}

static const struct {
    int64_t experts, per_token, groups, kept;
    assay_group_score group_score;
} SHAPES[] = {
    {1, 1, -1, -1, ASSAY_GROUP_MAX},     {7, 3, -1, -1, ASSAY_GROUP_MAX},     {7, 7, -1, -1, ASSAY_GROUP_MAX},
    {16, 4, 4, 2, ASSAY_GROUP_TOP2_SUM}, {16, 4, 4, 2, ASSAY_GROUP_MAX},      {15, 6, 5, 2, ASSAY_GROUP_TOP2_SUM},
    {21, 5, 7, 3, ASSAY_GROUP_TOP2_SUM}, {6, 2, 6, 2, ASSAY_GROUP_TOP2_SUM},  {6, 1, 6, 3, ASSAY_GROUP_MAX},
    {12, 5, 3, 3, ASSAY_GROUP_TOP2_SUM}, {12, 4, 1, 1, ASSAY_GROUP_TOP2_SUM}, {300, 8, 10, 4, ASSAY_GROUP_TOP2_SUM},
    {300, 8, -1, -1, ASSAY_GROUP_MAX},   {39, 2, 13, 12, ASSAY_GROUP_MAX},    {8, 4, 4, 2, ASSAY_GROUP_TOP2_SUM},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof SHAPES[0], TOKENS = 24 };

/* Token t: whole numbers from few values (many ties), all negative ones, or anything. */
static void draw(double *logits, int64_t tokens, int64_t experts, uint64_t *state)
{
    for (int64_t i = 0; i < tokens * experts; i++) {
        const int64_t kind = i / experts % 4;
        const double x = test_normal(state);
        logits[i] = kind == 0 ? floor(4.0 * test_uniform(state)) : kind == 1 ? -30.0 + x : kind == 2 ? x : floor(x);
    }
}

static bool same_set(const int32_t *a, const int32_t *b, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < count; j++) found += a[i] == b[j];
    }
    return found == count;
}

/* No change of what selects by less than the margin alters the set, whatever the signs. */
TEST(test_margin_holds)
{
    uint64_t random = 2;
    for (int s = 0; s < SHAPE_COUNT; s++) {
        const int64_t experts = SHAPES[s].experts, per_token = SHAPES[s].per_token;
        const assay_routing_config config =
            selection_config(TOKENS, experts, per_token, SHAPES[s].groups, SHAPES[s].kept, SHAPES[s].group_score);
        double *logits = calloc((size_t)(2 * TOKENS * experts), sizeof *logits), *moved = logits + TOKENS * experts;
        assay_routing before = {0}, after = {0};
        draw(logits, TOKENS, experts, &random);
        route(&before, logits, NULL, &config);
        for (int trial = 0; trial < 8; trial++) {
            for (int64_t i = 0; i < TOKENS * experts; i++) {
                const double most = fmin(before.margin[i / experts], 100.0) * (1.0 - 1e-9);
                moved[i] = logits[i] + (test_uniform(&random) < 0.5 ? -most : most);
            }
            route(&after, moved, NULL, &config);
            for (int64_t t = 0; t < TOKENS; t++) {
                assert_true(same_set(before.selected_experts + t * per_token, after.selected_experts + t * per_token,
                                     per_token) ||
                            before.margin[t] == 0.0);
            }
            assay_routing_free(&after);
        }
        assay_routing_free(&before);
        free(logits);
    }
}

/* The worst change just beyond the margin does alter the set: the chosen down, the others up. */
TEST(test_margin_is_tight)
{
    enum { E = 11, K = 4 };
    uint64_t random = 3;
    const assay_routing_config config = selection_config(TOKENS, E, K, -1, -1, ASSAY_GROUP_MAX);
    double logits[TOKENS * E], moved[TOKENS * E];
    OWNED_BY(assay_routing_free) assay_routing before = {0}, after = {0};
    for (int i = 0; i < TOKENS * E; i++) logits[i] = test_normal(&random);
    route(&before, logits, NULL, &config);
    for (int i = 0; i < TOKENS * E; i++) moved[i] = logits[i] + before.margin[i / E] * (1.0 + 1e-9);
    for (int i = 0; i < TOKENS * K; i++) {
        const int at = i / K * E + before.selected_experts[i];
        moved[at] = logits[at] - before.margin[i / K] * (1.0 + 1e-9);
    }
    route(&after, moved, NULL, &config);
    for (int t = 0; t < TOKENS; t++) {
        assert_true(before.margin[t] > 0.0);
        assert_false(same_set(before.selected_experts + t * K, after.selected_experts + t * K, K));
    }
}

/* Groups: the change that lowers the two that count of the last kept group and raises those of the first not kept. */
TEST(test_group_margin_is_tight)
{
    enum { E = 8, K = 2 };
    const assay_routing_config config = selection_config(1, E, K, 4, 1, ASSAY_GROUP_TOP2_SUM);
    const double logits[E] = {1.0, 2.0, 8.0, 3.0, 4.0, 6.0, 0.0, 7.0}; /* sums 3, 11, 10, 7 */
    double moved[E];
    assay_routing r = {0};
    route(&r, logits, NULL, &config);
    assert_true(r.margin[0] == 0.25);
    assert_int_equal(r.selected_experts[0], 2);
    assay_routing_free(&r);
    for (int beyond = 0; beyond < 2; beyond++) {
        const double by = beyond ? 0.2501 : 0.2499;
        for (int e = 0; e < E; e++) moved[e] = e / 2 == 1 ? logits[e] - by : logits[e] + by;
        route(&r, moved, NULL, &config);
        assert_int_equal(r.selected_experts[0] / 2, beyond ? 2 : 1);
        assay_routing_free(&r);
    }
}

/* The example of MaxText's own test: 4 groups of 4, 2 kept; weights are those before the bias. */
TEST(test_maxtext_groups)
{
    const assay_routing_config config = selection_config(2, 16, 4, 4, 2, ASSAY_GROUP_TOP2_SUM);
    const double biased[] = {0.20, 0.10, 0.05, 0.10, 0.10, 0.60, 0.30, 0.10, 0.80, 0.01, 0.01,
                             0.01, 0.05, 0.80, 0.20, 0.10, 0.68, 0.20, 0.06, 0.03, 0.32, 0.10,
                             0.05, 0.02, 0.65, 0.20, 0.04, 0.01, 0.32, 0.10, 0.05, 0.02};
    const int32_t expected[] = {13, 5, 6, 14, 0, 8, 1, 9};
    double logits[32], bias[16], weights[8];
    OWNED_BY(assay_routing_free) assay_routing r = {0};
    for (int i = 0; i < 32; i++) logits[i] = biased[i] - 0.5;
    for (int e = 0; e < 16; e++) bias[e] = 0.5;
    route(&r, logits, bias, &config);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(r.selected_experts[i], expected[i]);
        weights[i] = logits[i / 4 * 16 + expected[i]];
    }
    assert_same_bits(r.weights, weights, 8);
}

/* Inputs on which known bugs show: what stands in for -inf, which rule scores a group, and ties. */
TEST(test_known_traps)
{
    static const struct {
        const char *what;
        int64_t per_token, groups, kept;
        assay_group_score group_score;
        double values[8];
        int32_t expected[4];
        double margin;
    } table[] = {
        {"a masked group is not 0", 4, 2, 1, ASSAY_GROUP_TOP2_SUM, {-4, -1, -2, -3, -5, -6, -7, -8}, {1, 2, 3, 0}, 2.0},
        {"all negative", 2, -1, -1, ASSAY_GROUP_MAX, {-9, -3, -7, -5, -8, -6, -4, -2}, {7, 1}, 0.5},
        {"two good ones beat one better", 2, 4, 1, ASSAY_GROUP_TOP2_SUM, {9, 0, 6, 5, 1, 1, 2, 2}, {2, 3}, 0.5},
        {"the best one counts alone", 2, 4, 1, ASSAY_GROUP_MAX, {9, 0, 6, 5, 1, 1, 2, 2}, {0, 1}, 1.5},
        {"equal values", 3, -1, -1, ASSAY_GROUP_MAX, {1, 2, 2, 2, 2, 1, 2, 2}, {1, 2, 3}, 0.0},
        {"equal groups", 4, 4, 2, ASSAY_GROUP_TOP2_SUM, {1, 2, 2, 2, 2, 2, 2, 2}, {2, 3, 4, 5}, 0.0},
        {"everything equal", 4, -1, -1, ASSAY_GROUP_MAX, {0}, {0, 1, 2, 3}, 0.0},
        {"minus zero is zero", 2, -1, -1, ASSAY_GROUP_MAX, {-1, -0.0, 0.0, -1, -1, -1, -1, -1}, {1, 2}, 0.5},
        {"nothing left out", 4, 2, 1, ASSAY_GROUP_MAX, {1, 2, 3, 4, 9, 9, 9, 9}, {4, 5, 6, 7}, 2.5},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const assay_routing_config config =
            selection_config(1, 8, table[i].per_token, table[i].groups, table[i].kept, table[i].group_score);
        OWNED_BY(assay_routing_free) assay_routing r = {0};
        route(&r, table[i].values, NULL, &config);
        for (int64_t k = 0; k < table[i].per_token; k++) {
            if (r.selected_experts[k] != table[i].expected[k]) print_error("%s\n", table[i].what);
            assert_int_equal(r.selected_experts[k], table[i].expected[k]);
        }
        assert_same_bits(r.margin, &table[i].margin, 1);
    }
}
