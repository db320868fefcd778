#include "oracle/ops/vector_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/tests/ops_test.h"

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
        double *values = test_normals(&seed, 1, ASSAY_FLOAT64, rows * ld), *sums = test_nans(count + 1);
        assay_column_sums(ctx, sums, rows, count, ld, values);
        for (int64_t i = 0; i < count; i++) {
            double sum = 0;
            for (int64_t row = 0; row < rows; row++) sum += values[row * ld + i];
            assert_same_bits(&sums[i], &sum, 1);
        }
        assert_all_nan(sums + count, 1);
        free(values);
        free(sums);
    }
}

TEST(test_column_sums)
{
    test_each_context(columns, NULL);
    assay_context ctx = assay_context_default(1);
    const double values[] = {1, NAN, 2, 3};
    double sums[2];
    assay_column_sums(&ctx, sums, 2, 2, 2, values);
    assert_true(sums[0] == 3 && isnan(sums[1]));
}
