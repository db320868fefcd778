#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/quantised_deviation.h"
#include "oracle/ops/requantise.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

enum { ROWS = 3, COLUMNS = 40, COUNT = ROWS * COLUMNS };

static assay_quantize_config config_of(const char *format)
{
    return assay_quantize_default(assay_block_format_by_name(format), ROWS, COLUMNS);
}

static void fill(double *h)
{
    for (int i = 0; i < COUNT; i++) h[i] = sin(3.7 * i) * (1 + i / COLUMNS);
}

/* Where the spread reaches a boundary, some runs make the other code; the run to nearest and float64 never do. */
TEST(emulated_runs_cross_boundaries_within_reach)
{
    const assay_quantize_config config = config_of("mxfp4");
    double deviation[COUNT] = {0}, h[COUNT], codes[COUNT], scales[COUNT];
    int others = 0;
    deviation[5] = 0.01;
    for (int run = -1; run < 64; run++) {
        const assay_emulation emulation = {.seed = (uint64_t)(run + 1), .nearest = run < 0};
        assay_context ctx = assay_context_default(1);
        for (int i = 0; i < COUNT; i++) h[i] = 4;
        h[5] = 2.5 + 0.02; /* the boundary of 2 and 3 is 2.5 */
        ctx.emulation = &emulation;
        assert_ok(&ctx, assay_requantise(&ctx, codes, scales, h, deviation, &config));
        assert_true(codes[5] == 3 || codes[5] == 2);
        if (run < 0) assert_true(codes[5] == 3);
        others += codes[5] == 2;
        for (int i = 0; i < COUNT; i++)
            if (i != 5) assert_true(codes[i] == 4);
    }
    assert_true(others > 12 && others < 36); /* 3 in 8 */
}

TEST_WITH_CONTEXT(numbers_that_are_none_are_refused)
{
    const assay_quantize_config config = config_of("mxfp4");
    double h[COUNT], codes[COUNT], scales[COUNT];
    fill(h);
    h[41] = NAN;
    assert_int_equal(assay_requantise(&ctx, codes, scales, h, NULL, &config), ASSAY_BAD_INPUT);
}

/* No further than the reach, 0 stays, and float64 moves nothing. */
TEST_WITH_CONTEXT(numbers_are_moved_within_reach)
{
    const assay_emulation emulation = {.seed = 5};
    double x[64], deviation[64], moved[64], largest = 0;
    for (int i = 0; i < 64; i++) {
        x[i] = i == 7 ? 0 : 1 + i;
        deviation[i] = 0.25;
    }
    assay_deviation_move(&ctx, 64, x, deviation, moved);
    assert_memory_equal(moved, x, sizeof x);
    ctx.emulation = &emulation;
    assay_deviation_move(&ctx, 64, x, NULL, moved);
    assert_memory_equal(moved, x, sizeof x);
    assay_deviation_move(&ctx, 64, x, deviation, moved);
    for (int i = 0; i < 64; i++) largest = fmax(largest, fabs(moved[i] - x[i]));
    assert_true(moved[7] == 0 && largest > 1.5 && largest <= 0.25 * ASSAY_DEVIATION_REACH);
}
