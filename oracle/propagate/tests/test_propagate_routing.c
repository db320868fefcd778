#include "oracle/propagate/propagate_routing.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/moe/tests/routing_cases.h"
#include "oracle/propagate/rules.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* Everything that has an error, one after the other. */
typedef struct outcome {
    double weights[TOKENS * MOST_CHOSEN], lb_loss, d_logits[TOKENS * EXPERTS], d_bias[EXPERTS], d_scale[EXPERTS];
} outcome;
enum { OUTCOME_SIZE = sizeof(outcome) / sizeof(double) };

/* Result of the case; with `fixed` the experts are those. */
static void compute(outcome *result, const case_data *data, const double *d_weights, double d_lb_loss,
                    const int32_t *fixed)
{
    assay_context ctx = assay_context_default(1);
    assay_routing r;
    assay_routing_inputs in = data->in;
    if (fixed != NULL) in.given_experts = fixed;
    memset(result, 0, sizeof *result);
    assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &data->config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &data->config));
    assert_ok(&ctx, assay_routing_backward(&ctx, result->d_logits, result->d_bias, result->d_scale, d_weights,
                                           d_lb_loss, 0, &r, &in, &data->config));
    memcpy(result->weights, r.weights, sizeof(double) * (size_t)(TOKENS * data->config.num_experts_per_tok));
    result->lb_loss = r.lb_loss;
    assay_routing_free(&r);
}

static void propagate(outcome *variance, assay_routing *r, const case_data *data, const assay_precision *precision,
                      const double *variance_logits, const double *d_weights, const double *variance_d_weights,
                      double d_lb_loss, int threads)
{
    assay_context ctx = assay_context_default(threads);
    const assay_routing_variances v = {variance->weights, &variance->lb_loss, variance->d_logits, variance->d_bias,
                                       variance->d_scale};
    memset(variance, 0, sizeof *variance);
    assay_fill_nan(variance->weights, TOKENS * data->config.num_experts_per_tok);
    variance->lb_loss = NAN;
    assay_fill_nan(variance->d_logits, TOKENS * EXPERTS);
    assay_fill_nan(variance->d_bias, EXPERTS);
    assay_fill_nan(variance->d_scale, EXPERTS);
    assert_ok(&ctx, assay_routing_alloc(&ctx, r, &data->config));
    assert_ok(&ctx, assay_routing_forward(&ctx, r, &data->in, &data->config));
    const assay_routing_run run = {variance_logits, d_weights,    variance_d_weights, d_lb_loss, r,
                                   &data->in,       &data->config};
    assert_ok(&ctx, assay_propagate_routing(&ctx, precision, &v, &run));
}

/* Root mean square of error / sigma over trials; 0 where there is no error, +inf where there is one but no sigma. */
static double ratio(double squares, double variance)
{
    return squares == 0.0 ? 0.0 : sqrt(squares / variance);
}

/* Mean squares of the errors that noise of these variances makes. */
static void measure_noise(double *squares, const case_data *data, const double *variance_logits,
                          const double *variance_d_weights, bool with_weights, double d_lb_loss, const int32_t *fixed,
                          uint64_t *random)
{
    enum { TRIALS = 300 };
    static outcome exact, result;
    static case_data moved;
    compute(&exact, data, with_weights ? data->d_weights : NULL, d_lb_loss, fixed);
    for (int i = 0; i < OUTCOME_SIZE; i++) squares[i] = 0.0;
    moved = *data;
    moved.in.logits = moved.logits;
    for (int trial = 0; trial < TRIALS; trial++) {
        for (int i = 0; i < TOKENS * EXPERTS; i++) {
            moved.logits[i] = data->logits[i] + sqrt(variance_logits[i]) * case_normal(random);
        }
        for (int i = 0; i < TOKENS * MOST_CHOSEN; i++) {
            moved.d_weights[i] = data->d_weights[i] + sqrt(variance_d_weights[i]) * case_normal(random);
        }
        compute(&result, &moved, with_weights ? moved.d_weights : NULL, d_lb_loss, fixed);
        for (int i = 0; i < OUTCOME_SIZE; i++) {
            const double error = ((double *)&result)[i] - ((double *)&exact)[i];
            if (fabs(error) > 1e-13) squares[i] += error * error / TRIALS; /* below: float64's own rounding */
        }
    }
}

/* Noise on logits and d_weights and nothing else: to first order the variances are then exact, element by element. */
TEST(test_noise)
{
    static const assay_precision EXACT = {.name = "exact"};
    const double noise = 1e-7;
    uint64_t random = 21;
    for (int c = 0; c < CASE_COUNT; c++) {
        for (int part = 0; part < 3; part++) { /* weights, loss, both */
            static case_data data;
            static outcome variance;
            double squares[OUTCOME_SIZE], variance_logits[TOKENS * EXPERTS], variance_d[TOKENS * MOST_CHOSEN];
            double of_gradient = 0.0;
            int64_t counted = 0;
            assay_routing r;
            fill_case(&data, &CASES[c]);
            if (part > 0 && !has_balance(&data)) continue;
            for (int i = 0; i < TOKENS * EXPERTS; i++) variance_logits[i] = noise * noise * (1.0 + i % 3);
            for (int i = 0; i < TOKENS * MOST_CHOSEN; i++) variance_d[i] = noise * noise * (1.0 + i % 2);
            const double d_lb_loss = part == 0 ? 0.0 : 5.0;
            propagate(&variance, &r, &data, &EXACT, variance_logits, part == 1 ? NULL : data.d_weights, variance_d,
                      d_lb_loss, 1);
            measure_noise(squares, &data, variance_logits, variance_d, part != 1, d_lb_loss, r.selected_experts,
                          &random);
            for (int i = 0; i < OUTCOME_SIZE; i++) {
                const double v = ((double *)&variance)[i], found = ratio(squares[i], v);
                const bool too_small_to_see = v < 1e-24;
                const bool fits = found <= 1.22 && (found >= 0.8 || too_small_to_see);
                if (!fits) print_error("%s part %d element %d: %g sigma\n", CASES[c].name, part, i, found);
                assert_true(fits);
                if (i > TOKENS * MOST_CHOSEN && !too_small_to_see) {
                    of_gradient += found * found;
                    counted++;
                }
            }
            assert_true(counted == 0 || sqrt(of_gradient / (double)counted) >= 0.5);
            assay_routing_free(&r);
        }
    }
}

/* Emulated runs of the naive form err as propagation says, at experts that are not chosen too. */
TEST(test_emulated_naive_form)
{
    enum { SEEDS = 100 };
    static const double UNIT = 0x1p-24;
    static const assay_precision FLOAT32 = {.name = "f32", .accumulate = UNIT, .router = UNIT, .elementary = UNIT};
    static case_data data;
    static outcome variance, exact;
    static double squares[TOKENS * EXPERTS], d_logits[TOKENS * EXPERTS];
    assay_routing r;
    fill_case(&data, case_named("default"));
    propagate(&variance, &r, &data, &FLOAT32, NULL, data.d_weights, NULL, 0, 1);
    assay_routing_free(&r);
    compute(&exact, &data, data.d_weights, 0, NULL);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const assay_emulation emulation = {.precision = FLOAT32, .seed = seed};
        assay_context ctx = assay_context_default(1);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &emulation;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &data.config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &data.in, &data.config));
        assert_ok(&ctx,
                  assay_routing_backward(&ctx, d_logits, NULL, NULL, data.d_weights, 0, 0, &r, &data.in, &data.config));
        for (int i = 0; i < TOKENS * EXPERTS; i++) squares[i] += assay_square(d_logits[i] - exact.d_logits[i]) / SEEDS;
        assay_routing_free(&r);
    }
    double all = 0;
    for (int i = 0; i < TOKENS * EXPERTS; i++) {
        const double found = ratio(squares[i], variance.d_logits[i]);
        if (!(found < 1.75)) fail_msg("element %d: %g sigma", i, found);
        all += found * found / (TOKENS * EXPERTS);
    }
    if (!(all > 0.1 && all < 1)) fail_msg("%g sigma", sqrt(all));
}

static const assay_precision BF16 = {"bf16", 0x1p-8, 0x1p-8, 0x1p-24, 0x1p-8, 0x1p-7, .least = 0};

TEST(test_same_bits_for_any_threads)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        static case_data data;
        static outcome variance[3];
        static const int THREADS[] = {1, 2, 7};
        fill_case(&data, &CASES[c]);
        for (int i = 0; i < 3; i++) {
            assay_routing r;
            propagate(&variance[i], &r, &data, &BF16, NULL, data.d_weights, NULL, 0.5, THREADS[i]);
            assay_routing_free(&r);
            assert_same_bits((double *)&variance[i], (double *)&variance[0], OUTCOME_SIZE);
        }
        for (int i = 0; i < OUTCOME_SIZE; i++) assert_true(((double *)&variance[0])[i] >= 0.0);
    }
}

/* What is asked for alone is what it is among the others; what is not asked for is not touched. */
TEST(test_alone)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        static case_data data;
        static outcome all, one;
        assay_context ctx = assay_context_default(1);
        assay_routing r;
        fill_case(&data, &CASES[c]);
        propagate(&all, &r, &data, &BF16, NULL, data.d_weights, NULL, 0.5, 1);
        for (int alone = 0; alone < 5; alone++) {
            const assay_routing_variances v = {alone == 0 ? one.weights : NULL, alone == 1 ? &one.lb_loss : NULL,
                                               alone == 2 ? one.d_logits : NULL, alone == 3 ? one.d_bias : NULL,
                                               alone == 4 ? one.d_scale : NULL};
            const assay_routing_run run = {NULL,        alone < 2 ? NULL : data.d_weights, NULL, 0.5, &r, &data.in,
                                           &data.config};
            assert_ok(&ctx, assay_propagate_routing(&ctx, &BF16, &v, &run));
        }
        assert_same_bits(one.weights, all.weights, TOKENS * data.config.num_experts_per_tok);
        assert_same_bits(&one.lb_loss, &all.lb_loss, 1);
        assert_same_bits(one.d_logits, all.d_logits, TOKENS * EXPERTS);
        assert_same_bits(one.d_bias, all.d_bias, EXPERTS);
        assert_same_bits(one.d_scale, all.d_scale, EXPERTS);
        assay_routing_free(&r);
    }
}

TEST(test_failing_allocations)
{
    static case_data data;
    static outcome variance;
    assay_context ctx = assay_context_default(1);
    assay_routing r;
    int64_t failures = 0;
    fill_case(&data, case_named("given to default"));
    propagate(&variance, &r, &data, &BF16, NULL, data.d_weights, NULL, 0.5, 1);
    const assay_routing_variances v = {variance.weights, &variance.lb_loss, variance.d_logits, variance.d_bias,
                                       variance.d_scale};
    for (;; failures++) {
        assay_fail_allocation(failures);
        const assay_routing_run run = {NULL, data.d_weights, NULL, 0.5, &r, &data.in, &data.config};
        const assay_status status = assay_propagate_routing(&ctx, &BF16, &v, &run);
        if (had_memory(&ctx, status)) break;
        assert_non_null(strstr(ctx.message, "error scale of routing"));
    }
    assert_int_equal(failures, 8);
    assay_routing_free(&r);
}
