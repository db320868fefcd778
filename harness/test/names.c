/* The names of the catalogue's cases. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases/case_filter.h"
#include "harness/test/test_internal.h"
#include "oracle/base/memory.h"

static assay_status list_names(assay_context *ctx, const assay_case *cases, int count, const assay_case_filter *filter,
                               char **names)
{
    size_t size = 0;
    FILE *out = assay_text_open(names, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the names of cases");
    for (int i = 0; i < count; i++) {
        if (assay_case_filter_matches(filter, &cases[i])) fprintf(out, "%s\n", cases[i].name);
    }
    if (assay_text_close(out, names)) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the names of cases");
}

static bool lacks(int32_t count, const char *const *texts)
{
    bool lacks = count < 0 || (count > 0 && texts == NULL);
    for (int32_t i = 0; !lacks && i < count; i++) lacks = texts[i] == NULL;
    return lacks;
}

int assay_test_cases(int32_t count, const char *const *globs, int32_t exclude_count, const char *const *exclude,
                     char **names, char message[ASSAY_TEST_MESSAGE])
{
    if (names == NULL) return assay_test_refuse_null("the place of the names", message);
    const assay_context usual = assay_context_default(1);
    assay_test_call call;
    assay_status status;
    assay_case *cases = NULL;
    int found = 0;
    char *all = "*";
    /* the types of argv and of options; nothing is changed */
    char *const *patterns = count == 0 ? &all : (char *const *)(uintptr_t)globs;
    const assay_case_filter filter = {.excludes = {(char **)(uintptr_t)exclude, exclude_count}};
    *names = NULL;
    assay_test_begin(&call, &usual, 1, NULL);
    if (lacks(count, globs) || lacks(exclude_count, exclude)) {
        TRY(assay_fail(&call.ctx, ASSAY_BAD_INPUT, "%" PRId32 " globs and %" PRId32 " to exclude: one is missing",
                       count, exclude_count));
    }
    TRY(assay_cases_find(&call.ctx, count == 0 ? 1 : count, patterns, &cases, &found));
    TRY(assay_case_filter_check(&call.ctx, &filter, cases, found));
    TRY(list_names(&call.ctx, cases, found, &filter, names));
cleanup:
    assay_cases_free(cases, found);
    return assay_test_end(&call, status, message);
}

void assay_test_free(char *text)
{
    free(text);
}
