/* The cases that the program comes with, and cases by name, glob or file. */
#define _GNU_SOURCE /* memmem */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"

#define SEPARATOR "\n---\n"

/* Moves the cases of `more` to the end of `list`. */
static assay_status append_cases(assay_context *ctx, assay_case_list *list, assay_case *more, int count)
{
    MUST(assay_grow(ctx, "the list of cases", list->count + count, sizeof *list->cases, &list->cases));
    memcpy(list->cases + list->count, more, (size_t)count * sizeof *more);
    memset(more, 0, (size_t)count * sizeof *more); /* they belong to the list now */
    list->count += count;
    return ASSAY_OK;
}

assay_status assay_catalogue(assay_context *ctx, assay_case **cases, int *count)
{
    assay_status status = ASSAY_OK;
    assay_case_list list = {0};
    assay_case *read = NULL;
    int read_count = 0;
    *cases = NULL;
    *count = 0;
    for (int i = 0; i < assay_embedded_catalogue_count; i++) {
        const assay_embedded_file *file = &assay_embedded_catalogue[i];
        char origin[ASSAY_PATH_SIZE];
        snprintf(origin, sizeof origin, "catalogue/%s.yml", file->name);
        TRY(assay_cases_parse(ctx, origin, (const char *)file->text, file->size, &read, &read_count));
        TRY(append_cases(ctx, &list, read, read_count));
        free(read);
        read = NULL;
    }
    *cases = list.cases;
    *count = list.count;
    list = (assay_case_list){0};
cleanup:
    if (read != NULL) assay_cases_free(read, read_count);
    assay_cases_free(list.cases, list.count);
    return status;
}

/* The document of a catalogue file with the line "case: NAME"; 0: it has none. */
static size_t find_document(const assay_embedded_file *file, const char *name, const char **document)
{
    char line[ASSAY_PATH_SIZE + 16];
    const char *text = (const char *)file->text, *end = text + file->size;
    const int length = snprintf(line, sizeof line, "\ncase: %s\n", name);
    const char *found = length < (int)sizeof line ? memmem(text, file->size, line, (size_t)length) : NULL;
    if (found == NULL) return 0;
    const char *next = memmem(found, (size_t)(end - found), SEPARATOR, strlen(SEPARATOR));
    *document = text;
    for (const char *at = text; (at = memmem(at, (size_t)(found + 1 - at), SEPARATOR, strlen(SEPARATOR))) != NULL;) {
        at += strlen(SEPARATOR) - 1; /* the separator's last line break begins the document */
        *document = at;
    }
    return (size_t)((next != NULL ? next : end) - *document);
}

/* One case by its name, without reading the hundreds of others; *count is 0 where there is none of that name. */
static assay_status find_by_name(assay_context *ctx, const char *name, assay_case **cases, int *count)
{
    *count = 0;
    for (int i = 0; i < assay_embedded_catalogue_count; i++) {
        const char *document = NULL;
        const size_t size = find_document(&assay_embedded_catalogue[i], name, &document);
        if (size > 0) return assay_cases_parse(ctx, assay_embedded_catalogue[i].name, document, size, cases, count);
    }
    return ASSAY_OK;
}

/* Cases of the size of a real model fill a disk: nobody shall get one through '*'. */
static bool glob_matches(const char *pattern, const char *name)
{
    static const char TRUE_SIZE[] = "true-size/";
    bool huge = strncmp(name, TRUE_SIZE, strlen(TRUE_SIZE)) == 0;
    if (huge && strncmp(pattern, TRUE_SIZE, strlen(TRUE_SIZE)) != 0) return false;
    return fnmatch(pattern, name, 0) == 0;
}

/* Marks what a name or a glob means. */
static bool mark_matches(const assay_case_list *catalogue, const char *pattern, bool *wanted)
{
    bool found = false;
    for (int i = 0; i < catalogue->count; i++) {
        if (strcmp(pattern, catalogue->cases[i].name) != 0) continue;
        wanted[i] = found = true;
    }
    if (found || strpbrk(pattern, "*?[") == NULL) return found;
    for (int i = 0; i < catalogue->count; i++) {
        if (!glob_matches(pattern, catalogue->cases[i].name)) continue;
        wanted[i] = found = true;
    }
    return found;
}

static assay_status refuse_pattern(assay_context *ctx, const assay_case_list *catalogue, const char *pattern)
{
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = pattern, .most = ASSAY_NEAREST_MOST};
    const size_t length = strlen(pattern);
    bool is_folder = false;
    for (int i = 0; i < catalogue->count; i++) {
        const char *name = catalogue->cases[i].name;
        is_folder |= strncmp(name, pattern, length) == 0 && name[length] == '/';
        assay_nearest_offer(&nearest, name);
    }
    assay_nearest_text(&nearest, hint, sizeof hint);
    if (is_folder) snprintf(hint, sizeof hint, ", did you mean '%.100s/*'?", pattern);
    return assay_refuse(ctx,
                        "%.200s: expected a case of the catalogue, a glob that matches some, or a YAML file; "
                        "there is none of this name%s",
                        pattern, hint);
}

static assay_status append_file(assay_context *ctx, const assay_case_list *catalogue, const char *path,
                                assay_case_list *list)
{
    assay_status status = ASSAY_OK;
    struct stat about;
    assay_case *read = NULL;
    char *text = NULL;
    size_t size = 0;
    int count = 0;
    bool exists = strchr(path, '/') != NULL && stat(path, &about) == 0;
    if (!exists && assay_yaml_extension(path) == NULL) return refuse_pattern(ctx, catalogue, path);
    TRY(assay_read_text_file(ctx, path, &text, &size));
    TRY(assay_cases_parse(ctx, path, text, size, &read, &count));
    TRY(append_cases(ctx, list, read, count));
cleanup:
    free(text);
    assay_cases_free(read, read != NULL ? count : 0);
    return status;
}

static bool was_before(int i, char *const *patterns)
{
    for (int j = 0; j < i; j++) {
        if (strcmp(patterns[i], patterns[j]) == 0) return true;
    }
    return false;
}

/* Fixtures are stored under the names of their cases. */
static assay_status check_names(assay_context *ctx, const assay_case_list *list)
{
    for (int i = 0; i < list->count; i++) {
        for (int j = 0; j < i; j++) {
            if (strcmp(list->cases[i].name, list->cases[j].name) != 0) continue;
            return assay_refuse(ctx, "two of the cases asked for are called %s", list->cases[i].name);
        }
    }
    return ASSAY_OK;
}

assay_status assay_cases_find(assay_context *ctx, int pattern_count, char *const *patterns, assay_case **cases,
                              int *count)
{
    assay_status status = ASSAY_OK;
    assay_case_list catalogue = {0}, found = {0}, from_files = {0};
    bool *wanted = NULL;
    *cases = NULL;
    *count = 0;
    if (pattern_count == 1) {
        TRY(find_by_name(ctx, patterns[0], cases, count));
        if (*count > 0) goto cleanup;
    }
    TRY(assay_catalogue(ctx, &catalogue.cases, &catalogue.count));
    TRY(assay_alloc_list(ctx, "the choice of cases", catalogue.count + 1, sizeof *wanted, &wanted));
    for (int i = 0; i < pattern_count; i++) {
        if (was_before(i, patterns) || mark_matches(&catalogue, patterns[i], wanted)) continue;
        TRY(append_file(ctx, &catalogue, patterns[i], &from_files));
    }
    for (int i = 0; i < catalogue.count; i++) {
        if (wanted[i]) TRY(append_cases(ctx, &found, &catalogue.cases[i], 1));
    }
    if (from_files.count > 0) TRY(append_cases(ctx, &found, from_files.cases, from_files.count));
    TRY(check_names(ctx, &found));
    *cases = found.cases;
    *count = found.count;
    found = (assay_case_list){0};
cleanup:
    free(wanted);
    assay_cases_free(catalogue.cases, catalogue.count);
    assay_cases_free(from_files.cases, from_files.count);
    assay_cases_free(found.cases, found.count);
    return status;
}
