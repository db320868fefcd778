/* Error scales held against what correct implementations do: implementations in low precision are run, and their errors
 * must lie under sigma, not far under it. */
#include "oracle/ops/gated_mlp_gauge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/tests/mlp_problem.h"
#include "oracle/ops/tests/ops_test.h"

/* An implementation in low precision: products and functions in float32 or float64, tensors stored as `storage`,
 * operands of products rounded to `multiply`. */
typedef struct machine {
    assay_dtype storage, multiply;
    bool single;        /* float32 arithmetic; else float64 */
    bool stores_inside; /* stores products before biases and before the sum of dx; else only whole tensors */
} machine;

static double store(const machine *m, double x)
{
    return assay_dtype_round(m->storage, x, false);
}

static double arithmetic(const machine *m, double x)
{
    return m->single ? (double)(float)x : x;
}

/* One sum of products of strided vectors. */
static double dot(const machine *m, int64_t count, const double *a, int64_t a_step, const double *b, int64_t b_step)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = assay_dtype_round(m->multiply, a[i * a_step], false);
        double y = assay_dtype_round(m->multiply, b[i * b_step], false);
        sum = arithmetic(m, sum + arithmetic(m, x * y));
    }
    return sum;
}

static double with_bias(const machine *m, double product, const double *bias, int64_t i)
{
    if (bias == NULL) return store(m, product);
    return store(m, arithmetic(m, (m->stores_inside ? store(m, product) : product) + bias[i]));
}

/* The factors of the gate and their derivatives, as an implementation computes them. */
static void factors(const machine *m, const assay_gated_mlp_config *config, double a, double b, double *u, double *du,
                    double *v, double *dv)
{
    assay_context ctx = assay_context_default(1);
    const double limit = config->limit;
    double cut_a = a, cut_b = b;
    if (config->glu != ASSAY_GLU_PLAIN) {
        cut_a = a > limit ? limit : a;
        cut_b = b > limit ? limit : b < -limit ? -limit : b;
    }
    if (config->glu == ASSAY_GLU_GPT_OSS) {
        assay_quick_gelu_many(&ctx, 1, &cut_a, u, du);
    } else {
        assay_activation_many(&ctx, config->activation[0], 1, &cut_a, u, du);
    }
    if (config->glu == ASSAY_GLU_PLAIN) {
        assay_activation_many(&ctx, config->activation[1], 1, &cut_b, v, dv);
    } else {
        *v = cut_b + (config->glu == ASSAY_GLU_GPT_OSS ? 1 : 0);
        *dv = cut_b != b ? 0 : 1;
        *du = cut_a != a ? 0 : *du;
    }
    *u = arithmetic(m, *u);
    *du = arithmetic(m, *du);
    *v = arithmetic(m, *v);
    *dv = arithmetic(m, *dv);
}

/* What an implementation gives: contiguous a, b, h, dh [rows,H], y, and the gradients of mlp_problem.h. */
typedef struct results {
    double *a, *b, *h, *dh, *da, *db, *y, *gradient[MLP_PARTS];
} results;

static void results_make(results *out, const mlp_problem *p)
{
    double **const hidden[] = {&out->a, &out->b, &out->h, &out->dh, &out->da, &out->db};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        *hidden[i] = test_nans(p->config.rows * p->config.mlp_dim);
    out->y = test_nans(p->config.rows * p->config.emb_dim);
    for (int i = 0; i < MLP_PARTS; i++) out->gradient[i] = test_nans(p->size[i]);
}

static void results_free(results *out)
{
    double *const all[] = {out->a, out->b, out->h, out->dh, out->da, out->db, out->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int i = 0; i < MLP_PARTS; i++) free(out->gradient[i]);
}

static void run_forward(const machine *m, const mlp_problem *p, results *out)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = p->part[MLP_X] + row * dim;
        for (int64_t j = 0; j < hidden; j++) {
            const int64_t i = row * hidden + j;
            double u, du, v, dv;
            out->a[i] = with_bias(m, dot(m, dim, x, 1, p->part[MLP_WI_0] + j, hidden), p->w.wi_0_bias, j);
            out->b[i] = with_bias(m, dot(m, dim, x, 1, p->part[MLP_WI_1] + j, hidden), p->w.wi_1_bias, j);
            factors(m, &p->config, out->a[i], out->b[i], &u, &du, &v, &dv);
            out->h[i] = store(m, arithmetic(m, u * v));
        }
        for (int64_t d = 0; d < dim; d++) {
            double product = dot(m, hidden, out->h + row * hidden, 1, p->part[MLP_WO] + d, dim);
            out->y[row * dim + d] = with_bias(m, product, p->w.wo_bias, d);
        }
    }
}

static void run_gate_gradient(const machine *m, const mlp_problem *p, results *out)
{
    const int64_t dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    for (int64_t i = 0; i < p->config.rows * hidden; i++) {
        double u, du, v, dv;
        factors(m, &p->config, out->a[i], out->b[i], &u, &du, &v, &dv);
        double dh = store(m, dot(m, dim, p->dy + i / hidden * dim, 1, p->part[MLP_WO] + i % hidden * dim, 1));
        out->dh[i] = dh;
        out->da[i] = store(m, arithmetic(m, dh * arithmetic(m, du * v)));
        out->db[i] = store(m, arithmetic(m, dh * arithmetic(m, u * dv)));
    }
}

static void run_backward(const machine *m, const mlp_problem *p, results *out)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    machine sums = *m;
    sums.multiply = ASSAY_FLOAT64;
    const double one = 1;
    run_gate_gradient(m, p, out);
    for (int64_t j = 0; j < hidden; j++) {
        for (int64_t d = 0; d < dim; d++) {
            const double *x = p->part[MLP_X] + d;
            out->gradient[MLP_WI_0][d * hidden + j] = store(m, dot(m, rows, x, dim, out->da + j, hidden));
            out->gradient[MLP_WI_1][d * hidden + j] = store(m, dot(m, rows, x, dim, out->db + j, hidden));
            out->gradient[MLP_WO][j * dim + d] = store(m, dot(m, rows, out->h + j, hidden, p->dy + d, dim));
        }
        out->gradient[MLP_WI_0_BIAS][j] = store(m, dot(&sums, rows, &one, 0, out->da + j, hidden));
        out->gradient[MLP_WI_1_BIAS][j] = store(m, dot(&sums, rows, &one, 0, out->db + j, hidden));
    }
    for (int64_t d = 0; d < dim; d++) {
        out->gradient[MLP_WO_BIAS][d] = store(m, dot(&sums, rows, &one, 0, p->dy + d, dim));
        for (int64_t row = 0; row < rows; row++) {
            double first = dot(m, hidden, out->da + row * hidden, 1, p->part[MLP_WI_0] + d * hidden, 1);
            double second = dot(m, hidden, out->db + row * hidden, 1, p->part[MLP_WI_1] + d * hidden, 1);
            if (m->stores_inside) {
                first = store(m, first);
                second = store(m, second);
            }
            out->gradient[MLP_X][row * dim + d] = store(m, arithmetic(m, first + second));
        }
    }
}

/* The error scales of everything in `results`. `inexact`: x and dy will be rounded to bfloat16. */
static void run_gauge(assay_context *ctx, const assay_precision *precision, const mlp_problem *p, bool inexact,
                      results *out)
{
    const int64_t dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    double *variance_x = calloc((size_t)p->size[MLP_X], sizeof *variance_x);
    double *variance_dy = calloc((size_t)p->size[MLP_X], sizeof *variance_dy);
    assay_gauge_store(0x1p-8, p->size[MLP_X], p->part[MLP_X], variance_x);
    assay_gauge_store(0x1p-8, p->size[MLP_X], p->dy, variance_dy);
    double *dwi = test_nans(2 * dim * hidden);
    const bool fused = p->config.fused;
    const assay_gated_mlp_variances v = {.x = inexact ? variance_x : NULL,
                                         .a = out->a,
                                         .b = out->b,
                                         .h = out->h,
                                         .y = out->y,
                                         .gradients = {.dx = out->gradient[MLP_X],
                                                       .dwi = fused ? dwi : NULL,
                                                       .dwi_0 = fused ? NULL : out->gradient[MLP_WI_0],
                                                       .dwi_1 = fused ? NULL : out->gradient[MLP_WI_1],
                                                       .dwo = out->gradient[MLP_WO],
                                                       .dwi_0_bias = out->gradient[MLP_WI_0_BIAS],
                                                       .dwi_1_bias = out->gradient[MLP_WI_1_BIAS],
                                                       .dwo_bias = out->gradient[MLP_WO_BIAS],
                                                       .dh = out->dh}};
    assert_ok(ctx, assay_gated_mlp_gauge(ctx, precision, &v, p->dy, inexact ? variance_dy : NULL, &p->r, p->part[MLP_X],
                                         &p->w, &p->config));
    if (fused) mlp_split(dwi, out->gradient[MLP_WI_0], out->gradient[MLP_WI_1], dim, hidden);
    free(dwi);
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
    machine machine;
} PROFILES[] = {
    {{"bf16", 0x1p-8, 0, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_BFLOAT16, ASSAY_FLOAT64, true, false}},
    {{"bf16", 0x1p-8, 0, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_BFLOAT16, ASSAY_FLOAT64, true, true}},
    {{"f16", 0x1p-11, 0, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_FLOAT16, ASSAY_FLOAT64, true, true}},
    {{"f32", 0x1p-24, 0, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_FLOAT32, ASSAY_FLOAT64, true, true}},
    {{"tf32", 0x1p-24, 0x1p-11, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_FLOAT32, ASSAY_TFLOAT32, true, false}},
    {{"tpu", 0x1p-24, 0x1p-8, 0x1p-24, 0x1p-24, 0x1p-24}, {ASSAY_FLOAT32, ASSAY_BFLOAT16, true, false}},
};
enum { PROFILE_COUNT = sizeof PROFILES / sizeof *PROFILES };

/* What `m` does, against what `profile` allows. */
static void ratios(assay_context *ctx, const machine *m, const struct profile *profile,
                   const assay_gated_mlp_config *config, bool biased, bool inexact, test_ratio *ratio)
{
    const assay_dtype claimed = profile->machine.storage;
    mlp_problem p;
    results low, variance, golden;
    mlp_problem_make(ctx, &p, config, biased, inexact ? ASSAY_FLOAT32 : claimed, 77);
    mlp_problem_run(ctx, &p);
    results_make(&low, &p);
    results_make(&variance, &p);
    results_make(&golden, &p);
    copy_rows(golden.a, p.r.a, &p);
    copy_rows(golden.b, p.r.b, &p);
    run_gauge(ctx, &profile->precision, &p, inexact, &variance);
    if (inexact) {
        assay_dtype_round_many(ASSAY_BFLOAT16, p.size[MLP_X], p.part[MLP_X], p.part[MLP_X]);
        assay_dtype_round_many(ASSAY_BFLOAT16, p.size[MLP_X], p.dy, p.dy);
    }
    run_forward(m, &p, &low);
    run_backward(m, &p, &low);
    const int64_t hidden = config->rows * config->mlp_dim, outer = config->rows * config->emb_dim;
    ratio[0] = test_ratio_of(hidden, low.a, golden.a, variance.a, claimed);
    ratio[1] = test_ratio_of(hidden, low.b, golden.b, variance.b, claimed);
    ratio[2] = test_ratio_of(hidden, low.h, p.r.h, variance.h, claimed);
    ratio[3] = test_ratio_of(outer, low.y, p.y, variance.y, claimed);
    ratio[4] = test_ratio_of(hidden, low.dh, p.dh, variance.dh, claimed);
    for (int i = 0; i < MLP_PARTS; i++)
        ratio[5 + i] = test_ratio_of(p.size[i], low.gradient[i], p.gradient[i], variance.gradient[i], claimed);
    results_free(&low);
    results_free(&variance);
    results_free(&golden);
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

/* Kinks have a wide berth: what is near one may be far under sigma. */
static void assert_fair(const test_ratio *ratio, const assay_gated_mlp_config *config)
{
    const bool kinked = config->glu != ASSAY_GLU_PLAIN || config->activation[0] == ASSAY_RELU;
    for (int t = 0; t < TENSORS; t++) {
        if (!(ratio[t].rms >= (kinked ? 0.1 : 0.25) && ratio[t].rms <= 0.7 && ratio[t].largest <= 3)) {
            fail_msg("tensor %d: RMS of error / sigma %.3f, largest %.3f", t, ratio[t].rms, ratio[t].largest);
        }
    }
}

static void test_errors_lie_under_sigma_and_not_far(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    for (int i = 0; i < PROFILE_COUNT * FORM_COUNT; i++) {
        const struct profile *profile = &PROFILES[i / FORM_COUNT];
        const assay_gated_mlp_config config = shaped(i % FORM_COUNT, i % SHAPE_COUNT, i % 2 == 1);
        test_ratio ratio[TENSORS];
        ratios(&ctx, &profile->machine, profile, &config, i % 3 == 0, false, ratio);
        assert_fair(ratio, &config);
    }
}

static void test_errors_of_x_and_dy_are_carried_through(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    for (int i = 0; i < FORM_COUNT; i++) {
        const struct profile *profile = &PROFILES[i % 2 == 0 ? 0 : 3];
        const assay_gated_mlp_config config = shaped(i, i % SHAPE_COUNT, false);
        test_ratio ratio[TENSORS];
        ratios(&ctx, &profile->machine, profile, &config, true, true, ratio);
        assert_fair(ratio, &config);
    }
}

/* What a wrong implementation does must lie far outside: here one that rounds too much. */
static void test_too_much_rounding_is_far_outside(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 0, false);
    test_ratio ratio[TENSORS];
    for (int i = 2; i < 4; i++) { /* f16 and f32, of which bfloat16 values come */
        const machine rough = {ASSAY_BFLOAT16, ASSAY_FLOAT64, true, false};
        ratios(&ctx, &rough, &PROFILES[i], &config, false, false, ratio);
        for (int t = 0; t < TENSORS; t++) assert_true(ratio[t].rms > 1.3);
    }
}

/* Values of a kink and of exact zeros: finite, not negative, 0 where nothing can go wrong. */
static void test_exact_zeros_have_no_error(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(2);
    const assay_gated_mlp_config config = {
        .rows = 2, .emb_dim = 2, .mlp_dim = 2, .activation = {ASSAY_RELU, ASSAY_LINEAR}};
    mlp_problem p;
    results variance;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT64, 1);
    const double x[] = {1, 1, 0, 0}, wi_0[] = {1, -1, 1, -1};
    memcpy(p.part[MLP_X], x, sizeof x);
    memcpy(p.part[MLP_WI_0], wi_0, sizeof wi_0);
    mlp_problem_run(&ctx, &p);
    results_make(&variance, &p);
    run_gauge(&ctx, &PROFILES[0].precision, &p, false, &variance);
    /* a = 2, -2 in the first row: the second hidden value is off; the second row is 0 throughout. */
    assert_true(variance.h[0] > 0 && variance.h[1] == 0 && variance.h[2] == 0 && variance.h[3] == 0);
    for (int d = 0; d < 2; d++) {
        assert_true(variance.y[d] > 0 && variance.y[2 + d] == 0);
        assert_true(variance.gradient[MLP_WO][d] > 0 && variance.gradient[MLP_WO][2 + d] == 0);
        assert_true(variance.gradient[MLP_WI_1][2 * d] > 0 && variance.gradient[MLP_WI_1][2 * d + 1] == 0);
    }
    results_free(&variance);
    mlp_problem_free(&p);
}

static void test_no_rows(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(2);
    assay_gated_mlp_config config = shaped(0, 0, true);
    config.rows = 0;
    mlp_problem p;
    results variance;
    mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 1);
    mlp_problem_run(&ctx, &p);
    results_make(&variance, &p);
    run_gauge(&ctx, &PROFILES[0].precision, &p, false, &variance);
    for (int part = 1; part < MLP_PARTS; part++) {
        for (int64_t i = 0; i < p.size[part]; i++) assert_true(variance.gradient[part][i] == 0);
    }
    results_free(&variance);
    mlp_problem_free(&p);
}

typedef struct first_results {
    mlp_problem p;
    results variance;
    bool made;
} first_results;

static void same_bits(assay_context *ctx, void *data)
{
    first_results *first = data;
    results variance;
    if (!first->made) {
        assay_gated_mlp_config config = shaped(1, 0, true);
        mlp_problem_make(ctx, &first->p, &config, true, ASSAY_FLOAT32, 8);
        mlp_problem_run(ctx, &first->p);
        results_make(&first->variance, &first->p);
        run_gauge(ctx, &PROFILES[4].precision, &first->p, true, &first->variance);
        first->made = true;
    }
    results_make(&variance, &first->p);
    run_gauge(ctx, &PROFILES[4].precision, &first->p, true, &variance);
    assert_same_bits(variance.y, first->variance.y, first->p.size[MLP_X]);
    assert_same_bits(variance.h, first->variance.h, first->p.config.rows * first->p.config.mlp_dim);
    for (int i = 0; i < MLP_PARTS; i++)
        assert_same_bits(variance.gradient[i], first->variance.gradient[i], first->p.size[i]);
    results_free(&variance);
}

static void test_threads_and_instruction_sets_give_the_same_bits(void **state)
{
    (void)state;
    first_results first = {0};
    test_each_context(same_bits, &first);
    results_free(&first.variance);
    mlp_problem_free(&first.p);
}

/* Only what was asked for: the rest stays untouched, and dy is not needed for forward. */
static void test_missing_results_are_skipped(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 0, false);
    mlp_problem p;
    results all;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    results_make(&all, &p);
    run_gauge(&ctx, &PROFILES[0].precision, &p, false, &all);
    double *y = test_nans(p.size[MLP_X]), *dwo = test_nans(p.size[MLP_WO]);
    const assay_gated_mlp_variances forward = {.y = y}, backward = {.gradients = {.dwo = dwo}};
    assert_ok(&ctx, assay_gated_mlp_gauge(&ctx, &PROFILES[0].precision, &forward, NULL, NULL, &p.r, p.part[MLP_X], &p.w,
                                          &config));
    assert_same_bits(y, all.y, p.size[MLP_X]);
    assert_ok(&ctx, assay_gated_mlp_gauge(&ctx, &PROFILES[0].precision, &backward, p.dy, NULL, &p.r, p.part[MLP_X],
                                          &p.w, &config));
    assert_same_bits(dwo, all.gradient[MLP_WO], p.size[MLP_WO]);
    free(y);
    free(dwo);
    results_free(&all);
    mlp_problem_free(&p);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = shaped(0, 2, false);
    mlp_problem p;
    mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    double *y = test_nans(p.size[MLP_X]);
    const assay_gated_mlp_variances v = {.y = y, .gradients = p.g};
    int failures = 0;
    for (;; failures++) {
        assay_fail_allocation(failures);
        assay_status status =
            assay_gated_mlp_gauge(&ctx, &PROFILES[0].precision, &v, p.dy, NULL, &p.r, p.part[MLP_X], &p.w, &config);
        assay_fail_allocation(-1);
        if (!assay_allocation_failed()) break;
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
    assert_true(failures > 10);
    free(y);
    mlp_problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_lie_under_sigma_and_not_far),
        cmocka_unit_test(test_errors_of_x_and_dy_are_carried_through),
        cmocka_unit_test(test_too_much_rounding_is_far_outside),
        cmocka_unit_test(test_exact_zeros_have_no_error),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_threads_and_instruction_sets_give_the_same_bits),
        cmocka_unit_test(test_missing_results_are_skipped),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
