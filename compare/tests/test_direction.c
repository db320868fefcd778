/* What passes a filter along a known error, by plain algebra, and what that is judged by. */

#include "compare/direction.h"
#include "compare/tests/compare_test.h"

enum { COUNT = 1003 };

/* Numbers, a known error, and the filter along it that passes the error with 1. */
typedef struct known {
    double golden[COUNT], moved[COUNT], filter[COUNT], candidate[COUNT];
} known;

static void known_start(known *k)
{
    double weight = 0;
    for (int i = 0; i < COUNT; i++) {
        k->golden[i] = draw(3, "golden", i);
        k->moved[i] = 0.01 * draw_normal(3, "moved", i);
        weight += k->moved[i] * k->moved[i];
    }
    for (int i = 0; i < COUNT; i++) k->filter[i] = k->moved[i] / weight;
}

static double passed(known *k, double times, double other)
{
    for (int i = 0; i < COUNT; i++) {
        /* neighbours exchanged, with a sign: orthogonal to the known error but for the last one */
        const int neighbour = i % 2 == 0 ? i + 1 : i - 1;
        const double across = neighbour < COUNT ? (i % 2 == 0 ? k->moved[neighbour] : -k->moved[neighbour]) : 0;
        k->candidate[i] = k->golden[i] + times * k->moved[i] + other * across;
    }
    return assay_projection(COUNT, k->filter, k->golden, k->candidate);
}

TEST(a_known_error_passes_whole_and_another_does_not)
{
    known k;
    known_start(&k);
    assert_true(fabs(passed(&k, 1, 0) - 1) < 1e-12);
    assert_true(fabs(passed(&k, -0.5, 0) + 0.5) < 1e-12);
    assert_true(passed(&k, 0, 0) == 0);
    assert_true(fabs(passed(&k, 0, 100)) < 1e-10);
    assert_true(fabs(passed(&k, 1, 100) - 1) < 1e-10);
    k.candidate[5] = NAN;
    k.candidate[7] = INFINITY;
    const double rest = assay_projection(COUNT, k.filter, k.golden, k.candidate);
    assert_true(isfinite(rest) && fabs(rest - 1) > 1e-6);
}

static assay_direction_result judged(double value, double spread, int64_t seen)
{
    const assay_thresholds thresholds = assay_thresholds_of(1e-6, 1, 1, 100);
    assay_direction_result r = {
        .name = "an_error", .expected = {-0.01, 0.02, spread, 256}, .elements = 10, .seen = seen, .value = value};
    assay_direction_judge(&thresholds, &r);
    return r;
}

TEST(values_beyond_the_range_fail_on_either_side)
{
    const struct {
        double value;
        bool fails;
    } table[] = {{0, false}, {0.3, false}, {-0.3, false}, {0.9, true}, {1, true}, {-1, true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const assay_direction_result r = judged(table[i].value, 0.1, 10);
        assert_true(r.judged);
        assert_true((r.excess > 1) == table[i].fails);
        assert_true((assay_direction_worst(1, &r) != NULL) == table[i].fails);
    }
    const assay_direction_result part = judged(1, 0.1, 9), both[] = {judged(0.9, 0.1, 10), judged(-1, 0.1, 10)};
    assert_false(part.judged);
    assert_null(assay_direction_worst(1, &part));
    assert_ptr_equal(assay_direction_worst(2, both), &both[1]);
    char text[ASSAY_DIRECTION_TEXT];
    assay_direction_text(&both[1], text);
    assert_non_null(strstr(text, "errors are -1.00 of those of an_error, give or take 0.2"));
}

TEST(a_filter_is_used_where_it_tells)
{
    const struct {
        double row[ASSAY_NULL_COLUMNS];
        bool used;
    } table[] = {{{-0.01, 0.01, 0.1, 256}, true}, {{-0.01, 0.01, 0.15, 256}, false},
                 {{-0.5, 0.01, 0.1, 256}, false}, {{-0.01, 0.01, 0.1, 8}, false},
                 {{0, 0, 0, 0}, false},           {{0, 0, NAN, 256}, false}};
    const assay_thresholds thresholds = assay_thresholds_of(1e-6, 1, 1, 200);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_true(assay_direction_is_resolved(&thresholds, table[i].row) == table[i].used);
    }
}
