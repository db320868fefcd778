#include "oracle/spec/tests/spec_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void case_start(spec_case *c, uint64_t seed)
{
    *c = (spec_case){
        .random = seed * 2 + 1, .ctx = {.threads = 1}, .budget = {.coordinates = 3, .directions = 1, .seed = seed}};
}

void case_end(spec_case *c)
{
    spec_tensors_free(&c->in);
    spec_tensors_free(&c->out);
    spec_tensors_free(&c->results);
    for (int i = 0; i < c->buffer_count; i++) free(c->buffers[i]);
}

assay_shape dims(int rank, const int64_t *sizes)
{
    assay_shape shape = {.rank = rank};
    for (int axis = 0; axis < rank; axis++) shape.dims[axis] = sizes[axis];
    return shape;
}

double case_draw(spec_case *c)
{
    c->random = c->random * 6364136223846793005U + 1442695040888963407U;
    return (double)(int64_t)(c->random >> 33) / 0x1p30 - 1;
}

static void *new_buffer(spec_case *c, const char *path, size_t bytes)
{
    assert_true(c->buffer_count < SPEC_CASE_BUFFERS);
    void *buffer = malloc(bytes + 1);
    assert_non_null(buffer);
    c->result_paths[c->buffer_count] = path;
    c->buffers[c->buffer_count++] = buffer;
    return buffer;
}

double *case_values(spec_case *c, const char *path, const double *values, assay_shape shape)
{
    size_t bytes = (size_t)assay_shape_count(&shape) * sizeof *values;
    double *copy = new_buffer(c, NULL, bytes);
    memcpy(copy, values, bytes);
    assert_ok(&c->ctx, spec_tensors_copy_f64(&c->ctx, &c->in, path, &shape, values));
    return copy;
}

double *case_random(spec_case *c, const char *path, double scale, assay_shape shape)
{
    int64_t count = assay_shape_count(&shape);
    double *values = malloc((size_t)count * sizeof *values + 1);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = scale * case_draw(c);
    double *copy = case_values(c, path, values, shape);
    free(values);
    return copy;
}

int32_t *case_indices(spec_case *c, const char *path, const int32_t *values, assay_shape shape)
{
    size_t bytes = (size_t)assay_shape_count(&shape) * sizeof *values;
    int32_t *copy = new_buffer(c, NULL, bytes);
    memcpy(copy, values, bytes);
    assert_ok(&c->ctx, spec_tensors_copy_i32(&c->ctx, &c->in, path, &shape, values));
    return copy;
}

static const spec_tensor *result(const spec_case *c, const char *path)
{
    const spec_tensor *tensor = spec_tensors_find(&c->out, path);
    if (tensor == NULL) fail_msg("the second form gives no '%s'", path);
    return tensor;
}

double result_at(const spec_case *c, const char *path, int64_t index)
{
    const spec_tensor *tensor = result(c, path);
    assert_true(tensor->values != NULL && index < assay_shape_count(&tensor->shape));
    return (double)tensor->values[index];
}

int32_t index_at(const spec_case *c, const char *path, int64_t index)
{
    const spec_tensor *tensor = result(c, path);
    assert_true(tensor->indices != NULL && index < assay_shape_count(&tensor->shape));
    return tensor->indices[index];
}

void assert_result(const spec_case *c, const char *path, int64_t count, const double *expected, double tolerance)
{
    assert_int_equal(assay_shape_count(&result(c, path)->shape), count);
    for (int64_t i = 0; i < count; i++) {
        double value = result_at(c, path, i);
        if (!assay_is_close(&value, &expected[i], 1, tolerance, tolerance)) {
            fail_msg("%s: element %d is %.17g, expected %.17g", path, (int)i, value, expected[i]);
        }
    }
}

void assert_indices(const spec_case *c, const char *path, int64_t count, const int32_t *expected)
{
    assert_int_equal(assay_shape_count(&result(c, path)->shape), count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(index_at(c, path, i), expected[i]);
}

double *case_output(spec_case *c, const char *path, assay_shape shape)
{
    spec_quad *unused = NULL;
    int64_t count = assay_shape_count(&shape);
    assert_ok(&c->ctx, spec_tensors_add(&c->ctx, &c->results, path, &shape, &unused));
    double *buffer = new_buffer(c, path, (size_t)count * sizeof *buffer);
    assay_fill_nan(buffer, count);
    return buffer;
}

int32_t *case_index_output(spec_case *c, const char *path, assay_shape shape)
{
    int32_t *unused = NULL;
    int64_t count = assay_shape_count(&shape);
    assert_ok(&c->ctx, spec_tensors_add_indices(&c->ctx, &c->results, path, &shape, &unused));
    int32_t *buffer = new_buffer(c, path, (size_t)count * sizeof *buffer);
    for (int64_t i = 0; i < count; i++) buffer[i] = -1;
    return buffer;
}

/* The buffers that the operation has written become the computed tensors. */
static void collect(spec_case *c)
{
    for (int i = 0; i < c->buffer_count; i++) {
        if (c->result_paths[i] == NULL) continue;
        const spec_tensor *tensor = spec_tensors_find(&c->results, c->result_paths[i]);
        int64_t count = assay_shape_count(&tensor->shape);
        for (int64_t j = 0; j < count; j++) {
            if (tensor->values != NULL) tensor->values[j] = ((const double *)c->buffers[i])[j];
            if (tensor->indices != NULL) tensor->indices[j] = ((const int32_t *)c->buffers[i])[j];
        }
    }
}

static void check_certificates(const spec_case *c, const char *operation, const spec_certificates *certificates,
                               double relative)
{
    bool good = true;
    for (int i = 0; i < certificates->count; i++) {
        const spec_certificate *found = &certificates->items[i];
        bool empty = assay_shape_count(&spec_tensors_find(&c->results, found->path)->shape) == 0;
        bool fits = found->kinks == 0 && (found->checked > 0) != empty && found->relative <= relative;
        good &= fits;
        if (fits) continue;
        print_error("%s %s: %lld checked, %lld kinks; worst %lld: %.17g, certified %.17g; error %g of scale %g\n",
                    operation, found->path, (long long)found->checked, (long long)found->kinks, (long long)found->worst,
                    found->computed, found->reference, found->error, found->scale);
    }
    assert_true(good);
}

static int count_results(const spec_case *c, bool gradients)
{
    int count = 0;
    for (int i = 0; i < c->results.count; i++) {
        count += (strncmp(c->results.items[i].path, "gradients/", strlen("gradients/")) == 0) == gradients;
    }
    return count;
}

void case_certify_outputs(spec_case *c, const char *operation, const void *config, double relative)
{
    spec_certificates certificates = {0};
    collect(c);
    assert_ok(&c->ctx, spec_certify_outputs(&c->ctx, spec_operation_by_name(operation), config, &c->in, &c->results,
                                            &certificates));
    assert_int_equal(certificates.count, count_results(c, false));
    check_certificates(c, operation, &certificates, relative);
    spec_certificates_free(&certificates);
}

void case_certify_gradients(spec_case *c, const char *operation, const void *config, double relative)
{
    spec_certificates certificates = {0};
    collect(c);
    assert_ok(&c->ctx, spec_certify_gradients(&c->ctx, spec_operation_by_name(operation), config, &c->in, &c->results,
                                              &c->budget, &certificates));
    assert_int_equal(certificates.count, count_results(c, true));
    check_certificates(c, operation, &certificates, relative);
    spec_certificates_free(&certificates);
}

static double worst_of(spec_case *c, const char *operation, const void *config, const spec_tensors *computed,
                       bool gradients)
{
    const spec_operation *second = spec_operation_by_name(operation);
    spec_certificates certificates = {0};
    double worst = 0;
    assert_ok(&c->ctx,
              gradients ? spec_certify_gradients(&c->ctx, second, config, &c->in, computed, &c->budget, &certificates)
                        : spec_certify_outputs(&c->ctx, second, config, &c->in, computed, &certificates));
    for (int i = 0; i < certificates.count; i++) worst = fmax(worst, certificates.items[i].relative);
    spec_certificates_free(&certificates);
    return worst;
}

double case_worst(spec_case *c, const char *operation, const void *config, bool gradients)
{
    collect(c);
    return worst_of(c, operation, config, &c->results, gradients);
}

/* Zeros, negated, turned by one place, all of it or the largest element alone a little too large. */
enum { TAMPERINGS = 5 };

static void tamper(int way, int64_t count, const spec_quad *right, spec_quad *wrong)
{
    int64_t largest = 0;
    double size = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = fabs((double)right[i]);
        if (isfinite(value) && value > size) {
            size = value;
            largest = i;
        }
        wrong[i] = way == 0   ? 0
                   : way == 1 ? -right[i]
                   : way == 2 ? right[(i + 1) % count]
                   : way == 3 ? right[i] * (1 + 0x1p-8)
                              : right[i];
    }
    if (way == 4) wrong[largest] *= 1 + 1e-10;
}

static void assert_tampering_shows(spec_case *c, const char *operation, const void *config, const spec_tensor *right)
{
    int64_t count = assay_shape_count(&right->shape);
    spec_tensor wrong = *right;
    wrong.values = malloc((size_t)count * sizeof *wrong.values);
    assert_non_null(wrong.values);
    bool gradient = strncmp(right->path, "gradients/", strlen("gradients/")) == 0;
    for (int way = 0; way < TAMPERINGS; way++) {
        if (way == 2 && count == 1) continue;
        tamper(way, count, right->values, wrong.values);
        double worst = worst_of(c, operation, config, &(spec_tensors){&wrong, 1}, gradient);
        if (!(worst > 1e-11)) fail_msg("%s %s: tampering %d is within %g", operation, right->path, way, worst);
    }
    free(wrong.values);
}

static bool is_zero(const spec_tensor *tensor)
{
    bool zero = true;
    for (int64_t i = 0; i < assay_shape_count(&tensor->shape); i++) zero &= tensor->values[i] == 0;
    return zero;
}

int case_assert_tampering_shows(spec_case *c, const char *operation, const void *config)
{
    int tensors = 0;
    collect(c);
    for (int i = 0; i < c->results.count; i++) {
        if (c->results.items[i].values == NULL || is_zero(&c->results.items[i])) continue;
        assert_tampering_shows(c, operation, config, &c->results.items[i]);
        tensors++;
    }
    return tensors;
}

static bool is_choice(const char *path)
{
    const char *name = strrchr(path, '/');
    return strncmp(path, "routing/", strlen("routing/")) == 0 && strcmp(name, "/selected_experts") == 0;
}

int case_assert_off_by_one_shows(spec_case *c, const char *operation, const void *config)
{
    int tensors = 0;
    collect(c);
    for (int i = 0; i < c->results.count; i++) {
        spec_tensor *tensor = &c->results.items[i];
        if (tensor->indices == NULL || is_choice(tensor->path)) continue;
        for (int64_t at = 0; at < assay_shape_count(&tensor->shape); at++) {
            tensor->indices[at]++;
            const double worst = worst_of(c, operation, config, &(spec_tensors){tensor, 1}, false);
            tensor->indices[at]--;
            if (!(worst > 0)) fail_msg("%s %s: element %d is off by one", operation, tensor->path, (int)at);
        }
        tensors++;
    }
    return tensors;
}

void case_fix_choice(spec_case *c)
{
    bool any = false;
    collect(c);
    for (int i = 0; i < c->results.count; i++) {
        const spec_tensor *choice = &c->results.items[i];
        if (!is_choice(choice->path)) continue;
        case_indices(c, choice->path, choice->indices, choice->shape);
        any = true;
    }
    assert_true(any);
}
