#include "oracle/ops/gated_mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/glu.h"
#include "oracle/ops/tests/mlp_problem.h"
#include "oracle/ops/tests/ops_test.h"
#include "oracle/propagate/glu_factor.h"

TEST_LABELS(threads);

/* Awkward sizes, more columns than a thread takes at once. */
static const int64_t SHAPES[][3] = {{1, 1, 1}, {2, 3, 1}, {5, 1, 7}, {3, 17, 521}, {1, 64, 1030}, {37, 29, 31}};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

static const assay_gated_mlp_config FORMS[] = {
    {.activation = {ASSAY_SILU, ASSAY_LINEAR}, .glu = ASSAY_GLU_PLAIN},
    {.activation = {ASSAY_GELU, ASSAY_GELU_EXACT}, .glu = ASSAY_GLU_PLAIN},
    {.activation = {ASSAY_SILU, ASSAY_LINEAR}, .glu = ASSAY_GLU_CLAMPED, .limit = 1},
    {.activation = {ASSAY_SIGMOID, ASSAY_LINEAR}, .glu = ASSAY_GLU_GPT_OSS, .limit = 1},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

static assay_gated_mlp_config shaped(int form, int shape)
{
    assay_gated_mlp_config config = FORMS[form];
    config.rows = SHAPES[shape][0];
    config.emb_dim = SHAPES[shape][1];
    config.mlp_dim = SHAPES[shape][2];
    return config;
}

TEST(test_fused_and_unfused_are_the_same_bits)
{
    assay_context ctx = assay_context_default(2);
    for (int i = 0; i < FORM_COUNT * SHAPE_COUNT; i++) {
        assay_gated_mlp_config config = shaped(i / SHAPE_COUNT, i % SHAPE_COUNT);
        mlp_problem unfused, fused;
        mlp_problem_make(&ctx, &unfused, &config, i % 2 == 0, ASSAY_FLOAT64, 5);
        config.fused = true;
        mlp_problem_make(&ctx, &fused, &config, i % 2 == 0, ASSAY_FLOAT64, 5);
        mlp_problem_run(&ctx, &unfused);
        mlp_problem_run(&ctx, &fused);
        assert_same_bits(fused.y, unfused.y, config.rows * config.emb_dim);
        for (int64_t row = 0; row < config.rows; row++) {
            const int64_t hidden = config.mlp_dim;
            assert_same_bits(fused.r.a + row * fused.r.ld, unfused.r.a + row * hidden, hidden);
            assert_same_bits(fused.r.b + row * fused.r.ld, unfused.r.b + row * hidden, hidden);
        }
        assert_same_bits(fused.dh, unfused.dh, config.rows * config.mlp_dim);
        assert_same_bits(fused.gradient[0], unfused.gradient[0], fused.count);
        mlp_problem_free(&unfused);
        mlp_problem_free(&fused);
    }
}

/* By a recipe: more rows than a block has. */
static assay_gated_mlp_config by_recipe(const char *name, bool fused)
{
    const assay_calibration absmax = {.factor = 1};
    assay_gated_mlp_config config = shaped(0, 0);
    config.rows = 131;
    config.emb_dim = 5;
    config.mlp_dim = 20;
    config.fused = fused;
    config.recipe = (assay_recipe_config){
        .recipe = assay_quant_recipe_by_name(name), .type = ASSAY_BFLOAT16, .x = absmax, .w = absmax, .dy = absmax};
    assert_non_null(config.recipe.recipe);
    return config;
}

static const char *const recipes[] = {"deepseek_v3", "fp8_full"};

typedef struct expected {
    assay_gated_mlp_config config;
    double *y, *gradient; /* of the first context; NULL before */
} expected;

static void same_bits(assay_context *ctx, void *data)
{
    expected *e = data;
    mlp_problem p;
    mlp_problem_make(ctx, &p, &e->config, true, ASSAY_FLOAT64, 9);
    mlp_problem_run(ctx, &p);
    if (e->y == NULL) {
        size_t y_bytes = (size_t)(e->config.rows * e->config.emb_dim) * sizeof *e->y;
        size_t bytes = (size_t)p.count * sizeof *e->gradient;
        e->y = malloc(y_bytes);
        e->gradient = malloc(bytes);
        memcpy(e->y, p.y, y_bytes);
        memcpy(e->gradient, p.gradient[0], bytes);
    }
    assert_same_bits(p.y, e->y, e->config.rows * e->config.emb_dim);
    assert_same_bits(p.gradient[0], e->gradient, p.count);
    mlp_problem_free(&p);
}

TEST(test_threads_and_instruction_sets_give_the_same_bits)
{
    for (int i = 0; i < FORM_COUNT; i++) {
        expected e = {.config = shaped(i, 3 + i % 3)};
        e.config.fused = i % 2 == 1;
        test_each_context(same_bits, &e);
        free(e.y);
        free(e.gradient);
    }
    for (int i = 0; i < 4; i++) {
        expected e = {.config = by_recipe(recipes[i / 2], i % 2 == 1)};
        test_each_context(same_bits, &e);
        free(e.y);
        free(e.gradient);
    }
}

TEST(test_each_gradient_alone_and_nothing_else)
{
    assay_context ctx = assay_context_default(2);
    for (int fused = 0; fused < 2; fused++) {
        assay_gated_mlp_config config = shaped(0, 3);
        config.fused = fused;
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 3);
        mlp_problem_run(&ctx, &p);
        double *all = malloc((size_t)p.count * sizeof *all);
        memcpy(all, p.gradient[0], (size_t)p.count * sizeof *all);
        double *dh = test_nans(config.rows * config.mlp_dim);
        memcpy(dh, p.dh, (size_t)(config.rows * config.mlp_dim) * sizeof *dh);
        for (int part = -1; part < MLP_PARTS; part++) {
            assay_gated_mlp_gradients one;
            mlp_problem_gradients_of(&p, part, &one);
            assay_fill_nan(p.gradient[0], p.count);
            assay_fill_nan(p.dh, config.rows * config.mlp_dim);
            assert_ok(&ctx, assay_gated_mlp_backward(&ctx, &one, p.dy, &p.r, p.part[MLP_X], &p.w, &config));
            mlp_problem_split(&p, part);
            for (int other = 0; other < MLP_PARTS; other++) {
                bool written = fused && other == MLP_WI_1 ? part == MLP_WI_0 : other == part;
                if (written) {
                    assert_same_bits(p.gradient[other], all + (p.part[other] - p.part[0]), p.size[other]);
                } else {
                    assert_all_nan(p.gradient[other], p.size[other]);
                }
            }
            if (part < 0) {
                assert_same_bits(p.dh, dh, config.rows * config.mlp_dim);
            } else {
                assert_all_nan(p.dh, config.rows * config.mlp_dim);
            }
        }
        free(dh);
        free(all);
        mlp_problem_free(&p);
    }
}

/* One layer by itself: y = x w, and from dy its two gradients; outputs are compared with those of the MLP. */
typedef struct layer {
    const double *x, *w, *dy, *y, *dw;
    double *dx;
    int64_t k, n;
} layer;

static void check_layer(assay_context *ctx, const assay_gated_mlp_config *config, const layer *l)
{
    const int32_t all = (int32_t)config->rows;
    const assay_gmm_dims dims = {.m = config->rows, .k = l->k, .n = l->n, .groups = 1};
    const assay_recipe_given given = {.x = l->x, .w = l->w, .dy = l->dy, .group_sizes = &all};
    assay_recipe_operands o = {0};
    double *y = test_nans(dims.m * l->n), *dw = test_nans(l->k * l->n);
    assert_ok(ctx, assay_recipe_quantise(ctx, &o, &given, &dims, &config->recipe));
    assert_ok(ctx, assay_gmm_forward(ctx, y, o.x, o.w, &all, &dims));
    assert_ok(ctx, assay_gmm_backward(ctx, l->dx, NULL, o.dx_dy, NULL, o.dx_w, &all, &dims));
    assert_ok(ctx, assay_gmm_backward(ctx, NULL, dw, o.dw_dy, o.dw_x, NULL, &all, &dims));
    assert_same_bits(y, l->y, dims.m * l->n);
    assert_same_bits(dw, l->dw, l->k * l->n);
    assay_recipe_operands_free(&o);
    free(y);
    free(dw);
}

/* It is three grouped products of one group with the activation between them. */
static void check_recipe(const char *name)
{
    assay_context ctx = assay_context_default(2);
    const assay_gated_mlp_config config = by_recipe(name, false);
    const int64_t rows = config.rows, dim = config.emb_dim, width = config.mlp_dim;
    mlp_problem p;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_BFLOAT16, 7);
    mlp_problem_run(&ctx, &p);
    double *dh = test_nans(rows * width), *da = test_nans(rows * width), *db = test_nans(rows * width);
    double *dx = test_nans(rows * dim), *through_b = test_nans(rows * dim);
    const layer down = {p.r.h, p.part[MLP_WO], p.dy, p.y, p.gradient[MLP_WO], dh, width, dim};
    check_layer(&ctx, &config, &down);
    assert_same_bits(dh, p.dh, rows * width);
    assay_glu_backward(&ctx, da, db, dh, p.r.a, p.r.b, rows * width, &config);
    const layer gate = {p.part[MLP_X], p.part[MLP_WI_0], da, p.r.a, p.gradient[MLP_WI_0], dx, dim, width};
    const layer up = {p.part[MLP_X], p.part[MLP_WI_1], db, p.r.b, p.gradient[MLP_WI_1], through_b, dim, width};
    check_layer(&ctx, &config, &gate);
    check_layer(&ctx, &config, &up);
    for (int64_t i = 0; i < rows * dim; i++) dx[i] += through_b[i];
    assert_same_bits(dx, p.gradient[MLP_X], rows * dim);
    double *const all[] = {dh, da, db, dx, through_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    mlp_problem_free(&p);
}

TEST(test_a_recipe_is_that_of_each_product)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) check_recipe(recipes[i]);
}

/* What is quantised is moved: gradients of weights change, h and the gradients of gate and up do not. */
TEST(test_emulated_runs_move_what_a_recipe_quantises)
{
    const assay_emulation emulation = {.seed = 3};
    const assay_gated_mlp_config config = by_recipe("deepseek_v3", true);
    const int64_t count = config.rows * config.mlp_dim, of_w = config.emb_dim * 2 * config.mlp_dim;
    mlp_problem p, moved;
    assay_context ctx = assay_context_default(1), emulated = ctx;
    mlp_problem_make(&ctx, &p, &config, false, ASSAY_BFLOAT16, 7);
    mlp_problem_make(&ctx, &moved, &config, false, ASSAY_BFLOAT16, 7);
    double *spread = test_nans(2 * count);
    for (int64_t i = 0; i < 2 * count; i++) spread[i] = 1e-3;
    moved.r.h_spread = moved.r.d_up_spread = spread;
    emulated.emulation = &emulation; /* in exact arithmetic */
    mlp_problem_run(&ctx, &p);
    mlp_problem_run(&emulated, &moved);
    assert_same_bits(moved.r.h, p.r.h, count);
    assert_same_bits(moved.y, p.y, config.rows * config.emb_dim);
    assert_same_bits(moved.dh, p.dh, count);
    assert_true(memcmp(moved.dwi, p.dwi, (size_t)of_w * sizeof *p.dwi) != 0);
    assert_true(memcmp(moved.gradient[MLP_WO], p.gradient[MLP_WO], (size_t)p.size[MLP_WO] * sizeof *p.dwi) != 0);
    free(spread);
    mlp_problem_free(&p);
    mlp_problem_free(&moved);
}

TEST(test_no_rows_have_zero_gradients)
{
    assay_context ctx = assay_context_default(2);
    for (int fused = 0; fused < 2; fused++) {
        assay_gated_mlp_config config = shaped(0, 3);
        config.rows = 0;
        config.fused = fused;
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 3);
        mlp_problem_run(&ctx, &p);
        assert_int_equal(p.size[MLP_X], 0);
        double zero = 0;
        for (int64_t i = 0; i < p.count; i++) assert_same_bits(&p.gradient[0][i], &zero, 1);
        mlp_problem_free(&p);
    }
}

/* One hidden value, weights 1: a = x_0, b = x_1. */
static void clamp_case(assay_glu glu_form, double a, double b, double *da, double *db)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = {
        .rows = 1, .emb_dim = 2, .mlp_dim = 1, .activation = {ASSAY_SILU, ASSAY_LINEAR}, .glu = glu_form, .limit = 2};
    const double x[] = {a, b}, wi_0[] = {1, 0}, wi_1[] = {0, 1}, wo[] = {1, 0}, dy[] = {1, 0};
    const assay_gated_mlp_weights w = {.w = {[ASSAY_MLP_WI_0] = wi_0, [ASSAY_MLP_WI_1] = wi_1, [ASSAY_MLP_WO] = wo}};
    double y[2], dx[2];
    assay_gated_mlp_residuals r;
    assert_ok(&ctx, assay_gated_mlp_residuals_alloc(&ctx, &r, &config));
    assert_ok(&ctx, assay_gated_mlp_forward(&ctx, y, &r, x, &w, &config));
    assert_true(r.a[0] == a && r.b[0] == b);
    const assay_gated_mlp_gradients g = {.dx = dx};
    assert_ok(&ctx, assay_gated_mlp_backward(&ctx, &g, dy, &r, x, &w, &config));
    *da = dx[0];
    *db = dx[1];
    assay_gated_mlp_residuals_free(&r);
}

TEST(test_beyond_a_clamp_nothing_moves)
{
    static const struct {
        double a, b;
        bool a_moves, b_moves;
    } CASES[] = {{1, 1, true, true},      {2, 2, true, true},       {2, -2, true, true}, {2.001, 1, false, true},
                 {1, 2.001, true, false}, {1, -2.001, true, false}, {-9, 1, true, true}, {3, 3, false, false}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (int form = ASSAY_GLU_GPT_OSS; form <= ASSAY_GLU_CLAMPED; form++) {
            double da = NAN, db = NAN;
            clamp_case((assay_glu)form, CASES[i].a, CASES[i].b, &da, &db);
            assert_true(isfinite(da) && (da != 0) == CASES[i].a_moves);
            assert_true(isfinite(db) && (db != 0) == CASES[i].b_moves);
        }
    }
}

/* GPT-OSS's gate with an alpha of 1, also as errors are propagated through it. */
TEST(test_alpha_of_1_is_silu)
{
    const assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = {.glu = ASSAY_GLU_GPT_OSS, .limit = 2, .alpha = 1};
    for (double a = -8; a < 3; a += 0.37) {
        const double b = 0, dh = 1;
        const assay_activation_point silu = assay_activation_at(ASSAY_SILU, fmin(a, 2));
        const assay_glu_factor u = assay_glu_gate(&config, a, 0);
        double h = NAN, da = NAN, db = NAN;
        assay_glu_forward(&ctx, &h, &a, &b, 1, &config);
        assay_glu_backward(&ctx, &da, &db, &dh, &a, &b, 1, &config);
        assert_true(fabs(h - silu.value) < 1e-15 && fabs(db - silu.value) < 1e-15);
        assert_true(fabs(da - (a > 2 ? 0 : silu.first)) < 1e-15 && fabs(u.first - da) < 1e-15);
        assert_true(fabs(u.value - silu.value) < 1e-15);
        assert_true(fabs(u.second - (a > 2 ? 0 : silu.second)) < 1e-15);
    }
}

TEST(test_nan_stays_in_its_row)
{
    assay_context ctx = assay_context_default(2);
    for (int form = 0; form < FORM_COUNT; form++) {
        assay_gated_mlp_config config = shaped(form, 5);
        const int64_t dim = config.emb_dim, bad = 11;
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT64, 3);
        mlp_problem_run(&ctx, &p);
        double *y = p.y, *dx = malloc((size_t)p.size[MLP_X] * sizeof *dx);
        memcpy(dx, p.gradient[MLP_X], (size_t)p.size[MLP_X] * sizeof *dx);
        p.y = test_nans(config.rows * dim);
        p.part[MLP_X][bad * dim + 3] = NAN;
        mlp_problem_run(&ctx, &p);
        assert_all_nan(p.y + bad * dim, dim);
        assert_all_nan(p.gradient[MLP_X] + bad * dim, dim);
        assert_same_bits(p.y, y, bad * dim);
        assert_same_bits(p.y + (bad + 1) * dim, y + (bad + 1) * dim, (config.rows - bad - 1) * dim);
        assert_same_bits(p.gradient[MLP_X], dx, bad * dim);
        assert_all_nan(p.gradient[MLP_WO], p.size[MLP_WO]);
        free(y);
        free(dx);
        mlp_problem_free(&p);
    }
}

TEST(test_failing_allocations)
{
    assay_context ctx = assay_context_default(1);
    for (int form = 0; form < 6; form++) {
        assay_gated_mlp_config config = form < 2 ? shaped(0, 2) : by_recipe(recipes[form / 2 - 1], false);
        config.fused = form % 2 == 1;
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 3);
        int failures = 0;
        for (;; failures++) {
            assay_gated_mlp_residuals r = {0};
            assay_fail_allocation(failures);
            assay_status status = assay_gated_mlp_residuals_alloc(&ctx, &r, &config);
            if (status == ASSAY_OK) status = assay_gated_mlp_forward(&ctx, p.y, &r, p.part[MLP_X], &p.w, &config);
            if (status == ASSAY_OK)
                status = assay_gated_mlp_backward(&ctx, &p.g, p.dy, &r, p.part[MLP_X], &p.w, &config);
            assay_gated_mlp_residuals_free(&r);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(failures >= 3);
        mlp_problem_free(&p);
    }
}

TEST(test_sizes_that_cannot_be)
{
    assay_context ctx = assay_context_default(1);
    assay_gated_mlp_residuals r = {0};
    const assay_gated_mlp_config huge = {.rows = INT64_MAX / 4, .emb_dim = 1, .mlp_dim = INT64_MAX / 4};
    const assay_gated_mlp_config negative = {.rows = -1, .emb_dim = 1, .mlp_dim = 1};
    assert_int_equal(assay_gated_mlp_residuals_alloc(&ctx, &r, &huge), ASSAY_BAD_INPUT);
    assert_null(r.storage);
    assert_int_equal(assay_gated_mlp_residuals_alloc(&ctx, &r, &negative), ASSAY_BAD_INPUT);
    assert_null(r.storage);
}
