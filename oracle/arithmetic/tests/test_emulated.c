/* The emulated arithmetic: what must stay stays, errors have the mean and the variance that emulated.h states, draws of
 * other seeds and places are independent, and nothing depends on threads or instruction set. Statistical bounds are
 * five standard deviations of what is measured, for seeds that are fixed. */
#include "oracle/arithmetic/emulated.h"

#include <float.h>

#include "oracle/arithmetic/tests/matrices.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { COUNT = 100000 };

#define F32_UNIT (0x1p-24 * 0.57735026918962576451)

static const assay_precision f32_precision = {
    .name = "f32", .storage = F32_UNIT, .accumulate = F32_UNIT, .router = 2 * F32_UNIT, .elementary = 0x1p-22};

static assay_emulation emulation_of(assay_dtype storage, uint64_t seed)
{
    return (assay_emulation){.precision = f32_precision, .storage = storage, .multiply = storage, .seed = seed};
}

static assay_context context_of(const assay_emulation *emulation, int threads)
{
    assay_context ctx = assay_context_default(threads);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = emulation;
    return ctx;
}

static double *uniforms(uint64_t seed, double low, double high, int64_t count)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = low + (high - low) * test_uniform(&seed);
    return x;
}

static double *rounded(const assay_emulation *emulation, assay_rounding rounding, const double *x, int64_t count)
{
    assay_context ctx = context_of(emulation, 1);
    double *y = malloc((size_t)count * sizeof *y + 1);
    assert_non_null(y);
    memcpy(y, x, (size_t)count * sizeof *y);
    assay_round(&ctx, rounding, count, y);
    return y;
}

static double round_one(const assay_emulation *emulation, assay_rounding rounding, double x)
{
    assay_context ctx = context_of(emulation, 1);
    assay_round(&ctx, rounding, 1, &x);
    return x;
}

static void assert_within(double actual, double expected, double bound, const char *what)
{
    if (!(fabs(actual - expected) <= bound)) {
        print_error("%s is %g, expected %g within %g\n", what, actual, expected, bound);
        fail();
    }
}

/* Every number of 16 bits and fewer: subnormals, both zeros, infinities, NaN. */
TEST(test_numbers_of_the_grid_stay)
{
    static const assay_dtype types[] = {ASSAY_BFLOAT16, ASSAY_FLOAT16, ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT8_E5M2};
    double *x = malloc(65536 * sizeof *x);
    assert_non_null(x);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        int64_t count = assay_dtype_size(types[t]) == 1 ? 256 : 65536;
        for (uint64_t seed = 0; seed < 4; seed++) {
            assay_emulation e = emulation_of(types[t], seed);
            for (int64_t i = 0; i < count; i++) {
                uint16_t code = (uint16_t)i;
                assay_dtype_decode(types[t], 1, &code, &x[i]);
            }
            OWNED double *y = rounded(&e, ASSAY_ROUND_STORAGE, x, count);
            assert_same_bits(y, x, count);
        }
    }
    free(x);
    assay_emulation e = emulation_of(ASSAY_FLOAT32, 5);
    OWNED double *wide = uniforms(3, -2, 2, COUNT);
    for (int64_t i = 0; i < COUNT; i++) wide[i] = (double)(float)ldexp(wide[i], (int)(i % 276) - 149);
    OWNED double *y = rounded(&e, ASSAY_ROUND_STORAGE, wide, COUNT);
    assert_same_bits(y, wide, COUNT);
}

/* To one of the two neighbours, on average to where it was, with a mean square of 1/6 of the squared spacing. */
TEST(test_stochastic_rounding)
{
    static const assay_dtype types[] = {ASSAY_FLOAT32, ASSAY_BFLOAT16, ASSAY_FLOAT16, ASSAY_FLOAT8_E4M3FN};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        assay_emulation e = emulation_of(types[t], 11);
        const double spacing = 2 * assay_dtype_unit_roundoff(types[t]);
        double *x = uniforms(t, -2, -1, COUNT), sum = 0, squares = 0;
        OWNED double *y = rounded(&e, ASSAY_ROUND_STORAGE, x, COUNT);
        for (int64_t i = 0; i < COUNT; i++) {
            const double error = (y[i] - x[i]) / spacing;
            assert_true(assay_dtype_round(types[t], y[i], false) == y[i]);
            assert_true(fabs(error) < 1);
            sum += error;
            squares += error * error;
        }
        assert_within(sum / COUNT, 0, 5 * sqrt(1.0 / 6 / COUNT), "mean");
        assert_within(squares / COUNT, 1.0 / 6, 5 * 0.18 / sqrt(COUNT), "mean square");
        free(x);
    }
}

static double share_above(assay_dtype type, double x, double above)
{
    int64_t hits = 0;
    for (uint64_t seed = 0; seed < COUNT; seed++) {
        assay_emulation e = emulation_of(type, seed);
        hits += round_one(&e, ASSAY_ROUND_STORAGE, x) >= above;
    }
    return (double)hits / COUNT;
}

/* One value under many seeds; at a power of two, where the spacing changes, and between 0 and the least subnormal. */
TEST(test_probabilities_of_one_value)
{
    const double bound = 5 * 0.5 / sqrt(COUNT), least = assay_dtype_least_subnormal(ASSAY_BFLOAT16);
    assert_within(share_above(ASSAY_BFLOAT16, 1 + 0.25 * 0x1p-7, 1 + 0x1p-7), 0.25, bound, "share");
    assert_within(share_above(ASSAY_BFLOAT16, 2 - 0.125 * 0x1p-7, 2), 0.875, bound, "share below 2");
    assert_within(share_above(ASSAY_FLOAT32, 1 + 0.75 * 0x1p-23, 1 + 0x1p-23), 0.75, bound, "share in float32");
    assert_within(share_above(ASSAY_BFLOAT16, 0.3 * least, least), 0.3, bound, "share of a subnormal");
    assert_within(share_above(ASSAY_FLOAT64, 3, 3 + 0x1p-51), 1.0 / 6, bound, "share of the next float64");
    assert_within(share_above(ASSAY_FLOAT64, 3, 3), 5.0 / 6, bound, "share of 3 and the next float64");
    for (uint64_t seed = 0; seed < 100; seed++) {
        assay_emulation e = emulation_of(ASSAY_BFLOAT16, seed);
        assert_true(signbit(round_one(&e, ASSAY_ROUND_STORAGE, -1e-3 * least)));
    }
}

TEST(test_beyond_the_largest_number)
{
    static const assay_dtype types[] = {ASSAY_FLOAT32, ASSAY_BFLOAT16, ASSAY_FLOAT16, ASSAY_FLOAT8_E4M3FN,
                                        ASSAY_FLOAT8_E5M2};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const double max = assay_dtype_max(types[t]), u = assay_dtype_unit_roundoff(types[t]);
        const double beyond[] = {max,   max * (1 + u / 4), max * (1 + 4 * u), -max * 1.9,
                                 1e300, INFINITY,          -INFINITY,         NAN};
        const double below = max * (1 - u / 2);
        for (uint64_t seed = 0; seed < 20; seed++) {
            assay_emulation e = emulation_of(types[t], seed);
            for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
                double expected = assay_dtype_round(types[t], beyond[i], false);
                double actual = round_one(&e, ASSAY_ROUND_STORAGE, beyond[i]);
                assert_true(actual == expected || (isnan(actual) && isnan(expected)));
            }
            assert_true(round_one(&e, ASSAY_ROUND_STORAGE, below) <= max);
        }
    }
    static const double kept[] = {0.0, -0.0, DBL_MAX, -DBL_MAX, INFINITY, -INFINITY};
    for (uint64_t seed = 0; seed < 20; seed++) {
        assay_emulation e = emulation_of(ASSAY_FLOAT64, seed);
        double *y = rounded(&e, ASSAY_ROUND_STORAGE, kept, 6);
        assert_same_bits(y, kept, 6);
        free(y);
        assert_true(isnan(round_one(&e, ASSAY_ROUND_STORAGE, NAN)));
    }
}

TEST(test_relative_errors)
{
    static const struct {
        assay_rounding rounding;
        double unit;
    } table[] = {
        {ASSAY_ROUND_ROUTER, 2 * F32_UNIT}, {ASSAY_ROUND_ELEMENTARY, 0x1p-22}, {ASSAY_ROUND_ACCUMULATE, F32_UNIT}};
    assay_emulation e = emulation_of(ASSAY_BFLOAT16, 7);
    OWNED double *x = uniforms(2, -30, 30, COUNT);
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        double *y = rounded(&e, table[t].rounding, x, COUNT), sum = 0, squares = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            const double error = (y[i] / x[i] - 1) / table[t].unit;
            assert_true(fabs(error) < 1.7321);
            sum += error;
            squares += error * error;
        }
        assert_within(sum / COUNT, 0, 5 / sqrt(COUNT), "mean");
        assert_within(squares / COUNT, 1, 5 * 0.9 / sqrt(COUNT), "mean square");
        free(y);
        static const double kept[] = {0.0, -0.0, INFINITY, -INFINITY};
        y = rounded(&e, table[t].rounding, kept, 4);
        assert_same_bits(y, kept, 4);
        free(y);
        assert_true(isnan(round_one(&e, table[t].rounding, NAN)));
    }
    e.precision.router = 0;
    e.precision.elementary = 0x1p-54;
    OWNED double *exact = rounded(&e, ASSAY_ROUND_ROUTER, x, COUNT),
                 *next = rounded(&e, ASSAY_ROUND_ELEMENTARY, x, COUNT);
    assert_same_bits(exact, x, COUNT);
    int64_t moved = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        assert_true(next[i] == x[i] || next[i] == nextafter(x[i], INFINITY) || next[i] == nextafter(x[i], -INFINITY));
        moved += next[i] != x[i];
    }
    assert_within((double)moved / COUNT, 1.0 / 3, 5 * 0.5 / sqrt(COUNT), "share that moves");
}

/* In the place of the profile's, in products too; of float16 with an end and a beginning. */
TEST(sums_have_a_type_of_their_own)
{
    const double far[] = {70000, 0x1p-25 * 1.5}, a[] = {1, 1}, b[] = {300, 0x1.8p-25, 65400, 0};
    double worst = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        assay_emulation e = emulation_of(ASSAY_FLOAT32, seed);
        assay_context ctx = context_of(&e, 1);
        double c[2];
        const assay_matmul_args args = assay_product_ab(c, a, b, 1, 2, 2);
        e.sums = ASSAY_BFLOAT16;
        worst = fmax(worst, fabs(round_one(&e, ASSAY_ROUND_ACCUMULATE, 1.25) / 1.25 - 1));
        e.sums = ASSAY_FLOAT16;
        assert_true(isinf(round_one(&e, ASSAY_ROUND_ACCUMULATE, far[0])));
        const double least = round_one(&e, ASSAY_ROUND_ACCUMULATE, far[1]);
        assert_true(least == 0 || least == 0x1p-24);
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        assert_true(isinf(c[0]));
        assert_true(c[1] == 0 || c[1] == 0x1p-24);
    }
    assert_within(worst, 0x1p-8, 0x1p-10, "the largest error of sums in bfloat16");
}

/* The variance of as many roundings, in one; more sums than go at a time. */
TEST(test_rounded_sums)
{
    assay_emulation e = emulation_of(ASSAY_FLOAT32, 9);
    assay_context ctx = context_of(&e, 1), plain = assay_context_default(1);
    double sum = 0, squares = 0;
    OWNED double *x = uniforms(4, 1, 2, COUNT), *y = malloc(COUNT * sizeof *y);
    assert_non_null(y);
    memcpy(y, x, COUNT * sizeof *y);
    assay_round_sums(&plain, 50, COUNT, y);
    assert_same_bits(y, x, COUNT);
    assay_round_sums(&ctx, 50, COUNT, y);
    for (int64_t i = 0; i < COUNT; i++) {
        const double error = (y[i] / x[i] - 1) / (F32_UNIT * sqrt(50));
        sum += error;
        squares += error * error;
    }
    assert_within(sum / COUNT, 0, 5 / sqrt(COUNT), "mean");
    assert_within(squares / COUNT, 1, 5 * 0.9 / sqrt(COUNT), "mean square");
    double kept[] = {0.0, INFINITY, -INFINITY, NAN};
    assay_round_sums(&ctx, 50, 4, kept);
    assert_true(kept[0] == 0 && kept[1] == INFINITY && kept[2] == -INFINITY && isnan(kept[3]));
}

static double correlation(const double *x, const double *y, const double *z, int64_t count)
{
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < count; i++) {
        const double a = x[i] - z[i], b = y[i] - z[i];
        xy += a * b, xx += a * a, yy += b * b;
    }
    return xy / sqrt(xx * yy);
}

TEST(test_draws_are_independent)
{
    assay_emulation e = emulation_of(ASSAY_BFLOAT16, 0), other = emulation_of(ASSAY_BFLOAT16, 1);
    OWNED double *x = uniforms(5, 1, 2, COUNT);
    OWNED double *shifted = malloc(COUNT * sizeof *shifted);
    assert_non_null(shifted);
    OWNED double *first = rounded(&e, ASSAY_ROUND_STORAGE, x, COUNT),
                 *again = rounded(&e, ASSAY_ROUND_STORAGE, x, COUNT);
    OWNED double *second = rounded(&other, ASSAY_ROUND_STORAGE, x, COUNT);
    OWNED double *router = rounded(&e, ASSAY_ROUND_ROUTER, x, COUNT),
                 *sums = rounded(&e, ASSAY_ROUND_ACCUMULATE, x, COUNT);
    assert_same_bits(again, first, COUNT);
    assert_within(correlation(first, second, x, COUNT), 0, 5 / sqrt(COUNT), "correlation of seeds");
    assert_within(correlation(first, router, x, COUNT), 0, 5 / sqrt(COUNT), "correlation of places");
    assert_within(correlation(router, sums, x, COUNT), 0, 5 / sqrt(COUNT), "correlation of places");
    /* Neighbouring values: the error of the next one, as if it were this one's. */
    for (int64_t i = 0; i < COUNT; i++) shifted[i] = x[i] + (first[(i + 1) % COUNT] - x[(i + 1) % COUNT]);
    assert_within(correlation(first, shifted, x, COUNT), 0, 5 / sqrt(COUNT), "correlation of values");
}

TEST(test_rounding_does_not_depend_on_threads)
{
    static const int threads[] = {2, 7};
    double *x = uniforms(9, -4, 4, COUNT);
    for (int rounding = ASSAY_ROUND_STORAGE; rounding <= ASSAY_ROUND_ACCUMULATE; rounding++) {
        assay_emulation e = emulation_of(ASSAY_FLOAT16, 3);
        OWNED double *expected = rounded(&e, (assay_rounding)rounding, x, COUNT);
        for (int t = 0; t < 2; t++) {
            assay_context ctx = context_of(&e, threads[t]);
            OWNED double *y = malloc(COUNT * sizeof *y);
            assert_non_null(y);
            memcpy(y, x, COUNT * sizeof *y);
            assay_round(&ctx, (assay_rounding)rounding, COUNT, y);
            assert_same_bits(y, expected, COUNT);
        }
    }
    free(x);
    assay_context plain = assay_context_default(2);
    double value = 1.0 / 3;
    assay_round(&plain, ASSAY_ROUND_STORAGE, 1, &value);
    assert_true(value == 1.0 / 3);
}

typedef struct product {
    matrices x;
    int64_t m, n, k;
    double *a, *b, *c, *exact, *variance;
    assay_matmul_args args;
} product;

/* Of one sum: how often partial sums are rounded, times their squares at the ends of up to 8 blocks of ascending k, and the squares of
 * the terms for what they do between. */
static double partial_squares(const assay_matmul_args *args, int64_t i, int64_t j)
{
    const int64_t length = (args->k + 7) / 8;
    double sum = 0, squares = 0;
    for (int64_t l = 0; l < args->k; l++) {
        const double a = args->a[args->transpose_a ? l * args->lda + i : i * args->lda + l],
                     b = args->b[args->transpose_b ? j * args->ldb + l : l * args->ldb + j];
        sum += a * b;
        squares += a * b * a * b;
        if ((l + 1) % length == 0 || l + 1 == args->k) squares += sum * sum;
    }
    return (double)length * squares;
}

static void find_variances(const assay_matmul_args *args, double *variance)
{
    for (int64_t i = 0; i < args->m; i++)
        for (int64_t j = 0; j < args->n; j++)
            variance[i * args->n + j] = F32_UNIT * F32_UNIT * partial_squares(args, i, j);
}

/* exact: the reference product; variance: that of its partial sums. Neither has padding, nor has c. */
static product product_of(int64_t m, int64_t n, int64_t k, double mean, int transposed, int64_t padding)
{
    product p = {.m = m, .n = n, .k = k, .x = matrices_make(m, n, k, transposed, mean, padding)};
    assay_context ctx = assay_context_default(1);
    p.a = p.x.a, p.b = p.x.b, p.c = p.x.c;
    p.exact = uniforms(0, 0, 1, m * n);
    p.variance = uniforms(0, 0, 1, m * n);
    p.args = p.x.args;
    p.args.ldc = n;
    p.args.c = p.exact;
    assert_ok(&ctx, assay_matmul(&ctx, &p.args));
    find_variances(&p.args, p.variance);
    p.args.c = p.c;
    assay_fill_nan(p.c, m * n);
    return p;
}

static void product_free(product *p)
{
    p->x.c = p->c; /* which a test may have exchanged */
    matrices_free(&p->x);
    free(p->exact);
    free(p->variance);
}

/* The sum over seeds and elements of squared errors, over that of variances. */
static double spread_over_scale(product *p, assay_precision precision, int64_t piece)
{
    double squares = 0, variances = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        assay_emulation e = {.precision = precision, .storage = ASSAY_FLOAT64, .multiply = ASSAY_FLOAT64, .seed = seed};
        assay_context ctx = context_of(&e, 1);
        assay_fill_nan(p->c, p->m * p->n);
        for (int64_t first = 0; first < p->k; first += piece) {
            assay_matmul_args args = p->args;
            args.a += first * (args.transpose_a ? args.lda : 1);
            args.b += first * (args.transpose_b ? 1 : args.ldb);
            args.k = p->k - first < piece ? p->k - first : piece;
            args.accumulate = first > 0;
            assert_ok(&ctx, assay_matmul(&ctx, &args));
        }
        for (int64_t i = 0; i < p->m * p->n; i++) {
            const double error = p->c[i] - p->exact[i];
            squares += error * error;
            variances += p->variance[i];
        }
    }
    return squares / variances;
}

/* Signs mixed, and all but a few terms of one sign. */
TEST(test_spread_of_products)
{
    static const int64_t steps[] = {1, 3, 8, 13, 64, 300};
    const assay_precision sums = {.name = "sums", .accumulate = F32_UNIT};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        for (int form = 0; form < 4; form++) {
            OWNED_BY(product_free) product p = product_of(151, 149, steps[s], form % 2 == 0 ? 0 : 2, form, 1);
            assert_within(spread_over_scale(&p, sums, p.k), 1, 0.05, "spread of a product over its error scale");
        }
    }
}

/* Where partial sums are all taken to be near the last one, the spread is up to that of rounding after each term. */
TEST(test_spread_of_products_in_pieces)
{
    const assay_precision sums = {.name = "sums", .accumulate = F32_UNIT};
    for (int form = 0; form < 2; form++) {
        OWNED_BY(product_free) product p = product_of(61, 53, 256, form % 2 == 0 ? 0 : 2, 0, 0);
        const double ratio = spread_over_scale(&p, sums, 16);
        assert_true(ratio > 0.7 && ratio < 1.4);
    }
}

/* Errors of other members, and of the element before. */
TEST(test_errors_of_products_are_independent)
{
    enum { M = 307, N = 331, ALL = M * N };
    OWNED_BY(product_free) product p = product_of(M, N, 64, 2, 0, 0);
    double *errors[2], *none = calloc(ALL, sizeof *none);
    assert_non_null(none);
    for (uint64_t seed = 0; seed < 2; seed++) {
        const assay_emulation e = {.precision = {.accumulate = F32_UNIT}, .multiply = ASSAY_FLOAT64, .seed = seed};
        assay_context ctx = context_of(&e, 1);
        assert_ok(&ctx, assay_matmul(&ctx, &p.args));
        errors[seed] = uniforms(0, 0, 1, ALL);
        for (int64_t i = 0; i < ALL; i++) errors[seed][i] = p.c[i] - p.exact[i];
    }
    const double bound = 5 / sqrt(ALL);
    assert_within(correlation(errors[0], errors[1], none, ALL), 0, bound, "correlation of seeds");
    assert_within(correlation(errors[0], errors[0] + 1, none, ALL - 1), 0, bound, "correlation of neighbours");
    assert_within(correlation(errors[0], p.exact, none, ALL), 0, bound, "correlation with the result");
    free(errors[0]);
    free(errors[1]);
    free(none);
}

/* Operands become float32 numbers; exact and variance are those of their product. */
static product float32_product_of(int64_t k, double mean, int transposed)
{
    product p = product_of(151, 149, k, mean, transposed, 0);
    assay_context ctx = assay_context_default(1);
    for (int64_t i = 0; i < p.m * k; i++) p.a[i] = (double)(float)p.a[i];
    for (int64_t i = 0; i < k * p.n; i++) p.b[i] = (double)(float)p.b[i];
    p.args.c = p.exact;
    assert_ok(&ctx, assay_matmul(&ctx, &p.args));
    find_variances(&p.args, p.variance);
    p.args.c = p.c;
    return p;
}

/* Sums that are added up in float32: rounding to nearest errs by 0.25 to 0.5 of the error scale, whose units are envelopes,
 * and two thirds are drawn. Members share the first, in part, and must not share the second. */
TEST(test_float32_sums)
{
    static const int64_t steps[] = {1, 2, 8, 13, 64, 300, 1100};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        for (int form = 0; form < 2; form++) {
            OWNED_BY(product_free) product p = float32_product_of(steps[s], form == 0 ? 0 : 2, form);
            const int64_t count = p.m * p.n;
            double squares = 0, variances = 0;
            OWNED double *first = NULL, *none = calloc((size_t)count, sizeof *none);
            assert_non_null(none);
            for (uint64_t seed = 0; seed < 4; seed++) {
                const assay_emulation e = {.precision = f32_precision, .multiply = ASSAY_FLOAT32, .seed = seed};
                assay_context ctx = context_of(&e, 1);
                assay_fill_nan(p.c, count);
                assert_ok(&ctx, assay_matmul(&ctx, &p.args));
                for (int64_t i = 0; i < count; i++) {
                    p.c[i] -= p.exact[i];
                    squares += p.c[i] * p.c[i];
                    variances += p.variance[i];
                }
                if (seed > 0) assert_true(correlation(first, p.c, none, count) < 0.5);
                if (seed == 0) first = memcpy(uniforms(0, 0, 1, count), p.c, (size_t)count * sizeof *p.c);
            }
            assert_within(squares / variances, 1.08, 0.17, "spread of float32 sums over their error scale");
        }
    }
}

/* In float64 the error is of the size of the result's own rounding, and must not be lost in it. */
TEST(test_spread_of_products_in_float64)
{
    static const int64_t steps[] = {1, 8, 200};
    const assay_precision sums = {.name = "sums", .accumulate = F32_UNIT * 0x1p-29};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        OWNED_BY(product_free) product p = product_of(61, 53, steps[s], 0, 0, 0);
        for (int64_t i = 0; i < p.m * p.n; i++) p.variance[i] *= 0x1p-58;
        const double ratio = spread_over_scale(&p, sums, p.k);
        assert_true(ratio > 0.95 && ratio < 2.2);
    }
}

/* Without errors of sums: the reference product of operands that were rounded as storage rounds them. */
TEST(test_operands_are_rounded)
{
    for (int transposed = 0; transposed < 4; transposed++) {
        OWNED_BY(product_free) product p = product_of(37, 41, 29, 0, transposed, 3);
        assay_emulation e = {.storage = ASSAY_FLOAT16, .multiply = ASSAY_BFLOAT16, .seed = 4}, grid = e;
        grid.storage = ASSAY_BFLOAT16;
        const int64_t a_size = p.args.lda * (p.args.transpose_a ? p.k : p.m);
        const int64_t b_size = p.args.ldb * (p.args.transpose_b ? p.n : p.k);
        OWNED double *a = rounded(&grid, ASSAY_ROUND_STORAGE, p.a, a_size);
        OWNED double *b = rounded(&grid, ASSAY_ROUND_STORAGE, p.b, b_size);
        assay_matmul_args args = p.args;
        args.a = a, args.b = b, args.c = p.exact;
        assay_context plain = assay_context_default(1), ctx = context_of(&e, 2);
        assert_ok(&plain, assay_matmul(&plain, &args));
        assert_ok(&ctx, assay_matmul(&ctx, &p.args));
        assert_same_bits(p.c, p.exact, p.m * p.n);
    }
}

TEST(test_products_do_not_depend_on_threads_or_isa)
{
    for (int transposed = 0; transposed < 4; transposed++) {
        OWNED_BY(product_free) product p = product_of(131, 137, 151, 0, transposed, 2);
        assay_emulation e = emulation_of(ASSAY_BFLOAT16, 6);
        OWNED double *expected = NULL;
        assay_context ctx = context_of(&e, 1);
        for (int form = 0; test_next_context(&form, &ctx);) {
            assay_fill_nan(p.c, p.m * p.n);
            assert_ok(&ctx, assay_matmul(&ctx, &p.args));
            if (expected == NULL) {
                expected = p.c;
                p.args.c = p.c = uniforms(0, 0, 1, p.m * p.n);
            } else {
                assert_same_bits(p.c, expected, p.m * p.n);
            }
        }
    }
}

TEST(test_zeros_stay_and_nothing_is_possible)
{
    assay_emulation e = emulation_of(ASSAY_FLOAT32, 1);
    assay_context ctx = context_of(&e, 2);
    double a[4] = {1, 0, 0, INFINITY}, b[4] = {0, 0, 0, 1}, c[4], before[4] = {1, 2, 3, 4};
    assay_matmul_args args = {.c = c, .ldc = 2, .a = a, .lda = 2, .b = b, .ldb = 2, .m = 1, .n = 2, .k = 2};
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    assert_true(c[0] == 0 && c[1] == 0);
    args.a = a + 2;
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    assert_true(isnan(c[0]) && c[1] == INFINITY);
    memcpy(c, before, sizeof c);
    args = (assay_matmul_args){.c = c, .ldc = 2, .m = 2, .n = 2, .accumulate = true};
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    assert_same_bits(c, before, 4);
    args.accumulate = false;
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    for (int i = 0; i < 4; i++) assert_true(c[i] == 0);
    args = (assay_matmul_args){.c = c, .a = a, .lda = 2, .b = b, .m = 2, .k = 2};
    assert_ok(&ctx, assay_matmul(&ctx, &args));
}

/* 3 * 1 + 1 * -4 + 1 * 1, with sums in float32 and in float64. Continued sums, too: 5 - 5. */
TEST(test_sums_that_cancel_are_moved)
{
    for (int way = 0; way < 2; way++) {
        double a[6] = {3, 1, 1, 0, 0, 0}, b[6] = {1, 0, -4, 0, 1, 0}, c[4];
        assay_matmul_args args = {.c = c, .ldc = 2, .a = a, .lda = 3, .b = b, .ldb = 2, .m = 2, .n = 2, .k = 3};
        assay_emulation e = emulation_of(way == 0 ? ASSAY_FLOAT32 : ASSAY_FLOAT64, 1);
        assay_context ctx = context_of(&e, 1);
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        assert_true(c[0] != 0 && fabs(c[0]) < 1e-5);
        assert_true(c[1] == 0 && c[2] == 0 && c[3] == 0);
        args.accumulate = true;
        args.k = 1;
        c[0] = -3;
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        assert_true(c[0] != 0 && fabs(c[0]) < 1e-5);
        assert_true(c[1] == 0 && c[2] == 0 && c[3] == 0);
        args.accumulate = false;
        args.k = 3;
        e.nearest = true;
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        assert_true(c[0] == 0);
    }
}

/* Of 8, 16, 48 or 64 members each row has every form as often, whatever else the members differ in by their number. */
TEST(test_rows_take_turns)
{
    static const int members[] = {8, 16, 48, 64};
    for (int i = 0; i < 4; i++) {
        for (int64_t row = 0; row < 500; row++) {
            for (int count = 2; count <= 6; count++) {
                int taken[6] = {0};
                for (int m = 0; m < members[i]; m++) {
                    assay_emulation e = emulation_of(ASSAY_BFLOAT16, (uint64_t)m);
                    assay_context ctx = context_of(&e, 1);
                    e.member = m;
                    const int64_t turn = assay_turn_at(&ctx, row, count);
                    assert_in_range(turn, 0, count - 1);
                    taken[turn]++;
                    e.nearest = true;
                    assert_int_equal(assay_turn_at(&ctx, row, count), 0);
                }
                for (int form = 0; form < count; form++)
                    if (taken[form] < members[i] / count - (members[i] == 48 ? 8 : 1))
                        fail_msg("form %d of %d is taken by %d of %d members", form, count, taken[form], members[i]);
            }
        }
    }
}

/* Two choices at the same row differ, and neither is that of a member's parity. */
TEST(test_turns_are_apart)
{
    int same = 0, even = 0;
    for (int64_t row = 0; row < 1000; row++) {
        assay_emulation e = emulation_of(ASSAY_BFLOAT16, 1);
        assay_context ctx = context_of(&e, 1);
        int both = 0, parity = 0;
        for (e.member = 0; e.member < 16; e.member++) {
            both += assay_turn_at(&ctx, row, 2) == assay_turn_at(&ctx, 1000 + row, 2);
            parity += assay_turn_at(&ctx, row, 2) == e.member % 2;
        }
        same += both == 0 || both == 16;
        even += parity == 0 || parity == 16;
    }
    assert_true(same < 200 && even < 200);
}

/* Of terms 1 and -1, and of zeros. */
TEST(test_sums_of_terms_that_cancel_are_moved)
{
    const double squares[4] = {2, 0, 2, 8};
    double sums[4] = {0, 0, -0.0, 0};
    assay_emulation e = emulation_of(ASSAY_FLOAT32, 1);
    assay_context ctx = context_of(&e, 1);
    assay_round_terms(&ctx, 2, 4, squares, sums);
    assert_true(sums[0] != 0 && fabs(sums[0]) < 1e-6 && sums[2] == sums[0] && sums[3] != sums[0]);
    assert_true(sums[1] == 0);
}
