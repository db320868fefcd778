#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/tests/ops_test.h"
#include "oracle/ops/vector_sums.h"

TEST_LABELS(threads);

static void check(assay_context *ctx, void *data)
{
    enum { LARGEST = 700 };
    static double a[LARGEST], b[LARGEST], y[LARGEST], expected[LARGEST];
    uint64_t seed = 4;
    for (int64_t count = 0; count < LARGEST; count = count * 3 / 2 + 1) {
        double sum = 0;
        test_fill(&seed, 1, ASSAY_FLOAT64, LARGEST, a);
        test_fill(&seed, 1, ASSAY_FLOAT64, LARGEST, b);
        test_fill(&seed, 1, ASSAY_FLOAT64, LARGEST, y);
        memcpy(expected, y, sizeof y);
        for (int64_t i = 0; i < count; i++) {
            sum = fma(a[i], b[i], sum);
            expected[i] = fma(0.3, a[i], expected[i]);
        }
        double actual = assay_dot(ctx, count, a, b);
        assert_same_bits(&actual, &sum, 1);
        assay_add_scaled(ctx, count, 0.3, a, y);
        assert_same_bits(y, expected, LARGEST);
    }
    *(int *)data += 1;
}

TEST(test_one_fma_a_step_in_ascending_order)
{
    int calls = 0;
    test_each_context(check, &calls);
    assert_true(calls >= 3);
}

static void columns(assay_context *ctx, void *data)
{
    static const int64_t SHAPES[][3] = {{0, 5, 5}, {1, 1, 1}, {7, 257, 300}, {130, 3, 4}, {5, 0, 1}, {3, 1000, 1000}};
    (void)data;
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++) {
        const int64_t rows = SHAPES[s][0], count = SHAPES[s][1], ld = SHAPES[s][2];
        uint64_t seed = 4;
        OWNED double *values = test_normals(&seed, 1, ASSAY_FLOAT64, rows * ld), *sums = test_nans(count + 1);
        assay_column_sums(ctx, sums, rows, count, ld, values);
        for (int64_t i = 0; i < count; i++) {
            double sum = 0;
            for (int64_t row = 0; row < rows; row++) sum += values[row * ld + i];
            assert_same_bits(&sums[i], &sum, 1);
        }
        assert_all_nan(sums + count, 1);
    }
}

TEST_WITH_CONTEXT(test_column_sums)
{
    test_each_context(columns, NULL);
    const double values[] = {1, NAN, 2, 3};
    double sums[2];
    assay_column_sums(&ctx, sums, 2, 2, 2, values);
    assert_true(sums[0] == 3 && isnan(sums[1]));
}

static assay_context emulated(const assay_emulation *e)
{
    assay_context ctx = assay_context_default(1);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = e;
    return ctx;
}

/* Of the squares of the partial sums of terms in random order: what rounding each of them counts with. */
static double partial_squares(int64_t count, double squares, double sum)
{
    const double k = (double)count;
    double total = 0;
    for (int64_t j = 1; j <= count; j++) {
        const double share = (double)j / k;
        total += share * share * sum * sum;
        if (j < count) total += share * (1 - share) * (k * squares - sum * sum) / (k - 1);
    }
    return total;
}

/* Emulated, sums err somewhat more than those of terms in random order, of which each partial sum is rounded; one of a single term
 * does not. */
TEST(test_emulated_column_sums)
{
    enum { TERMS = 96, COLUMNS = 400, MEMBERS = 16 };
    uint64_t seed = 5;
    OWNED double *values = test_normals(&seed, 1, ASSAY_FLOAT64, TERMS * COLUMNS), *sums = test_nans(COLUMNS);
    double *exact = test_nans(COLUMNS), ratio = 0;
    assay_context plain = assay_context_default(1);
    for (int64_t i = 0; i < TERMS; i++) values[i * COLUMNS] = i == 3 ? 0.7 : 0;
    assay_column_sums(&plain, exact, TERMS, COLUMNS, COLUMNS, values);
    for (uint64_t member = 0; member < MEMBERS; member++) {
        const assay_emulation e = {.precision = {.accumulate = ASSAY_FLOAT32_RMS}, .seed = member};
        assay_context ctx = emulated(&e);
        assay_column_sums(&ctx, sums, TERMS, COLUMNS, COLUMNS, values);
        assert_same_bits(sums, exact, 1);
        for (int64_t column = 1; column < COLUMNS; column++) {
            const double error = (sums[column] - exact[column]) / ASSAY_FLOAT32_RMS;
            double squares = 0;
            for (int64_t i = 0; i < TERMS; i++) squares += values[i * COLUMNS + column] * values[i * COLUMNS + column];
            ratio += error * error / partial_squares(TERMS, squares, exact[column]);
        }
    }
    ratio /= (double)MEMBERS * (COLUMNS - 1);
    if (ratio < 1 || ratio > 2) fail_msg("%g times the variance", ratio);
    free(exact);
}

/* A plain term that begins a sum, and one of 0, are exact; a product and a sum of two are not. */
TEST(test_emulated_steps)
{
    const assay_emulation e = {.precision = {.accumulate = 0x1p-10}};
    assay_context ctx = emulated(&e);
    static const struct {
        double factor, x, y;
        bool exact;
    } rows[] = {{1, 0.7, 0, true}, {1, 0, 0.7, true}, {0, 0.7, 0.3, true}, {0.3, 0.7, 0, false}, {1, 0.7, 0.3, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double y = rows[i].y;
        assay_add_scaled(&ctx, 1, rows[i].factor, &rows[i].x, &y);
        assert_int_equal(y == fma(rows[i].factor, rows[i].x, rows[i].y), rows[i].exact);
    }
}
