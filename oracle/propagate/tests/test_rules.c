#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/dtype.h"
#include "oracle/propagate/rules.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

static double uniform(uint64_t *seed) /* in (-1, 1), of splitmix64 */
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)(int64_t)(z ^ z >> 31) * 0x1p-63;
}

static double *numbers(uint64_t *seed, int64_t count, bool positive)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = uniform(seed);
        if (positive) values[i] *= values[i];
    }
    return values;
}

/* The definition in rules.h, element by element. */
static double expected(const assay_precision *p, const assay_matmul_args *args, const double *va, const double *vb,
                       bool stored, int64_t i, int64_t j)
{
    const int64_t length = (args->k + 7) / 8;
    double sum = 0, partial = 0, squares = 0, variance = 0;
    for (int64_t q = 0; q < args->k; q++) {
        const int64_t at_a = args->transpose_a ? q * args->lda + i : i * args->lda + q;
        const int64_t at_b = args->transpose_b ? j * args->ldb + q : q * args->ldb + j;
        const double a = args->a[at_a], b = args->b[at_b];
        sum += a * b;
        squares += a * a * b * b;
        variance += b * b * (va != NULL ? va[at_a] : assay_propagate_given(p->given, a));
        variance += a * a * (vb != NULL ? vb[at_b] : assay_propagate_given(p->given, b));
        if ((q + 1) % length == 0 || q + 1 == args->k) partial += sum * sum;
    }
    return variance + 2 * p->multiply * p->multiply * squares +
           p->accumulate * p->accumulate * (double)length * (partial + squares) +
           (stored ? assay_propagate_rounding(p->storage, p->least, sum) : 0);
}

/* Bits: 1 transpose_a, 2 transpose_b, 4 variance of a, 8 variance of b, 16 stored. */
static void check_against_definition(assay_context *ctx, const assay_precision *p, int64_t m, int64_t n, int64_t k,
                                     int form)
{
    uint64_t seed = 5;
    const bool transpose_a = form & 1, transpose_b = form & 2;
    const int64_t lda = (transpose_a ? m : k) + 2, ldb = (transpose_b ? k : n) + 1, ldc = n + 3;
    const int64_t size_a = lda * (transpose_a ? k : m), size_b = ldb * (transpose_b ? n : k);
    double *a = numbers(&seed, size_a, false), *b = numbers(&seed, size_b, false);
    double *va = numbers(&seed, size_a, true), *vb = numbers(&seed, size_b, true), *c = numbers(&seed, m * ldc, false);
    assay_fill_nan(c, m * ldc);
    const assay_matmul_args args = {.c = c,
                                    .ldc = ldc,
                                    .a = a,
                                    .lda = lda,
                                    .transpose_a = transpose_a,
                                    .b = b,
                                    .ldb = ldb,
                                    .transpose_b = transpose_b,
                                    .m = m,
                                    .n = n,
                                    .k = k};
    const double *given_a = form & 4 ? va : NULL, *given_b = form & 8 ? vb : NULL;
    assert_ok(ctx, assay_propagate_product(ctx, p, form & 16, &args, given_a, given_b));
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double e = expected(p, &args, given_a, given_b, form & 16, i, j);
            assert_close(&c[i * ldc + j], &e, 1, 1e-11, 0);
        }
        assert_all_nan(c + i * ldc + n, ldc - n);
    }
    free(a);
    free(b);
    free(va);
    free(vb);
    free(c);
}

TEST(test_products_as_defined)
{
    static const int64_t SHAPES[][3] = {{1, 1, 1}, {3, 5, 7}, {2, 9, 8}, {7, 1, 17}, {4, 6, 0}, {0, 3, 2}, {3, 0, 2}};
    static const assay_precision PRECISIONS[] = {
        {.storage = 0.1, .multiply = 0.2, .accumulate = 0.3},
        {.storage = 0.1, .accumulate = 0.3},
        {.storage = 0.1, .multiply = 0.2},
        {.storage = 0.1},
        {.storage = 0.1, .accumulate = 0.3, .least = 0.5},
        {.given = ASSAY_BFLOAT16},
        {.storage = 0.1, .multiply = 0.2, .accumulate = 0.3, .given = ASSAY_FLOAT16},
    };
    enum { COUNT = sizeof PRECISIONS / sizeof *PRECISIONS };
    assay_context ctx = assay_context_default(2);
    for (int i = 0; i < 7 * COUNT * 32; i++) {
        const int64_t *shape = SHAPES[i % 7];
        check_against_definition(&ctx, &PRECISIONS[i / 7 % COUNT], shape[0], shape[1], shape[2], i / (7 * COUNT));
    }
}

TEST(test_more_than_one_tile)
{
    const assay_precision p = {.storage = 0.1, .multiply = 0.2, .accumulate = 0.3};
    assay_context ctx = assay_context_default(2);
    check_against_definition(&ctx, &p, 515, 3, 4, 12);
    check_against_definition(&ctx, &p, 2, 1030, 9, 3 + 12);
    check_against_definition(&ctx, &p, 513, 514, 2, 4 + 16);
}

/* What is given loses what rounding to its type loses, and nothing where the type has it. */
TEST(test_given_numbers)
{
    const double unit = 0x1p-8 * ASSAY_ROUNDING_RMS;
    assert_true(assay_propagate_given(ASSAY_FLOAT64, 0.1) == 0);
    assert_true(assay_propagate_given(ASSAY_BFLOAT16, 0) == 0);
    assert_true(assay_propagate_given(ASSAY_BFLOAT16, -255) == 0);
    assert_true(assay_propagate_given(ASSAY_BFLOAT16, 257) == unit * 257 * (unit * 257));
    assert_true(assay_propagate_given(ASSAY_FLOAT16, 0x3p-24) == 0);
    assert_true(assay_propagate_given(ASSAY_FLOAT16, 0x7p-25) == 0x1p-48 / 12);
}

TEST(test_exact_operands_and_nothing_rounded_have_no_error)
{
    const assay_precision exact = {.name = "exact"};
    assay_context ctx = assay_context_default(1);
    const double a[] = {1, 2, 3, 4}, zero[4] = {0};
    double c[4];
    assay_fill_nan(c, 4);
    const assay_matmul_args args = {.c = c, .ldc = 2, .a = a, .lda = 2, .b = a, .ldb = 2, .m = 2, .n = 2, .k = 2};
    assert_ok(&ctx, assay_propagate_product(&ctx, &exact, false, &args, NULL, NULL));
    assert_same_bits(c, zero, 4);
}

TEST(test_dot_and_store)
{
    const assay_precision p = {.storage = 0.1, .multiply = 0.2, .accumulate = 0.3};
    uint64_t seed = 3;
    for (int64_t k = 0; k < 40; k += k < 18 ? 1 : 7) {
        double *a = numbers(&seed, k, false), *b = numbers(&seed, k, false);
        const assay_matmul_args args = {.a = a, .lda = k, .b = b, .ldb = 1, .m = 1, .n = 1, .k = k};
        double e = expected(&p, &args, NULL, NULL, false, 0, 0), actual = assay_propagate_dot(&p, k, a, b);
        assert_close(&actual, &e, 1, 1e-13, 0);
        free(a);
        free(b);
    }
    const double values[] = {2, -3, 0}, sums[] = {1.04, 2.09, 3};
    double variance[] = {1, 2, 3};
    assay_propagate_store(0.1, 0, 3, values, variance);
    assert_close(variance, sums, 3, 1e-15, 0);
}

/* float16 from far below its normal numbers, 2^-14, to above them: to nearest, and up or down by chance. */
TEST(test_rounding_to_float16)
{
    enum { VALUES = 4000 };
    const double unit = 0x1p-11 * 0.57735026918962576451, least = 0x1p-24;
    uint64_t seed = 9;
    for (int exponent = -30; exponent <= -10; exponent++) {
        double variance = 0, to_nearest = 0, by_chance = 0;
        for (int i = 0; i < VALUES; i++) {
            const double value = ldexp(uniform(&seed), exponent),
                         error = value - assay_dtype_round(ASSAY_FLOAT16, value, false);
            const double spacing = fmax(least, ldexp(1, ilogb(value) - 10)), rest = fabs(remainder(value, spacing));
            variance += assay_propagate_rounding(unit, least, value);
            to_nearest += error * error;
            by_chance += rest * (spacing - rest);
        }
        assert_true(to_nearest < 1.12 * variance);
        assert_true(by_chance < 2.25 * variance && by_chance > 0.5 * variance);
        if (exponent >= -24) assert_true(to_nearest > 0.3 * variance);
        if (exponent >= -20 && exponent <= -14) assert_true(to_nearest > 0.95 * variance);
    }
    assert_true(assay_propagate_rounding(unit, least, 0) == 0);
    assert_true(assay_propagate_rounding(unit, least, -0x1p-20) == least * least / 12);
    assert_true(assay_propagate_rounding(unit, least, -3) == assay_propagate_rounding(unit, 0, 3));
    assert_true(assay_propagate_rounding(unit, 0, 0x1p-20) == 0x1p-40 * unit * unit);
}

/* Ways of summing in float32, all of them correct. */
enum { ASCENDING, DESCENDING, LANES, PAIRWISE, SEPARATE, ORDERS };

static float pairwise(const double *a, const double *b, int64_t count)
{
    if (count == 1) return (float)(a[0] * b[0]);
    return pairwise(a, b, count / 2) + pairwise(a + count / 2, b + count / 2, count - count / 2);
}

static double float_sum(int order, const double *a, const double *b, int64_t count)
{
    enum { LANE_COUNT = 8 };
    float sum = 0, lane[LANE_COUNT] = {0};
    switch (order) {
    case ASCENDING:
        for (int64_t i = 0; i < count; i++) sum = fmaf((float)a[i], (float)b[i], sum);
        return sum;
    case DESCENDING:
        for (int64_t i = count - 1; i >= 0; i--) sum = fmaf((float)a[i], (float)b[i], sum);
        return sum;
    case LANES:
        for (int64_t i = 0; i < count; i++) lane[i % LANE_COUNT] += (float)a[i] * (float)b[i];
        for (int i = 0; i < LANE_COUNT; i++) sum += lane[i];
        return sum;
    case PAIRWISE:
        return pairwise(a, b, count);
    default: /* a product rounded, then a sum rounded */
        for (int64_t i = 0; i < count; i++) sum += (float)(a[i] * b[i]);
        return sum;
    }
}

/* Data on which sums grow in different ways. */
enum { MIXED, POSITIVE, RAMP, HALVES, GIANTS, CANCELLING, ONE_FIRST, ONE_LAST, KINDS };

static void fill(int kind, int64_t count, uint64_t *seed, double *a, double *b)
{
    for (int64_t i = 0; i < count; i++) {
        a[i] = (float)(uniform(seed) + uniform(seed));
        b[i] = (float)(uniform(seed) + uniform(seed));
        if (kind == POSITIVE || kind == HALVES) a[i] = fabs(a[i]);
        if (kind == POSITIVE || kind == HALVES || kind == RAMP) b[i] = fabs(b[i]);
        if (kind == RAMP) a[i] = (float)(2 * (double)i / (double)count - 1);
        if (kind == HALVES && i >= count / 2) a[i] = -a[i];
        if (kind == GIANTS && i % 97 == 5) a[i] *= 4096;
        if (kind == CANCELLING && i % 2 == 1) {
            a[i] = -a[i - 1];
            b[i] = b[i - 1];
        }
    }
    if (kind == ONE_FIRST) a[0] *= 65536;
    if (kind == ONE_LAST) a[count - 1] *= 65536;
}

/* Sigma covers every order on every kind of data, and is no more than a few times what the plain order does (but where
 * every second sum is exactly 0, in this order alone). */
TEST(test_float32_sums_lie_under_sigma_and_not_far)
{
    enum { TRIALS = 40, LONGEST = 4096 };
    const assay_precision p = {.accumulate = 0x1p-24 * 0.57735026918962576451};
    static double a[LONGEST], b[LONGEST];
    uint64_t seed = 2;
    for (int64_t count = 16; count <= LONGEST; count *= 16) {
        for (int kind = 0; kind < KINDS; kind++) {
            double rms[ORDERS] = {0}, largest = 0;
            for (int trial = 0; trial < TRIALS; trial++) {
                fill(kind, count, &seed, a, b);
                double exact = 0;
                for (int64_t i = 0; i < count; i++) exact = fma(a[i], b[i], exact);
                for (int order = 0; order < ORDERS; order++) {
                    double r = fabs(float_sum(order, a, b, count) - exact) / sqrt(assay_propagate_dot(&p, count, a, b));
                    rms[order] += r * r / TRIALS;
                    largest = fmax(largest, r);
                }
            }
            assert_true(largest <= 5);
            for (int order = 0; order < ORDERS; order++) {
                assert_true(sqrt(rms[order]) <= (kind == ONE_LAST && order == DESCENDING ? 1.7 : 1));
            }
            assert_true(kind >= CANCELLING || sqrt(rms[ASCENDING]) >= 0.4);
        }
    }
}

TEST(test_failing_allocations)
{
    const assay_precision p = {.multiply = 0.2, .accumulate = 0.3};
    assay_context ctx = assay_context_default(1);
    const double a[] = {1, 2, 3, 4};
    double c[4];
    const assay_matmul_args args = {.c = c, .ldc = 2, .a = a, .lda = 2, .b = a, .ldb = 2, .m = 2, .n = 2, .k = 2};
    int failures = 0;
    for (;; failures++) {
        assay_fail_allocation(failures);
        assay_status status = assay_propagate_product(&ctx, &p, false, &args, a, a);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(failures >= 1);
}
