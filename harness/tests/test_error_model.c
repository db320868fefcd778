/* Error scales from a few members: errors of a known variance are drawn, and what comes out is held against it. */

#include "compare/thresholds.h"
#include "harness/scales/ensemble.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state)
{
    const double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

static double *numbers(int64_t count)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    assert_non_null(x);
    assay_fill_nan(x, count);
    return x;
}

/* `count` positive numbers around 1, their logarithms with the deviation `spread`; each 50th `outlier` times that. */
static double *factors(uint64_t *state, int64_t count, double deviation, double outlier)
{
    double *x = numbers(count);
    for (int64_t i = 0; i < count; i++) x[i] = exp(deviation * normal(state)) * (i % 50 == 7 ? outlier : 1);
    return x;
}

static double *squares_of(uint64_t *state, const double *sigma, int64_t count, int members)
{
    double *squares = numbers(count);
    for (int64_t i = 0; i < count; i++) {
        squares[i] = 0;
        for (int member = 0; member < members; member++) {
            const double error = sigma[i] * normal(state);
            squares[i] += error * error;
        }
    }
    return squares;
}

/* A mean square over 8 members lies between 0.006 and 6.9 times the variance, over 16 members between 0.05 and 4.5
 * times, over 64 between 0.25 and 2.3 times, but for 1e-8 at either end (chi-squared). Where the model is right within 20 % the estimate lies between the
 * roots of (0.006 + 0.8) / 2 and (6.9 + 1.2) / 2, or (0.05 + 0.8) / 2 and (4.5 + 1.2) / 2, or (0.25 + 0.8) / 2 and (2.3 + 1.2) / 2, of it.
 *
 * All estimates within [low, high] of the truth, their mean square near it, and a fresh draw passes as a candidate. */
static void check(const assay_shape *shape, const double *sigma, int members, double low, double high)
{
    uint64_t state = 99;
    const int64_t count = assay_shape_count(shape), width = shape->dims[shape->rank - 1];
    const double quantile = assay_thresholds_of(1e-6, count, count / width, 0).element;
    assay_context ctx = assay_context_default(2);
    double *estimate = squares_of(&state, sigma, count, members), squares = 0;
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, shape, members, estimate));
    for (int64_t i = 0; i < count; i++) {
        const double ratio = estimate[i] / sigma[i], error = sigma[i] * normal(&state);
        if (!(ratio > low && ratio < high)) fail_msg("element %lld: %g of the truth", (long long)i, ratio);
        if (!(fabs(error) <= quantile * estimate[i])) fail_msg("element %lld is a false alarm", (long long)i);
        squares += ratio * ratio;
    }
    squares /= (double)count;
    if (!(squares > 0.9 && squares < 1.4)) fail_msg("mean square %g", squares);
    free(estimate);
}

TEST(test_rank_one_with_outliers)
{
    enum { ROWS = 300, COLUMNS = 400 };
    uint64_t seed = 1;
    OWNED double *rows = factors(&seed, ROWS, 1, 100), *columns = factors(&seed, COLUMNS, 0.5, 10);
    OWNED double *sigma = numbers(ROWS * COLUMNS);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) sigma[i] = rows[i / COLUMNS] * columns[i % COLUMNS];
    const assay_shape flat = {2, {ROWS, COLUMNS}}, batch = {3, {1, ROWS, COLUMNS}};
    check(&flat, sigma, 8, 0.63, 2.02);
    check(&batch, sigma, 8, 0.63, 2.02);
    check(&flat, sigma, 16, 0.65, 1.7);
    check(&batch, sigma, 64, 0.7, 1.35); /* its view of one row has columns that could stand alone, and is no better */
}

/* Gradients of experts: each has columns of its own, and some have much less to do than others. */
TEST(test_columns_of_each_expert)
{
    enum { EXPERTS = 8, ROWS = 96, COLUMNS = 130 };
    uint64_t seed = 2;
    OWNED double *sigma = numbers(EXPERTS * ROWS * COLUMNS);
    for (int64_t expert = 0; expert < EXPERTS; expert++) {
        OWNED double *rows = factors(&seed, ROWS, 0.5, 5), *columns = factors(&seed, COLUMNS, 0.7, 20);
        for (int64_t i = 0; i < ROWS * COLUMNS; i++)
            sigma[expert * ROWS * COLUMNS + i] = ldexp(rows[i / COLUMNS] * columns[i % COLUMNS], (int)expert * 2);
    }
    check(&(assay_shape){3, {EXPERTS, ROWS, COLUMNS}}, sigma, 8, 0.63, 2.02);
}

/* Checkpoints: channels of each head, over tokens of different size. */
TEST(test_channels_of_each_head)
{
    enum { TOKENS = 128, HEADS = 16, WIDTH = 48, CHANNELS = HEADS * WIDTH };
    uint64_t seed = 3;
    OWNED double *tokens = factors(&seed, TOKENS, 0.7, 1), *channels = factors(&seed, CHANNELS, 0.5, 30);
    OWNED double *sigma = numbers(TOKENS * CHANNELS);
    for (int64_t i = 0; i < TOKENS * CHANNELS; i++) sigma[i] = tokens[i / CHANNELS] * channels[i % CHANNELS];
    check(&(assay_shape){4, {2, TOKENS / 2, HEADS, WIDTH}}, sigma, 8, 0.63, 2.02);
}

/* Of a vector, and of few rows or columns, no mean can stand alone. */
TEST(test_vectors)
{
    enum { COUNT = 7168 };
    uint64_t seed = 4;
    OWNED double *sigma = factors(&seed, COUNT, 0.2, 1);
    check(&(assay_shape){1, {COUNT}}, sigma, 8, 0.5, 2.5);
    check(&(assay_shape){1, {COUNT}}, sigma, 16, 0.55, 2.2);
    check(&(assay_shape){2, {2, COUNT / 2}}, sigma, 8, 0.5, 2.5);
    check(&(assay_shape){3, {2, COUNT / 4, 2}}, sigma, 8, 0.5, 2.5);
    check(&(assay_shape){2, {COUNT, 1}}, sigma, 8, 0.5, 2.5);
}

TEST_WITH_CONTEXT(test_zeros_stay)
{
    enum { EXPERTS = 9, ROWS = 20, COLUMNS = 30, COUNT = EXPERTS * ROWS * COLUMNS };
    uint64_t seed = 5;
    OWNED double *sigma = numbers(COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        const int64_t expert = i / (ROWS * COLUMNS), row = i / COLUMNS, column = i % COLUMNS;
        sigma[i] = expert == 3 || row == 17 || column == 4 || (expert == 5 && column == 6) ? 0 : 1;
    }
    OWNED double *values = squares_of(&seed, sigma, COUNT, 8);
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){3, {EXPERTS, ROWS, COLUMNS}}, 8, values));
    for (int64_t i = 0; i < COUNT; i++) assert_int_equal(values[i] == 0, sigma[i] == 0);
    memset(values, 0, COUNT * sizeof *values);
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){1, {COUNT}}, 8, values));
    for (int64_t i = 0; i < COUNT; i++) assert_true(values[i] == 0);
}

/* Rows of padding, in a tensor with tokens and channels of their own, leave the others as they are. */
TEST_WITH_CONTEXT(test_zeros_enter_no_mean)
{
    enum { ROWS = 200, COLUMNS = 100, COUNT = ROWS * COLUMNS };
    uint64_t seed = 7;
    OWNED double *rows = factors(&seed, ROWS, 1, 1), *columns = factors(&seed, COLUMNS, 0.5, 1),
                 *sigma = numbers(COUNT);
    double squares = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        const bool padding = i / COLUMNS % 4 != 0 || i % COLUMNS % 3 == 1;
        sigma[i] = padding ? 0 : rows[i / COLUMNS] * columns[i % COLUMNS];
    }
    OWNED double *values = squares_of(&seed, sigma, COUNT, 8);
    for (int64_t i = 0; i < COUNT; i += 5 * COLUMNS) values[i] = NAN;
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){2, {ROWS, COLUMNS}}, 8, values));
    int64_t count = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        if (isnan(values[i])) continue;
        assert_int_equal(values[i] == 0, sigma[i] == 0);
        if (sigma[i] == 0) continue;
        squares += (values[i] / sigma[i]) * (values[i] / sigma[i]);
        count++;
    }
    squares /= (double)count;
    if (!(squares > 0.97 && squares < 1.03)) fail_msg("mean square %g", squares);
}

/* One element alone by chance without an error in any member is not held to be exact. */
TEST_WITH_CONTEXT(test_a_single_zero_does_not_stay)
{
    double values[12];
    for (int i = 0; i < 12; i++) values[i] = i == 5 ? 0 : 8;
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){2, {3, 4}}, 8, values));
    for (int i = 0; i < 12; i++) assert_true(values[i] > 0.3 && values[i] < 1.1);
}

TEST_WITH_CONTEXT(test_what_is_not_finite_stays_alone)
{
    double values[20];
    for (int i = 0; i < 20; i++) values[i] = 8;
    values[3] = NAN;
    values[13] = INFINITY;
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){2, {4, 5}}, 8, values));
    for (int i = 0; i < 20; i++) {
        if (i == 3) assert_true(isnan(values[i]));
        if (i == 13) assert_true(values[i] == INFINITY);
        if (i != 3 && i != 13) assert_true(values[i] > 0.7 && values[i] < 1.1);
    }
}

TEST_WITH_CONTEXT(test_scalars_and_nothing)
{
    double value = 8 * 9;
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){0, {0}}, 8, &value));
    assert_close(&value, &(double){3}, 1, 1e-15, 0);
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){2, {0, 3}}, 8, NULL));
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &(assay_shape){3, {2, 3, 0}}, 8, NULL));
}

TEST(test_threads_give_the_same_bits)
{
    enum { COUNT = 16 * 24 * 611 };
    uint64_t seed = 6;
    OWNED double *sigma = factors(&seed, COUNT, 0.5, 9), *given = squares_of(&seed, sigma, COUNT, 3);
    OWNED double *expected = numbers(COUNT), *actual = numbers(COUNT);
    const assay_shape shape = {4, {16, 2, 12, 611}};
    for (int threads = 1; threads <= 7; threads += 3) {
        assay_context ctx = assay_context_default(threads);
        memcpy(actual, given, COUNT * sizeof *actual);
        assert_ok(&ctx, assay_ensemble_smooth(&ctx, &shape, 8, actual));
        if (threads == 1) memcpy(expected, actual, COUNT * sizeof *actual);
        assert_same_bits(actual, expected, COUNT);
    }
}

TEST_WITH_CONTEXT(test_no_memory)
{
    double values[4] = {1, 2, 3, 4};
    assay_fail_allocation(0);
    assay_status status = assay_ensemble_smooth(&ctx, &(assay_shape){2, {2, 2}}, 8, values);
    assay_fail_allocation(-1);
    assert_true(assay_allocation_failed());
    assert_int_equal(status, ASSAY_NO_MEMORY);
}
