/* The float64 operations of oracle/ops, forward and backward, certified in binary128. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/spec/tests/spec_case.h"

static void start(spec_case *c, uint64_t seed)
{
    case_start(c, seed);
    c->ctx = assay_context_default(1);
}

static void test_rms_norm(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, dim;
        double scale, epsilon;
    } table[] = {{1, 1, 1, .5},       {3, 5, 1, 1e-6},   {7, 2, 1e-3, 1e-6},
                 {2, 13, 1e-4, 1e-5}, {4, 3, 1e5, 1e-6}, {1, 64, 3, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        spec_case c;
        int64_t rows = table[i].rows, dim = table[i].dim;
        start(&c, i);
        const double *x = case_random(&c, "inputs/x", table[i].scale, DIMS(rows, dim));
        const double *scale = case_random(&c, "weights/scale", 2, DIMS(dim));
        const double *dy = case_random(&c, "cotangents/y", 1, DIMS(rows, dim));
        double *y = case_output(&c, "outputs/y", DIMS(rows, dim));
        double *dx = case_output(&c, "gradients/inputs/x", DIMS(rows, dim));
        double *dscale = case_output(&c, "gradients/weights/scale", DIMS(dim));
        double rstd[8];
        assay_rms_norm_forward(&c.ctx, y, rstd, x, scale, rows, dim, table[i].epsilon);
        assay_rms_norm_backward(&c.ctx, dx, dscale, dy, x, scale, rstd, rows, dim);
        const spec_rms_norm_config config = {table[i].epsilon};
        case_certify_outputs(&c, "rms_norm", &config, OUTPUT_LIMIT);
        case_certify_gradients(&c, "rms_norm", &config, GRADIENT_LIMIT);
        case_end(&c);
    }
}

static void certify_gmm(const assay_gmm_dims *sizes, const int32_t *groups, uint64_t seed)
{
    spec_case c;
    start(&c, seed);
    int64_t m = sizes->m, k = sizes->k, n = sizes->n, used = 0;
    for (int64_t g = 0; g < sizes->groups; g++) used += groups[g];
    double lhs_values[64], dy_values[64];
    for (int64_t i = 0; i < m * k; i++) lhs_values[i] = i < used * k ? case_draw(&c) : NAN;
    for (int64_t i = 0; i < m * n; i++) dy_values[i] = i < used * n ? case_draw(&c) : NAN;
    const double *lhs = case_values(&c, "inputs/lhs", lhs_values, DIMS(m, k));
    const double *dy = case_values(&c, "cotangents/y", dy_values, DIMS(m, n));
    const double *rhs = case_random(&c, "weights/rhs", 1, DIMS(sizes->groups, k, n));
    case_indices(&c, "inputs/group_sizes", groups, DIMS(sizes->groups));
    double *y = case_output(&c, "outputs/y", DIMS(m, n));
    double *dlhs = case_output(&c, "gradients/inputs/lhs", DIMS(m, k));
    double *drhs = case_output(&c, "gradients/weights/rhs", DIMS(sizes->groups, k, n));
    assert_ok(&c.ctx, assay_gmm_forward(&c.ctx, y, lhs, rhs, groups, sizes));
    assert_ok(&c.ctx, assay_gmm_backward(&c.ctx, dlhs, drhs, dy, lhs, rhs, groups, sizes));
    case_certify_outputs(&c, "gmm", sizes, OUTPUT_LIMIT);
    case_certify_gradients(&c, "gmm", sizes, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_gmm(void **state)
{
    (void)state;
    certify_gmm(&(assay_gmm_dims){9, 5, 3, 4}, (int32_t[]){2, 0, 4, 3}, 1);
    certify_gmm(&(assay_gmm_dims){9, 5, 7, 4}, (int32_t[]){0, 3, 0, 2}, 2); /* a tail of NaN */
    certify_gmm(&(assay_gmm_dims){1, 1, 1, 3}, (int32_t[]){0, 0, 1}, 3);
    certify_gmm(&(assay_gmm_dims){5, 7, 1, 1}, (int32_t[]){5}, 4);
    certify_gmm(&(assay_gmm_dims){3, 2, 2, 2}, (int32_t[]){0, 0}, 5); /* nothing at all */
}

typedef struct mlp_variant {
    assay_glu glu;
    assay_activation activation[2];
    bool fused, biases;
    int64_t rows, emb_dim, mlp_dim;
    double scale; /* of x */
} mlp_variant;

static void certify_mlp(const mlp_variant *v, uint64_t seed)
{
    spec_case c;
    start(&c, seed);
    int64_t rows = v->rows, dim = v->emb_dim, width = v->mlp_dim;
    const assay_gated_mlp_config config = {.rows = rows,
                                           .emb_dim = dim,
                                           .mlp_dim = width,
                                           .activation = {v->activation[0], v->activation[1]},
                                           .glu = v->glu,
                                           .limit = .5,
                                           .fused = v->fused};
    assay_gated_mlp_weights w = {0};
    assay_gated_mlp_gradients g = {0};
    const double *x = case_random(&c, "inputs/x", v->scale, DIMS(1, rows, dim));
    const double *dy = case_random(&c, "cotangents/y", 1, DIMS(1, rows, dim));
    if (v->fused) {
        w.wi = case_random(&c, "weights/wi/kernel", 1, DIMS(dim, 2 * width));
        g.dwi = case_output(&c, "gradients/weights/wi/kernel", DIMS(dim, 2 * width));
    } else {
        w.wi_0 = case_random(&c, "weights/wi_0/kernel", 1, DIMS(dim, width));
        w.wi_1 = case_random(&c, "weights/wi_1/kernel", 1, DIMS(dim, width));
        g.dwi_0 = case_output(&c, "gradients/weights/wi_0/kernel", DIMS(dim, width));
        g.dwi_1 = case_output(&c, "gradients/weights/wi_1/kernel", DIMS(dim, width));
    }
    w.wo = case_random(&c, "weights/wo/kernel", 1, DIMS(width, dim));
    g.dwo = case_output(&c, "gradients/weights/wo/kernel", DIMS(width, dim));
    if (v->biases) {
        w.wi_0_bias = case_random(&c, "weights/wi_0/bias", 1, DIMS(width));
        w.wi_1_bias = case_random(&c, "weights/wi_1/bias", 1, DIMS(width));
        w.wo_bias = case_random(&c, "weights/wo/bias", 1, DIMS(dim));
        g.dwi_0_bias = case_output(&c, "gradients/weights/wi_0/bias", DIMS(width));
        g.dwi_1_bias = case_output(&c, "gradients/weights/wi_1/bias", DIMS(width));
        g.dwo_bias = case_output(&c, "gradients/weights/wo/bias", DIMS(dim));
    }
    g.dx = case_output(&c, "gradients/inputs/x", DIMS(1, rows, dim));
    double *y = case_output(&c, "outputs/y", DIMS(1, rows, dim));
    double *a = case_output(&c, "checkpoints/mlpwi_0", DIMS(1, rows, width));
    double *b = case_output(&c, "checkpoints/mlpwi_1", DIMS(1, rows, width));
    assay_gated_mlp_residuals r = {0};
    assert_ok(&c.ctx, assay_gated_mlp_residuals_alloc(&c.ctx, &r, &config));
    assert_ok(&c.ctx, assay_gated_mlp_forward(&c.ctx, y, &r, x, &w, &config));
    assert_ok(&c.ctx, assay_gated_mlp_backward(&c.ctx, &g, dy, &r, x, &w, &config));
    for (int64_t i = 0; i < rows * width; i++) {
        a[i] = r.a[i / width * r.ld + i % width];
        b[i] = r.b[i / width * r.ld + i % width];
    }
    assay_gated_mlp_residuals_free(&r);
    case_certify_outputs(&c, "mlp", &config, OUTPUT_LIMIT);
    case_certify_gradients(&c, "mlp", &config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_gated_mlp(void **state)
{
    (void)state;
    uint64_t seed = 0;
    for (int f = 0; f < ASSAY_ACTIVATION_COUNT; f++) {
        for (int fused = 0; fused < 2; fused++) {
            mlp_variant v = {ASSAY_GLU_PLAIN, {(assay_activation)f, ASSAY_LINEAR}, fused, fused == 0, 4, 5, 7, 1};
            certify_mlp(&v, seed++);
            v.biases = !v.biases;
            v.scale = 8; /* into the tails */
            certify_mlp(&v, seed++);
        }
    }
    certify_mlp(&(mlp_variant){ASSAY_GLU_PLAIN, {ASSAY_SILU, ASSAY_GELU}, false, false, 3, 5, 7, 1}, seed++);
    certify_mlp(&(mlp_variant){ASSAY_GLU_PLAIN, {ASSAY_RELU, ASSAY_SIGMOID}, true, true, 3, 5, 7, 1}, seed++);
    certify_mlp(&(mlp_variant){ASSAY_GLU_PLAIN, {ASSAY_SILU, ASSAY_LINEAR}, true, true, 1, 1, 1, 1}, seed++);
}

static void test_clamped_mlp(void **state)
{
    (void)state;
    uint64_t seed = 100;
    for (int biases = 0; biases < 2; biases++) {
        for (int fused = 0; fused < 2; fused++) {
            certify_mlp(&(mlp_variant){ASSAY_GLU_GPT_OSS, {ASSAY_SIGMOID, ASSAY_LINEAR}, fused, biases, 4, 5, 7, 1},
                        seed++);
            certify_mlp(&(mlp_variant){ASSAY_GLU_CLAMPED, {ASSAY_SILU, ASSAY_LINEAR}, fused, biases, 4, 5, 7, 1},
                        seed++);
            certify_mlp(&(mlp_variant){ASSAY_GLU_CLAMPED, {ASSAY_GELU, ASSAY_LINEAR}, fused, biases, 3, 4, 6, .2},
                        seed++);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_gmm),
        cmocka_unit_test(test_gated_mlp),
        cmocka_unit_test(test_clamped_mlp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
