/* libassay from outside: one header, one library. */
#include <assay.h>
#include <math.h>

#include <setjmp.h>
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

/* One token sees itself. */
static void test_attention_through_the_library(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(1);
    const assay_attention_config config = {.batch = 1, .sequence = 1, .heads = 1, .qk_dim = 2, .v_dim = 1};
    const double query[2] = {1.0, 2.0}, key[2] = {3.0, 4.0}, value[1] = {5.0};
    const assay_attention_inputs in = {.query = query, .key = key, .value = value};
    double out = NAN, lse = NAN;
    assert_int_equal(assay_attention_forward(&ctx, &out, &lse, &in, &config), ASSAY_OK);
    assert_true(out == 5.0);
    assert_true(lse == 11.0);
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
        cmocka_unit_test(test_attention_through_the_library),
        cmocka_unit_test(test_catalogue_through_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
