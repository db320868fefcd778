/* The certifier itself: it must accept what is right to float64, and reject each of a table of wrong results. */
#include <math.h>
#include <quadmath.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/spec/tests/spec_case.h"

/* y = x^3 w, elementwise: a function whose gradients are known. A kink at x = 2 where the configuration says so. */
static assay_status cube(assay_context *ctx, const void *config, const spec_tensors *in, spec_tensors *out)
{
    const bool *kink = config;
    const spec_tensor *x = spec_tensors_find(in, "inputs/x"), *w = spec_tensors_find(in, "weights/w");
    spec_quad *y = NULL;
    assay_status status = spec_tensors_add(ctx, out, "outputs/y", &x->shape, &y);
    if (status != ASSAY_OK) return status;
    for (int64_t i = 0; i < assay_shape_count(&x->shape); i++) {
        y[i] = x->values[i] * x->values[i] * x->values[i] * w->values[i];
        if (*kink && x->values[i] > 2) y[i] = 8 * w->values[i];
    }
    return ASSAY_OK;
}

static const spec_operation cubes = {"cube", cube, NULL};

static const double X[] = {1, -3, 2, .5, 1e-3, 40}, W[] = {2, 1, -1, 4, 7, 1e-3}, DY[] = {1, -1, 3, .5, 2, -1};
enum { COUNT = 6 };

static void add_cubes(spec_case *c, double *y, double *dx, double *dw)
{
    case_values(c, "inputs/x", X, DIMS(COUNT));
    case_values(c, "weights/w", W, DIMS(COUNT));
    case_values(c, "cotangents/y", DY, DIMS(COUNT));
    for (int64_t i = 0; i < COUNT; i++) {
        y[i] = X[i] * X[i] * X[i] * W[i];
        dx[i] = 3 * X[i] * X[i] * W[i] * DY[i];
        dw[i] = X[i] * X[i] * X[i] * DY[i];
    }
}

static void add_result(spec_case *c, const char *path, const double *values)
{
    assay_shape shape = DIMS(COUNT);
    assert_ok(&c->ctx, spec_tensors_copy_f64(&c->ctx, &c->results, path, &shape, values));
}

static void certify(spec_case *c, bool kink, const spec_budget *budget, spec_certificates *found)
{
    assert_ok(&c->ctx, spec_certify_outputs(&c->ctx, &cubes, &kink, &c->in, &c->results, found));
    assert_ok(&c->ctx, spec_certify_gradients(&c->ctx, &cubes, &kink, &c->in, &c->results, budget, found));
}

static const spec_budget all = {.coordinates = COUNT, .directions = 2, .seed = 5};

static void test_right_results(void **state)
{
    (void)state;
    spec_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    spec_certificates found = {0};
    case_start(&c, 1);
    add_cubes(&c, y, dx, dw);
    add_result(&c, "outputs/y", y);
    add_result(&c, "gradients/inputs/x", dx);
    add_result(&c, "gradients/weights/w", dw);
    certify(&c, false, &all, &found);
    assert_int_equal(found.count, 3);
    assert_string_equal(found.items[0].path, "outputs/y");
    assert_int_equal(found.items[0].checked, COUNT);
    assert_true(found.items[0].relative <= 1e-16 && found.items[0].ulps <= 2 && found.items[0].scale == 64);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(found.items[i].checked, COUNT + 2);
        assert_int_equal(found.items[i].kinks, 0);
        assert_true(found.items[i].relative <= 1e-15);
    }
    spec_certificates_free(&found);
    case_end(&c);
}

static void test_wrong_gradients(void **state)
{
    (void)state;
    /* dw times 1 + factor, all of it or one element; one probe, at the foremost element, must say at least so much. */
    static const struct {
        double factor;
        int64_t element; /* -1: all */
        double at_least;
    } table[] = {{-1, -1, 1},        {-2, -1, 1.9},      {1e-9, -1, .9e-9},  {0x1p-8, -1, .9 * 0x1p-8},
                 {1e-11, 5, .9e-11}, {NAN, 5, INFINITY}, {NAN, 0, INFINITY}, {INFINITY, 4, INFINITY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        spec_case c;
        double y[COUNT], dx[COUNT], dw[COUNT];
        spec_certificates found = {0};
        case_start(&c, 1);
        add_cubes(&c, y, dx, dw);
        for (int64_t j = 0; j < COUNT; j++) {
            if (table[i].element < 0 || table[i].element == j) dw[j] *= 1 + table[i].factor;
        }
        add_result(&c, "gradients/weights/w", dw);
        certify(&c, false, &(spec_budget){.coordinates = 1, .directions = 0, .seed = 5}, &found);
        assert_true(found.items[0].relative >= table[i].at_least);
        spec_certificates_free(&found);
        case_end(&c);
    }
}

/* A direction sees an element that no coordinate is spent on. */
static void test_directions(void **state)
{
    (void)state;
    spec_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    spec_certificates found = {0};
    case_start(&c, 1);
    add_cubes(&c, y, dx, dw);
    dw[0] += 1e-3;
    add_result(&c, "gradients/weights/w", dw);
    certify(&c, false, &(spec_budget){.coordinates = 0, .directions = 1, .seed = 1}, &found);
    assert_int_equal(found.items[0].checked, 1);
    assert_int_equal(found.items[0].worst, -1);
    assert_true(found.items[0].relative > 1e-9 && found.items[0].error > .99e-3);
    spec_certificates_free(&found);
    case_end(&c);
}

/* Element 2 stands on the kink: it is counted, and all others are certified. */
static void test_kinks(void **state)
{
    (void)state;
    spec_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    spec_certificates found = {0};
    case_start(&c, 1);
    add_cubes(&c, y, dx, dw);
    dx[5] = 0;
    add_result(&c, "gradients/inputs/x", dx);
    certify(&c, true, &all, &found);
    assert_int_equal(found.items[0].kinks, 1 + 2); /* the directions cross it too */
    assert_int_equal(found.items[0].checked, COUNT - 1);
    assert_true(found.items[0].relative <= 1e-15);
    spec_certificates_free(&found);
    case_end(&c);
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        double computed, reference, ulps, relative; /* of one value beside a 2 that is right */
    } table[] = {
        {1, 1, 0, 0},
        {1 + 0x1p-52, 1, 1, 0x1p-53},
        {1, 1 + 0x1p-52, 1, 0x1p-53},
        {-1, 1, 0x1p53, 1},
        {0, 1, 0x1p52, .5},
        {0x1p-1074, 0, 1, 0},
        {NAN, NAN, 0, 0},
        {INFINITY, INFINITY, 0, 0},
        {NAN, 1, INFINITY, INFINITY},
        {1, NAN, INFINITY, INFINITY},
        {INFINITY, 1, INFINITY, INFINITY},
        {1, INFINITY, INFINITY, INFINITY},
        {INFINITY, -INFINITY, INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const spec_quad computed[] = {2, table[i].computed}, reference[] = {2, table[i].reference};
        spec_certificate found = {0};
        spec_certify_values(2, computed, reference, &found);
        assert_true(found.ulps == table[i].ulps);
        assert_true(found.relative == table[i].relative);
        assert_int_equal(found.checked, 2);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    const bool kink = false;
    spec_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    spec_certificates found = {0};
    case_start(&c, 1);
    add_cubes(&c, y, dx, dw);
    add_result(&c, "outputs/z", y);
    assert_int_equal(spec_certify_outputs(&c.ctx, &cubes, &kink, &c.in, &c.results, &found), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "'outputs/z' [6]: the second form has none of that name");
    spec_tensors_free(&c.results);

    assay_shape square = DIMS(2, 3);
    assert_ok(&c.ctx, spec_tensors_copy_f64(&c.ctx, &c.results, "outputs/y", &square, y));
    assert_int_equal(spec_certify_outputs(&c.ctx, &cubes, &kink, &c.in, &c.results, &found), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "'outputs/y' [2,3]: the second form has [6] of that name");
    spec_tensors_free(&c.results);

    add_result(&c, "gradients/weights/v", dw);
    assert_int_equal(spec_certify_gradients(&c.ctx, &cubes, &kink, &c.in, &c.results, &all, &found), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "the tensor 'weights/v' is missing");
    case_values(&c, "cotangents/z", (double[]){1}, DIMS(1));
    assert_int_equal(spec_certify_gradients(&c.ctx, &cubes, &kink, &c.in, &c.results, &all, &found), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "the tensor 'outputs/z' is missing");
    spec_certificates_free(&found);
    case_end(&c);
}

static void test_indices(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        spec_case c;
        spec_certificates found = {0};
        case_start(&c, 1);
        const assay_permute_dims sizes = {.tokens = 2, .experts_per_token = 1, .experts = 2, .emb_dim = 1};
        case_values(&c, "inputs/x", (double[]){1, 2}, DIMS(2, 1));
        case_indices(&c, "inputs/selected_experts", (int32_t[]){1, 0}, DIMS(2, 1));
        assay_shape shape = DIMS(2);
        assert_ok(&c.ctx, spec_tensors_copy_i32(&c.ctx, &c.results, "outputs/sorted_selected_experts", &shape,
                                                (int32_t[]){1, wrong}));
        assert_ok(&c.ctx,
                  spec_certify_outputs(&c.ctx, spec_operation_by_name("permute"), &sizes, &c.in, &c.results, &found));
        assert_int_equal(found.items[0].checked, 2);
        assert_true(wrong ? isinf(found.items[0].relative) : found.items[0].relative == 0);
        spec_certificates_free(&found);
        case_end(&c);
    }
}

/* A row of NaN that belongs to no group has gradient 0, and its NaN cotangent is in nothing. */
static void test_rows_that_belong_to_nothing(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        spec_case c;
        spec_certificates found = {0};
        case_start(&c, 1);
        const assay_gmm_dims sizes = {.m = 2, .k = 1, .n = 1, .groups = 1};
        case_values(&c, "inputs/lhs", (double[]){3, NAN}, DIMS(2, 1));
        case_values(&c, "weights/rhs", (double[]){5}, DIMS(1, 1, 1));
        case_indices(&c, "inputs/group_sizes", (int32_t[]){1}, DIMS(1));
        case_values(&c, "cotangents/y", (double[]){7, NAN}, DIMS(2, 1));
        assay_shape lhs = DIMS(2, 1), rhs = DIMS(1, 1, 1);
        assert_ok(&c.ctx, spec_tensors_copy_f64(&c.ctx, &c.results, "gradients/inputs/lhs", &lhs,
                                                (double[]){35, wrong ? 1e-9 : 0}));
        assert_ok(&c.ctx, spec_tensors_copy_f64(&c.ctx, &c.results, "gradients/weights/rhs", &rhs,
                                                (double[]){wrong ? NAN : 21}));
        assert_ok(&c.ctx, spec_certify_gradients(&c.ctx, spec_operation_by_name("gmm"), &sizes, &c.in, &c.results, &all,
                                                 &found));
        for (int i = 0; i < 2; i++) assert_int_equal(found.items[i].relative < 1e-15, !wrong);
        spec_certificates_free(&found);
        case_end(&c);
    }
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    const bool kink = false;
    spec_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    case_start(&c, 1);
    add_cubes(&c, y, dx, dw);
    add_result(&c, "outputs/y", y);
    add_result(&c, "gradients/inputs/x", dx);
    for (int64_t n = 0;; n++) {
        spec_certificates found = {0};
        assay_fail_allocation(n);
        assay_status status = spec_certify_outputs(&c.ctx, &cubes, &kink, &c.in, &c.results, &found);
        if (status == ASSAY_OK) {
            status = spec_certify_gradients(&c.ctx, &cubes, &kink, &c.in, &c.results, &all, &found);
        }
        assay_fail_allocation(-1);
        spec_certificates_free(&found);
        if (!assay_allocation_failed()) {
            assert_int_equal(status, ASSAY_OK);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_results),
        cmocka_unit_test(test_wrong_gradients),
        cmocka_unit_test(test_directions),
        cmocka_unit_test(test_kinks),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_rows_that_belong_to_nothing),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
