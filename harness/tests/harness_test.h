/* What the tests of the harness share: cases of the catalogue, goldens from them, files compared byte for byte. */
#pragma once

#include "cases/tests/same_case.h"
#include "fixtures/tests/fixture_test.h"
#include "harness/golden/golden.h"
#include "harness/plan/plan_make.h"
#include "oracle/arithmetic/arithmetic.h"

/* A case of the catalogue, OWNED_BY(free_case), changed by `set` where that is not NULL:
 * settings with semicolons between. */
static inline assay_case *case_named(const char *name, const char *set)
{
    assay_context ctx = assay_context_default(1);
    char *pattern = (char *)name;
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, assay_cases_find(&ctx, 1, &pattern, &c, &count));
    assert_int_equal(count, 1);
    for (; set != NULL && *set != '\0'; set += strspn(set, ";")) {
        char one[TEST_PATH_SIZE];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(set, ";"), set);
        assert_ok(&ctx, assay_case_set(&ctx, c, one));
        set += strlen(one);
    }
    return c;
}

/* All of the catalogue, to be freed with assay_cases_free(cases, *count). */
static inline assay_case *all_cases(int *count)
{
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, count));
    return cases;
}

/* What the case's operation describes, to be freed with assay_tensor_list_free. */
static inline assay_tensor_list tensors_of(const assay_case *c)
{
    assay_context ctx = assay_context_default(1);
    const assay_operation *operation;
    assay_tensor_list list;
    assert_ok(&ctx, assay_operation_prepare(&ctx, c, &operation, &list));
    return list;
}

static inline assay_status try_golden(assay_context *ctx, const assay_case *c, const char *path, const char *inputs)
{
    assay_plan plan = {0};
    assay_status status = assay_plan_make(ctx, &plan, c);
    if (status == ASSAY_OK) status = assay_golden_write(ctx, &plan, path, inputs, true);
    assay_plan_free(&plan);
    return status;
}

/* Whether a key says what happens to an intermediate between forward and backward. */
static inline bool is_checkpoint(const char *key)
{
#define KEY(...)
#define CHECKPOINT(of, ...)                                                                                            \
    if (strcmp(key, #of) == 0) return true;
#include "cases/model_keys.inc"
    return false;
}

static inline bool has_tag(const assay_case *c, const char *tag)
{
    for (int i = 0; i < c->tags.count; i++) {
        if (strcmp(c->tags.items[i], tag) == 0) return true;
    }
    return false;
}

/* The whole file; *size bytes, to be freed. */
static inline unsigned char *bytes_of(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}
