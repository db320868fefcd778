/* The assertion helpers are themselves checked: what they must reject, and what they must accept. */

#include "tests/support/assay_test.h"

TEST(test_is_close_rejects)
{
    static const struct {
        double actual, expected, relative, absolute;
    } rejected[] = {
        {NAN, 1, 1, 1},        {1, NAN, 1, 1},      {NAN, NAN, 1, 1},
        {INFINITY, 1, 1, 1},   {1, INFINITY, 1, 1}, {-INFINITY, INFINITY, 1, 1},
        {NAN, INFINITY, 1, 1}, {1.1, 1, 0.01, 0},   {0, 1e-300, 0, 0},
        {-1, 1, 1e-3, 1e-3},
    };
    for (size_t i = 0; i < sizeof rejected / sizeof *rejected; i++) {
        assert_false(
            assay_is_close(&rejected[i].actual, &rejected[i].expected, 1, rejected[i].relative, rejected[i].absolute));
    }
}

TEST(test_is_close_accepts)
{
    double actual[] = {1.0, INFINITY, -INFINITY, 0.0, 2.002};
    double expected[] = {1.0, INFINITY, -INFINITY, -0.0, 2.0};
    assert_true(assay_is_close(actual, expected, 5, 1e-2, 0));
    assert_close(actual, expected, 5, 1e-2, 0);
}

TEST(test_one_bad_element_among_many_is_seen)
{
    double actual[100] = {0}, expected[100] = {0};
    actual[99] = NAN;
    assert_true(assay_is_close(actual, expected, 99, 0, 0));
    assert_false(assay_is_close(actual, expected, 100, 0, 0));
}

TEST(test_allocation_fails_once_and_where_asked)
{
    assay_fail_allocation(1);
    void *volatile first = malloc(8);
    void *volatile second = malloc(8);
    void *volatile third = malloc(8);
    assay_fail_allocation(-1);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    assert_true(assay_allocation_failed());
    free(first);
    free(third);
}
