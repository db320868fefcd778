/* A token's choice of experts against scores and errors made by hand. */

#include "harness/fixes/choice.h"
#include "tests/support/assay_test.h"

/* 8 experts, best first: 2 (1.0), 5 (0.9), 0 and 7 (0.8), 3 (0.5), 1 (0.4), 6 (0.3), 4 (0.1) */
static const double scores[8] = {0.8, 0.4, 1.0, 0.5, 0.1, 0.9, 0.3, 0.8};

static assay_choice choice_of(int64_t per_token, const int32_t *golden, const int32_t *selected, const double *tau)
{
    return (assay_choice){.experts = 8,
                          .per_token = per_token,
                          .groups = 1,
                          .groups_kept = 1,
                          .scores = scores,
                          .tau = tau,
                          .golden = golden,
                          .selected = selected};
}

static void fill(double tau[8], double value)
{
    for (int e = 0; e < 8; e++) tau[e] = value;
}

/* With four groups that all stay as without groups. */
TEST(tau_decides)
{
    static const struct {
        int32_t golden[2], selected[2];
        double tau;
        assay_choice_verdict verdict;
        double excess; /* 0: not looked at */
    } table[] = {
        {{2, 5}, {2, 5}, 0.0, ASSAY_CHOICE_EXACT, 0},
        {{2, 5}, {5, 2}, 0.0, ASSAY_CHOICE_EXACT, 0},
        {{2, 5}, {2, 0}, 0.0501, ASSAY_CHOICE_ADMISSIBLE, 0.05 / 0.0501},
        {{2, 5}, {0, 2}, 0.0501, ASSAY_CHOICE_ADMISSIBLE, 0},
        {{2, 5}, {2, 0}, 0.0499, ASSAY_CHOICE_WRONG, 0.05 / 0.0499},
        {{2, 5}, {2, 0}, 0.0, ASSAY_CHOICE_WRONG, INFINITY},
        {{2, 5}, {2, 7}, 0.1, ASSAY_CHOICE_TIE, 0}, /* 0 is as good as 7 */
        {{2, 5}, {0, 7}, 0.1001, ASSAY_CHOICE_ADMISSIBLE, 0},
        {{2, 5}, {0, 7}, 0.0999, ASSAY_CHOICE_WRONG, 0.1 / 0.0999},
        {{2, 5}, {2, 4}, 0.05, ASSAY_CHOICE_WRONG, 8},
        {{2, 5}, {2, 2}, 10.0, ASSAY_CHOICE_INVALID, 0},
        {{2, 5}, {2, 8}, 10.0, ASSAY_CHOICE_INVALID, 0},
        {{2, 5}, {-1, 2}, 10.0, ASSAY_CHOICE_INVALID, 0},
        {{2, 5}, {INT32_MAX, INT32_MIN}, 10.0, ASSAY_CHOICE_INVALID, 0},
        {{2, 5}, {2, 0}, INFINITY, ASSAY_CHOICE_ADMISSIBLE, 0},
        {{2, 5}, {2, 0}, NAN, ASSAY_CHOICE_WRONG, INFINITY},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double tau[8] = {0};
        fill(tau, table[i].tau);
        assay_choice c = choice_of(2, table[i].golden, table[i].selected, tau);
        for (c.groups = 1; c.groups <= 4; c.groups += 3) {
            c.groups_kept = c.groups;
            const assay_choice_verdict verdict = assay_choice_judge(&c);
            if (verdict != table[i].verdict) fail_msg("row %zu: verdict %d, expected %d", i, verdict, table[i].verdict);
        }
        c.groups = c.groups_kept = 1;
        if (isinf(table[i].excess)) assert_true(isinf(assay_choice_excess(&c)));
        if (table[i].excess > 0 && isfinite(table[i].excess)) {
            const double excess = assay_choice_excess(&c);
            assert_close(&excess, &table[i].excess, 1, 1e-9, 0);
        }
    }
}

/* Each expert has its own. */
TEST(tau_is_of_the_expert)
{
    static const int32_t golden[] = {2, 5}, selected[] = {2, 0};
    double tau[8] = {0};
    const assay_choice c = choice_of(2, golden, selected, tau);
    tau[0] = 0.1001;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_ADMISSIBLE);
    tau[0] = 0;
    tau[5] = 0.1001;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_ADMISSIBLE);
    tau[5] = 0.0999;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_WRONG);
    tau[5] = 0;
    tau[1] = tau[3] = tau[4] = tau[7] = 0.01; /* of others: 0 stays too low */
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_WRONG);
}

TEST(ties)
{
    static const int32_t golden[] = {2, 5, 0}, higher[] = {2, 5, 7};
    double tau[8] = {0};
    assay_choice c = choice_of(3, golden, higher, tau);
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_TIE);
    c.any_of_tied = true;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_ADMISSIBLE);
    /* the table of a hash router knows no ties and no errors */
    fill(tau, 1);
    c.fixed = true;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_WRONG);
    c.selected = golden;
    assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_EXACT);
}

TEST(a_score_that_is_no_number)
{
    static const int32_t golden[] = {2, 5}, selected[] = {2, 0};
    double tau[8] = {0}, with_nan[8];
    fill(tau, 1);
    assay_choice c = choice_of(2, golden, selected, tau);
    for (int e = 0; e < 8; e++) {
        memcpy(with_nan, scores, sizeof scores);
        with_nan[e] = NAN;
        c.scores = with_nan;
        c.groups = 1;
        assert_int_equal(assay_choice_judge(&c), ASSAY_CHOICE_WRONG);
        assert_true(isinf(assay_choice_excess(&c)));
    }
}

TEST(the_swap_is_named)
{
    static const int32_t golden[] = {2, 5, 0}, selected[] = {4, 2, 6};
    double tau[8] = {0};
    int32_t chosen, better;
    const assay_choice c = choice_of(3, golden, selected, tau);
    assay_choice_swap(&c, &chosen, &better);
    assert_int_equal(chosen, 4);
    assert_int_equal(better, 5);
}

/* Groups {0,1} {2,3} {4,5} {6,7}; two stay. */
TEST(groups)
{
    static const struct {
        double scores[8];
        assay_group_score how;
        int32_t golden[2], selected[2];
        double tau;
        assay_choice_verdict verdict;
    } table[] = {
        /* sums 1.9, 1.7, 1.6, 0.2 */
        {{1.0, 0.9, 1.2, 0.5, 0.9, 0.7, 0.1, 0.1}, ASSAY_GROUP_TOP2_SUM, {2, 0}, {0, 2}, 0, ASSAY_CHOICE_EXACT},
        /* from a group that does not stay, just within and beyond its reach: 4 tau >= 0.1; and 4 must not lose to 1 */
        {{1.0, 0.9, 1.2, 0.5, 0.99, 0.61, 0.1, 0.1},
         ASSAY_GROUP_TOP2_SUM,
         {2, 0},
         {0, 4},
         0.0251,
         ASSAY_CHOICE_ADMISSIBLE},
        {{1.0, 0.9, 1.2, 0.5, 0.99, 0.61, 0.1, 0.1}, ASSAY_GROUP_TOP2_SUM, {2, 0}, {0, 4}, 0.0249, ASSAY_CHOICE_WRONG},
        /* the group could stay, the expert is too low among its own */
        {{1.0, 0.9, 1.2, 0.5, 0.99, 0.61, 0.1, 0.1}, ASSAY_GROUP_TOP2_SUM, {2, 0}, {0, 5}, 0.03, ASSAY_CHOICE_WRONG},
        /* experts of three groups */
        {{1.0, 0.9, 1.2, 0.5, 0.99, 0.61, 0.1, 0.1}, ASSAY_GROUP_MAX, {2, 0}, {0, 6}, 0.03, ASSAY_CHOICE_WRONG},
        /* both of one group, for another takes the place of the group of 2 and loses */
        {{1.0, 0.9, 0.95, 0.5, 0.8499, 0.6, 0.1, 0.1},
         ASSAY_GROUP_TOP2_SUM,
         {0, 2},
         {0, 1},
         0.0001,
         ASSAY_CHOICE_ADMISSIBLE},
        /* ... which it cannot where it is clearly worse */
        {{1.0, 0.9, 0.95, 0.5, 0.80, 0.6, 0.1, 0.1}, ASSAY_GROUP_TOP2_SUM, {0, 2}, {0, 1}, 0.0001, ASSAY_CHOICE_WRONG},
        /* equal sums of groups: the lower group stays */
        {{1.0, 0.5, 0.75, 0.5, 0.75, 0.5, 0.0, 0.0}, ASSAY_GROUP_TOP2_SUM, {0, 2}, {0, 4}, 0, ASSAY_CHOICE_TIE},
        /* by the maximum alone */
        {{1.0, 0.5, 0.75, 0.5, 0.8, 0.0, 0.0, 0.0}, ASSAY_GROUP_MAX, {0, 4}, {0, 2}, 0.0251, ASSAY_CHOICE_ADMISSIBLE},
        {{1.0, 0.5, 0.75, 0.5, 0.8, 0.0, 0.0, 0.0}, ASSAY_GROUP_MAX, {0, 4}, {0, 2}, 0.0249, ASSAY_CHOICE_WRONG},
        {{1.0, NAN, 0.75, 0.5, 0.8, 0.0, 0.0, 0.0}, ASSAY_GROUP_MAX, {0, 4}, {0, 2}, 1, ASSAY_CHOICE_WRONG},
        {{1.0, 0.5, 0.75, 0.5, 0.8, 0.0, 0.0, 0.0}, ASSAY_GROUP_MAX, {0, 4}, {0, 0}, 1, ASSAY_CHOICE_INVALID},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double tau[8] = {0};
        fill(tau, table[i].tau);
        assay_choice c = choice_of(2, table[i].golden, table[i].selected, tau);
        c.scores = table[i].scores;
        c.groups = 4;
        c.groups_kept = 2;
        c.group_score = table[i].how;
        const assay_choice_verdict verdict = assay_choice_judge(&c);
        if (verdict != table[i].verdict) fail_msg("row %zu: verdict %d, expected %d", i, verdict, table[i].verdict);
    }
}

/* The oracle's own choice from scores that were moved by tau at most is admissible, and what tau alone cannot explain is
 * not: of many random tokens. */
TEST(whatever_a_router_chooses)
{
    uint64_t seed = 7;
    int other = 0;
    for (int trial = 0; trial < 3000; trial++) {
        double true_scores[8] = {0}, moved[8] = {0}, tau[8] = {0};
        for (int e = 0; e < 8; e++) {
            true_scores[e] = test_uniform(&seed);
            tau[e] = 0.05;
            moved[e] = true_scores[e] + 0.05 * (2 * test_uniform(&seed) - 1);
        }
        int32_t choices[2][2];
        for (int which = 0; which < 2; which++) {
            const double *s = which == 0 ? true_scores : moved;
            bool kept[4] = {false};
            for (int n = 0; n < 2; n++) {
                int best = -1;
                for (int g = 0; g < 4; g++) {
                    if (!kept[g] && (best < 0 || s[2 * g] + s[2 * g + 1] > s[2 * best] + s[2 * best + 1])) best = g;
                }
                kept[best] = true;
            }
            for (int k = 0; k < 2; k++) {
                int best = -1;
                for (int e = 0; e < 8; e++) {
                    if (!kept[e / 2] || (k == 1 && e == choices[which][0])) continue;
                    if (best < 0 || s[e] > s[best]) best = e;
                }
                choices[which][k] = best;
            }
        }
        assay_choice c = choice_of(2, choices[0], choices[1], tau);
        c.scores = true_scores;
        c.groups = 4;
        c.groups_kept = 2;
        const assay_choice_verdict verdict = assay_choice_judge(&c);
        other += verdict == ASSAY_CHOICE_ADMISSIBLE;
        assert_true(verdict == ASSAY_CHOICE_EXACT || verdict == ASSAY_CHOICE_ADMISSIBLE);
    }
    assert_true(other > 200);
}
