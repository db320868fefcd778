/* Error scales held against what correct implementations do: implementations in low precision are run, and their errors
 * must lie under sigma, not far under it. */
#include "oracle/propagate/propagate_gated_mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/tests/mlp_machine.h"
#include "oracle/ops/tests/ops_test.h"
#include "oracle/propagate/glu_factor.h"

TEST_LABELS(threads);

/* The error scales of everything in `results`. `inexact`: x and dy will be rounded to bfloat16. */
static void propagate(assay_context *ctx, const assay_precision *precision, const mlp_problem *p, bool inexact,
                      mlp_results *out)
{
    const int64_t dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    double *variance_x = calloc((size_t)p->size[MLP_X], sizeof *variance_x);
    double *variance_dy = calloc((size_t)p->size[MLP_X], sizeof *variance_dy);
    assay_propagate_store(RMS(0x1p-8), 0, p->size[MLP_X], p->part[MLP_X], variance_x);
    assay_propagate_store(RMS(0x1p-8), 0, p->size[MLP_X], p->dy, variance_dy);
    double *dwi = test_nans(2 * dim * hidden), *ab = test_nans(2 * p->config.rows * hidden);
    const bool fused = p->config.fused;
    const assay_gated_mlp_run run = {.x = p->part[MLP_X],
                                     .dy = p->dy,
                                     .variance_x = inexact ? variance_x : NULL,
                                     .variance_dy = inexact ? variance_dy : NULL,
                                     .r = &p->r,
                                     .w = &p->w,
                                     .config = &p->config};
    assay_gated_mlp_variances v = {.a = fused ? ab : out->a,
                                   .b = fused ? ab + hidden : out->b,
                                   .h = out->h,
                                   .y = out->y,
                                   .gradients = mlp_gradients_into(p, out->gradient, dwi)};
    v.gradients.dh = out->dh;
    assert_ok(ctx, assay_propagate_gated_mlp(ctx, precision, &v, &run));
    if (fused) mlp_split(ab, out->a, out->b, p->config.rows, hidden);
    if (fused) mlp_split(dwi, out->gradient[MLP_WI_0], out->gradient[MLP_WI_1], dim, hidden);
    free(dwi);
    free(ab);
    free(variance_x);
    free(variance_dy);
}

enum { TENSORS = 5 + MLP_PARTS };

/* Contiguous a and b of the golden run. */
static void copy_rows(double *out, const double *values, const mlp_problem *p)
{
    for (int64_t row = 0; row < p->config.rows; row++)
        memcpy(out + row * p->config.mlp_dim, values + row * p->r.ld, (size_t)p->config.mlp_dim * sizeof *out);
}

/* Profiles with implementations that they describe, the least and the most rounding. */
static const struct profile {
    assay_precision precision;
    mlp_machine machine;
    double small; /* what x is multiplied by, and dy twice */
} PROFILES[] = {
    {{"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_BFLOAT16, ASSAY_FLOAT64, false},
     1},
    {{"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_BFLOAT16, ASSAY_FLOAT64, true},
     1},
    {{"f16", RMS(0x1p-11), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_FLOAT16, ASSAY_FLOAT64, true},
     1},
    {{"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_FLOAT32, ASSAY_FLOAT64, true},
     1},
    {{"tf32", RMS(0x1p-24), RMS(0x1p-11), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_FLOAT32, ASSAY_TFLOAT32, false},
     1},
    {{"tpu", RMS(0x1p-24), RMS(0x1p-8), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
     {ASSAY_FLOAT32, ASSAY_BFLOAT16, false},
     1},
    /* most of what is stored lies below the normal numbers */
    {{"f16", RMS(0x1p-11), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0x1p-24},
     {ASSAY_FLOAT16, ASSAY_FLOAT64, true},
     0x1p-5},
};
enum { PROFILE_COUNT = sizeof PROFILES / sizeof *PROFILES };

/* What `m` does, against what `profile` allows. */
static void ratios(assay_context *ctx, const mlp_machine *m, const struct profile *profile,
                   const assay_gated_mlp_config *config, bool biased, bool inexact, test_ratio *ratio)
{
    const assay_dtype claimed = profile->machine.storage;
    mlp_problem p;
    mlp_results low, variance, golden;
    const assay_dtype grid = inexact ? ASSAY_FLOAT32 : claimed;
    mlp_problem_make(ctx, &p, config, biased, grid, 77);
    for (int64_t i = 0; i < p.size[MLP_X]; i++) {
        p.part[MLP_X][i] = assay_dtype_round(grid, profile->small * p.part[MLP_X][i], false);
        p.dy[i] = assay_dtype_round(grid, profile->small * profile->small * p.dy[i], false);
    }
    mlp_problem_run(ctx, &p);
    mlp_results_make(&low, &p);
    mlp_results_make(&variance, &p);
    mlp_results_make(&golden, &p);
    copy_rows(golden.a, p.r.a, &p);
    copy_rows(golden.b, p.r.b, &p);
    propagate(ctx, &profile->precision, &p, inexact, &variance);
    if (inexact) {
        assay_dtype_round_many(ASSAY_BFLOAT16, p.size[MLP_X], p.part[MLP_X], p.part[MLP_X]);
        assay_dtype_round_many(ASSAY_BFLOAT16, p.size[MLP_X], p.dy, p.dy);
    }
    mlp_machine_run(m, &p, &low);
    const int64_t hidden = config->rows * config->mlp_dim, outer = config->rows * config->emb_dim;
    ratio[0] = test_ratio_of(hidden, low.a, golden.a, variance.a, claimed);
    ratio[1] = test_ratio_of(hidden, low.b, golden.b, variance.b, claimed);
    ratio[2] = test_ratio_of(hidden, low.h, p.r.h, variance.h, claimed);
    ratio[3] = test_ratio_of(outer, low.y, p.y, variance.y, claimed);
    ratio[4] = test_ratio_of(hidden, low.dh, p.dh, variance.dh, claimed);
    for (int i = 0; i < MLP_PARTS; i++)
        ratio[5 + i] = test_ratio_of(p.size[i], low.gradient[i], p.gradient[i], variance.gradient[i], claimed);
    mlp_results_free(&low);
    mlp_results_free(&variance);
    mlp_results_free(&golden);
    mlp_problem_free(&p);
}

static const assay_gated_mlp_config FORMS[] = {
    {.activation = {ASSAY_SILU, ASSAY_LINEAR}},
    {.activation = {ASSAY_GELU, ASSAY_LINEAR}},
    {.activation = {ASSAY_GELU_EXACT, ASSAY_SIGMOID}},
    {.activation = {ASSAY_RELU, ASSAY_LINEAR}},
    {.activation = {ASSAY_LINEAR, ASSAY_SILU}},
    {.activation = {ASSAY_SILU, ASSAY_LINEAR}, .glu = ASSAY_GLU_CLAMPED, .limit = 1},
    {.activation = {ASSAY_SIGMOID, ASSAY_LINEAR}, .glu = ASSAY_GLU_GPT_OSS, .limit = 1},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

static const int64_t SHAPES[][3] = {{24, 40, 56}, {96, 16, 24}, {7, 256, 40}};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

static assay_gated_mlp_config shaped(int form, int shape, bool fused)
{
    assay_gated_mlp_config config = FORMS[form];
    config.rows = SHAPES[shape][0];
    config.emb_dim = SHAPES[shape][1];
    config.mlp_dim = SHAPES[shape][2];
    config.fused = fused;
    return config;
}

/* Kinks have a wide berth: what is near one may be far under sigma. Below the normal numbers sigma is no envelope: the
 * RMS of a few elements scatters around 1. */
static void assert_fair(const test_ratio *ratio, const struct profile *profile, const assay_gated_mlp_config *config)
{
    const double most = profile->small < 1 ? 1.3 : 1.05;
    const bool kinked = config->glu != ASSAY_GLU_PLAIN || config->activation[0] == ASSAY_RELU;
    for (int t = 0; t < TENSORS; t++) {
        if (!(ratio[t].rms >= (kinked ? 0.2 : 0.4) && ratio[t].rms <= most && ratio[t].largest <= 5)) {
            fail_msg("tensor %d: RMS of error / sigma %.3f, largest %.3f", t, ratio[t].rms, ratio[t].largest);
        }
    }
}

TEST(test_errors_lie_under_sigma_and_not_far)
{
    assay_context ctx = assay_context_default(1);
    for (int i = 0; i < PROFILE_COUNT * FORM_COUNT; i++) {
        const struct profile *profile = &PROFILES[i / FORM_COUNT];
        const assay_gated_mlp_config config = shaped(i % FORM_COUNT, i % SHAPE_COUNT, i % 2 == 1);
        test_ratio ratio[TENSORS];
        ratios(&ctx, &profile->machine, profile, &config, i % 3 == 0, false, ratio);
        assert_fair(ratio, profile, &config);
    }
}

TEST(test_errors_of_x_and_dy_are_carried_through)
{
    assay_context ctx = assay_context_default(1);
    for (int i = 0; i < FORM_COUNT; i++) {
        const struct profile *profile = &PROFILES[i % 2 == 0 ? 0 : 3];
        const assay_gated_mlp_config config = shaped(i, i % SHAPE_COUNT, false);
        test_ratio ratio[TENSORS];
        ratios(&ctx, &profile->machine, profile, &config, true, true, ratio);
        assert_fair(ratio, profile, &config);
    }
}

/* What a wrong implementation does must lie far outside: here one that rounds too much. */
TEST(test_too_much_rounding_is_far_outside)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 0, false);
    test_ratio ratio[TENSORS];
    for (int i = 2; i < 4; i++) { /* f16 and f32, of which bfloat16 values come */
        const mlp_machine rough = {ASSAY_BFLOAT16, ASSAY_FLOAT64, false};
        ratios(&ctx, &rough, &PROFILES[i], &config, false, false, ratio);
        for (int t = 0; t < TENSORS; t++) assert_true(ratio[t].rms > 2);
    }
}

static double square(double x)
{
    return x * x;
}

/* h = a b, with storing alone: the sums written out. Biases, so that products are stored before them. */
TEST(test_every_term_where_the_gate_is_a_product)
{
    const assay_precision stores = {.storage = 0.01};
    const assay_gated_mlp_config config = {
        .rows = 1, .emb_dim = 3, .mlp_dim = 5, .activation = {ASSAY_LINEAR, ASSAY_LINEAR}};
    assay_context ctx = assay_context_default(1);
    mlp_problem p;
    mlp_results variance;
    mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 4);
    mlp_problem_run(&ctx, &p);
    mlp_results_make(&variance, &p);
    propagate(&ctx, &stores, &p, true, &variance);
    double of_y[3] = {0}, of_dx[3] = {0}, dx_0[3] = {0}, dx_1[3] = {0};
    for (int j = 0; j < 5; j++) {
        const double a = p.r.a[j], b = p.r.b[j], dh = p.dh[j], h = a * b;
        double of_a = square(0.01 * (a - p.w.w[ASSAY_MLP_WI_0_BIAS][j])),
               of_b = square(0.01 * (b - p.w.w[ASSAY_MLP_WI_1_BIAS][j])), of_dh = 0;
        for (int d = 0; d < 3; d++) {
            of_a += square(RMS(0x1p-8) * p.part[MLP_X][d] * p.w.w[ASSAY_MLP_WI_0][d * 5 + j]);
            of_b += square(RMS(0x1p-8) * p.part[MLP_X][d] * p.w.w[ASSAY_MLP_WI_1][d * 5 + j]);
            of_dh += square(RMS(0x1p-8) * p.dy[d] * p.w.w[ASSAY_MLP_WO][j * 3 + d]);
        }
        assert_close(&variance.a[j], &of_a, 1, 1e-12, 0);
        assert_close(&variance.b[j], &of_b, 1, 1e-12, 0);
        assert_close(&variance.dh[j], &of_dh, 1, 1e-12, 0);
        of_a += square(0.01 * a);
        of_b += square(0.01 * b);
        of_dh += square(0.01 * dh);
        const double of_h = square(b) * of_a + square(a) * of_b;
        assert_close(&variance.h[j], &of_h, 1, 1e-12, 0);
        for (int d = 0; d < 3; d++) {
            const double w_0 = p.w.w[ASSAY_MLP_WI_0][d * 5 + j], w_1 = p.w.w[ASSAY_MLP_WI_1][d * 5 + j];
            of_y[d] += square(p.w.w[ASSAY_MLP_WO][j * 3 + d]) * (of_h + square(0.01 * h));
            /* dh moves both terms of dx, a and b one each */
            of_dx[d] += square(b * w_0 + a * w_1) * of_dh + square(dh) * (square(w_0) * of_b + square(w_1) * of_a) +
                        square(0.01 * dh) * (square(b * w_0) + square(a * w_1));
            dx_0[d] += dh * b * w_0;
            dx_1[d] += dh * a * w_1;
        }
    }
    for (int d = 0; d < 3; d++) {
        of_y[d] += square(0.01 * (p.y[d] - p.w.w[ASSAY_MLP_WO_BIAS][d]));
        of_dx[d] += square(0.01) * (square(dx_0[d]) + square(dx_1[d]));
    }
    assert_close(variance.y, of_y, 3, 1e-12, 0);
    assert_close(variance.gradient[MLP_X], of_dx, 3, 1e-12, 0);
    mlp_results_free(&variance);
    mlp_problem_free(&p);
}

/* Hidden values of equal weights have one error, whose share of y is (sum wo)^2 at most: five such count five times each. */
TEST(test_columns_that_are_alike_err_alike)
{
    const assay_precision stores = {.storage = 0.01};
    const assay_gated_mlp_config config = {
        .rows = 1, .emb_dim = 3, .mlp_dim = 5, .activation = {ASSAY_LINEAR, ASSAY_LINEAR}};
    assay_context ctx = assay_context_default(1);
    mlp_problem p;
    mlp_results variance;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT64, 4);
    for (int i = 0; i < 15; i++) {
        p.part[MLP_WI_0][i] = p.part[MLP_WI_0][i / 5 * 5];
        p.part[MLP_WI_1][i] = p.part[MLP_WI_1][i / 5 * 5];
    }
    mlp_problem_run(&ctx, &p);
    mlp_results_make(&variance, &p);
    propagate(&ctx, &stores, &p, false, &variance);
    const double of_h = square(0.01 * p.r.h[0]) * 3; /* a, b and h are stored */
    for (int d = 0; d < 3; d++) {
        double expected = 0, sum = 0;
        for (int j = 0; j < 5; j++) {
            const double w = p.w.w[ASSAY_MLP_WO][j * 3 + d];
            expected += 5 * square(w) * of_h;
            sum += w;
        }
        assert_close(&variance.y[d], &expected, 1, 1e-12, 0);
        assert_true(variance.y[d] >= square(sum) * of_h);
    }
    mlp_results_free(&variance);
    mlp_problem_free(&p);
}

/* What kernels lose of 1 - s where the sigmoid s is nearly 1: x times its error, and no more than there is. */
TEST(test_slope_of_a_gate_that_is_open)
{
    for (double x = 20; x < 60; x += 14) {
        const assay_activation_point silu = assay_activation_at(ASSAY_SILU, x),
                                     far = assay_activation_at(ASSAY_SILU, -x);
        const double left = x * exp(-x);
        assert_close(&silu.first_cancels, &x, 1, 1e-7, 0.0);
        assert_close(&silu.first_left, &left, 1, 1e-7, 0.0);
        assert_true(far.first_cancels == 0);
    }
}

/* Values of a kink and of exact zeros: finite, not negative, 0 where nothing can go wrong. */
TEST(test_exact_zeros_have_no_error)
{
    assay_context ctx = assay_context_default(2);
    const assay_gated_mlp_config config = {
        .rows = 2, .emb_dim = 2, .mlp_dim = 2, .activation = {ASSAY_RELU, ASSAY_LINEAR}};
    mlp_problem p;
    mlp_results variance;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT64, 1);
    const double x[] = {1, 1, 0, 0}, wi_0[] = {1, -1, 1, -1};
    memcpy(p.part[MLP_X], x, sizeof x);
    memcpy(p.part[MLP_WI_0], wi_0, sizeof wi_0);
    mlp_problem_run(&ctx, &p);
    mlp_results_make(&variance, &p);
    propagate(&ctx, &PROFILES[0].precision, &p, false, &variance);
    /* a = 2, -2 in the first row: the second hidden value is off; the second row is 0 throughout. */
    assert_true(variance.h[0] > 0 && variance.h[1] == 0 && variance.h[2] == 0 && variance.h[3] == 0);
    for (int d = 0; d < 2; d++) {
        assert_true(variance.y[d] > 0 && variance.y[2 + d] == 0);
        assert_true(variance.gradient[MLP_WO][d] > 0 && variance.gradient[MLP_WO][2 + d] == 0);
        assert_true(variance.gradient[MLP_WI_1][2 * d] > 0 && variance.gradient[MLP_WI_1][2 * d + 1] == 0);
    }
    mlp_results_free(&variance);
    mlp_problem_free(&p);
}

TEST(test_no_rows)
{
    assay_context ctx = assay_context_default(2);
    assay_gated_mlp_config config = shaped(0, 0, true);
    config.rows = 0;
    mlp_problem p;
    mlp_results variance;
    mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 1);
    mlp_problem_run(&ctx, &p);
    mlp_results_make(&variance, &p);
    propagate(&ctx, &PROFILES[0].precision, &p, false, &variance);
    for (int part = 1; part < MLP_PARTS; part++) {
        for (int64_t i = 0; i < p.size[part]; i++) assert_true(variance.gradient[part][i] == 0);
    }
    mlp_results_free(&variance);
    mlp_problem_free(&p);
}

typedef struct first_results {
    mlp_problem p;
    mlp_results variance;
    bool made;
} first_results;

static void same_bits(assay_context *ctx, void *data)
{
    first_results *first = data;
    mlp_results variance;
    if (!first->made) {
        assay_gated_mlp_config config = shaped(1, 0, true);
        mlp_problem_make(ctx, &first->p, &config, true, ASSAY_FLOAT32, 8);
        mlp_problem_run(ctx, &first->p);
        mlp_results_make(&first->variance, &first->p);
        propagate(ctx, &PROFILES[4].precision, &first->p, true, &first->variance);
        first->made = true;
    }
    mlp_results_make(&variance, &first->p);
    propagate(ctx, &PROFILES[4].precision, &first->p, true, &variance);
    assert_same_bits(variance.y, first->variance.y, first->p.size[MLP_X]);
    assert_same_bits(variance.h, first->variance.h, first->p.config.rows * first->p.config.mlp_dim);
    for (int i = 0; i < MLP_PARTS; i++)
        assert_same_bits(variance.gradient[i], first->variance.gradient[i], first->p.size[i]);
    mlp_results_free(&variance);
}

TEST(test_threads_and_instruction_sets_give_the_same_bits)
{
    first_results first = {0};
    test_each_context(same_bits, &first);
    mlp_results_free(&first.variance);
    mlp_problem_free(&first.p);
}

/* Only what was asked for: the rest stays untouched, and dy is not needed for forward. */
TEST(test_missing_results_are_skipped)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 0, false);
    mlp_problem p;
    mlp_results all;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    mlp_results_make(&all, &p);
    propagate(&ctx, &PROFILES[0].precision, &p, false, &all);
    double *y = test_nans(p.size[MLP_X]), *dwo = test_nans(p.size[MLP_WO]);
    const assay_gated_mlp_variances forward = {.y = y}, backward = {.gradients = {.g = {[ASSAY_MLP_WO] = dwo}}};
    assay_gated_mlp_run run = {.x = p.part[MLP_X], .r = &p.r, .w = &p.w, .config = &config};
    assert_ok(&ctx, assay_propagate_gated_mlp(&ctx, &PROFILES[0].precision, &forward, &run));
    assert_same_bits(y, all.y, p.size[MLP_X]);
    run.dy = p.dy;
    assert_ok(&ctx, assay_propagate_gated_mlp(&ctx, &PROFILES[0].precision, &backward, &run));
    assert_same_bits(dwo, all.gradient[MLP_WO], p.size[MLP_WO]);
    free(y);
    free(dwo);
    mlp_results_free(&all);
    mlp_problem_free(&p);
}

TEST(test_failing_allocations)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 2, false);
    mlp_problem p;
    mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    double *y = test_nans(p.size[MLP_X]);
    const assay_gated_mlp_variances v = {.y = y, .gradients = p.g};
    const assay_gated_mlp_run run = {.x = p.part[MLP_X], .dy = p.dy, .r = &p.r, .w = &p.w, .config = &config};
    int failures = 0;
    for (;; failures++) {
        assay_fail_allocation(failures);
        assay_status status = assay_propagate_gated_mlp(&ctx, &PROFILES[0].precision, &v, &run);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(failures > 10);
    free(y);
    mlp_problem_free(&p);
}
