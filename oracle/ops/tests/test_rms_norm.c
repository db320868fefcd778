#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

static const double EPSILON = 1e-3; /* large enough to be seen when it is in the wrong place */

typedef struct problem {
    int64_t rows, dim;
    double *x, *scale, *dy, *y, *rstd, *dx, *dscale;
} problem;

static void problem_make(problem *p, int64_t rows, int64_t dim)
{
    uint64_t seed = 17;
    *p = (problem){.rows = rows, .dim = dim};
    p->x = test_normals(&seed, 1, ASSAY_FLOAT64, rows * dim);
    p->scale = test_normals(&seed, 1, ASSAY_FLOAT64, dim);
    p->dy = test_normals(&seed, 1, ASSAY_FLOAT64, rows * dim);
    p->y = test_nans(rows * dim);
    p->rstd = test_nans(rows);
    p->dx = test_nans(rows * dim);
    p->dscale = test_nans(dim);
}

static void problem_run(assay_context *ctx, problem *p)
{
    assay_rms_norm_forward(ctx, p->y, p->rstd, p->x, p->scale, p->rows, p->dim, EPSILON);
    assay_rms_norm_backward(ctx, p->dx, p->dscale, p->dy, p->x, p->scale, p->rstd, p->rows, p->dim);
}

static void problem_free(problem *p)
{
    double *const all[] = {p->x, p->scale, p->dy, p->y, p->rstd, p->dx, p->dscale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

TEST(test_rows_do_not_meet)
{
    assay_context ctx = assay_context_default(2);
    OWNED_BY(problem_free) problem clean, p;
    problem_make(&clean, 5, 19);
    problem_make(&p, 5, 19);
    p.x[2 * 19 + 4] = NAN;
    problem_run(&ctx, &clean);
    problem_run(&ctx, &p);
    assert_all_nan(p.y + 2 * 19, 19);
    assert_all_nan(p.dx + 2 * 19, 19);
    assert_same_bits(p.y, clean.y, 2 * 19);
    assert_same_bits(p.y + 3 * 19, clean.y + 3 * 19, 2 * 19);
    assert_same_bits(p.dx + 3 * 19, clean.dx + 3 * 19, 2 * 19);
    assert_all_nan(p.dscale, 19);
}

TEST(test_no_rows_and_missing_results)
{
    assay_context ctx = assay_context_default(2);
    OWNED_BY(problem_free) problem none, p;
    problem_make(&none, 0, 5);
    problem_run(&ctx, &none);
    for (int64_t i = 0; i < 5; i++) assert_true(none.dscale[i] == 0);
    problem_make(&p, 3, 5);
    problem_run(&ctx, &p);
    double dx[15], dscale[5];
    assay_rms_norm_backward(&ctx, dx, NULL, p.dy, p.x, p.scale, p.rstd, 3, 5);
    assay_rms_norm_backward(&ctx, NULL, dscale, p.dy, p.x, p.scale, p.rstd, 3, 5);
    assert_same_bits(dx, p.dx, 15);
    assert_same_bits(dscale, p.dscale, 5);
    double rstd[3];
    assay_fill_nan(rstd, 3);
    assay_rms_norm_forward(&ctx, NULL, rstd, p.x, p.scale, 3, 5, EPSILON);
    assert_same_bits(rstd, p.rstd, 3);
}

/* Where rstd is near 1, x rstd is x again to nearest, and its errors all go one way: one of the emulated runs has that. */
TEST_WITH_CONTEXT(test_normalised_rows_are_rounded_before_the_gradient_of_the_scale)
{
    const double x[] = {1, -1.5, 0.75, 3}, dy[] = {1, 1, 1, 1}, rstd = 0.9993;
    const assay_emulation nearest = {.storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .nearest = true};
    double dscale[4];
    assay_rms_norm_backward(&ctx, NULL, dscale, dy, x, NULL, &rstd, 1, 4);
    for (int i = 0; i < 4; i++) assert_true(dscale[i] == x[i] * rstd);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &nearest;
    assay_rms_norm_backward(&ctx, NULL, dscale, dy, x, NULL, &rstd, 1, 4);
    for (int i = 0; i < 4; i++) assert_true(dscale[i] == x[i]);
}

/* One column: x rstd is 1 but for epsilon, so that a kernel which keeps it rounded has a gradient of 0. */
TEST_WITH_CONTEXT(test_normalised_rows_are_rounded_before_the_gradient_of_x)
{
    const double x[] = {1.5}, dy[] = {1.25}, scale[] = {1}, rstd = 0.999 / 1.5;
    assay_emulation emulation = {.storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .nearest = true};
    double dx;
    assay_rms_norm_backward(&ctx, &dx, NULL, dy, x, scale, &rstd, 1, 1);
    assert_close(&dx, &(double){rstd * dy[0] * (1 - 0.999 * 0.999)}, 1, 1e-12, 0.0);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &emulation;
    assay_rms_norm_backward(&ctx, &dx, NULL, dy, x, scale, &rstd, 1, 1);
    assert_true(dx == 0);
    emulation.nearest = false;
    assay_rms_norm_backward(&ctx, &dx, NULL, dy, x, scale, &rstd, 1, 1);
    assert_true(dx != 0); /* the first of the two forms does not keep it */
}
