/* The names of the catalogue's cases. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test/test_internal.h"
#include "oracle/base/memory.h"

/* A tag, an operation, or a glob over names. */
static bool has(const assay_case *c, const char *word)
{
    bool found = strcmp(c->op, word) == 0 || fnmatch(word, c->name, 0) == 0;
    for (int i = 0; !found && i < c->tags.count; i++) found = strcmp(c->tags.items[i], word) == 0;
    return found;
}

static assay_status list_names(assay_context *ctx, const assay_case *cases, int count, int32_t exclude_count,
                               const char *const *exclude, char **names)
{
    size_t size = 0;
    FILE *out = open_memstream(names, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the names of cases");
    for (int i = 0; i < count; i++) {
        bool excluded = false;
        for (int k = 0; !excluded && k < exclude_count; k++) excluded = has(&cases[i], exclude[k]);
        if (!excluded) fprintf(out, "%s\n", cases[i].name);
    }
    if (assay_text_close(out, names)) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the names of cases");
}

int assay_test_cases(int32_t count, const char *const *globs, int32_t exclude_count, const char *const *exclude,
                     char **names, char message[ASSAY_TEST_MESSAGE])
{
    assay_context ctx = assay_context_default(1);
    assay_status status;
    assay_case *cases = NULL;
    int found = 0;
    char *all = "*";
    char *const *patterns = count == 0 ? &all : (char *const *)(uintptr_t)globs; /* argv's type; nothing is changed */
    *names = NULL;
    if (count < 0 || exclude_count < 0 || (count > 0 && globs == NULL) || (exclude_count > 0 && exclude == NULL)) {
        TRY(assay_fail(&ctx, ASSAY_BAD_INPUT, "%" PRId32 " globs and %" PRId32 " to exclude: a list is missing", count,
                       exclude_count));
    }
    TRY(assay_cases_find(&ctx, count == 0 ? 1 : count, patterns, &cases, &found));
    TRY(list_names(&ctx, cases, found, exclude_count, exclude, names));
cleanup:
    assay_cases_free(cases, found);
    return assay_test_end(&ctx, status, message);
}

void assay_test_free(char *text)
{
    free(text);
}
