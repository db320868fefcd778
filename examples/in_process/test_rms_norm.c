/* A kernel of your own in a test of cmocka: RMS norm in float32, forward and backward; and a wrong one, which must be found. */
#include <assay/test.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 32, DIM = 16 };

/* The kernel that is tried. */
static void rms_norm(const float *x, const float *scale, const float *dy, float epsilon, float *y, float *dx,
                     float *dscale)
{
    memset(dscale, 0, DIM * sizeof *dscale);
    for (int row = 0; row < ROWS; row++, x += DIM, dy += DIM, y += DIM, dx += DIM) {
        float squares = 0, product = 0;
        for (int i = 0; i < DIM; i++) squares += x[i] * x[i];
        const float rstd = 1 / sqrtf(squares / DIM + epsilon);
        for (int i = 0; i < DIM; i++) product += dy[i] * scale[i] * x[i];
        for (int i = 0; i < DIM; i++) {
            y[i] = x[i] * rstd * scale[i];
            dx[i] = rstd * (dy[i] * scale[i] - x[i] * rstd * rstd * (product / DIM));
            dscale[i] += dy[i] * x[i] * rstd;
        }
    }
}

static const void *given(assay_test *test, const char *path)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_backend_tensor tensor;
    for (int i = 0; i < assay_test_given_count(test); i++) {
        if (assay_test_given(test, i, &tensor, message) != ASSAY_TEST_OK) fail_msg("%s", message);
        if (strcmp(tensor.path, path) == 0) return tensor.data;
    }
    fail_msg("the case has no %s", path);
    return NULL;
}

/* The report on the kernel with that epsilon; the case's is 1e-6. */
static assay_test_report *try_kernel(float epsilon)
{
    static const char *const sets[] = {"dtype=float32", "batch=2", "sequence=16"};
    static const int64_t dims[3] = {2, 16, DIM}, scale_dims[1] = {DIM};
    static float y[ROWS * DIM], dx[ROWS * DIM], dscale[DIM];
    const assay_test_options options = {.sets = sets, .set_count = 3};
    char message[ASSAY_TEST_MESSAGE];
    assay_test *test;
    assay_test_report *report;
    if (assay_test_open("rms_norm/small-latents", &options, &test, message) != ASSAY_TEST_OK) fail_msg("%s", message);
    rms_norm(given(test, "inputs/x"), given(test, "weights/scale"), given(test, "cotangents/y"), epsilon, y, dx,
             dscale);
    const assay_backend_tensor results[] = {
        {"outputs/y", ASSAY_BACKEND_FLOAT32, 3, dims, y},
        {"gradients/inputs/x", ASSAY_BACKEND_FLOAT32, 3, dims, dx},
        {"gradients/weights/scale", ASSAY_BACKEND_FLOAT32, 1, scale_dims, dscale},
    };
    if (assay_test_check(test, 3, results, &report, message) != ASSAY_TEST_OK) fail_msg("%s", message);
    assay_test_close(test);
    return report;
}

static void test_rms_norm_is_right(void **state)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_test_report *report = try_kernel(1e-6f);
    (void)state;
    if (assay_test_report_verdict(report) != ASSAY_TEST_PASS)
        fail_msg("%s", assay_test_report_text(report, 0, 0, message));
    assay_test_report_free(report);
}

static void test_wrong_epsilon_is_found(void **state)
{
    assay_test_report *report = try_kernel(1e-5f);
    (void)state;
    assert_int_equal(assay_test_report_verdict(report), ASSAY_TEST_FAIL);
    assert_string_equal(assay_test_report_first_wrong(report), "outputs/y");
    assert_string_equal(assay_test_report_bugs(report), "epsilon_other");
    assay_test_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm_is_right),
        cmocka_unit_test(test_wrong_epsilon_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
