#include "harness/tests/in_process_kernel.h"
#include "harness/plan/backend_view.h"

char said[ASSAY_TEST_MESSAGE];

assay_test *open_with(const char *what, const assay_test_options *options)
{
    assay_test *test = NULL;
    assert_done(assay_test_open(what, options, &test, said));
    return test;
}

int64_t count_of(const assay_backend_tensor *tensor)
{
    int64_t count = 1;
    for (int axis = 0; axis < tensor->rank; axis++) count *= tensor->dims[axis];
    return count;
}

static void *copy_of(const void *bytes, size_t size)
{
    void *copy = malloc(size + 1);
    assert_non_null(copy);
    return memcpy(copy, bytes, size);
}

void run_kernel(kernel *k, assay_test *test, assay_dtype storage)
{
    const bool coarse = assay_dtype_unit_roundoff(storage) > assay_dtype_unit_roundoff(ASSAY_FLOAT32);
    *k = (kernel){.test = test};
    for (int i = 0; i < assay_test_expected_count(test); i++) {
        assay_backend_tensor golden;
        assert_done(assay_test_golden(test, assay_test_expected(test, i)->path, &golden, said));
        const int64_t count = count_of(&golden);
        assay_backend_tensor *to = &k->results[k->count++];
        *to = golden;
        if (golden.type == ASSAY_BACKEND_INT32) {
            to->data = copy_of(golden.data, (size_t)count * sizeof(int32_t));
            continue;
        }
        assay_tensor_spec spec;
        assay_tensor_call(&spec, golden.path);
        const assay_dtype type = coarse && assay_tensor_kept(&spec) != ASSAY_KEPT_STORED ? ASSAY_FLOAT32 : storage;
        void *bytes = malloc((size_t)count * assay_dtype_size(type) + 1);
        assert_non_null(bytes);
        assay_dtype_encode(type, count, golden.data, bytes);
        to->type = assay_backend_type_of(type);
        to->data = bytes;
    }
}

void free_results(kernel *k)
{
    for (int i = 0; i < k->count; i++) free((void *)(uintptr_t)k->results[i].data);
}

assay_backend_tensor *result_of(kernel *k, const char *path)
{
    for (int i = 0; i < k->count; i++) {
        if (strcmp(k->results[i].path, path) == 0) return &k->results[i];
    }
    fail_msg("no %s", path);
    return NULL;
}

const char *verdict_with(const char *what, const assay_test_options *options)
{
    OWNED_BY(close_test) assay_test *test = open_with(what, options);
    assay_test_report *report = NULL;
    kernel k;
    run_kernel(&k, test, ASSAY_BFLOAT16);
    assert_done(assay_test_check(test, k.count, k.results, &report, said));
    const assay_verdict verdict = (assay_verdict)assay_test_report_verdict(report);
    free_results(&k);
    assay_test_report_free(report);
    return assay_verdict_name(verdict);
}
