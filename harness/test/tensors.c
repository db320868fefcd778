/* What a test gives out: inputs, what is expected, golden tensors, the golden's file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "harness/golden/golden.h"
#include "harness/plan/golden_read.h"
#include "harness/test/golden_cache.h"
#include "harness/test/test_internal.h"

int32_t assay_test_given_count(const assay_test *test)
{
    return test == NULL ? 0 : test->given_count;
}

int assay_test_given(assay_test *test, int32_t index, assay_backend_tensor *tensor, char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL || tensor == NULL)
        return assay_test_refuse_null(test == NULL ? "the test" : "the tensor", message);
    assay_status status = ASSAY_OK;
    assay_test_call call;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, test->held);
    if (index < 0 || index >= test->given_count) {
        status = assay_fail(&call.ctx, ASSAY_BAD_INPUT, "given tensor %" PRId32 ", expected 0 to %d", index,
                            test->given_count - 1);
    } else if (test->given[index].data == NULL) {
        const assay_source source =
            test->path != NULL ? assay_golden_inputs(test->held->golden.reader) : assay_inputs_source(&test->inputs);
        status = assay_backend_tensor_read(&call.ctx, &source, test->given_specs[index], &test->given[index]);
    }
    if (status == ASSAY_OK) *tensor = test->given[index];
    return assay_test_end(&call, status, message);
}

int32_t assay_test_expected_count(const assay_test *test)
{
    return test == NULL ? 0 : test->expected_count;
}

const assay_backend_result *assay_test_expected(const assay_test *test, int32_t index)
{
    return test != NULL && index >= 0 && index < test->expected_count ? &test->expected[index] : NULL;
}

assay_status assay_test_open_golden(assay_context *ctx, assay_test *test)
{
    if (test->held->open) return ASSAY_OK;
    const assay_status status = assay_cache_golden(ctx, &test->plan, &test->inputs, &test->profile, test->cache,
                                                   test->cache_bytes, &test->held->golden);
    test->held->open = status == ASSAY_OK;
    if (!test->held->open) assay_golden_close(&test->held->golden);
    return status;
}

int assay_test_prepare(assay_test *test, char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL) return assay_test_refuse_null("the test", message);
    assay_test_call call;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, test->held);
    const assay_status status = assay_test_open_golden(&call.ctx, test);
    return assay_test_end(&call, status, message);
}

/* A golden tensor's elements, as numbers or indices. */
static assay_status read_golden(assay_context *ctx, assay_fixture_reader *reader, const assay_backend_result *of,
                                assay_backend_tensor *tensor)
{
    const assay_tensor_spec *found = assay_fixture_find(reader, of->path);
    if (found == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "the golden has no %s", of->path);
    const assay_source source = assay_fixture_source(reader);
    const assay_status status = assay_backend_tensor_read(ctx, &source, found, tensor);
    tensor->path = of->path;
    return status;
}

/* Opens the golden, and finds the place of one of its results. */
static assay_status find_result(assay_context *ctx, assay_test *test, const char *path, int *index)
{
    MUST(assay_test_open_golden(ctx, test));
    if (path == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "golden: path is NULL, expected a result of %s", assay_test_name(test));
    *index = 0;
    while (*index < test->expected_count && strcmp(test->expected[*index].path, path) != 0) ++*index;
    if (*index < test->expected_count) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%.160s is no result of %s", path, assay_test_name(test));
}

int assay_test_golden(assay_test *test, const char *path, assay_backend_tensor *tensor,
                      char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL || tensor == NULL)
        return assay_test_refuse_null(test == NULL ? "the test" : "the tensor", message);
    int index;
    assay_status status;
    assay_test_call call;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, test->held);
    TRY(find_result(&call.ctx, test, path, &index));
    if (test->results[index].data == NULL) {
        TRY(read_golden(&call.ctx, test->held->golden.reader, &test->expected[index], &test->results[index]));
    }
    *tensor = test->results[index];
cleanup:
    return assay_test_end(&call, status, message);
}

static assay_status find_threshold(assay_context *ctx, assay_test *test, const char *path, double *thresholds,
                                   int64_t count)
{
    int index;
    MUST(find_result(ctx, test, path, &index));
    const assay_golden *golden = &test->held->golden;
    const assay_tensor_spec *found = assay_fixture_find(golden->reader, path);
    if (found != NULL && assay_shape_count(&found->shape) != count)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: room for %" PRId64 " thresholds, expected %" PRId64, path, count,
                          assay_shape_count(&found->shape));
    return assay_compare_thresholds(ctx, golden->reader, &test->profile, test->false_alarm,
                                    assay_plan_order(&test->plan), path, thresholds);
}

int assay_test_threshold(assay_test *test, const char *path, double *thresholds, int64_t count,
                         char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL || thresholds == NULL)
        return assay_test_refuse_null(test == NULL ? "the test" : "room for thresholds", message);
    assay_test_call call;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, test->held);
    const assay_status status = find_threshold(&call.ctx, test, path, thresholds, count);
    return assay_test_end(&call, status, message);
}

/* With the profiles of the case, as the program writes it, and the one that is judged at. */
static assay_status save(assay_context *ctx, assay_test *test, const char *path)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_plan plan = {0};
    int count = 0;
    if (test->path != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is a golden already: copy the file", test->path);
    }
    if (path == NULL || !assay_fixture_is_file_name(path)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: expected a name that ends in .h5 or .safetensors",
                          path == NULL ? "NULL" : path);
    }
    TRY(assay_cases_parse_stored(ctx, "case", test->yaml, strlen(test->yaml), &cases, &count));
    TRY(assay_case_add_profile(ctx, cases, test->profile.precision.name));
    TRY(assay_plan_make_with(ctx, &plan, cases, NULL, &test->profile));
    plan.weights = test->weights_text;
    TRY(assay_golden_write(ctx, &plan, path, test->inputs_path, true));
cleanup:
    assay_plan_free(&plan);
    assay_cases_free(cases, count);
    return status;
}

int assay_test_save(assay_test *test, const char *path, char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL) return assay_test_refuse_null("the test", message);
    assay_test_call call;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, NULL);
    const assay_status status = save(&call.ctx, test, path);
    return assay_test_end(&call, status, message);
}
