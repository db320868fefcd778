#include "harness/backends/expected_failures.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/yaml_reader.h"
#include "oracle/base/memory.h"
#include "oracle/base/nearest.h"

enum { LONGEST_LINE = 1022 };

void assay_expected_failures_free(assay_expected_failures *failures)
{
    free(failures->entries);
    *failures = (assay_expected_failures){0};
}

const assay_expected_failure *assay_expected_failures_find(const assay_expected_failures *failures,
                                                           const char *case_name)
{
    for (int i = 0; i < failures->count; i++) {
        if (fnmatch(failures->entries[i].pattern, case_name, 0) == 0) return &failures->entries[i];
    }
    return NULL;
}

/* Without white space at both ends. */
static char *trim(char *text)
{
    while (isspace((unsigned char)*text)) text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = '\0';
    return text;
}

/* Of a file that may be none of ours nothing is shown. */
static assay_status add(assay_context *ctx, const char *path, int line, char *text, assay_expected_failures *failures)
{
    const size_t length = strcspn(text, " \t");
    const char *reason = trim(text + length);
    if (reason[0] == '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s:%d: no reason, expected a case and why it fails", path, line);
    }
    if (length >= ASSAY_PATH_SIZE || strlen(reason) >= sizeof failures->entries->reason) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s:%d: too long, expected a case below %d and a reason below %zu bytes", path, line,
                          ASSAY_PATH_SIZE, sizeof failures->entries->reason);
    }
    MUST(assay_grow(ctx, path, failures->count + 1, sizeof *failures->entries, &failures->entries));
    assay_expected_failure *entry = &failures->entries[failures->count];
    *entry = (assay_expected_failure){.line = line};
    memcpy(entry->pattern, text, length);
    snprintf(entry->reason, sizeof entry->reason, "%s", reason);
    for (int i = 0; i < failures->count; i++) {
        if (strcmp(failures->entries[i].pattern, entry->pattern) != 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s:%d: the case of line %d again", path, line,
                          failures->entries[i].line);
    }
    failures->count++;
    return ASSAY_OK;
}

assay_status assay_expected_failures_read(assay_context *ctx, const char *path, assay_expected_failures *failures)
{
    assay_status status;
    char *text = NULL;
    size_t size = 0;
    *failures = (assay_expected_failures){0};
    TRY(assay_read_text_file(ctx, path, &text, &size));
    text[size] = '\0'; /* what lies behind a zero byte is no list */
    char *line = text, *next;
    for (int number = 1; line != NULL; line = next, number++) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        if (strlen(line) > LONGEST_LINE) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s:%d: longer than %d bytes", path, number, LONGEST_LINE);
            goto cleanup;
        }
        line[strcspn(line, "#")] = '\0';
        line = trim(line);
        if (line[0] != '\0') TRY(add(ctx, path, number, line, failures));
    }
cleanup:
    free(text);
    if (status != ASSAY_OK) assay_expected_failures_free(failures);
    return status;
}

assay_status assay_expected_failures_check(assay_context *ctx, const char *path,
                                           const assay_expected_failures *failures, const assay_named_cases *lists,
                                           int count)
{
    for (int i = 0; i < failures->count; i++) {
        const assay_expected_failure *entry = &failures->entries[i];
        bool found = strncmp(entry->pattern, "fuzz/", 5) == 0;
        char hint[ASSAY_MESSAGE_SIZE / 2];
        assay_nearest nearest = {.word = entry->pattern, .most = 1};
        for (int list = 0; list < count && !found; list++) {
            for (int k = 0; k < lists[list].count && !found; k++) {
                assay_nearest_offer(&nearest, lists[list].cases[k].name);
                found = fnmatch(entry->pattern, lists[list].cases[k].name, 0) == 0;
            }
        }
        if (found) continue;
        assay_nearest_text(&nearest, hint, sizeof hint);
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.200s:%d: no case of the catalogue or of this run is named %s%s",
                          path, entry->line, entry->pattern, hint);
    }
    return ASSAY_OK;
}
