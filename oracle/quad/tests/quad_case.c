#include "oracle/quad/tests/quad_case.h"

enum { LONGEST_TEXT = 8192, MOST_NUMBERS = 128 };

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

/* The numbers of a text up to its end. */
static int64_t numbers_of(const char *text, double *values)
{
    int64_t count = 0;
    for (char *end = NULL; *text != '\0'; text = end + strspn(end, " ")) {
        assert_true(count < MOST_NUMBERS);
        values[count++] = strtod(text, &end);
        if (end == text) fail_msg("'%s' is no number", text);
    }
    return count;
}

/* The next entry of *text, NULL: there is none. *path is its path, and what is given its numbers, or '-'. */
static const char *next_entry(char **text, const char **path)
{
    char *entry = strtok_r(NULL, ";", text);
    if (entry == NULL) return NULL;
    *path = entry + strspn(entry, " ");
    char *rest = strchr(*path, ' ');
    assert_non_null(rest);
    *rest = '\0';
    return rest + 1;
}

void case_given(quad_case *c, const char *text)
{
    char copy[LONGEST_TEXT], *rest = copy;
    const char *path, *entry;
    assert_true((size_t)snprintf(copy, sizeof copy, "%s", text) < sizeof copy);
    while ((entry = next_entry(&rest, &path)) != NULL) {
        const bool indices = entry[0] == '#', filled = entry[0] == '~';
        double values[MOST_NUMBERS];
        int32_t numbers[MOST_NUMBERS];
        int64_t count = numbers_of(indices || filled ? entry + 2 : entry, values);
        if (filled) count = (int64_t)values[0];
        assert_true(count <= MOST_NUMBERS);
        for (int64_t i = 0; i < count; i++) {
            if (filled) values[i] = (double)((7 * i + 3 * c->in.count) % 13 - 6) / 8;
            if (indices) numbers[i] = (int32_t)values[i];
        }
        if (indices)
            case_indices(c, path, numbers, DIMS(count));
        else
            case_values(c, path, values, DIMS(count));
    }
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

static void assert_results(const quad_case *c, const char *text)
{
    char copy[LONGEST_TEXT], *rest = copy;
    const char *path, *entry;
    assert_true((size_t)snprintf(copy, sizeof copy, "%s", text) < sizeof copy);
    while ((entry = next_entry(&rest, &path)) != NULL) {
        double values[MOST_NUMBERS];
        int32_t indices[MOST_NUMBERS];
        if (entry[0] == '-' && entry[1] == '\0') {
            if (quad_tensors_find(&c->out, path) != NULL) fail_msg("there is a %s", path);
            continue;
        }
        const int64_t count = numbers_of(entry, values);
        for (int64_t i = 0; i < count; i++) indices[i] = (int32_t)values[i];
        if (result(c, path)->indices != NULL)
            assert_indices(c, path, count, indices);
        else
            assert_result(c, path, count, values, 1e-13);
    }
}

void assert_by_hand(quad_form *form, const void *config, const char *given, const char *expected)
{
    const bool differentiated = form == quad_function || strstr(given, "cotangents/") != NULL;
    quad_case c;
    case_start(&c, 1);
    case_given(&c, given);
    assert_ok(&c.ctx, differentiated ? case_differentiate(&c, form, config) : case_evaluate(&c, form, config));
    assert_results(&c, expected);
    for (int64_t n = 0; lacks_memory(
             &n, &c.ctx, differentiated ? case_differentiate(&c, form, config) : case_evaluate(&c, form, config));)
        continue;
    case_end(&c);
}
