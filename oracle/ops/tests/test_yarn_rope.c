#include "oracle/ops/yarn_rope.h"

#include <quadmath.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/tests/ops_test.h"
#include "oracle/quad/tape.h"

TEST_LABELS(threads);

enum { HEADS = 3, LAST = INT32_MAX - 1 };

/* DeepSeek-V3's */
static assay_rope_config deepseek(int64_t dim)
{
    return (assay_rope_config){dim, true, 10000, 40, 32, 1, INT32_MAX, 4096, true, true, false, false, NULL};
}

static const int32_t POSITIONS[] = {0, 1, 2, 710, 4095, 4096, 163839, 163839, LAST};
enum { TOKENS = sizeof POSITIONS / sizeof *POSITIONS };

static assay_rope_rows packed_rows(double *y, const double *x, int64_t dim)
{
    return (assay_rope_rows){.y = y,
                             .y_token_stride = HEADS * dim,
                             .y_head_stride = dim,
                             .x = x,
                             .x_token_stride = HEADS * dim,
                             .x_head_stride = dim,
                             .heads = HEADS};
}

/* The second form's cosines and sines, of tokens at some positions. */
typedef struct turned {
    const assay_rope_config *config;
    int64_t tokens;
    const int32_t *positions;
    quad *turns; /* [tokens,Dr], written */
} turned;

static void turn(quad_tape *t, const void *self)
{
    const turned *of = self;
    const quad *turns = quad_turns(t, of->config, of->tokens, of->positions);
    if (turns != NULL) memcpy(of->turns, turns, (size_t)(of->tokens * of->config->dim) * sizeof *turns);
}

static quad *turns_of(const assay_rope_config *config, int64_t tokens, const int32_t *positions)
{
    assay_context ctx = assay_context_default(1);
    quad_tensors none = {0};
    const turned of = {config, tokens, positions, malloc((size_t)(tokens * config->dim) * sizeof *of.turns)};
    assert_non_null(of.turns);
    assert_ok(&ctx, quad_evaluate(&ctx, turn, &of, &none, NULL, &none));
    return of.turns;
}

static assay_status table_make(assay_context *ctx, assay_rope_table *table, const int32_t *positions, int64_t tokens,
                               const assay_rope_config *c)
{
    OWNED double *angles = test_nans(tokens * c->dim / 2);
    assay_rope_angles(ctx, angles, positions, tokens, c);
    const assay_status status = assay_rope_table_of_angles(ctx, table, angles, tokens, c);
    return status;
}

/* Cosine and sine times the factor, which is the size of an error, against the second form. harness/tests/test_certified.c
 * has what is turned by them. */
static void check_table(const assay_rope_config *c, const char *what)
{
    assay_context ctx = assay_context_default(2);
    const int64_t half = c->dim / 2;
    OWNED quad *turns = turns_of(c, TOKENS, POSITIONS);
    assay_rope_table table;
    assert_ok(&ctx, assay_rope_check(&ctx, c));
    assert_ok(&ctx, assay_rope_check_positions(&ctx, POSITIONS, TOKENS, c));
    assert_ok(&ctx, table_make(&ctx, &table, POSITIONS, TOKENS, c));
    for (int64_t i = 0; i < TOKENS * half; i++) {
        const quad cosine = turns[2 * i], sine = turns[2 * i + 1], factor = hypotq(cosine, sine);
        if (fabsq(table.cosine[i] - cosine) <= 4e-16 * factor && fabsq(table.sine[i] - sine) <= 4e-16 * factor)
            continue;
        fail_msg("%s, token %d, pair %d: %.17g, %.17g, expected %.17g, %.17g", what, (int)(i / half), (int)(i % half),
                 table.cosine[i], table.sine[i], (double)cosine, (double)sine);
    }
    assay_rope_table_free(&table);
}

TEST(test_turns_of_every_width)
{
    static const int64_t DIMS[] = {2, 6, 64};
    for (int bits = 0; bits < 24; bits++) {
        assay_rope_config c = deepseek(DIMS[bits / 8]);
        char what[32];
        snprintf(what, sizeof what, "dim %d, bits %d", (int)c.dim, bits % 8);
        c.yarn = bits & 1;
        c.truncate = bits & 2;
        c.attention_scaling = bits & 4;
        check_table(&c, what);
    }
}

/* Where the correction lies next to a whole number float64 could cut it to either side. */
TEST(test_cut_next_to_whole_numbers)
{
    int differ = 0;
    for (int whole = 1; whole < 12; whole++) {
        assay_rope_config c = deepseek(24);
        c.beta_slow = 0.1;
        c.beta_fast = (double)(4096 / (2 * M_PIq * expq(2 * (quad)whole / 24 * logq(10000))));
        for (int step = -2; step <= 2; step++) {
            assay_rope_config near = c;
            double frequencies[12];
            near.beta_fast += step * (nextafter(c.beta_fast, 1e9) - c.beta_fast);
            assay_rope_frequencies(frequencies, &near);
            quad *turns = turns_of(&near, 1, (const int32_t[]){1});
            for (int64_t i = 0; i < 12; i++) {
                const double expected = (double)atan2q(turns[2 * i + 1], turns[2 * i]);
                assert_close(&frequencies[i], &expected, 1, 1e-15, 0);
            }
            free(turns);
            differ += floorq(12 * logq(4096 / (near.beta_fast * 2 * M_PIq)) / logq(10000)) != whole;
        }
    }
    assert_true(differ > 11 && differ < 44); /* both sides were seen */
}

TEST(test_in_place_and_within_wider_rows)
{
    enum { DIM = 6, WIDE = 11, AT = 4 };
    assay_context ctx = assay_context_default(2);
    for (int bits = 0; bits < 4; bits++) {
        assay_rope_config c = deepseek(DIM);
        c.interleave = bits > 0;
        c.pairwise = bits == 2;
        uint64_t seed = 9;
        double *x = test_normals(&seed, 1, ASSAY_FLOAT64, TOKENS * HEADS * DIM), y[TOKENS * HEADS * DIM];
        double wide[TOKENS * HEADS * WIDE];
        OWNED_BY(assay_rope_table_free) assay_rope_table table;
        assert_ok(&ctx, table_make(&ctx, &table, POSITIONS, TOKENS, &c));
        assay_fill_nan(wide, TOKENS * HEADS * WIDE);
        assay_rope_rows rows = packed_rows(y, x, DIM);
        assay_rope_forward(&ctx, &rows, &table, &c);
        rows.y = wide + AT;
        rows.y_token_stride = HEADS * WIDE;
        rows.y_head_stride = WIDE;
        assay_rope_forward(&ctx, &rows, &table, &c);
        rows = packed_rows(x, x, DIM);
        assay_rope_forward(&ctx, &rows, &table, &c);
        assert_same_bits(x, y, TOKENS * HEADS * DIM);
        for (int r = 0; r < TOKENS * HEADS; r++) {
            assert_same_bits(wide + r * WIDE + AT, y + r * DIM, DIM);
            assert_all_nan(wide + r * WIDE, AT);
            assert_all_nan(wide + r * WIDE + AT + DIM, WIDE - AT - DIM);
        }
        free(x);
    }
}

/* Errors of an angle grow with it; at position 0 there is none. */
TEST(test_emulated_angles_are_off_as_the_profile_allows)
{
    enum { MEMBERS = 200 };
    static const double UNIT = 0x1p-22;
    static const int32_t positions[] = {0, 100, 10000};
    const assay_rope_config c = deepseek(2); /* one frequency, 1 */
    assay_emulation emulation = {.precision = {.elementary = UNIT}, .storage = ASSAY_FLOAT32};
    assay_context golden = assay_context_default(1), ctx = golden;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &emulation;
    double squares[3] = {0};
    for (int member = 0; member < MEMBERS; member++) {
        OWNED_BY(assay_rope_table_free) assay_rope_table table, exact;
        emulation.seed = (uint64_t)member;
        assert_ok(&ctx, table_make(&ctx, &table, positions, 3, &c));
        assert_ok(&golden, table_make(&golden, &exact, positions, 3, &c));
        for (int t = 0; t < 3; t++) {
            const double error = hypot(table.cosine[t] - exact.cosine[t], table.sine[t] - exact.sine[t]);
            squares[t] += error * error / MEMBERS;
        }
    }
    for (int t = 0; t < 3; t++) {
        const double angle = positions[t], expected = UNIT * UNIT * (1 + 2 * angle * angle);
        if (!(squares[t] > 0.7 * expected && squares[t] < 1.4 * expected))
            fail_msg("position %d: %g, expected %g", (int)positions[t], squares[t], expected);
    }
}

/* Where the ramp is nearly 1, a rounding of it is many of the frequency: 1 - ramp has it whole. */
TEST_WITH_CONTEXT(test_emulated_frequencies_have_the_rounding_of_the_ramp)
{
    enum { MEMBERS = 200, PAIR = 15 };
    static const double UNIT = 0x1p-22;
    static const int32_t positions[] = {1};
    assay_rope_config c = deepseek(64);
    c.rope_max_timescale = 1e6;
    c.truncate = false;
    assay_emulation emulation = {.precision = {.elementary = UNIT}, .storage = ASSAY_FLOAT32};
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &emulation;
    double frequencies[32], angles[32], squares = 0;
    assay_rope_frequencies(frequencies, &c);
    const double f = frequencies[PAIR], of_ramp = pow(c.rope_max_timescale, -2.0 * PAIR / 64) / f - 1;
    for (int member = 0; member < MEMBERS; member++) {
        emulation.seed = (uint64_t)member;
        assay_rope_angles(&ctx, angles, positions, 1, &c);
        squares += pow(angles[PAIR] / f - 1, 2) / MEMBERS;
    }
    const double expected = UNIT * UNIT * (2 + of_ramp * of_ramp);
    assert_true(of_ramp > 30);
    if (!(squares > 0.7 * expected && squares < 1.4 * expected)) fail_msg("%g, expected %g", squares, expected);
}

TEST_WITH_CONTEXT(test_positions_outside_are_refused)
{
    assay_rope_config c = deepseek(64);
    c.max_position_embeddings = 50;
    const int32_t good[] = {0, 49, 7}, negative[] = {0, 1, -1}, large[] = {0, 50, 1};
    assert_ok(&ctx, assay_rope_check_positions(&ctx, good, 3, &c));
    assert_int_equal(assay_rope_check_positions(&ctx, negative, 3, &c), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/positions[2] is -1, expected 0 to 49 (max_position_embeddings)");
    assert_int_equal(assay_rope_check_positions(&ctx, large, 3, &c), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/positions[1] is 50, expected 0 to 49 (max_position_embeddings)");
}

TEST(test_angles_lie_around_zero)
{
    assay_context ctx = assay_context_default(2);
    const assay_rope_config c = deepseek(64);
    OWNED double *angles = test_nans(TOKENS * 32);
    assay_rope_angles(&ctx, angles, POSITIONS, TOKENS, &c);
    for (int64_t i = 0; i < TOKENS * 32; i++) assert_true(angles[i] > -M_PI && angles[i] <= M_PI);
}
