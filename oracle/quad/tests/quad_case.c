#include "oracle/quad/tests/quad_case.h"

void case_start(quad_case *c, uint64_t seed)
{
    *c = (quad_case){.random = seed * 2 + 1, .ctx = {.threads = 1}};
}

void case_end(quad_case *c)
{
    quad_tensors_free(&c->in);
    quad_tensors_free(&c->out);
    quad_tensors_free(&c->results);
}

assay_shape dims(int rank, const int64_t *sizes)
{
    assay_shape shape = {.rank = rank};
    for (int axis = 0; axis < rank; axis++) shape.dims[axis] = sizes[axis];
    return shape;
}

void case_values(quad_case *c, const char *path, const double *values, assay_shape shape)
{
    assert_ok(&c->ctx, quad_tensors_copy_f64(&c->ctx, &c->in, path, &shape, values));
}

void case_random(quad_case *c, const char *path, double scale, assay_shape shape)
{
    quad *values = NULL;
    assert_ok(&c->ctx, quad_tensors_add(&c->ctx, &c->in, path, &shape, &values));
    for (int64_t i = 0; i < assay_shape_count(&shape); i++) values[i] = scale * (2 * test_uniform(&c->random) - 1);
}

void case_indices(quad_case *c, const char *path, const int32_t *values, assay_shape shape)
{
    assert_ok(&c->ctx, quad_tensors_copy_i32(&c->ctx, &c->in, path, &shape, values));
}

assay_status case_evaluate(quad_case *c, quad_form *form, const void *config)
{
    quad_tensors_free(&c->out);
    return quad_evaluate(&c->ctx, form, config, &c->in, NULL, &c->out);
}

assay_status case_differentiate(quad_case *c, quad_form *form, const void *config)
{
    quad_tensors_free(&c->out);
    return quad_differentiate(&c->ctx, form, config, &c->in, NULL, &c->out, NULL);
}

static const quad_tensor *result(const quad_case *c, const char *path)
{
    const quad_tensor *tensor = quad_tensors_find(&c->out, path);
    if (tensor == NULL) fail_msg("the second form gives no '%s'", path);
    return tensor;
}

double result_at(const quad_case *c, const char *path, int64_t index)
{
    const quad_tensor *tensor = result(c, path);
    assert_true(tensor->values != NULL && index < assay_shape_count(&tensor->shape));
    return (double)tensor->values[index];
}

void assert_result(const quad_case *c, const char *path, int64_t count, const double *expected, double tolerance)
{
    assert_int_equal(assay_shape_count(&result(c, path)->shape), count);
    for (int64_t i = 0; i < count; i++) {
        double value = result_at(c, path, i);
        if (!assay_is_close(&value, &expected[i], 1, tolerance, tolerance)) {
            fail_msg("%s: element %d is %.17g, expected %.17g", path, (int)i, value, expected[i]);
        }
    }
}

void assert_indices(const quad_case *c, const char *path, int64_t count, const int32_t *expected)
{
    const quad_tensor *tensor = result(c, path);
    assert_int_equal(assay_shape_count(&tensor->shape), count);
    assert_non_null(tensor->indices);
    for (int64_t i = 0; i < count; i++) assert_int_equal(tensor->indices[i], expected[i]);
}
