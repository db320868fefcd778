#include <Random123/philox.h>

#include "oracle/base/random.h"
#include "oracle/base/random_kernels.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

static bool isa_is_here(assay_isa isa)
{
    if (isa == ASSAY_ISA_AVX512) return __builtin_cpu_supports("avx512bw");
    if (isa == ASSAY_ISA_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return true;
}

static assay_context best_context(int threads)
{
    assay_context ctx = {.threads = threads, .isa = ASSAY_ISA_SCALAR};
    if (isa_is_here(ASSAY_ISA_AVX2)) ctx.isa = ASSAY_ISA_AVX2;
    if (isa_is_here(ASSAY_ISA_AVX512)) ctx.isa = ASSAY_ISA_AVX512;
    return ctx;
}

/* Fills of all element-wise distributions. */
static const double PATTERN[] = {3, -1, 4, -1, 5, -9, 2};
static const assay_fill FILLS[] = {
    {.distribution = ASSAY_NORMAL, .scale = 0.5, .mean = 0.25},
    {.distribution = ASSAY_UNIFORM, .low = -1, .high = 2},
    {.distribution = ASSAY_INTEGERS, .scale = 0.5, .low = -3, .high = 3},
    {.distribution = ASSAY_CONSTANT, .mean = -7},
    {.distribution = ASSAY_VALUES, .scale = 2, .mean = 1, .values = PATTERN, .value_count = 7},
    {.distribution = ASSAY_NEAR_TIES, .mean = 0.75, .low = -2, .high = 2},
    {.distribution = ASSAY_BLOCK_POWERS, .scale = 1, .low = -8, .high = 8},
    {.distribution = ASSAY_ROW_POWERS, .scale = 1, .low = -8, .high = 8},
    {.distribution = ASSAY_CANCEL, .scale = 2, .mean = 1},
    {.distribution = ASSAY_BELL, .scale = 2, .mean = 1},
};
enum { FILL_COUNT = sizeof FILLS / sizeof *FILLS };

static double *numbers(int64_t count)
{
    double *x = malloc((size_t)(count > 0 ? count : 1) * sizeof *x);
    assert_non_null(x);
    assay_fill_nan(x, count);
    return x;
}

TEST(names_of_distributions)
{
    for (int i = 0; i < ASSAY_DISTRIBUTION_COUNT; i++) {
        assay_distribution d = ASSAY_DISTRIBUTION_COUNT;
        assert_true(assay_distribution_from_name(assay_distribution_name((assay_distribution)i), &d));
        assert_int_equal(d, i);
    }
    assay_distribution untouched = ASSAY_CANCEL;
    assert_string_equal(assay_distribution_name(ASSAY_GROUP_SIZES), "group_sizes");
    assert_false(assay_distribution_from_name("gaussian", &untouched));
    assert_int_equal(untouched, ASSAY_CANCEL);
}

/* Random123's known answers, then our kernels against Random123. */
TEST(words_are_philox_s)
{
    const struct {
        philox4x32_ctr_t counter;
        philox4x32_key_t key;
        uint32_t expected[4];
    } rows[] = {
        {{{0, 0, 0, 0}}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {{0xffffffff, 0xffffffff}},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        philox4x32_ctr_t result = philox4x32(rows[i].counter, rows[i].key);
        assert_memory_equal(result.v, rows[i].expected, sizeof rows[i].expected);
    }
    const assay_random_kernels *kernels[] = {&assay_random_scalar, &assay_random_avx2, &assay_random_avx512};
    const uint64_t starts[] = {0, 8, UINT32_MAX - 31, UINT64_C(0xfedcba9876543210)};
    const assay_random_stream streams[] = {{{0, 0}, 0}, {{0xa4093822, 0x299f31d0}, 2}, {{0xffffffff, 0xffffffff}, 1}};
    for (int isa = 0; isa < 3; isa++) {
        if (!isa_is_here((assay_isa)isa)) continue;
        for (int k = 0; k < 12; k++) {
            uint64_t start = starts[k % 4];
            assay_random_stream stream = streams[k / 4];
            philox4x32_key_t key = {{stream.key[0], stream.key[1]}};
            uint32_t lanes[4 * 32] = {0};
            kernels[isa]->lanes(lanes, 32, &stream, start);
            for (uint64_t i = 0; i < 32; i++) {
                philox4x32_ctr_t counter = {{(uint32_t)(start + i), (uint32_t)((start + i) >> 32), stream.purpose, 0}};
                counter = philox4x32(counter, key);
                assert_memory_equal(lanes + 4 * i, counter.v, sizeof counter.v);
            }
        }
    }
}

/* The bits themselves, so that no change of compiler or library passes unseen. Those of every distribution are held to the recipe
 * of docs/random-inputs.md by harness/tests/random_inputs.py. */
TEST(pinned_bits)
{
    assay_context ctx = best_context(1);
    const assay_shape shape = assay_shape_of(1, INT64_C(8));
    const assay_fill fill = {.distribution = ASSAY_NORMAL, .scale = 1};
    const double expected[] = {-0x1.ceb5f01a8ab7ap-7, 0x1.7e0c2da75216ep-3, 0x1.ff43051c67b4cp-1,
                               -0x1.0db9b87b30a76p-3};
    const double expected_bf16[] = {-0x1.cep-7, 0x1.7ep-3, 0x1p0, -0x1.0ep-3};
    double x[4] = {NAN, NAN, NAN, NAN};
    assert_ok(&ctx, assay_random_fill(&ctx, &fill, 42, "inputs/x", &shape, ASSAY_FLOAT64, 0, 4, x));
    assert_same_bits(x, expected, 4);
    assert_ok(&ctx, assay_random_fill(&ctx, &fill, 42, "inputs/x", &shape, ASSAY_BFLOAT16, 0, 4, x));
    assert_same_bits(x, expected_bf16, 4);

    /* Far out, beyond what 32 bits count: from a recipe in Python whose angle is rounded before the sine is taken. */
    const assay_shape large = assay_shape_of(2, INT64_C(4), INT64_C(1) << 32);
    const double expected_far[] = {-1.188970267626496, 0.7005412658271162};
    const int64_t far = (INT64_C(1) << 33) + 1;
    assert_ok(&ctx, assay_random_fill(&ctx, &fill, 42, "inputs/x", &large, ASSAY_FLOAT64, far, 2, x));
    assert_close(x, expected_far, 2, 2e-15, 0);
    assert_true(assay_random_bits(42, "x", 0) == UINT64_C(0xd7d116d6b985bf39));
    assert_true(assay_random_bits(42, "x", 1) == UINT64_C(0x74bf926317e334f4));
    assert_true(assay_random_bits(42, "x", UINT64_C(1) << 40) == UINT64_C(0x7c39c12fe378ce09));
}

TEST(slices_threads_and_instruction_sets_do_not_matter)
{
    const assay_shape shape = assay_shape_of(3, INT64_C(3), INT64_C(7), INT64_C(211));
    const int64_t total = assay_shape_count(&shape);
    OWNED double *whole = numbers(total), *again = numbers(total);
    const int thread_counts[] = {1, 2, 7};
    for (int f = 0; f < FILL_COUNT; f++) {
        for (int isa = 0; isa < 3; isa++) {
            if (!isa_is_here((assay_isa)isa)) continue;
            for (int t = 0; t < 3; t++) {
                assay_context ctx = {.threads = thread_counts[t], .isa = (assay_isa)isa};
                double *target = isa == 0 && t == 0 ? whole : again;
                assay_fill_nan(target, total);
                assert_ok(&ctx,
                          assay_random_fill(&ctx, &FILLS[f], 9, "weights/wo", &shape, ASSAY_FLOAT32, 0, total, target));
                assert_same_bits(target, whole, total);
                assay_fill_nan(again, total);
                for (int64_t first = 0, step = 1; first < total; first += step, step = (step * 5 + 3) % 700 + 1) {
                    int64_t count = first + step < total ? step : total - first;
                    assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[f], 9, "weights/wo", &shape, ASSAY_FLOAT32, first,
                                                      count, again + first));
                }
                assert_same_bits(again, whole, total);
            }
        }
    }
}

TEST(results_lie_on_the_grid)
{
    assay_context ctx = best_context(2);
    const assay_shape shape = assay_shape_of(2, INT64_C(5), INT64_C(150));
    double x[750], exact[750];
    for (int f = 0; f < FILL_COUNT; f++) {
        for (int type = 0; type < ASSAY_INT32; type++) {
            assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[f], 9, "x", &shape, ASSAY_FLOAT64, 0, 750, exact));
            assay_fill_nan(x, 750);
            assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[f], 9, "x", &shape, (assay_dtype)type, 0, 750, x));
            if (FILLS[f].distribution != ASSAY_NEAR_TIES) assay_dtype_round_many((assay_dtype)type, 750, exact, exact);
            for (int i = 0; i < 750; i++) {
                /* e4m3fn has no infinity, and e8m0 no sign: what they cannot be becomes NaN */
                assert_true(x[i] == assay_dtype_round((assay_dtype)type, x[i], false) || type == ASSAY_FLOAT8_E4M3FN ||
                            type == ASSAY_FLOAT8_E8M0FNU);
            }
            if (FILLS[f].distribution != ASSAY_NEAR_TIES) assert_same_bits(x, exact, 750);
        }
    }
}

/* Of what is rounded to a coarser grid: the bits are those of the plain form, wherever the numbers lie. */
TEST(near_normals_are_near)
{
    enum { COUNT = 1 << 16 };
    static uint32_t lanes[COUNT];
    static double exact[COUNT], near[COUNT];
    const uint32_t edges[] = {0,          1,         UINT32_MAX,     1u << 31,       1u << 30,
                              3u << 30,   1u << 29,  (1u << 29) + 1, (7u << 29) - 1, 0xC0000000,
                              0xBFFFFFFF, 0x60000000};
    enum { EDGES = sizeof edges / sizeof *edges };
    uint64_t seed = 5;
    for (int i = 0; i < COUNT; i++) lanes[i] = (uint32_t)test_bits(&seed);
    for (int i = 0; i < EDGES * EDGES; i++) {
        lanes[2 * i] = edges[i / EDGES];
        lanes[2 * i + 1] = edges[i % EDGES];
    }
    const assay_random_kernels *kernels[] = {&assay_random_scalar, &assay_random_avx2, &assay_random_avx512};
    assay_random_scalar.normals(exact, COUNT, lanes);
    for (int isa = 0; isa < 3; isa++) {
        if (!isa_is_here((assay_isa)isa)) continue;
        assay_fill_nan(near, COUNT);
        kernels[isa]->near_normals(near, COUNT, lanes);
        for (int i = 0; i < COUNT; i++) assert_true(fabs(near[i] - exact[i]) <= 0x1p-47); /* a quarter of what counts */
    }
}

TEST(rounded_normals_are_those_of_float64_rounded)
{
    const int64_t count = 1 << 17;
    assay_context ctx = best_context(2);
    const assay_shape shape = assay_shape_of(1, count);
    const assay_fill fills[] = {{.distribution = ASSAY_NORMAL, .scale = 0.0118},
                                {.distribution = ASSAY_NORMAL, .scale = -3, .mean = 1.5},
                                {.distribution = ASSAY_NORMAL, .scale = 1e-5, .mean = 1},
                                {.distribution = ASSAY_NORMAL, .scale = 1e-39},
                                {.distribution = ASSAY_NORMAL, .scale = 1e38, .mean = -1e38},
                                {.distribution = ASSAY_NORMAL}};
    OWNED double *exact = numbers(count), *x = numbers(count);
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
        assert_ok(&ctx, assay_random_fill(&ctx, &fills[f], 3, "x", &shape, ASSAY_FLOAT64, 0, count, exact));
        for (int type = ASSAY_FLOAT32; type < ASSAY_INT32; type += 2) { /* float32, bfloat16, e4m3fn */
            assert_ok(&ctx, assay_random_fill(&ctx, &fills[f], 3, "x", &shape, (assay_dtype)type, 0, count, x));
            for (int64_t i = 0; i < count; i++) {
                const double rounded = assay_dtype_round((assay_dtype)type, exact[i], false);
                if (memcmp(&x[i], &rounded, sizeof rounded) != 0)
                    fail_msg("fill %zu type %d: %a %a", f, type, x[i], rounded);
            }
        }
    }
}

/* Bounds are five standard errors. */
TEST(normal_moments)
{
    const int64_t count = 1 << 20;
    assay_context ctx = best_context(2);
    const assay_shape shape = assay_shape_of(1, count);
    const assay_fill fill = {.distribution = ASSAY_NORMAL, .scale = 1};
    OWNED double *x = numbers(count);
    assert_ok(&ctx, assay_random_fill(&ctx, &fill, 1, "inputs/x", &shape, ASSAY_FLOAT64, 0, count, x));
    double moments[5] = {0}, neighbours = 0, within_one = 0, beyond_three = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int p = 1; p <= 4; p++) moments[p] += pow(x[i], p) / (double)count;
        if (i > 0) neighbours += x[i] * x[i - 1] / (double)count;
        within_one += (fabs(x[i]) < 1) / (double)count;
        beyond_three += (fabs(x[i]) > 3) / (double)count;
        assert_true(fabs(x[i]) <= 6.67);
    }
    const double error = 1 / sqrt((double)count);
    assert_true(fabs(moments[1]) <= 5 * error);
    assert_true(fabs(moments[2] - 1) <= 5 * sqrt(2) * error);
    assert_true(fabs(moments[3]) <= 5 * sqrt(15) * error);
    assert_true(fabs(moments[4] - 3) <= 5 * sqrt(96) * error);
    assert_true(fabs(neighbours) <= 5 * error);
    assert_true(fabs(within_one - 0.682689492) <= 5 * 0.4655 * error);
    assert_true(fabs(beyond_three - 0.002699796) <= 5 * 0.0519 * error);
}

/* Its moments are known: the fourth is 3 - 6/5 (256^2 + 1) / (256^2 - 1) / 4. Bounds are five standard errors. */
TEST(bell_moments)
{
    const int64_t count = 1 << 20;
    assay_context ctx = best_context(2);
    const assay_shape shape = assay_shape_of(1, count);
    const assay_fill fill = {.distribution = ASSAY_BELL, .scale = 1};
    const double step = 0x1.bb68p-8, bound = 510 * step, fourth = 2.699990845; /* step: 15 bits of 1 / sqrt(21845) */
    double *x = numbers(count), moments[5] = {0}, eighth = 0, neighbours = 0;
    assert_ok(&ctx, assay_random_fill(&ctx, &fill, 1, "inputs/x", &shape, ASSAY_FLOAT64, 0, count, x));
    int64_t seen[1021] = {0};
    for (int64_t i = 0; i < count; i++) {
        for (int p = 1; p <= 4; p++) moments[p] += pow(x[i], p) / (double)count;
        eighth += pow(x[i], 8) / (double)count;
        if (i > 0) neighbours += x[i] * x[i - 1] / (double)count;
        assert_true(fabs(x[i]) <= bound && x[i] / step == rint(x[i] / step));
        seen[(int)(x[i] / step) + 510]++;
    }
    const double error = 1 / sqrt((double)count);
    assert_true(fabs(moments[1]) <= 5 * error);
    assert_true(fabs(moments[2] - 1) <= 5 * sqrt(fourth - 1) * error + 0x1p-14);
    assert_true(fabs(moments[3]) <= 5 * sqrt(12) * error);
    assert_true(fabs(moments[4] - fourth) <= 5 * sqrt(eighth - fourth * fourth) * error + 0x1p-13);
    assert_true(fabs(neighbours) <= 5 * error);
    /* 0 has the probability of four bytes adding up to 510: (2 256^2 + 1) / (3 256^3) */
    const double centre = (double)count * (2 * 65536.0 + 1) / (3 * 16777216.0);
    assert_true(fabs((double)seen[510] - centre) <= 5 * sqrt(centre));
    free(x);
}

/* Each has its own loop for a mean of 0 and types with as many bits as float32. Sums to each side of a power of two and
 * ties of the rounding are among so many. */
TEST(bells_of_all_kernels_are_the_same)
{
    enum { BLOCKS = 4096 };
    static double expected[4 * BLOCKS], bells[4 * BLOCKS];
    const assay_random_kernels *kernels[] = {&assay_random_scalar, &assay_random_avx2, &assay_random_avx512};
    const assay_random_stream stream = {{0xa4093822, 0x299f31d0}, 0};
    const float means[] = {0, 1, -0x1.23p-9F, 0x1.fffffep99F}, steps[] = {0x1.bb68p-8F, -0x1.fffcp-30F, 0x1p-100F, 0};
    const int drops[] = {0, 13, 16};
    const uint64_t starts[] = {0, UINT64_C(0xfedcba9800000000)};
    for (int k = 0; k < 4 * 4 * 3 * 2; k++) {
        const float mean = means[k % 4], step = steps[k / 4 % 4];
        const int drop = drops[k / 16 % 3];
        const uint64_t start = starts[k / 48];
        assay_random_scalar.bells(expected, BLOCKS, &stream, start, mean, step, drop);
        for (int isa = 1; isa < 3; isa++) {
            if (!isa_is_here((assay_isa)isa)) continue;
            assay_fill_nan(bells, 4 * BLOCKS);
            kernels[isa]->bells(bells, BLOCKS, &stream, start, mean, step, drop);
            assert_same_bits(bells, expected, 4 * BLOCKS);
        }
    }
}

TEST(fills_that_do_not_fit_are_refused)
{
    const assay_shape shape = assay_shape_of(2, INT64_C(3), INT64_C(4));
    const assay_fill wrong[] = {
        {.distribution = ASSAY_UNIFORM, .low = 2, .high = 1},
        {.distribution = ASSAY_UNIFORM, .low = NAN, .high = 1},
        {.distribution = ASSAY_INTEGERS, .low = 0.5, .high = 3},
        {.distribution = ASSAY_INTEGERS, .low = 4, .high = 3},
        {.distribution = ASSAY_INTEGERS, .low = 0, .high = 0x1p40},
        {.distribution = ASSAY_INTEGERS, .low = -0x1p31, .high = 0x1p31},
        {.distribution = ASSAY_NEAR_TIES, .low = 1, .high = 0},
        {.distribution = ASSAY_NEAR_TIES, .low = 1, .high = NAN},
        {.distribution = ASSAY_BLOCK_POWERS, .low = -2000, .high = 0},
        {.distribution = ASSAY_ROW_POWERS, .low = 0, .high = 0.25},
        {.distribution = ASSAY_BELL, .scale = NAN},
        {.distribution = ASSAY_BELL, .scale = 0x1p-101},
        {.distribution = ASSAY_BELL, .scale = -0x1p101},
        {.distribution = ASSAY_BELL, .scale = 1, .mean = INFINITY},
        {.distribution = ASSAY_BELL, .scale = 1, .mean = 0x1p-101},
        {.distribution = ASSAY_VALUES, .scale = 1},
        {.distribution = ASSAY_VALUES, .scale = 1, .values = PATTERN},
        {.distribution = ASSAY_VALUES, .scale = 1, .value_count = 7},
        {.distribution = ASSAY_EXPERTS, .high = 3},
        {.distribution = ASSAY_GROUP_SIZES, .high = 3},
        {.distribution = ASSAY_PERMUTATION},
        {.distribution = ASSAY_DISTRIBUTION_COUNT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assay_context ctx = best_context(2);
        double x[12];
        assay_fill_nan(x, 12);
        assert_bad_input(&ctx, assay_random_fill(&ctx, &wrong[i], 1, "inputs/x", &shape, ASSAY_FLOAT64, 0, 12, x),
                         "inputs/x");
        assert_all_nan(x, 12);
    }
}

TEST(slices_outside_the_tensor_are_refused)
{
    const assay_shape shape = assay_shape_of(2, INT64_C(3), INT64_C(4));
    const assay_shape negative = assay_shape_of(2, INT64_C(3), INT64_C(-4));
    const assay_shape empty = assay_shape_of(2, INT64_C(3), INT64_C(0));
    const assay_shape scalar = assay_shape_of(0);
    assay_context ctx = best_context(1);
    double x[12];
    assay_fill_nan(x, 12);
    const int64_t slices[][2] = {{-1, 2}, {0, 13}, {13, 0}, {12, 1}, {3, -1}, {1, INT64_MAX}};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(
            assay_random_fill(&ctx, &FILLS[0], 1, "x", &shape, ASSAY_FLOAT64, slices[i][0], slices[i][1], x),
            ASSAY_BAD_INPUT);
    }
    assert_int_equal(assay_random_fill(&ctx, &FILLS[0], 1, "x", &negative, ASSAY_FLOAT64, 0, 1, x), ASSAY_BAD_INPUT);
    assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[0], 1, "x", &shape, ASSAY_FLOAT64, 12, 0, x));
    for (int f = 0; f < FILL_COUNT; f++) {
        assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[f], 1, "x", &empty, ASSAY_FLOAT64, 0, 0, x));
    }
    assert_all_nan(x, 12);
    for (int f = 0; f < FILL_COUNT; f++) {
        assert_ok(&ctx, assay_random_fill(&ctx, &FILLS[f], 1, "x", &scalar, ASSAY_FLOAT64, 0, 1, x));
        assert_true(isfinite(x[0]));
    }
    assert_all_nan(x + 1, 11);
}
