/* What propagation through a gated MLP adds up, term by term, and whom it leaves alone. How far off correct implementations are is held against it in
 * harness/tests/test_error_scales.c. */
#include "oracle/propagate/propagate_gated_mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/tests/ops_test.h"
#include "oracle/propagate/glu_factor.h"
#include "oracle/propagate/tests/mlp_problem.h"

TEST_LABELS(threads);

static const assay_precision bf16 = {
    .name = "bf16", .storage = RMS(0x1p-8), .accumulate = RMS(0x1p-24), .elementary = RMS(0x1p-24)};

typedef struct variances {
    double *a, *b, *h, *dh, *y, *gradient[MLP_PARTS];
} variances;

static void variances_free(variances *v)
{
    double *const all[] = {v->a, v->b, v->h, v->dh, v->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int i = 0; i < MLP_PARTS; i++) free(v->gradient[i]);
}

static variances variances_of(const mlp_problem *p)
{
    const int64_t hidden = p->config.rows * p->config.mlp_dim;
    variances v = {.a = test_nans(hidden), .b = test_nans(hidden), .h = test_nans(hidden), .dh = test_nans(hidden)};
    v.y = test_nans(p->size[MLP_X]);
    for (int i = 0; i < MLP_PARTS; i++) v.gradient[i] = test_nans(p->size[i]);
    return v;
}

/* Of everything. `inexact`: x and dy will be rounded to bfloat16. */
static variances propagate(assay_context *ctx, const assay_precision *precision, const mlp_problem *p, bool inexact)
{
    variances out = variances_of(p);
    double *variance_x = calloc((size_t)p->size[MLP_X] + 1, sizeof *variance_x);
    double *variance_dy = calloc((size_t)p->size[MLP_X] + 1, sizeof *variance_dy);
    assay_propagate_store(RMS(0x1p-8), 0, p->size[MLP_X], p->part[MLP_X], variance_x);
    assay_propagate_store(RMS(0x1p-8), 0, p->size[MLP_X], p->dy, variance_dy);
    const assay_gated_mlp_run run = {.x = p->part[MLP_X],
                                     .dy = p->dy,
                                     .variance_x = inexact ? variance_x : NULL,
                                     .variance_dy = inexact ? variance_dy : NULL,
                                     .r = p->r,
                                     .w = p->w,
                                     .config = &p->config};
    assay_gated_mlp_variances v = {
        .a = out.a, .b = out.b, .h = out.h, .y = out.y, .dx = out.gradient[MLP_X], .dh = out.dh};
    mlp_place_gradients(out.gradient, v.g);
    assert_ok(ctx, assay_propagate_gated_mlp(ctx, precision, &v, &run));
    free(variance_x);
    free(variance_dy);
    return out;
}

static assay_gated_mlp_config sized(int64_t rows, int64_t dim, int64_t hidden)
{
    return (assay_gated_mlp_config){
        .rows = rows, .emb_dim = dim, .mlp_dim = hidden, .activation = {ASSAY_SILU, ASSAY_LINEAR}};
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
    mlp_problem_make(&p, &config, true, ASSAY_FLOAT64, 4);
    mlp_problem_run(&ctx, &p);
    variances variance = propagate(&ctx, &stores, &p, true);
    double of_y[3] = {0}, of_dx[3] = {0}, dx_0[3] = {0}, dx_1[3] = {0};
    for (int j = 0; j < 5; j++) {
        const double a = p.r.a[j], b = p.r.b[j], dh = p.dh[j], h = a * b;
        double of_a = square(0.01 * (a - p.w[ASSAY_MLP_WI_0_BIAS][j])),
               of_b = square(0.01 * (b - p.w[ASSAY_MLP_WI_1_BIAS][j])), of_dh = 0;
        for (int d = 0; d < 3; d++) {
            of_a += square(RMS(0x1p-8) * p.part[MLP_X][d] * p.w[ASSAY_MLP_WI_0][d * 5 + j]);
            of_b += square(RMS(0x1p-8) * p.part[MLP_X][d] * p.w[ASSAY_MLP_WI_1][d * 5 + j]);
            of_dh += square(RMS(0x1p-8) * p.dy[d] * p.w[ASSAY_MLP_WO][j * 3 + d]);
        }
        assert_close(&variance.a[j], &of_a, 1, 1e-12, 0);
        assert_close(&variance.b[j], &of_b, 1, 1e-12, 0);
        assert_close(&variance.dh[j], &of_dh, 1, 1e-12, 0);
        of_a += square(0.01 * a);
        of_b += square(0.01 * b);
        of_dh += square(0.01 * dh);
        const double of_h = square(b) * of_a + square(a) * of_b + of_a * of_b;
        assert_close(&variance.h[j], &of_h, 1, 1e-12, 0);
        for (int d = 0; d < 3; d++) {
            const double w_0 = p.w[ASSAY_MLP_WI_0][d * 5 + j], w_1 = p.w[ASSAY_MLP_WI_1][d * 5 + j];
            of_y[d] += square(p.w[ASSAY_MLP_WO][j * 3 + d]) * (of_h + square(0.01 * h));
            /* dh moves both terms of dx, a and b one each */
            of_dx[d] += square(b * w_0 + a * w_1) * of_dh + square(dh) * (square(w_0) * of_b + square(w_1) * of_a) +
                        square(0.01 * dh) * (square(b * w_0) + square(a * w_1));
            dx_0[d] += dh * b * w_0;
            dx_1[d] += dh * a * w_1;
        }
    }
    for (int d = 0; d < 3; d++) {
        of_y[d] += square(0.01 * (p.y[d] - p.w[ASSAY_MLP_WO_BIAS][d]));
        of_dx[d] += square(0.01) * (square(dx_0[d]) + square(dx_1[d]));
    }
    assert_close(variance.y, of_y, 3, 1e-12, 0);
    assert_close(variance.gradient[MLP_X], of_dx, 3, 1e-12, 0);
    variances_free(&variance);
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
    mlp_problem_make(&p, &config, false, ASSAY_FLOAT64, 4);
    for (int i = 0; i < 15; i++) {
        p.part[MLP_WI_0][i] = p.part[MLP_WI_0][i / 5 * 5];
        p.part[MLP_WI_1][i] = p.part[MLP_WI_1][i / 5 * 5];
    }
    mlp_problem_run(&ctx, &p);
    variances variance = propagate(&ctx, &stores, &p, false);
    const double of_h = square(0.01 * p.r.h[0]) * (3 + square(0.01)); /* a, b and h are stored */
    for (int d = 0; d < 3; d++) {
        double expected = 0, sum = 0;
        for (int j = 0; j < 5; j++) {
            const double w = p.w[ASSAY_MLP_WO][j * 3 + d];
            expected += 5 * square(w) * of_h;
            sum += w;
        }
        assert_close(&variance.y[d], &expected, 1, 1e-12, 0);
        assert_true(variance.y[d] >= square(sum) * of_h);
    }
    variances_free(&variance);
    mlp_problem_free(&p);
}

/* What kernels lose of 1 - s where the sigmoid s is nearly 1: x times its error, and no more than there is. */
TEST(test_slope_of_a_gate_that_is_open)
{
    for (double x = 20; x < 60; x += 14) {
        const assay_glu_factor silu = assay_activation_at(ASSAY_SILU, x), far = assay_activation_at(ASSAY_SILU, -x);
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
    mlp_problem_make(&p, &config, false, ASSAY_FLOAT64, 1);
    const double x[] = {1, 1, 0, 0}, wi_0[] = {1, -1, 1, -1};
    memcpy(p.part[MLP_X], x, sizeof x);
    memcpy(p.part[MLP_WI_0], wi_0, sizeof wi_0);
    mlp_problem_run(&ctx, &p);
    variances variance = propagate(&ctx, &bf16, &p, false);
    /* a = 2, -2 in the first row: the second hidden value is off; the second row is 0 throughout. */
    assert_true(variance.h[0] > 0 && variance.h[1] == 0 && variance.h[2] == 0 && variance.h[3] == 0);
    for (int d = 0; d < 2; d++) {
        assert_true(variance.y[d] > 0 && variance.y[2 + d] == 0);
        assert_true(variance.gradient[MLP_WO][d] > 0 && variance.gradient[MLP_WO][2 + d] == 0);
        assert_true(variance.gradient[MLP_WI_1][2 * d] > 0 && variance.gradient[MLP_WI_1][2 * d + 1] == 0);
    }
    variances_free(&variance);
    mlp_problem_free(&p);
}

TEST(test_no_rows)
{
    assay_context ctx = assay_context_default(2);
    const assay_gated_mlp_config config = sized(0, 40, 56);
    mlp_problem p;
    mlp_problem_make(&p, &config, true, ASSAY_FLOAT64, 1);
    mlp_problem_run(&ctx, &p);
    variances variance = propagate(&ctx, &bf16, &p, false);
    for (int part = 1; part < MLP_PARTS; part++) {
        for (int64_t i = 0; i < p.size[part]; i++) assert_true(variance.gradient[part][i] == 0);
    }
    variances_free(&variance);
    mlp_problem_free(&p);
}

typedef struct first_results {
    mlp_problem p;
    variances variance;
    bool made;
} first_results;

static void same_bits(assay_context *ctx, void *data)
{
    first_results *first = data;
    if (!first->made) {
        const assay_gated_mlp_config config = sized(24, 40, 56);
        mlp_problem_make(&first->p, &config, true, ASSAY_FLOAT32, 8);
        mlp_problem_run(ctx, &first->p);
        first->variance = propagate(ctx, &bf16, &first->p, true);
        first->made = true;
    }
    variances variance = propagate(ctx, &bf16, &first->p, true);
    assert_same_bits(variance.y, first->variance.y, first->p.size[MLP_X]);
    assert_same_bits(variance.h, first->variance.h, first->p.config.rows * first->p.config.mlp_dim);
    for (int i = 0; i < MLP_PARTS; i++)
        assert_same_bits(variance.gradient[i], first->variance.gradient[i], first->p.size[i]);
    variances_free(&variance);
}

TEST(test_threads_and_instruction_sets_give_the_same_bits)
{
    first_results first = {0};
    test_each_context(same_bits, &first);
    variances_free(&first.variance);
    mlp_problem_free(&first.p);
}

/* Only what was asked for: the rest stays untouched, and dy is not needed for forward. */
TEST(test_missing_results_are_skipped)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = sized(24, 40, 56);
    mlp_problem p;
    mlp_problem_make(&p, &config, false, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    variances all = propagate(&ctx, &bf16, &p, false);
    double *y = test_nans(p.size[MLP_X]), *dwo = test_nans(p.size[MLP_WO]);
    const assay_gated_mlp_variances forward = {.y = y}, backward = {.g = {[ASSAY_MLP_WO] = dwo}};
    assay_gated_mlp_run run = {.x = p.part[MLP_X], .r = p.r, .w = p.w, .config = &config};
    assert_ok(&ctx, assay_propagate_gated_mlp(&ctx, &bf16, &forward, &run));
    assert_same_bits(y, all.y, p.size[MLP_X]);
    run.dy = p.dy;
    assert_ok(&ctx, assay_propagate_gated_mlp(&ctx, &bf16, &backward, &run));
    assert_same_bits(dwo, all.gradient[MLP_WO], p.size[MLP_WO]);
    free(y);
    free(dwo);
    variances_free(&all);
    mlp_problem_free(&p);
}

TEST(test_failing_allocations)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = sized(7, 256, 40);
    mlp_problem p;
    mlp_problem_make(&p, &config, true, ASSAY_FLOAT32, 8);
    mlp_problem_run(&ctx, &p);
    double *y = test_nans(p.size[MLP_X]);
    assay_gated_mlp_variances v = {.y = y, .dx = p.gradient[MLP_X], .dh = p.dh};
    mlp_place_gradients(p.gradient, v.g);
    const assay_gated_mlp_run run = {.x = p.part[MLP_X], .dy = p.dy, .r = p.r, .w = p.w, .config = &config};
    int failures = 0;
    for (;; failures++) {
        assay_fail_allocation(failures);
        assay_status status = assay_propagate_gated_mlp(&ctx, &bf16, &v, &run);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(failures > 10);
    free(y);
    mlp_problem_free(&p);
}
