/* What a writer of caches norms and rotates: by hand, and what stays as it is. */
#include "oracle/ops/cache_numbers.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

enum { TOKENS = 2, COLUMNS = 4, SECOND = 2 };

static const int32_t POSITIONS[TOKENS] = {0, 1};

static assay_cache_numbers_config latents(assay_cache_norm norm, bool rotates)
{
    return (assay_cache_numbers_config){
        .tokens = TOKENS,
        .heads = 1,
        .columns = COLUMNS,
        .second = SECOND,
        .norm = norm,
        .norm_of_row = norm == ASSAY_CACHE_NORM_ROW,
        .rotates = rotates,
        .rope_at = COLUMNS,
        .rope = {.dim = SECOND, .rope_max_timescale = 10000, .max_position_embeddings = 8}};
}

typedef struct rows {
    double numbers[TOKENS * COLUMNS], second[TOKENS * SECOND];
} rows;

static const rows GIVEN = {{3, -3, 3, 3, 6, 6, -6, 6}, {4, 0, 0, 5}};

static rows made(assay_context *ctx, const assay_cache_numbers_config *config)
{
    static const double scale[COLUMNS + SECOND] = {1, 2, 1, 1, 1, 3};
    rows r = GIVEN;
    const assay_cache_numbers n = {.numbers = r.numbers, .second = r.second, .scale = scale, .positions = POSITIONS};
    assert_ok(ctx, assay_cache_make_numbers(ctx, &n, config));
    return r;
}

static void check(assay_context *ctx, void *data)
{
    (void)data;
    assay_cache_numbers_config config = latents(ASSAY_CACHE_NORM_LATENT, false);
    rows r = made(ctx, &config);
    static const double latent[] = {1, -2, 1, 1, 1, 2, -1, 1};
    for (int i = 0; i < TOKENS * COLUMNS; i++) assert_true(r.numbers[i] == latent[i]);
    assert_memory_equal(r.second, GIVEN.second, sizeof r.second);

    config = latents(ASSAY_CACHE_NORM_ROW, false);
    assert_int_equal(assay_cache_norm_width(&config), COLUMNS + SECOND);
    r = made(ctx, &config);
    const double root = sqrt((4 * 36 + 25) / 6.0); /* of the second row */
    assert_true(fabs(r.numbers[5] - 2 * 6 / root) < 1e-15 && fabs(r.second[3] - 3 * 5 / root) < 1e-14);

    config = latents(ASSAY_CACHE_NORM_NONE, true);
    r = made(ctx, &config);
    assert_memory_equal(r.numbers, GIVEN.numbers, sizeof r.numbers);
    assert_true(r.second[0] == 4 && r.second[1] == 0); /* at position 0 */
    assert_true(fabs(r.second[2] + 5 * sin(1)) < 1e-14 && fabs(r.second[3] - 5 * cos(1)) < 1e-14);
}

TEST(latents_by_hand)
{
    test_each_context(check, NULL);
}

/* Of heads of three pairs of which one is turned the others pass; a norm of ones has mean square 1. */
TEST(keys_are_turned_in_part)
{
    enum { HEADS = 2, WIDTH = 6, COUNT = TOKENS * HEADS * WIDTH };
    assay_context ctx = assay_context_default(2);
    assay_cache_numbers_config config = {.tokens = TOKENS,
                                         .heads = HEADS,
                                         .columns = WIDTH,
                                         .norm = ASSAY_CACHE_NORM_ROW,
                                         .rotates = true,
                                         .rope = {.dim = 2, .rope_max_timescale = 10000, .max_position_embeddings = 8}};
    static const double ones[WIDTH] = {1, 1, 1, 1, 1, 1};
    double x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = y[i] = i % 5 - 1.5;
    const assay_cache_numbers n = {.numbers = y, .scale = ones, .positions = POSITIONS};
    assert_ok(&ctx, assay_cache_make_numbers(&ctx, &n, &config));
    for (int row = 0; row < TOKENS * HEADS; row++) {
        double squares = 0, before = 0;
        for (int i = 0; i < WIDTH; i++) squares += y[row * WIDTH + i] * y[row * WIDTH + i];
        for (int i = 0; i < WIDTH; i++) before += x[row * WIDTH + i] * x[row * WIDTH + i];
        assert_true(fabs(squares - WIDTH) < 1e-14);
        for (int i = 2; i < WIDTH; i++)
            assert_true(fabs(y[row * WIDTH + i] - x[row * WIDTH + i] / sqrt(before / WIDTH)) < 1e-15);
    }
    assert_true(fabs(y[HEADS * WIDTH] - x[HEADS * WIDTH] / 1) > 0.1); /* at position 1 */
}

TEST_WITH_CONTEXT(refuses_positions_outside)
{
    assay_cache_numbers_config config = latents(ASSAY_CACHE_NORM_NONE, true);
    static const int32_t far[TOKENS] = {0, 8};
    rows r = GIVEN;
    const assay_cache_numbers n = {.numbers = r.numbers, .second = r.second, .positions = far};
    assert_int_equal(assay_cache_make_numbers(&ctx, &n, &config), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/positions[1] is 8, expected 0 to 7 (max_position_embeddings)");
}
