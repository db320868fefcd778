/* Attention: what a row may not see, and what it leaves alone. Its numbers are certified. */
#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/tests/attention_problem.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

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
    OWNED_BY(attention_problem_free) attention_problem clean;
    attention_problem_make(&clean, &config, ONE_SEGMENT);
    attention_problem_run(&ctx, &clean);
    for (size_t i = 0; i < 3 * sizeof PLACES / sizeof *PLACES; i++) {
        const int64_t at = PLACES[i / 3];
        OWNED_BY(attention_problem_free) attention_problem p;
        attention_problem_make(&p, &config, ONE_SEGMENT);
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
    }
}

TEST_WITH_CONTEXT(test_infinite_values_stay_infinite)
{
    const assay_attention_config config = {.batch = 1, .sequence = 140, .heads = 1, .qk_dim = 4, .v_dim = 2};
    OWNED_BY(attention_problem_free) attention_problem p;
    attention_problem_make(&p, &config, ONE_SEGMENT);
    p.value[130 * 2] = INFINITY;
    attention_problem_run(&ctx, &p);
    for (int64_t i = 0; i < 140; i++) {
        assert_true(i < 130 ? isfinite(p.results[ATTENTION_OUT][i * 2]) : p.results[ATTENTION_OUT][i * 2] == INFINITY);
        assert_true(isfinite(p.results[ATTENTION_OUT][i * 2 + 1]));
    }
}

/* Equal probabilities of values that add up to 0: the last partial sum is 0, those before it are rounded. */
TEST(test_emulated_sums_err_where_they_cancel)
{
    enum { SEEDS = 32 };
    const assay_attention_config config = {.batch = 1, .sequence = 3, .heads = 1, .qk_dim = 1, .v_dim = 1};
    const double zeros[3] = {0}, value[3] = {1, -3, 2}, unit = 0x1p-24 / sqrt(3.0);
    const assay_attention_inputs in = {.query = zeros, .key = zeros, .value = value};
    double squares = 0;
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        double out[3], lse[3];
        const assay_emulation emulation = {
            .precision.accumulate = unit, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
        assay_context ctx = assay_context_default(1);
        if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
        assert_ok(&ctx, assay_attention_forward(&ctx, out, lse, &in, &config));
        if (seed == 0) assert_true(out[2] == 0);
        squares += out[2] * out[2] / SEEDS;
    }
    assert_true(sqrt(squares) > unit / 3 && sqrt(squares) < 3 * unit);
}

/* Probabilities, and values of more bits, enter a product in TensorFloat-32: next to the diagonal too. */
TEST(test_emulated_operands_are_rounded_next_to_the_diagonal)
{
    enum { SEEDS = 64 };
    const assay_attention_config config = {.batch = 1, .sequence = 2, .heads = 1, .qk_dim = 1, .v_dim = 1};
    const double q[] = {0, 1}, k[] = {0, -0.3}, exact[] = {1 + 0x1p-12, 1 / (1 + exp(0.3))};
    const assay_attention_inputs of_values = {.query = q, .key = k, .value = (const double[]){1 + 0x1p-12, 0}};
    const assay_attention_inputs of_probabilities = {.query = q, .key = k, .value = (const double[]){0, 1}};
    double squares[2] = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        double out[2], lse[2];
        const assay_emulation emulation = {.storage = ASSAY_FLOAT32, .multiply = ASSAY_TFLOAT32, .seed = seed};
        assay_context ctx = assay_context_default(1);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &emulation;
        assert_ok(&ctx, assay_attention_forward(&ctx, out, lse, &of_values, &config));
        squares[0] += (out[0] - exact[0]) * (out[0] - exact[0]);
        assert_ok(&ctx, assay_attention_forward(&ctx, out, lse, &of_probabilities, &config));
        squares[1] += (out[1] - exact[1]) * (out[1] - exact[1]);
    }
    for (int i = 0; i < 2; i++) assert_true(sqrt(squares[i] / SEEDS) > 0x1p-14 && sqrt(squares[i] / SEEDS) < 0x1p-10);
}

TEST_WITH_CONTEXT(test_segment_ids_below_0_are_refused)
{
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

static double off_grid(double x) /* in spacings of bfloat16 */
{
    return fabs(x - assay_dtype_round(ASSAY_BFLOAT16, x, false)) / (ldexp(1, ilogb(x)) * 0x1p-7);
}

/* The RMS error of the second of two tokens, whose values are 0 and 1: that of its probability of itself. */
static double emulated_error(double score, bool divided_late)
{
    enum { SEEDS = 64 };
    const assay_attention_config config = {.batch = 1, .sequence = 2, .heads = 1, .qk_dim = 1, .v_dim = 1};
    const double q[] = {0, 1}, k[] = {0, score}, v[] = {0, 1}, exact = 1 / (1 + exp(-score));
    const assay_attention_inputs in = {.query = q, .key = k, .value = v};
    double squares = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        double out[2], lse[2];
        const assay_emulation emulation = {.storage = ASSAY_BFLOAT16,
                                           .multiply = ASSAY_BFLOAT16,
                                           .seed = seed,
                                           .second_form = !divided_late}; /* the second row takes the other form */
        assay_context ctx = assay_context_default(1);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &emulation;
        assert_ok(&ctx, assay_attention_forward(&ctx, out, lse, &in, &config));
        squares += (out[1] - exact) * (out[1] - exact);
    }
    return sqrt(squares / SEEDS);
}

/* A kernel rounds probabilities, or exponentials that it divides by their sum later. Either may lie on the grid by chance. */
TEST(test_both_places_of_the_rounding_are_emulated)
{
    int found[2] = {0};
    for (int i = 1; i < 128 * 7; i++) {
        const double score = -0x1p-6 * ldexp(1 + (i % 128) / 128.0, i / 128), e = exp(score), p = e / (1 + e);
        const double spacing_e = ldexp(1, ilogb(e)) * 0x1p-7 / (1 + e), spacing_p = ldexp(1, ilogb(p)) * 0x1p-7;
        const bool divided_late = off_grid(p) < 0.01 && off_grid(e) > 0.35;
        if (!divided_late && !(off_grid(e) < 0.01 && off_grid(p) > 0.35)) continue;
        const double spacing = divided_late ? spacing_e : spacing_p;
        assert_true(emulated_error(score, divided_late) > 0.35 * spacing);
        assert_true(emulated_error(score, !divided_late) < 0.2 * spacing);
        found[divided_late]++;
    }
    assert_true(found[0] > 0 && found[1] > 0);
}

TEST(test_huge_scores_do_not_overflow)
{
    const assay_attention_config config = {.batch = 1, .sequence = 150, .heads = 1, .qk_dim = 6, .v_dim = 3};
    assay_context ctx = assay_context_default(2);
    for (int sign = -1; sign <= 1; sign += 2) {
        OWNED_BY(attention_problem_free) attention_problem p;
        attention_problem_make(&p, &config, ONE_SEGMENT);
        /* all of one sign: -1e4 is no smaller a score than 1e4 to a softmax */
        for (int64_t i = 0; i < p.count[ATTENTION_DQUERY]; i++) {
            p.query[i] = 3000 * (1 + 0.1 * p.query[i]);
            p.key[i] = sign * (1 + 0.1 * p.key[i]);
        }
        attention_problem_run(&ctx, &p);
        assert_true(fabs(p.results[ATTENTION_LSE][0]) > 1e4);
        for (int r = 0; r < ATTENTION_RESULTS; r++)
            for (int64_t i = 0; i < p.count[r]; i++) assert_true(isfinite(p.results[r][i]));
    }
}

TEST(test_blas_agrees)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 200, .heads = 2, .qk_dim = 24, .v_dim = 16, .mask_padding = true};
    assay_context ctx = assay_context_default(2), blas = ctx;
    OWNED_BY(attention_problem_free) attention_problem p, other;
    blas.arithmetic = &assay_arithmetic_blas;
    attention_problem_make(&p, &config, PADDED_END);
    attention_problem_make(&other, &config, PADDED_END);
    attention_problem_run(&ctx, &p);
    attention_problem_run(&blas, &other);
    for (int r = 0; r < ATTENTION_RESULTS; r++) assert_close(other.results[r], p.results[r], p.count[r], 1e-13, 1e-13);
}
