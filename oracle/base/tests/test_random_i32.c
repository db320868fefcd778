#include "oracle/base/random.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { UNWRITTEN = -77777 };

static void fill_unwritten(int32_t *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = UNWRITTEN;
}

TEST(experts_are_distinct_in_each_row)
{
    const struct {
        int64_t rows, columns, experts;
    } cases[] = {{200, 8, 256}, {300, 5, 5}, {100, 1, 1}, {100, 1, 7}, {1, 60, 61}, {0, 3, 4}, {3, 0, 4}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t columns = cases[c].columns, experts = cases[c].experts, count = cases[c].rows * columns;
        const assay_shape shape = assay_shape_of(2, cases[c].rows, columns);
        const assay_fill fill = {.distribution = ASSAY_EXPERTS, .high = (double)experts - 1};
        int32_t x[1601], again[1601];
        assay_context ctx = {.threads = 1}, other = {.threads = 7};
        fill_unwritten(x, 1601);
        assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, 5, "inputs/selected_experts", &shape, x));
        assert_ok(&other, assay_random_fill_i32(&other, &fill, 5, "inputs/selected_experts", &shape, again));
        assert_memory_equal(x, again, (size_t)count * sizeof *x);
        assert_int_equal(x[count], UNWRITTEN);
        int chosen[256] = {0};
        for (int64_t row = 0; row < cases[c].rows; row++) {
            bool seen[256] = {false};
            for (int64_t j = 0; j < columns; j++) {
                int32_t id = x[row * columns + j];
                assert_true(id >= 0 && id < experts && !seen[id]);
                seen[id] = true;
                chosen[id]++;
            }
        }
        if (c == 1) assert_int_equal(chosen[0], 300);
        if (c == 0) { /* 1600 draws over 256 experts: 6.25 each */
            int unused = 0;
            for (int64_t e = 0; e < experts; e++) {
                assert_true(chosen[e] <= 20);
                unused += chosen[e] == 0;
            }
            assert_true(unused <= 5);
        }
    }
}

TEST(group_sizes_add_up)
{
    const int64_t groups[] = {1, 2, 3, 7, 64, 256}, totals[] = {0, 1, 5, 1000, 2147483647};
    assay_context ctx = {.threads = 2};
    for (int g = 0; g < 6; g++) {
        for (int t = 0; t < 5; t++) {
            for (uint64_t seed = 0; seed < 20; seed++) {
                const assay_shape shape = assay_shape_of(1, groups[g]);
                const assay_fill fill = {.distribution = ASSAY_GROUP_SIZES, .high = (double)totals[t]};
                int32_t sizes[257];
                int64_t sum = 0, empty = 0;
                fill_unwritten(sizes, 257);
                assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, seed, "inputs/group_sizes", &shape, sizes));
                for (int64_t i = 0; i < groups[g]; i++) {
                    assert_true(sizes[i] >= 0);
                    sum += sizes[i];
                    empty += sizes[i] == 0;
                }
                assert_int_equal(sum, totals[t]);
                assert_int_equal(sizes[groups[g]], UNWRITTEN);
                if (groups[g] > 1) assert_true(empty >= 1);
                if (groups[g] == 256 && totals[t] > 1000) assert_true(empty >= 35 && empty <= 100); /* 64.75 */
            }
        }
    }
}

TEST(a_permutation_has_every_number_once)
{
    const int64_t counts[] = {0, 1, 2, 97, 1000};
    assay_context ctx = {.threads = 2};
    const assay_fill fill = {.distribution = ASSAY_PERMUTATION};
    for (int c = 0; c < 5; c++) {
        const assay_shape shape = assay_shape_of(1, counts[c]);
        int32_t x[1001];
        bool seen[1000] = {false};
        int fixed = 0;
        fill_unwritten(x, 1001);
        assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, 5, "inputs/order", &shape, x));
        for (int64_t i = 0; i < counts[c]; i++) {
            assert_true(x[i] >= 0 && x[i] < counts[c] && !seen[x[i]]);
            seen[x[i]] = true;
            fixed += x[i] == i;
        }
        assert_int_equal(x[counts[c]], UNWRITTEN);
        if (counts[c] >= 97) assert_true(fixed <= 7);
    }
}

TEST(a_ramp_starts_anew_in_each_row)
{
    assay_context ctx = {.threads = 2};
    const assay_shape shape = assay_shape_of(2, INT64_C(3), INT64_C(5)), empty = assay_shape_of(1, INT64_C(0));
    const struct {
        double mean, scale;
    } ramps[] = {{0, 1}, {7, -3}, {163839, 0}, {2147483647, -1073741824}, {-2147483648.0, 1}};
    for (size_t r = 0; r < sizeof ramps / sizeof *ramps; r++) {
        const assay_fill fill = {.distribution = ASSAY_RAMP, .mean = ramps[r].mean, .scale = ramps[r].scale};
        if (r == 3) { /* the last element would leave 32 bits */
            int32_t none[15];
            assert_int_equal(assay_random_fill_i32(&ctx, &fill, 5, "x", &shape, none), ASSAY_BAD_INPUT);
            continue;
        }
        int32_t x[16];
        fill_unwritten(x, 16);
        assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, 5, "x", &shape, x));
        for (int i = 0; i < 15; i++) assert_int_equal(x[i], (int64_t)ramps[r].mean + (int64_t)ramps[r].scale * (i % 5));
        assert_int_equal(x[15], UNWRITTEN);
    }
    const assay_fill fill = {.distribution = ASSAY_RAMP, .scale = 1};
    int32_t none = UNWRITTEN;
    assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, 5, "x", &empty, &none));
    assert_int_equal(none, UNWRITTEN);
}

TEST(element_wise_fills_are_whole_numbers)
{
    enum { COUNT = 10000 };
    assay_context ctx = {.threads = 2};
    const assay_shape shape = assay_shape_of(2, INT64_C(2), (int64_t)COUNT / 2);
    const double values[] = {5, -6, 2147483647};
    const assay_fill pattern = {.distribution = ASSAY_VALUES, .scale = 1, .values = values, .value_count = 3};
    const assay_fill constant = {.distribution = ASSAY_CONSTANT, .mean = -4};
    const assay_fill scaled = {.distribution = ASSAY_INTEGERS, .scale = 3, .mean = 1, .low = -2, .high = 2};
    static int32_t x[COUNT];
    static double same[COUNT];
    assert_ok(&ctx, assay_random_fill_i32(&ctx, &pattern, 5, "x", &shape, x));
    for (int i = 0; i < COUNT; i++) assert_int_equal(x[i], (int32_t)values[i % 3]);
    assert_ok(&ctx, assay_random_fill_i32(&ctx, &constant, 5, "x", &shape, x));
    for (int i = 0; i < COUNT; i++) assert_int_equal(x[i], -4);
    assert_ok(&ctx, assay_random_fill_i32(&ctx, &scaled, 5, "x", &shape, x));
    assert_ok(&ctx, assay_random_fill(&ctx, &scaled, 5, "x", &shape, ASSAY_FLOAT64, 0, COUNT, same));
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == same[i] && abs(x[i] - 1) % 3 == 0 && abs(x[i] - 1) <= 6);
}

/* A quarter, at least one of several, never all; the others are as without. */
TEST(some_are_passed_over)
{
    const assay_fill plain = {.distribution = ASSAY_INTEGERS, .scale = 1, .low = 0, .high = 31};
    assay_fill fill = plain;
    fill.passes_over = true;
    fill.over = -100;
    for (uint64_t seed = 0; seed < 200; seed++) {
        const int64_t counts[] = {1, 2, 3, 400};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            assay_context ctx = {.threads = 1};
            const assay_shape shape = assay_shape_of(1, counts[c]);
            int32_t x[400], without[400];
            int over = 0;
            assert_ok(&ctx, assay_random_fill_i32(&ctx, &fill, seed, "inputs/t", &shape, x));
            assert_ok(&ctx, assay_random_fill_i32(&ctx, &plain, seed, "inputs/t", &shape, without));
            for (int64_t i = 0; i < counts[c]; i++) {
                assert_true(x[i] == -100 || x[i] == without[i]);
                over += x[i] == -100;
            }
            if (counts[c] == 1) assert_int_equal(over, 0);
            if (counts[c] > 1) assert_true(over >= 1 && over < counts[c]);
            if (counts[c] == 400) assert_true(over > 50 && over < 150);
        }
    }
}

TEST(fills_that_do_not_fit_are_refused)
{
    const double half[] = {1, 0.5};
    const assay_shape shape = assay_shape_of(2, INT64_C(3), INT64_C(4)), scalar = assay_shape_of(0);
    const assay_shape empty = assay_shape_of(1, INT64_C(0)), huge = assay_shape_of(1, INT64_C(1) << 31);
    const struct {
        assay_fill fill;
        const assay_shape *shape;
    } wrong[] = {
        {{.distribution = ASSAY_NORMAL, .scale = 1}, &shape},
        {{.distribution = ASSAY_NEAR_TIES}, &shape},
        {{.distribution = ASSAY_UNIFORM}, &shape},
        {{.distribution = ASSAY_EXPERTS, .high = 2}, &shape},
        {{.distribution = ASSAY_EXPERTS, .high = 7.5}, &shape},
        {{.distribution = ASSAY_EXPERTS, .high = 7}, &scalar},
        {{.distribution = ASSAY_EXPERTS, .high = 0x1p31}, &shape},
        {{.distribution = ASSAY_GROUP_SIZES, .high = -1}, &shape},
        {{.distribution = ASSAY_GROUP_SIZES, .high = 1.5}, &shape},
        {{.distribution = ASSAY_GROUP_SIZES, .high = 5}, &empty},
        {{.distribution = ASSAY_PERMUTATION}, &huge},
        {{.distribution = ASSAY_RAMP, .mean = 0.5, .scale = 1}, &shape},
        {{.distribution = ASSAY_RAMP, .scale = 0.5}, &shape},
        {{.distribution = ASSAY_RAMP, .scale = NAN}, &shape},
        {{.distribution = ASSAY_RAMP, .mean = 0x1p31}, &shape},
        {{.distribution = ASSAY_RAMP, .mean = 0x1p31 - 3, .scale = 1}, &shape},
        {{.distribution = ASSAY_RAMP, .mean = -0x1p31, .scale = -1}, &shape},
        {{.distribution = ASSAY_RAMP, .scale = 1}, &scalar},
        {{.distribution = ASSAY_CONSTANT, .mean = 0.5}, &shape},
        {{.distribution = ASSAY_CONSTANT, .mean = NAN}, &shape},
        {{.distribution = ASSAY_CONSTANT, .mean = 0x1p31}, &shape},
        {{.distribution = ASSAY_VALUES, .scale = 1, .values = half, .value_count = 2}, &shape},
        {{.distribution = ASSAY_INTEGERS, .scale = 0.5, .low = 1, .high = 1}, &shape},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assay_context ctx = {.threads = 2};
        int32_t x[12];
        assert_bad_input(&ctx, assay_random_fill_i32(&ctx, &wrong[i].fill, 1, "inputs/ids", wrong[i].shape, x),
                         "inputs/ids");
    }
}
