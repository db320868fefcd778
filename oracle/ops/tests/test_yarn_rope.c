#include "oracle/ops/yarn_rope.h"

#include <math.h>
#include <quadmath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/tests/ops_test.h"

enum { HEADS = 3, LAST = INT32_MAX - 1 };

/* DeepSeek-V3's */
static assay_rope_config deepseek(int64_t dim)
{
    return (assay_rope_config){.dim = dim,
                               .yarn = true,
                               .rope_max_timescale = 10000,
                               .rope_factor = 40,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .max_position_embeddings = INT32_MAX,
                               .original_max_position_embeddings = 4096,
                               .interleave = true,
                               .truncate = true};
}

static const int32_t POSITIONS[] = {0, 1, 2, 710, 4095, 4096, 163839, 163839, LAST};
enum { TOKENS = sizeof POSITIONS / sizeof *POSITIONS };

/* The formulas once more, with other groupings. */
static quad formula_corr(const assay_rope_config *c, double rotations)
{
    const quad dim = c->dim;
    return dim * (logq(c->original_max_position_embeddings) - logq(rotations) - logq(2 * M_PIq)) /
           (2 * logq(c->rope_max_timescale));
}

static quad formula_frequency(const assay_rope_config *c, int64_t i)
{
    const quad base = 1 / expq(2 * (quad)i / c->dim * logq(c->rope_max_timescale));
    if (!c->yarn) return base;
    quad low = formula_corr(c, c->beta_fast), high = formula_corr(c, c->beta_slow);
    if (c->truncate) low = floorq(low), high = ceilq(high);
    if (low < 0) low = 0;
    if (high > c->dim - 1) high = c->dim - 1;
    quad width = high - low;
    if (width == 0 || (c->pairwise && width < 0)) width = (quad)1 / 1000;
    quad ramp = (i - low) / width;
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    const quad smooth = 1 - ramp;
    return base / c->rope_factor * (1 - smooth) + base * smooth;
}

static quad formula_factor(const assay_rope_config *c)
{
    return c->attention_scaling && c->rope_factor > 1 ? logq(c->rope_factor) / 10 + 1 : 1;
}

/* Where component 0 or 1 of pair i is. */
static int64_t place(bool interleaved, int64_t half, int64_t i, int component)
{
    return interleaved ? 2 * i + component : i + component * half;
}

/* Of all tokens; [TOKENS,half]. */
typedef struct rotations {
    quad cosine[TOKENS * 32], sine[TOKENS * 32];
} rotations;

static void formula_rotations(const assay_rope_config *c, rotations *r)
{
    const int64_t half = c->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const quad frequency = formula_frequency(c, i);
        for (int64_t t = 0; t < TOKENS; t++) {
            r->cosine[t * half + i] = formula_factor(c) * cosq(POSITIONS[t] * frequency);
            r->sine[t * half + i] = formula_factor(c) * sinq(POSITIONS[t] * frequency);
        }
    }
}

/* One row of y, or of dx when `back`; size: the two terms of each element without their signs, at most. */
static void formula_row(const assay_rope_config *c, const quad *cosine, const quad *sine, const double *from, quad *to,
                        quad *size, bool back)
{
    const int64_t half = c->dim / 2;
    const bool of_from = back ? c->pairwise : c->interleave, of_to = back ? c->interleave : c->pairwise;
    for (int64_t i = 0; i < half; i++) {
        const quad a = from[place(of_from, half, i, 0)], b = from[place(of_from, half, i, 1)];
        const quad s = back ? -sine[i] : sine[i];
        to[place(of_to, half, i, 0)] = a * cosine[i] - b * s;
        to[place(of_to, half, i, 1)] = a * s + b * cosine[i];
        for (int k = 0; k < 2; k++) size[place(of_to, half, i, k)] = formula_factor(c) * (fabsq(a) + fabsq(b));
    }
}

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

static void check_config(const assay_rope_config *c, const char *what)
{
    assay_context ctx = assay_context_default(2);
    const int64_t size = TOKENS * HEADS * c->dim;
    uint64_t seed = 5;
    double *x = test_normals(&seed, 1, ASSAY_FLOAT64, size), *dy = test_normals(&seed, 1, ASSAY_FLOAT64, size);
    double *y = test_nans(size), *dx = test_nans(size);
    const int64_t half = c->dim / 2;
    rotations expected;
    quad row[64], terms[64];
    assay_rope_table table;
    assert_ok(&ctx, assay_rope_check(&ctx, c));
    assert_ok(&ctx, assay_rope_check_positions(&ctx, POSITIONS, TOKENS, c));
    assert_ok(&ctx, assay_rope_table_make(&ctx, &table, POSITIONS, TOKENS, c));
    formula_rotations(c, &expected);
    const assay_rope_rows forward = packed_rows(y, x, c->dim), backward = packed_rows(dx, dy, c->dim);
    assay_rope_forward(&ctx, &forward, &table, c);
    assay_rope_backward(&ctx, &backward, &table, c);
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        for (int back = 0; back < 2; back++) {
            const double *from = (back ? dy : x) + r * c->dim, *to = (back ? dx : y) + r * c->dim;
            const int64_t at = r / HEADS * half;
            formula_row(c, expected.cosine + at, expected.sine + at, from, row, terms, back);
            for (int64_t i = 0; i < c->dim; i++) {
                if (fabsq(to[i] - row[i]) <= 8e-16 * terms[i]) continue; /* cos and sin are off by 4e-16 */
                fail_msg("%s, %s row %d, element %d: %.17g, expected %.17g", what, back ? "dx" : "y", (int)r, (int)i,
                         to[i], (double)row[i]);
            }
        }
    }
    for (int64_t i = 0; i < TOKENS * half; i++) {
        assert_true(fabsq(table.cosine[i] - expected.cosine[i]) <= 4e-16 * formula_factor(c));
        assert_true(fabsq(table.sine[i] - expected.sine[i]) <= 4e-16 * formula_factor(c));
    }
    assay_rope_table_free(&table);
    free(x);
    free(dy);
    free(y);
    free(dx);
}

TEST(test_formula_in_every_layout)
{
    static const int64_t DIMS[] = {2, 6, 64};
    for (int bits = 0; bits < 48; bits++) {
        assay_rope_config c = deepseek(DIMS[bits / 16]);
        char what[32];
        snprintf(what, sizeof what, "dim %d, bits %d", (int)c.dim, bits % 16);
        c.yarn = bits & 1;
        c.interleave = bits & 2;
        c.truncate = bits & 4;
        c.attention_scaling = bits & 8;
        check_config(&c, what);
        c.pairwise = c.interleave;
        if (c.pairwise) check_config(&c, what);
    }
}

/* Ramps without width, backwards, cut at either end; factors below 1; other bases. */
TEST(test_formula_at_the_ends_of_the_ramp)
{
    static const struct {
        double theta, factor, fast, slow;
        int64_t original;
    } CASES[] = {{10000, 40, 8, 8, 4096},   {10000, 40, 32, 1, 4},       {10000, 40, 32, 1, 7},
                 {10000, 0.5, 32, 1, 4096}, {1.5, 4, 1e-3, 1e-6, 4096},  {5e5, 8, 1e9, 1e-9, 4096},
                 {10000, 1, 32, 1, 4096},   {150000, 32, 32, 1, 131072}, {2, 4, 1, 1, INT32_MAX}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (int bits = 0; bits < 4; bits++) {
            assay_rope_config c = deepseek(16);
            char what[32];
            snprintf(what, sizeof what, "case %d, bits %d", (int)i, bits);
            c.rope_max_timescale = CASES[i].theta;
            c.rope_factor = CASES[i].factor;
            c.beta_fast = CASES[i].fast;
            c.beta_slow = CASES[i].slow;
            c.original_max_position_embeddings = CASES[i].original;
            c.truncate = bits & 1;
            c.pairwise = bits & 2;
            c.attention_scaling = true;
            check_config(&c, what);
        }
    }
}

TEST(test_frequencies_of_deepseek)
{
    assay_rope_config c = deepseek(64);
    double frequencies[32];
    assay_rope_frequencies(frequencies, &c);
    for (int i = 0; i < 32; i++) {
        /* kept up to 10, interpolated from 23 on: what inference/model.py has for these keys */
        const double base = pow(10000, -i / 32.0), kept = i <= 10 ? 1 : i >= 23 ? 0 : (23 - i) / 13.0;
        const double expected = base * kept + base / 40 * (1 - kept);
        assert_close(&frequencies[i], &expected, 1, 1e-14, 0);
    }
}

/* Where the correction lies next to a whole number float64 could cut it to either side. */
TEST(test_cut_next_to_whole_numbers)
{
    int differ = 0;
    for (int whole = 1; whole < 12; whole++) {
        assay_rope_config c = deepseek(24);
        c.beta_fast = (double)(4096 / (2 * M_PIq * expq(2 * (quad)whole / 24 * logq(10000))));
        for (int step = -2; step <= 2; step++) {
            assay_rope_config near = c;
            double frequencies[12];
            near.beta_fast += step * (nextafter(c.beta_fast, 1e9) - c.beta_fast);
            assay_rope_frequencies(frequencies, &near);
            for (int64_t i = 0; i < 12; i++) {
                const double expected = (double)formula_frequency(&near, i);
                assert_close(&frequencies[i], &expected, 1, 1e-15, 0);
            }
            differ += floorq(formula_corr(&near, near.beta_fast)) != whole;
        }
    }
    assert_true(differ > 11 && differ < 44); /* both sides were seen */
}

TEST(test_gradient_is_the_transpose)
{
    assay_context ctx = assay_context_default(1);
    assay_rope_config c = deepseek(10);
    double matrix[10][10], transpose[10][10];
    const int32_t position = 77;
    assay_rope_table table;
    c.attention_scaling = true;
    assert_ok(&ctx, assay_rope_table_make(&ctx, &table, &position, 1, &c));
    for (int i = 0; i < 10; i++) {
        double one[10] = {0};
        one[i] = 1;
        assay_rope_rows rows = {.y = matrix[i], .x = one, .heads = 1};
        assay_rope_forward(&ctx, &rows, &table, &c);
        rows.y = transpose[i];
        assay_rope_backward(&ctx, &rows, &table, &c);
    }
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < 10; j++) assert_true(matrix[i][j] == transpose[j][i]);
    }
    assay_rope_table_free(&table);
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
        assay_rope_table table;
        assert_ok(&ctx, assay_rope_table_make(&ctx, &table, POSITIONS, TOKENS, &c));
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
        assay_rope_table_free(&table);
        free(x);
    }
}

static void same_bits(assay_context *ctx, void *data)
{
    double *first = data, *y = test_nans(TOKENS * HEADS * 64);
    const assay_rope_config c = deepseek(64);
    uint64_t seed = 3;
    double *x = test_normals(&seed, 1, ASSAY_FLOAT64, TOKENS * HEADS * 64);
    const assay_rope_rows rows = packed_rows(y, x, 64);
    assay_rope_table table;
    assert_ok(ctx, assay_rope_table_make(ctx, &table, POSITIONS, TOKENS, &c));
    assay_rope_forward(ctx, &rows, &table, &c);
    if (isnan(first[0])) memcpy(first, y, TOKENS * HEADS * 64 * sizeof *y);
    assert_same_bits(y, first, TOKENS * HEADS * 64);
    assay_rope_table_free(&table);
    free(x);
    free(y);
}

TEST(test_threads_and_instruction_sets_give_the_same_bits)
{
    double *first = test_nans(TOKENS * HEADS * 64);
    test_each_context(same_bits, first);
    free(first);
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
        assay_rope_table table, exact;
        emulation.seed = (uint64_t)member;
        assert_ok(&ctx, assay_rope_table_make(&ctx, &table, positions, 3, &c));
        assert_ok(&golden, assay_rope_table_make(&golden, &exact, positions, 3, &c));
        for (int t = 0; t < 3; t++) {
            const double error = hypot(table.cosine[t] - exact.cosine[t], table.sine[t] - exact.sine[t]);
            squares[t] += error * error / MEMBERS;
        }
        assay_rope_table_free(&table);
        assay_rope_table_free(&exact);
    }
    for (int t = 0; t < 3; t++) {
        const double angle = positions[t], expected = UNIT * UNIT * (1 + 2 * angle * angle);
        if (!(squares[t] > 0.7 * expected && squares[t] < 1.4 * expected)) {
            fail_msg("position %d: %g, expected %g", (int)positions[t], squares[t], expected);
        }
    }
}

TEST(test_refusals)
{
    static const struct {
        const char *message;
        assay_rope_config change; /* what is not 0 replaces DeepSeek's; numbers below 0 stand for 0 */
        bool half_split;
    } CASES[] = {
        {"qk_rope_head_dim is 7, expected an even number from 2 to 1024", {.dim = 7}, false},
        {"qk_rope_head_dim is 0, ", {.dim = -1}, false},
        {"qk_rope_head_dim is 1026, ", {.dim = 1026}, false},
        {"rope_max_timescale is 1, expected a number above 1", {.rope_max_timescale = 1}, false},
        {"rope_max_timescale is nan", {.rope_max_timescale = NAN}, false},
        {"rope_max_timescale is inf", {.rope_max_timescale = INFINITY}, false},
        {"rope_factor is 0, expected a number above 0", {.rope_factor = -1}, false},
        {"rope_factor is inf", {.rope_factor = INFINITY}, false},
        {"beta_fast is 32 and beta_slow 33, expected beta_fast >= beta_slow > 0", {.beta_slow = 33}, false},
        {"beta_fast is 32 and beta_slow 0", {.beta_slow = -1}, false},
        {"beta_fast is nan", {.beta_fast = NAN}, false},
        {"beta_fast is inf", {.beta_fast = INFINITY}, false},
        {"max_position_embeddings is 0, expected 1 to 2147483647", {.max_position_embeddings = -1}, false},
        {"max_position_embeddings is 2147483648", {.max_position_embeddings = INT64_C(1) << 31}, false},
        {"original_max_position_embeddings is 0, expected 1 or more", {.original_max_position_embeddings = -1}, false},
        {"rope_pairwise needs rope_interleave=true", {.pairwise = true}, true},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assay_context ctx = assay_context_default(1);
        const assay_rope_config *change = &CASES[i].change;
        assay_rope_config c = deepseek(64);
#define CHANGE(field) c.field = change->field == 0 ? c.field : change->field < 0 ? 0 : change->field
        CHANGE(dim);
        CHANGE(rope_max_timescale);
        CHANGE(rope_factor);
        CHANGE(beta_fast);
        CHANGE(beta_slow);
        CHANGE(max_position_embeddings);
        CHANGE(original_max_position_embeddings);
#undef CHANGE
        c.pairwise = change->pairwise;
        c.interleave = !CASES[i].half_split;
        assert_int_equal(assay_rope_check(&ctx, &c), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, CASES[i].message) == NULL) fail_msg("%s: %s", CASES[i].message, ctx.message);
    }
    assay_rope_config plain = deepseek(64);
    plain.yarn = false;
    plain.beta_slow = 33; /* nothing to plain RoPE */
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_rope_check(&ctx, &plain));
}

TEST(test_positions_outside_are_refused)
{
    assay_context ctx = assay_context_default(1);
    assay_rope_config c = deepseek(64);
    c.max_position_embeddings = 50;
    const int32_t good[] = {0, 49, 7}, negative[] = {0, 1, -1}, large[] = {0, 50, 1};
    assert_ok(&ctx, assay_rope_check_positions(&ctx, good, 3, &c));
    assert_int_equal(assay_rope_check_positions(&ctx, negative, 3, &c), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/positions[2] is -1, expected 0 to 49 (max_position_embeddings)");
    assert_int_equal(assay_rope_check_positions(&ctx, large, 3, &c), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/positions[1] is 50, expected 0 to 49 (max_position_embeddings)");
}

/* Angles first, then the table of them: the bits of both at once. */
TEST(test_table_of_angles)
{
    assay_context ctx = assay_context_default(2);
    assay_rope_config c = deepseek(64);
    c.attention_scaling = true;
    double *angles = test_nans(TOKENS * 32);
    assay_rope_table table, expected;
    assert_ok(&ctx, assay_rope_table_make(&ctx, &expected, POSITIONS, TOKENS, &c));
    assay_rope_angles(&ctx, angles, POSITIONS, TOKENS, &c);
    assay_fail_allocation(0);
    assert_int_equal(assay_rope_table_of_angles(&ctx, &table, angles, TOKENS, &c), ASSAY_NO_MEMORY);
    assay_fail_allocation(-1);
    assay_rope_table_free(&table);
    assert_ok(&ctx, assay_rope_table_of_angles(&ctx, &table, angles, TOKENS, &c));
    assert_int_equal(table.tokens, TOKENS);
    assert_int_equal(table.half, 32);
    assert_same_bits(table.cosine, expected.cosine, TOKENS * 32);
    assert_same_bits(table.sine, expected.sine, TOKENS * 32);
    for (int64_t i = 0; i < TOKENS * 32; i++) assert_true(angles[i] > -M_PI && angles[i] <= M_PI);
    assay_rope_table_free(&table);
    assay_rope_table_free(&expected);
    free(angles);
}

TEST(test_every_allocation_may_fail)
{
    const assay_rope_config c = deepseek(64);
    for (int64_t n = 0;; n++) {
        assay_context ctx = assay_context_default(2);
        assay_rope_table table;
        assay_fail_allocation(n);
        const assay_status status = assay_rope_table_make(&ctx, &table, POSITIONS, TOKENS, &c);
        assay_fail_allocation(-1);
        assay_rope_table_free(&table);
        if (!assay_allocation_failed()) {
            assert_ok(&ctx, status);
            assert_true(n > 0);
            return;
        }
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_in_every_layout),
        cmocka_unit_test(test_formula_at_the_ends_of_the_ramp),
        cmocka_unit_test(test_frequencies_of_deepseek),
        cmocka_unit_test(test_cut_next_to_whole_numbers),
        cmocka_unit_test(test_gradient_is_the_transpose),
        cmocka_unit_test(test_in_place_and_within_wider_rows),
        cmocka_unit_test(test_threads_and_instruction_sets_give_the_same_bits),
        cmocka_unit_test(test_emulated_angles_are_off_as_the_profile_allows),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_positions_outside_are_refused),
        cmocka_unit_test(test_table_of_angles),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
