/* Elementary functions: the same bits from every instruction set, and errors within one ulp. */
#include "oracle/arithmetic/elementary.h"

#include <float.h>

#include "tests/support/assay_test.h"

/* 1, and the error of the long double that it is held against. */
static const double ONE_ULP = 1.001;

enum { COUNT = 20011 }; /* no multiple of any vector's length */

typedef double (*scalar_function)(double x);

/* Where implementations differ, then patterns of bits of every exponent and both signs. */
static void fill_awkward(double *x)
{
    static const double special[] = {
        0.0,
        -0.0,
        1.0,
        -1.0,
        INFINITY,
        -INFINITY,
        NAN,
        -NAN,
        0x1p-1074,
        -0x1p-1074,
        0x1p-1022,
        -0x1p-1022,
        0x1.fffffffffffffp-1023,
        DBL_MAX,
        -DBL_MAX,
        DBL_EPSILON,
        709.78,
        709.79,
        710,
        -708.4,
        -744.4,
        -745.13,
        -745.14,
        -746,
        -1000,
        1000,
        19.06,
        22.0,
        -22.0,
        5.9,
        6.0,
        -6.0,
        26.5,
        0x1p-27,
        0x1p-28,
        0.5,
        1e-300,
        1e300,
    };
    enum { SPECIAL = sizeof special / sizeof *special };
    uint64_t state = 7;
    memcpy(x, special, sizeof special);
    for (int i = SPECIAL; i < COUNT; i++) {
        if (i % 2 == 0) {
            x[i] = ldexp(test_uniform(&state) - 0.5, (int)(test_uniform(&state) * 2140) - 1073);
        } else {
            x[i] = (test_uniform(&state) - 0.5) * (i % 4 == 1 ? 1500 : 20);
        }
    }
}

/* A NaN may differ from another NaN in payload and sign; nothing else may differ at all. */
static void assert_same_numbers(const double *actual, const double *expected, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (isnan(actual[i]) && isnan(expected[i])) continue;
        if (memcmp(&actual[i], &expected[i], sizeof *actual) == 0) continue;
        print_error("at %a: %a, expected %a\n", x[i], actual[i], expected[i]);
        fail();
    }
}

TEST(test_exp_many_gives_the_bits_of_exp)
{
    static double x[COUNT], y[COUNT], expected[COUNT];
    fill_awkward(x);
    for (int64_t i = 0; i < COUNT; i++) expected[i] = assay_exp(x[i]);
    for (int isa = ASSAY_ISA_SCALAR; isa <= ASSAY_ISA_AVX512; isa++) {
        assay_context ctx = assay_context_default(1);
        if (!assay_isa_supported((assay_isa)isa)) continue;
        ctx.isa = (assay_isa)isa;
        assay_fill_nan(y, COUNT);
        assay_exp_many(&ctx, COUNT, x, y);
        assert_same_numbers(y, expected, x, COUNT);
        /* In place, and with every length of a last vector; what lies beyond is left alone. */
        for (int64_t count = 0; count < 20; count++) {
            memcpy(y, x, sizeof x);
            assay_exp_many(&ctx, count, y, y);
            assert_same_numbers(y, expected, x, count);
            assert_same_bits(y + count, x + count, 20);
        }
    }
}

/* |actual - exact| within so many units in the last place of the exact value. */
static bool within_ulps(double ulps, double actual, long double exact)
{
    double nearest = (double)exact;
    int exponent = 0;
    if (isnan(nearest)) return isnan(actual);
    if (isinf(nearest) || nearest == 0) return actual == nearest || fabsl((long double)actual - exact) <= 0x1p-1074L;
    frexp(nearest, &exponent);
    long double ulp = ldexpl(1, exponent - 53 < -1074 ? -1074 : exponent - 53);
    return fabsl((long double)actual - exact) <= (long double)ulps * ulp;
}

static void check_accuracy(double ulps, scalar_function function, long double (*exact)(long double), double low,
                           double high)
{
    uint64_t state = 11;
    for (int i = 0; i < 20000; i++) {
        double x = low + (high - low) * test_uniform(&state);
        if (i % 3 == 0) x = ldexp(x, -(int)(test_uniform(&state) * 60));
        if (!within_ulps(ulps, function(x), exact(x))) {
            print_error("at %a: %a, exactly %La\n", x, function(x), exact(x));
            fail();
        }
    }
}

TEST(test_errors)
{
    check_accuracy(ONE_ULP, assay_exp, expl, -708, 709);
    check_accuracy(ONE_ULP, assay_log, logl, 0, 10);
    check_accuracy(ONE_ULP, assay_log, logl, 0, 1e300);
    check_accuracy(ONE_ULP, assay_log1p, log1pl, -1, 10);
    check_accuracy(ONE_ULP, assay_erf, erfl, -6, 6);
    check_accuracy(1.5, assay_erfc, erfcl, -6, 26);
    check_accuracy(ONE_ULP, assay_sin, sinl, -10, 10);
    check_accuracy(ONE_ULP, assay_cos, cosl, -10, 10);
    check_accuracy(ONE_ULP, assay_sin, sinl, -1e6, 1e6);
    check_accuracy(ONE_ULP, assay_cos, cosl, -1e6, 1e6);
}

TEST(test_the_ulp_check_rejects)
{
    assert_true(within_ulps(1, 1 + DBL_EPSILON, 1.0L));
    assert_false(within_ulps(1, 1 + 2 * DBL_EPSILON, 1.0L));
    assert_false(within_ulps(1, NAN, 1.0L));
    assert_false(within_ulps(1, INFINITY, 1.0L));
    assert_false(within_ulps(1, 1.0, NAN));
    assert_false(within_ulps(1, 1.0, INFINITY));
    assert_false(within_ulps(1, 0x1p-1000, 0.0L));
}

TEST(test_limits)
{
    static const struct {
        scalar_function function;
        double x, y;
    } rows[] = {
        {assay_exp, 0, 1},
        {assay_exp, -INFINITY, 0},
        {assay_exp, INFINITY, INFINITY},
        {assay_exp, 1000, INFINITY},
        {assay_exp, -1000, 0},
        {assay_log, 0, -INFINITY},
        {assay_log, 1, 0},
        {assay_log, INFINITY, INFINITY},
        {assay_log1p, -1, -INFINITY},
        {assay_log1p, 0, 0},
        {assay_erf, INFINITY, 1},
        {assay_erf, 0, 0},
        {assay_erfc, INFINITY, 0},
        {assay_erfc, -INFINITY, 2},
        {assay_erfc, 0, 1},
        {assay_sin, 0, 0},
        {assay_cos, 0, 1},
    };
    static const scalar_function functions[] = {assay_exp,  assay_log, assay_log1p, assay_erf,
                                                assay_erfc, assay_sin, assay_cos};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double y = rows[i].function(rows[i].x);
        if (!(y == rows[i].y)) print_error("row %zu: %a, expected %a\n", i, y, rows[i].y);
        assert_true(y == rows[i].y);
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) assert_true(isnan(functions[i](NAN)));
    assert_true(isnan(assay_log(-1)));
    assert_true(isnan(assay_log1p(-2)));
    assert_true(isnan(assay_sin(INFINITY)));
    assert_true(isnan(assay_cos(INFINITY)));
}
