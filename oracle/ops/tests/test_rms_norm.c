#include "oracle/ops/rms_norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/tests/ops_test.h"
#include "oracle/propagate/propagate_ops.h"

TEST_LABELS(threads);

static const double EPSILON = 1e-3; /* large enough to be seen when it is in the wrong place */

typedef struct problem {
    int64_t rows, dim;
    double *x, *scale, *dy, *y, *rstd, *dx, *dscale;
} problem;

static void problem_make(problem *p, int64_t rows, int64_t dim, double size, assay_dtype grid)
{
    uint64_t seed = 17;
    *p = (problem){.rows = rows, .dim = dim};
    p->x = test_normals(&seed, size, grid, rows * dim);
    p->scale = test_normals(&seed, 1, grid, dim);
    p->dy = test_normals(&seed, 1, grid, rows * dim);
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

static void make_dy_smaller(problem *p, assay_dtype grid, double size)
{
    for (int64_t i = 0; i < p->rows * p->dim; i++) p->dy[i] = assay_dtype_round(grid, size * p->dy[i], false);
}

static void same_bits(assay_context *ctx, void *data)
{
    problem *first = data, p;
    if (first->x == NULL) {
        problem_make(first, 37, 521, 1, ASSAY_FLOAT64);
        problem_run(ctx, first);
    }
    problem_make(&p, 37, 521, 1, ASSAY_FLOAT64);
    problem_run(ctx, &p);
    assert_same_bits(p.y, first->y, p.rows * p.dim);
    assert_same_bits(p.rstd, first->rstd, p.rows);
    assert_same_bits(p.dx, first->dx, p.rows * p.dim);
    assert_same_bits(p.dscale, first->dscale, p.dim);
    problem_free(&p);
}

TEST(test_threads_and_instruction_sets_give_the_same_bits)
{
    problem first = {0};
    test_each_context(same_bits, &first);
    problem_free(&first);
}

TEST(test_rows_do_not_meet)
{
    assay_context ctx = assay_context_default(2);
    problem clean, p;
    problem_make(&clean, 5, 19, 1, ASSAY_FLOAT64);
    problem_make(&p, 5, 19, 1, ASSAY_FLOAT64);
    p.x[2 * 19 + 4] = NAN;
    problem_run(&ctx, &clean);
    problem_run(&ctx, &p);
    assert_all_nan(p.y + 2 * 19, 19);
    assert_all_nan(p.dx + 2 * 19, 19);
    assert_same_bits(p.y, clean.y, 2 * 19);
    assert_same_bits(p.y + 3 * 19, clean.y + 3 * 19, 2 * 19);
    assert_same_bits(p.dx + 3 * 19, clean.dx + 3 * 19, 2 * 19);
    assert_all_nan(p.dscale, 19);
    problem_free(&clean);
    problem_free(&p);
}

TEST(test_no_rows_and_missing_results)
{
    assay_context ctx = assay_context_default(2);
    problem none, p;
    problem_make(&none, 0, 5, 1, ASSAY_FLOAT64);
    problem_run(&ctx, &none);
    for (int64_t i = 0; i < 5; i++) assert_true(none.dscale[i] == 0);
    problem_make(&p, 3, 5, 1, ASSAY_FLOAT64);
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
    problem_free(&none);
    problem_free(&p);
}

/* An implementation in float32 that stores in `storage`: x rstd before it is scaled, g, and the terms of dscale too. */
static void low_precision(const problem *p, assay_dtype storage, double *y, double *dx, double *dscale)
{
    float sums[1024] = {0};
    for (int64_t row = 0; row < p->rows; row++) {
        const double *x = p->x + row * p->dim, *dy = p->dy + row * p->dim;
        float squares = 0, product = 0;
        for (int64_t i = 0; i < p->dim; i++) squares += (float)(x[i] * x[i]);
        const float rstd = 1 / sqrtf(squares / (float)p->dim + (float)EPSILON);
        for (int64_t i = 0; i < p->dim; i++) {
            double normal = assay_dtype_round(storage, (float)x[i] * rstd, false);
            double g = assay_dtype_round(storage, dy[i] * p->scale[i], false);
            y[row * p->dim + i] = assay_dtype_round(storage, normal * p->scale[i], false);
            sums[i] += (float)assay_dtype_round(storage, dy[i] * normal, false);
            product += (float)(g * x[i]);
            dx[row * p->dim + i] = g;
        }
        const float mean = product / (float)p->dim;
        for (int64_t i = 0; i < p->dim; i++) {
            const float g = (float)dx[row * p->dim + i], through = (float)x[i] * (rstd * rstd * mean);
            dx[row * p->dim + i] = assay_dtype_round(storage, rstd * (g - through), false);
        }
    }
    for (int64_t i = 0; i < p->dim; i++) dscale[i] = assay_dtype_round(storage, sums[i], false);
}

TEST(test_errors_lie_under_sigma_and_not_far)
{
    static const struct {
        assay_precision precision;
        assay_dtype storage;
        int64_t rows, dim;
        double size_of_dy;
    } CASES[] = {
        {{"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0}, ASSAY_BFLOAT16, 40, 96, 1},
        {{"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0}, ASSAY_BFLOAT16, 8, 1024, 1},
        {{"f16", RMS(0x1p-11), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0}, ASSAY_FLOAT16, 64, 64, 1},
        {{"f16", RMS(0x1p-11), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0x1p-24},
         ASSAY_FLOAT16,
         64,
         64,
         0x1p-15},
        {{"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0}, ASSAY_FLOAT32, 40, 96, 1},
        {{"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0}, ASSAY_FLOAT32, 8, 1024, 1},
    };
    assay_context ctx = assay_context_default(2);
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        const int64_t size = CASES[c].rows * CASES[c].dim, dim = CASES[c].dim;
        problem p;
        problem_make(&p, CASES[c].rows, dim, 1, CASES[c].storage);
        make_dy_smaller(&p, CASES[c].storage, CASES[c].size_of_dy);
        problem_run(&ctx, &p);
        double *y = test_nans(size), *dx = test_nans(size), *dscale = test_nans(dim);
        double *vy = test_nans(size), *vdx = test_nans(size), *vdscale = test_nans(dim);
        low_precision(&p, CASES[c].storage, y, dx, dscale);
        assert_ok(&ctx,
                  assay_propagate_rms_norm(&ctx, &CASES[c].precision, &(assay_rms_norm_variances){vy, vdx, vdscale},
                                           &(assay_rms_norm_run){p.dy, p.x, p.scale, p.rstd, p.rows, dim}));
        const assay_dtype storage = CASES[c].storage;
        const test_ratio ratio[] = {test_ratio_of(size, y, p.y, vy, storage),
                                    test_ratio_of(size, dx, p.dx, vdx, storage),
                                    test_ratio_of(dim, dscale, p.dscale, vdscale, storage)};
        for (int t = 0; t < 3; t++) {
            assert_true(ratio[t].rms >= 0.4 && ratio[t].rms <= 1.05 && ratio[t].largest <= 5);
        }
        double *alone = test_nans(dim);
        assert_ok(&ctx,
                  assay_propagate_rms_norm(&ctx, &CASES[c].precision, &(assay_rms_norm_variances){NULL, NULL, alone},
                                           &(assay_rms_norm_run){p.dy, p.x, p.scale, p.rstd, p.rows, dim}));
        assert_same_bits(alone, vdscale, dim);
        double *const all[] = {y, dx, dscale, vy, vdx, vdscale, alone};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        problem_free(&p);
    }
}

/* Squared errors over variances, summed. */
static double spread(int64_t count, const double *member, const double *golden, const double *variance)
{
    double squares = 0, variances = 0;
    for (int64_t i = 0; i < count; i++) {
        squares += (member[i] - golden[i]) * (member[i] - golden[i]);
        variances += variance[i];
    }
    return squares / variances;
}

/* Propagation counts each rounding as one just above a power of two, and takes the worse of the orders in which a product
 * may be made and stored; stochastic rounding has the variance of two. */
TEST(test_emulated_spread_and_error_scale_agree)
{
#define F16                                                                                                            \
    {                                                                                                                  \
        "f16", RMS(0x1p-11), 0, RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0x1p-24                                  \
    }
    static const struct {
        assay_precision precision;
        assay_dtype storage;
        int64_t dim;
        double size_of_x, size_of_dy, most;
    } CASES[] = {
        {{"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0}, ASSAY_BFLOAT16, 48, 1, 1, 1.5},
        {{"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0}, ASSAY_FLOAT32, 48, 1, 1, 1.5},
        {{"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), 0, .least = 0}, ASSAY_FLOAT32, 2111, 1, 1, 1.5},
        /* below the normal numbers a rounding counts as it is */
        {F16, ASSAY_FLOAT16, 48, 1, 0x1p-15, 2.1},
        {F16, ASSAY_FLOAT16, 48, 0x1p-8, 0x1p-8, 2.1}};
    enum { ROWS = 16, MEMBERS = 60 };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        assay_context ctx = assay_context_default(1), member = ctx;
        assay_emulation emulation = {
            .precision = CASES[c].precision, .storage = CASES[c].storage, .multiply = CASES[c].storage};
        const int64_t dim = CASES[c].dim, size = ROWS * dim;
        problem p, drawn;
        problem_make(&p, ROWS, dim, CASES[c].size_of_x, CASES[c].storage);
        problem_make(&drawn, ROWS, dim, CASES[c].size_of_x, CASES[c].storage);
        make_dy_smaller(&p, CASES[c].storage, CASES[c].size_of_dy);
        make_dy_smaller(&drawn, CASES[c].storage, CASES[c].size_of_dy);
        problem_run(&ctx, &p);
        double *y = test_nans(size), *dx = test_nans(size), *dscale = test_nans(dim), sums[3] = {0};
        assert_ok(&ctx, assay_propagate_rms_norm(&ctx, &CASES[c].precision, &(assay_rms_norm_variances){y, dx, dscale},
                                                 &(assay_rms_norm_run){p.dy, p.x, p.scale, p.rstd, ROWS, dim}));
        member.arithmetic = &assay_arithmetic_emulated;
        member.emulation = &emulation;
        for (int i = 0; i < MEMBERS; i++) {
            emulation.seed = (uint64_t)i;
            problem_run(&member, &drawn);
            sums[0] += spread(size, drawn.y, p.y, y) / MEMBERS;
            sums[1] += spread(size, drawn.dx, p.dx, dx) / MEMBERS;
            sums[2] += spread(dim, drawn.dscale, p.dscale, dscale) / MEMBERS;
        }
        for (int i = 0; i < 3; i++) {
            if (!(sums[i] > 0.35 && sums[i] < CASES[c].most)) fail_msg("case %zu, result %d: %g", c, i, sums[i]);
        }
        free(y);
        free(dx);
        free(dscale);
        problem_free(&p);
        problem_free(&drawn);
    }
}

/* Where rstd is near 1, x rstd is x again to nearest, and its errors all go one way: one of the emulated runs has that. */
TEST(test_normalised_rows_are_rounded_before_the_gradient_of_the_scale)
{
    const double x[] = {1, -1.5, 0.75, 3}, dy[] = {1, 1, 1, 1}, rstd = 0.9993;
    const assay_emulation nearest = {.storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .nearest = true};
    assay_context ctx = assay_context_default(1);
    double dscale[4];
    assay_rms_norm_backward(&ctx, NULL, dscale, dy, x, NULL, &rstd, 1, 4);
    for (int i = 0; i < 4; i++) assert_true(dscale[i] == x[i] * rstd);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &nearest;
    assay_rms_norm_backward(&ctx, NULL, dscale, dy, x, NULL, &rstd, 1, 4);
    for (int i = 0; i < 4; i++) assert_true(dscale[i] == x[i]);
}

/* One column: x rstd is 1 but for epsilon, so that a kernel which keeps it rounded has a gradient of 0. */
TEST(test_normalised_rows_are_rounded_before_the_gradient_of_x)
{
    const double x[] = {1.5}, dy[] = {1.25}, scale[] = {1}, rstd = 0.999 / 1.5;
    assay_emulation emulation = {.storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .nearest = true};
    assay_context ctx = assay_context_default(1);
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
