#include "oracle/ops/activation.h"

#include <quadmath.h>

#include "oracle/ops/tests/ops_test.h"
#include "oracle/quad/quad_internal.h"

/* f and f' of the second form. */
typedef struct exact {
    quad value, first;
} exact;

/* `which` beyond the activations: GPT-OSS's gate. */
static quad value_of(int which, quad x)
{
    if (which < ASSAY_ACTIVATION_COUNT) return quad_activation((assay_activation)which, x);
    return x * quad_sigmoid(1.702Q * x);
}

static quad slope_of(int which, quad x)
{
    const quad k = 1.702Q, s = quad_sigmoid(k * x);
    if (which < ASSAY_ACTIVATION_COUNT) return quad_activation_slope((assay_activation)which, x);
    return s + x * k * s * quad_sigmoid(-k * x);
}

static exact exactly(int which, quad x)
{
    return (exact){value_of(which, x), slope_of(which, x)};
}

static void activate(const assay_context *ctx, int which, int64_t count, const double *x, double *value,
                     double *derivative)
{
    if (which == ASSAY_ACTIVATION_COUNT) {
        assay_quick_gelu_many(ctx, count, x, value, derivative);
    } else {
        assay_activation_many(ctx, (assay_activation)which, count, x, value, derivative);
    }
}

/* Units in the last place of float64 at `reference`; close to where exp(-|z|) is subnormal, those of 1e-303. */
static double ulps(double actual, quad reference)
{
    double size = (double)fabsq(reference);
    return (double)(fabsq(actual - reference) / ldexp(1, ilogb(size > 1e-303 ? size : 1e-303) - 52));
}

enum { COUNT = 3000 };

/* -37 to 37 densely, with both tails further out. */
static void arguments(double *x)
{
    uint64_t seed = 1;
    for (int i = 0; i < COUNT; i++) x[i] = 8 * test_normal(&seed);
    const double special[] = {
        0.0, -0.0, 1e-300, -1e-300, 1e-8, -1e-8, 700, -700, -37.5, -38.5, 40, -1.2784645427610738, -0.7517915246935645,
        1e5, 1e200};
    memcpy(x, special, sizeof special);
}

TEST_WITH_CONTEXT(test_values_and_derivatives)
{
    static double x[COUNT], value[COUNT], derivative[COUNT];
    arguments(x);
    for (int which = 0; which <= ASSAY_ACTIVATION_COUNT; which++) {
        assay_fill_nan(value, COUNT);
        assay_fill_nan(derivative, COUNT);
        activate(&ctx, which, COUNT, x, value, derivative);
        for (int i = 0; i < COUNT; i++) {
            if (x[i] > 1e100) {
                assert_true(which == ASSAY_SIGMOID ? value[i] == 1 : value[i] == x[i]);
                assert_true(derivative[i] == (which != ASSAY_SIGMOID));
                continue;
            }
            exact e = exactly(which, x[i]);
            assert_true(ulps(value[i], e.value) <= 4);
            /* Where the terms of f' cancel, their own last places count. */
            double in_place = ulps(derivative[i], e.first), of_one = (double)fabsq(derivative[i] - e.first) * 0x1p52;
            assert_true(in_place <= 8 || of_one <= 1);
            assert_true(fabs(x[i]) < 2 || in_place <= 8);
        }
    }
}

TEST(test_sigmoid_at_both_ends)
{
    assert_true(assay_sigmoid(1e300) == 1);
    assert_true(assay_sigmoid(-1e300) == 0);
    assert_true(assay_sigmoid(0) == 0.5);
    assert_true(isnan(assay_sigmoid(NAN)));
    for (double x = -740; x < 700; x += 3.3) assert_true(ulps(assay_sigmoid(x), quad_sigmoid(x)) <= 3);
}

TEST_WITH_CONTEXT(test_nan_and_infinity)
{
    for (int which = 0; which <= ASSAY_ACTIVATION_COUNT; which++) {
        const double x[] = {NAN, 1, INFINITY, -INFINITY};
        double value[4] = {0}, derivative[4] = {0};
        activate(&ctx, which, 4, x, value, derivative);
        assert_true(isnan(value[0]));
        assert_true(which == ASSAY_LINEAR ? derivative[0] == 1 : isnan(derivative[0]));
        assert_true(isfinite(value[1]));
        assert_true(value[2] == (which == ASSAY_SIGMOID ? 1 : INFINITY));
    }
    const double x[] = {-INFINITY, 0, -0.0};
    double value[3], derivative[3];
    assay_activation_many(&ctx, ASSAY_RELU, 3, x, value, derivative);
    assert_true(value[0] == 0 && value[1] == 0 && value[2] == 0);
    assert_true(derivative[0] == 0 && derivative[1] == 0 && derivative[2] == 0);
}

/* In place, one result only, and any number of elements: the same bits; nothing beyond them is touched. */
TEST_WITH_CONTEXT(test_results_may_be_missing_or_in_place)
{
    static double x[COUNT], value[COUNT], derivative[COUNT], one[COUNT];
    arguments(x);
    for (int which = 0; which <= ASSAY_ACTIVATION_COUNT; which++) {
        for (int64_t count = 0; count < 800; count += count < 4 ? 1 : 255) {
            activate(&ctx, which, count, x, value, derivative);
            assay_fill_nan(one, COUNT);
            activate(&ctx, which, count, x, one, NULL);
            assert_same_bits(one, value, count);
            assert_all_nan(one + count, COUNT - count);
            activate(&ctx, which, count, x, NULL, one);
            assert_same_bits(one, derivative, count);
            memcpy(one, x, sizeof x);
            activate(&ctx, which, count, one, one, NULL);
            assert_same_bits(one, value, count);
            memcpy(one, x, sizeof x);
            activate(&ctx, which, count, one, NULL, one);
            assert_same_bits(one, derivative, count);
        }
    }
}

/* As kernels write gelu, 1 + erf and 1 + tanh cancel far below 0: what is left has an absolute error of float32. */
TEST(test_emulated_gelu_cancels_far_below_0)
{
    enum { SEEDS = 64 };
    const assay_activation forms[] = {ASSAY_GELU, ASSAY_GELU_EXACT};
    const double x = -4, unit = 0x1p-24;
    for (int which = 0; which < 2; which++) {
        assay_context reference = assay_context_default(1);
        double right, slope, squares = 0, of_slope = 0;
        assay_activation_many(&reference, forms[which], 1, &x, &right, &slope);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            double value, derivative;
            const assay_emulation emulation = {
                .precision.elementary = unit, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
            assay_context ctx = assay_context_default(1);
            ctx.arithmetic = &assay_arithmetic_emulated;
            ctx.emulation = &emulation;
            assay_activation_many(&ctx, forms[which], 1, &x, &value, &derivative);
            squares += (value - right) * (value - right) / SEEDS;
            of_slope += (derivative - slope) * (derivative - slope) / SEEDS;
        }
        assert_true(sqrt(squares) > unit && sqrt(squares) < 4 * unit);
        assert_true(sqrt(of_slope) > unit / 4 && sqrt(of_slope) < unit);
    }
}

/* Of an s that is kept, 1 - s has its error: near 1 the slope x s (1 - s) of silu has x times that, up to all that is left. */
TEST(test_emulated_silu_keeps_its_sigmoid)
{
    enum { SEEDS = 64 };
    const struct {
        assay_activation f;
        double x, low, high; /* of the slope's error, in units */
    } table[] = {
        {ASSAY_SILU, 14, 3, 14}, {ASSAY_SILU, 30, 0, 1e-3}, {ASSAY_SILU, -14, 0, 1e-3}, {ASSAY_SIGMOID, 14, 0.2, 1}};
    const double unit = 0x1p-24;
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        assay_context reference = assay_context_default(1);
        double slope, squares = 0;
        assay_activation_many(&reference, table[row].f, 1, &table[row].x, NULL, &slope);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            double derivative;
            const assay_emulation emulation = {
                .precision.elementary = unit, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
            assay_context ctx = assay_context_default(1);
            ctx.arithmetic = &assay_arithmetic_emulated;
            ctx.emulation = &emulation;
            assay_activation_many(&ctx, table[row].f, 1, &table[row].x, NULL, &derivative);
            squares += (derivative - slope) * (derivative - slope) / SEEDS;
        }
        if (sqrt(squares) < table[row].low * unit || sqrt(squares) > table[row].high * unit)
            fail_msg("row %zu: %g units", row, sqrt(squares) / unit);
    }
}

TEST(test_names)
{
    for (int f = 0; f < ASSAY_ACTIVATION_COUNT; f++) {
        assay_activation found = ASSAY_ACTIVATION_COUNT;
        assert_true(assay_activation_from_name(assay_activation_name((assay_activation)f), &found));
        assert_int_equal(found, f);
    }
    assay_activation untouched = ASSAY_RELU;
    assert_false(assay_activation_from_name("swish", &untouched));
    assert_false(assay_activation_from_name("", &untouched));
    assert_int_equal(untouched, ASSAY_RELU);
}
