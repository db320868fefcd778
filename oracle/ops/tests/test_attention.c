/* Attention against the formula, its gradients against differences, and what a row may not see. */
#include "oracle/ops/attention.h"

#include <math.h>
#include <quadmath.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/tests/attention_problem.h"
#include "oracle/ops/tests/ops_test.h"

/* What an error is measured against: the largest of a result, and at least 1, the size of the terms that cancel in it.
 */
static double size_of(int64_t count, const double *values)
{
    double largest = 1;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i])) largest = fmax(largest, fabs(values[i]));
    }
    return largest;
}

static void check_formula(const attention_problem *p, double relative, const char *what)
{
    double *expected[ATTENTION_RESULTS];
    for (int r = 0; r < ATTENTION_RESULTS; r++) expected[r] = test_nans(p->count[r]);
    attention_formula(p, expected);
    for (int r = 0; r < ATTENTION_RESULTS; r++) {
        const double absolute = relative * size_of(p->count[r], expected[r]);
        if (!assay_is_close(p->results[r], expected[r], p->count[r], 0, absolute)) {
            print_error("%s of %s, S %d\n", attention_result_names[r], what, (int)p->config.sequence);
        }
        assert_close(p->results[r], expected[r], p->count[r], 0, absolute);
        free(expected[r]);
    }
}

static void check_case(const assay_attention_config *config, attention_pattern pattern, const char *what)
{
    assay_context ctx = assay_context_default(2);
    attention_problem p;
    attention_problem_make(&p, config, pattern, ASSAY_FLOAT64);
    attention_problem_run(&ctx, &p);
    check_formula(&p, 5e-15, what);
    attention_problem_free(&p);
}

TEST(test_formula_of_every_length)
{
    static const int64_t LENGTHS[] = {1, 2, 7, 64, 65, 127, 128, 129, 257};
    static const int64_t WIDTHS[][2] = {{5, 3}, {1, 1}, {192, 128}, {128, 96}, {3, 17}};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        for (size_t j = 0; j < (LENGTHS[i] < 64 ? 5 : 3); j++) {
            const assay_attention_config config = {.batch = 1,
                                                   .sequence = LENGTHS[i],
                                                   .heads = 1,
                                                   .qk_dim = WIDTHS[j][0],
                                                   .v_dim = WIDTHS[j][1],
                                                   .mask_padding = true};
            check_case(&config, ONE_SEGMENT, "one segment");
        }
    }
}

TEST(test_formula_of_every_pattern)
{
    static const int64_t LENGTHS[] = {1, 7, 65, 265}; /* the last: segments longer than a block */
    for (int pattern = 0; pattern < ATTENTION_PATTERNS; pattern++) {
        for (size_t i = 0; i < 8; i++) {
            const assay_attention_config config = {
                .batch = 3, .sequence = LENGTHS[i / 2], .heads = 2, .qk_dim = 5, .v_dim = 3, .mask_padding = i % 2};
            static const char *const names[] = {"one segment",  "adjacent", "interleaved",
                                                "each its own", "padded",   "scattered padding"};
            check_case(&config, (attention_pattern)pattern, names[pattern]);
        }
    }
}

/* In binary128: sum of out * dout and lse * dlse of one head. */
static quad loss_of_head(const attention_problem *p, const quad *const in[3], int64_t batch, int64_t head)
{
    const int64_t qk = p->config.qk_dim, v = p->config.v_dim, length = p->config.sequence;
    quad loss = 0;
    for (int64_t i = 0; i < length; i++) {
        const int64_t at = attention_row(p, batch, head, i, 1);
        quad sum = 0, weighted = 0;
        if (attention_is_padding(p, batch, i)) continue;
        for (int64_t j = 0; j <= i; j++) {
            const int64_t key = attention_row(p, batch, head, j, 1);
            quad score = 0, value = 0;
            if (!attention_sees(p, batch, i, j)) continue;
            for (int64_t k = 0; k < qk; k++) score += in[0][at * qk + k] * in[1][key * qk + k];
            for (int64_t k = 0; k < v; k++) value += in[2][key * v + k] * p->dout[at * v + k];
            sum += expq(score);
            weighted += expq(score) * value;
        }
        loss += weighted / sum + logq(sum) * p->dlse[(batch * p->config.heads + head) * length + i];
    }
    return loss;
}

static void check_differences(const attention_problem *p)
{
    const double *values[] = {p->query, p->key, p->value};
    const quad step = (quad)1e-10;
    quad *in[3];
    for (int t = 0; t < 3; t++) {
        in[t] = malloc((size_t)p->count[ATTENTION_DQUERY + t] * sizeof *in[t]);
        assert_non_null(in[t]);
        for (int64_t i = 0; i < p->count[ATTENTION_DQUERY + t]; i++) in[t][i] = values[t][i];
    }
    const quad *const all[] = {in[0], in[1], in[2]};
    for (int t = 0; t < 3; t++) {
        const int64_t width = t == 2 ? p->config.v_dim : p->config.qk_dim;
        for (int64_t i = 0; i < p->count[ATTENTION_DQUERY + t]; i++) {
            const int64_t row = i / width, token = row / p->config.heads, head = row % p->config.heads;
            const double gradient = p->results[ATTENTION_DQUERY + t][i];
            const quad here = in[t][i];
            if (attention_is_padding(p, token / p->config.sequence, token % p->config.sequence)) {
                assert_true(gradient == 0);
                continue;
            }
            in[t][i] = here + step;
            const quad up = loss_of_head(p, all, token / p->config.sequence, head);
            in[t][i] = here - step;
            const quad down = loss_of_head(p, all, token / p->config.sequence, head);
            in[t][i] = here;
            assert_true(fabsq(gradient - (up - down) / (2 * step)) <= 1e-14);
        }
    }
    for (int t = 0; t < 3; t++) free(in[t]);
}

TEST(test_gradients_are_the_differences)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 7, .heads = 2, .qk_dim = 5, .v_dim = 3, .mask_padding = true};
    for (int pattern = 0; pattern < ATTENTION_PATTERNS; pattern++) {
        assay_context ctx = assay_context_default(1);
        attention_problem p;
        attention_problem_make(&p, &config, (attention_pattern)pattern, ASSAY_FLOAT64);
        attention_problem_run(&ctx, &p);
        check_differences(&p);
        attention_problem_free(&p);
    }
}

TEST(test_no_cotangent_of_lse_is_one_of_zeros)
{
    const assay_attention_config config = {.batch = 1, .sequence = 130, .heads = 2, .qk_dim = 4, .v_dim = 3};
    assay_context ctx = assay_context_default(2);
    attention_problem p;
    attention_problem_make(&p, &config, ONE_SEGMENT, ASSAY_FLOAT64);
    memset(p.dlse, 0, (size_t)p.count[ATTENTION_LSE] * sizeof *p.dlse);
    attention_problem_run(&ctx, &p);
    const assay_attention_inputs in = attention_problem_inputs(&p);
    double *results[3];
    for (int t = 0; t < 3; t++) results[t] = test_nans(p.count[ATTENTION_DQUERY + t]);
    const assay_attention_gradients g = {results[0], results[1], results[2]};
    assert_ok(&ctx, assay_attention_backward(&ctx, &g, p.dout, NULL, p.results[ATTENTION_OUT], p.results[ATTENTION_LSE],
                                             &in, &config));
    for (int t = 0; t < 3; t++) {
        assert_same_bits(results[t], p.results[ATTENTION_DQUERY + t], p.count[ATTENTION_DQUERY + t]);
        free(results[t]);
    }
    attention_problem_free(&p);
}

TEST(test_padding_gives_nothing)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 9, .heads = 2, .qk_dim = 4, .v_dim = 3, .mask_padding = true};
    assay_context ctx = assay_context_default(2);
    attention_problem p;
    int64_t padding = 0;
    attention_problem_make(&p, &config, PADDED_END, ASSAY_FLOAT64);
    attention_problem_run(&ctx, &p);
    for (int64_t row = 0; row < p.tokens * config.heads; row++) {
        const int64_t token = row / config.heads, batch = token / config.sequence, i = token % config.sequence;
        if (!attention_is_padding(&p, batch, i)) continue;
        padding++;
        assert_true(p.results[ATTENTION_LSE][(batch * config.heads + row % config.heads) * config.sequence + i] ==
                    -INFINITY);
        for (int64_t k = 0; k < config.v_dim; k++) assert_true(p.results[ATTENTION_OUT][row * config.v_dim + k] == 0);
        for (int64_t k = 0; k < config.qk_dim; k++)
            assert_true(p.results[ATTENTION_DKEY][row * config.qk_dim + k] == 0);
    }
    assert_int_equal(padding, (2 + 9) * 2);
    attention_problem_free(&p);
}

/* The first `rows` tokens of a result [1,S,1,width], bit for bit. */
static void assert_same_start(const attention_problem *a, const attention_problem *b, int result, int64_t rows)
{
    assert_same_bits(a->results[result], b->results[result], rows * (a->count[result] / a->config.sequence));
}

static void assert_nan_from(const attention_problem *p, int result, int64_t first)
{
    const int64_t width = p->count[result] / p->config.sequence;
    assert_all_nan(p->results[result] + first * width, (p->config.sequence - first) * width);
}

/* What a token holds reaches those that see it, and no other. */
TEST(test_nan_reaches_later_tokens_only)
{
    static const int64_t PLACES[] = {0, 1, 5, 127, 128, 200};
    const assay_attention_config config = {.batch = 1, .sequence = 201, .heads = 1, .qk_dim = 4, .v_dim = 3};
    assay_context ctx = assay_context_default(2);
    attention_problem clean;
    attention_problem_make(&clean, &config, ONE_SEGMENT, ASSAY_FLOAT64);
    attention_problem_run(&ctx, &clean);
    for (size_t i = 0; i < 3 * sizeof PLACES / sizeof *PLACES; i++) {
        const int64_t at = PLACES[i / 3];
        attention_problem p;
        attention_problem_make(&p, &config, ONE_SEGMENT, ASSAY_FLOAT64);
        double *const tensors[] = {p.key, p.value, p.query};
        const int64_t width = i % 3 == 1 ? config.v_dim : config.qk_dim;
        assay_fill_nan(tensors[i % 3] + at * width, width);
        attention_problem_run(&ctx, &p);
        for (int r = ATTENTION_OUT; r <= ATTENTION_DQUERY; r++) {
            assert_same_start(&p, &clean, r, at);
            if (i % 3 == 0 || (i % 3 == 1 && r != ATTENTION_LSE)) assert_nan_from(&p, r, at);
        }
        if (i % 3 == 1) assert_same_start(&p, &clean, ATTENTION_LSE, config.sequence);
        if (i % 3 == 2) { /* a query is its own row's, and the gradients' of the keys that it sees */
            const int64_t after = at + 1, left = config.sequence - after;
            assert_all_nan(p.results[ATTENTION_OUT] + at * config.v_dim, config.v_dim);
            assert_same_bits(p.results[ATTENTION_OUT] + after * config.v_dim,
                             clean.results[ATTENTION_OUT] + after * config.v_dim, left * config.v_dim);
            assert_same_bits(p.results[ATTENTION_DVALUE] + after * config.v_dim,
                             clean.results[ATTENTION_DVALUE] + after * config.v_dim, left * config.v_dim);
            assert_all_nan(p.results[ATTENTION_DVALUE], after * config.v_dim);
        }
        attention_problem_free(&p);
    }
    attention_problem_free(&clean);
}

TEST(test_infinite_values_stay_infinite)
{
    const assay_attention_config config = {.batch = 1, .sequence = 140, .heads = 1, .qk_dim = 4, .v_dim = 2};
    assay_context ctx = assay_context_default(1);
    attention_problem p;
    attention_problem_make(&p, &config, ONE_SEGMENT, ASSAY_FLOAT64);
    p.value[130 * 2] = INFINITY;
    attention_problem_run(&ctx, &p);
    for (int64_t i = 0; i < 140; i++) {
        assert_true(i < 130 ? isfinite(p.results[ATTENTION_OUT][i * 2]) : p.results[ATTENTION_OUT][i * 2] == INFINITY);
        assert_true(isfinite(p.results[ATTENTION_OUT][i * 2 + 1]));
    }
    attention_problem_free(&p);
}

TEST(test_huge_scores_do_not_overflow)
{
    const assay_attention_config config = {.batch = 1, .sequence = 150, .heads = 1, .qk_dim = 6, .v_dim = 3};
    for (int sign = -1; sign <= 1; sign += 2) {
        assay_context ctx = assay_context_default(1);
        attention_problem p;
        attention_problem_make(&p, &config, ONE_SEGMENT, ASSAY_FLOAT64);
        /* all of one sign: -1e4 is no smaller a score than 1e4 to a softmax */
        for (int64_t i = 0; i < p.count[ATTENTION_DQUERY]; i++) {
            p.query[i] = 3000 * (1 + 0.1 * p.query[i]);
            p.key[i] = sign * (1 + 0.1 * p.key[i]);
        }
        attention_problem_run(&ctx, &p);
        assert_true(fabs(p.results[ATTENTION_LSE][0]) > 1e4);
        check_formula(&p, 1e-11, "huge scores"); /* a score of 2e4 is off by an ulp of 4e-12 */
        attention_problem_free(&p);
    }
}

TEST(test_segment_ids_below_0_are_refused)
{
    assay_context ctx = assay_context_default(1);
    const int32_t good[] = {0, 3, INT32_MAX}, bad[] = {1, 0, -1};
    assert_ok(&ctx, assay_attention_check_segments(&ctx, good, 3));
    assert_int_equal(assay_attention_check_segments(&ctx, bad, 3), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/segment_ids[2] is -1, expected 0 or more");
}

TEST(test_flops)
{
    const assay_attention_config config = {.batch = 2, .sequence = 3, .heads = 5, .qk_dim = 7, .v_dim = 4};
    /* 10 heads of 6 pairs; a pair has a score and a value, then three of the one and two of the other */
    assert_true(assay_attention_flops(&config, false) == 2 * 10 * 6 * (7 + 4));
    assert_true(assay_attention_flops(&config, true) == 2 * 10 * 6 * (3 * 7 + 2 * 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_of_every_length),
        cmocka_unit_test(test_formula_of_every_pattern),
        cmocka_unit_test(test_gradients_are_the_differences),
        cmocka_unit_test(test_no_cotangent_of_lse_is_one_of_zeros),
        cmocka_unit_test(test_padding_gives_nothing),
        cmocka_unit_test(test_nan_reaches_later_tokens_only),
        cmocka_unit_test(test_infinite_values_stay_infinite),
        cmocka_unit_test(test_huge_scores_do_not_overflow),
        cmocka_unit_test(test_segment_ids_below_0_are_refused),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
