#include "harness/backends/example/tests/backend_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

trial *trial_new(void)
{
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->random_state = 1;
    return t;
}

void trial_free(trial *t)
{
    for (int i = 0; i < t->input_count; i++) {
        free(t->inputs[i].values);
        free(t->inputs[i].data);
    }
    for (int i = 0; i < t->output_count; i++) free(t->outputs[i].data);
    free(t);
}

void trial_set(trial *t, const char *key, const char *value)
{
    for (int i = 0; i < t->setting_count; i++) {
        if (strcmp(t->settings[i].key, key) == 0) {
            t->settings[i].value = value;
            return;
        }
    }
    assert_true(t->setting_count < TRIAL_MOST);
    t->settings[t->setting_count++] = (assay_backend_setting){key, value};
}

int64_t trial_count(const trial_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->rank; i++) count *= t->dims[i];
    return count;
}

static trial_tensor *add(trial_tensor *list, int *count, const char *path, int32_t rank, const int64_t *dims)
{
    assert_true(*count < TRIAL_MOST);
    trial_tensor *t = &list[(*count)++];
    snprintf(t->path, sizeof t->path, "%s", path);
    t->rank = rank;
    for (int32_t i = 0; i < rank; i++) t->dims[i] = dims[i];
    t->data = aligned_alloc(64, (size_t)(trial_count(t) * 8 + 63) / 64 * 64);
    assert_non_null(t->data);
    return t;
}

static double random_value(trial *t, double size)
{
    t->random_state = t->random_state * 1664525U + 1013904223U;
    const double step = fmin(1.0 / 64, size / 8);
    return size == 0 ? 0 : floor((t->random_state / 4294967296.0 * 2 - 1) * size / step) * step;
}

void trial_input(trial *t, const char *path, double center, double size, bool differentiated, int32_t rank,
                 const int64_t *dims)
{
    char gradient[112];
    trial_tensor *in = add(t->inputs, &t->input_count, path, rank, dims);
    in->type = ASSAY_BACKEND_BFLOAT16;
    in->values = malloc((size_t)trial_count(in) * sizeof *in->values);
    assert_non_null(in->values);
    for (int64_t i = 0; i < trial_count(in); i++) {
        float value = (float)(center + random_value(t, size));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        assert_int_equal(bits & 0xffff, 0);
        ((uint16_t *)in->data)[i] = (uint16_t)(bits >> 16);
        in->values[i] = (double)value;
    }
    snprintf(gradient, sizeof gradient, "gradients/%s", path);
    if (differentiated) trial_output(t, gradient, true, rank, dims);
}

void trial_integers(trial *t, const char *path, int32_t rank, const int64_t *dims, const int32_t *values)
{
    trial_tensor *in = add(t->inputs, &t->input_count, path, rank, dims);
    in->type = ASSAY_BACKEND_INT32;
    memcpy(in->data, values, (size_t)trial_count(in) * sizeof *values);
}

void trial_output(trial *t, const char *path, bool required, int32_t rank, const int64_t *dims)
{
    add(t->outputs, &t->output_count, path, rank, dims)->required = required;
}

static trial_tensor *find(trial_tensor *list, int count, const char *path)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(list[i].path, path) == 0) return &list[i];
    }
    return NULL;
}

trial_tensor *trial_find_input(trial *t, const char *path)
{
    return find(t->inputs, t->input_count, path);
}

trial_tensor *trial_find_output(trial *t, const char *path)
{
    return find(t->outputs, t->output_count, path);
}

bool trial_is_index(const char *path)
{
    return strstr(path, "group_sizes") != NULL || strstr(path, "selected_experts") != NULL ||
           strstr(path, "dispatch_mask") != NULL;
}

int trial_run(trial *t, int (*run)(const assay_backend_request *))
{
    assay_backend_tensor tensors[TRIAL_MOST];
    assay_backend_result results[TRIAL_MOST];
    for (int i = 0; i < t->input_count; i++) {
        trial_tensor *in = &t->inputs[i];
        tensors[i] = (assay_backend_tensor){in->path, in->type, in->rank, in->dims, in->data};
    }
    for (int i = 0; i < t->output_count; i++) {
        trial_tensor *o = &t->outputs[i];
        assay_backend_type type = trial_is_index(o->path) ? ASSAY_BACKEND_INT32 : ASSAY_BACKEND_FLOAT32;
        memset(o->data, 0xff, (size_t)trial_count(o) * 8);
        results[i] = (assay_backend_result){o->path, type, o->rank, o->dims, o->data, o->required, 1};
    }
    assay_backend_request request = {.version = ASSAY_BACKEND_VERSION,
                                     .setting_count = t->setting_count,
                                     .tensor_count = t->input_count,
                                     .result_count = t->output_count,
                                     .settings = t->settings,
                                     .tensors = tensors,
                                     .results = results,
                                     .message = t->message,
                                     .message_size = sizeof t->message};
    t->message[0] = '\0';
    int code = run(&request);
    for (int i = 0; i < t->output_count; i++) {
        t->outputs[i].type = results[i].type;
        t->outputs[i].written = results[i].written != 0;
    }
    return code;
}

double trial_value(const trial_tensor *t, int64_t i)
{
    if (t->type == ASSAY_BACKEND_INT32) return ((const int32_t *)t->data)[i];
    if (t->type == ASSAY_BACKEND_FLOAT32) return (double)((const float *)t->data)[i];
    assert_int_equal(t->type, ASSAY_BACKEND_BFLOAT16);
    uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* -inf for -inf is no error: the log-sum-exp of nothing. */
static double error_of(double actual, double expected)
{
    if (isinf(expected)) return actual == expected ? 0 : INFINITY;
    return isfinite(actual) ? actual - expected : INFINITY;
}

double trial_distance(const trial_tensor *o, const double *expected)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < trial_count(o); i++) {
        error += pow(error_of(trial_value(o, i), expected[i]), 2);
        size += isinf(expected[i]) ? 0 : expected[i] * expected[i];
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

double trial_gradient_distance(trial *t, const trial_tensor *o, double (*objective)(trial *t), int samples)
{
    double *values = trial_find_input(t, o->path + strlen("gradients/"))->values;
    double error = 0, size = 0;
    for (int64_t i = 0; i < trial_count(o); i += trial_count(o) / samples | 1) {
        const double before = values[i];
        values[i] = before + 0x1p-14;
        double expected = objective(t);
        values[i] = before - 0x1p-14;
        expected = (expected - objective(t)) * 0x1p13;
        values[i] = before;
        error += pow(error_of(trial_value(o, i), expected), 2);
        size += expected * expected;
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}
