/* libassay from outside: one header, one library. */
#include <assay.h>
#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_rms_norm_through_the_library(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    double x[2] = {3.0, 4.0}, scale[2] = {1.0, 2.0}, y[2] = {NAN, NAN}, rstd = NAN;
    assay_rms_norm_forward(&ctx, y, &rstd, x, scale, 1, 2, 0.0);
    assert_true(fabs(y[0] - 3.0 / sqrt(12.5)) <= 1e-15);
    assert_true(fabs(y[1] - 8.0 / sqrt(12.5)) <= 1e-15);
}

static void test_catalogue_through_the_library(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    int count = 0;
    assert_int_equal(assay_catalogue(&ctx, &cases, &count), ASSAY_OK);
    assert_true(count >= 80);
    assay_cases_free(cases, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm_through_the_library),
        cmocka_unit_test(test_catalogue_through_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
