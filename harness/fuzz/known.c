#include "harness/fuzz/known.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/operation.h"
#include "harness/plan/backend_view.h"

#define PREFIX "fuzz/"

const char *assay_reason_line(const char *op, const assay_reason *reason, char line[ASSAY_REASON_LINE])
{
    snprintf(line, ASSAY_REASON_LINE, PREFIX "%s:%s:%s", op, reason->where, reason->what);
    for (char *c = line; *c != '\0'; c++) *c = (char)(*c == '#' ? 'N' : *c == ' ' || *c == '\t' ? '_' : *c);
    return line;
}

/* A line in parts: "fuzz/OP:TENSOR:HOW", "KEY=GLOB}{KEY=GLOB" or "", and the bound, infinite where there is none. */
typedef struct line_parts {
    char glob[ASSAY_PATH_SIZE], conditions[ASSAY_PATH_SIZE];
    double bound;
} line_parts;

/* False where the pattern has another form. */
static bool take_apart(const char *pattern, line_parts *parts)
{
    char *end = NULL;
    const char *tensor = strchr(pattern, ':'), *open = strchr(pattern, '{');
    if (open != NULL && (tensor == NULL || open > tensor)) open = NULL;
    const char *close = open == NULL ? NULL : strstr(open, "}:");
    if (open != NULL && close == NULL) return false;
    snprintf(parts->conditions, sizeof parts->conditions, "%.*s", open == NULL ? 0 : (int)(close - open - 1),
             open == NULL ? "" : open + 1);
    snprintf(parts->glob, sizeof parts->glob, "%.*s%s", open == NULL ? 0 : (int)(open - pattern), pattern,
             open == NULL ? pattern : close + 1);
    tensor = strchr(parts->glob, ':');
    if (tensor == NULL || strchr(tensor + 1, ':') == NULL) return false;
    char *sign = strchr(parts->glob, '<');
    parts->bound = (double)INFINITY;
    if (sign == NULL) return true;
    parts->bound = strtod(sign + 1, &end);
    *sign = '\0';
    return end > sign + 1 && *end == '\0' && parts->bound > 1;
}

/* Whether the settings are so; `known`: whether each key is one. */
static bool holds(const char *conditions, const assay_backend_settings *settings, bool *known)
{
    bool all = true;
    *known = true;
    while (*conditions != '\0') {
        const size_t length = strcspn(conditions, "}"), key = strcspn(conditions, "=}");
        char glob[ASSAY_PATH_SIZE];
        bool found = false, alike = false;
        snprintf(glob, sizeof glob, "%.*s", (int)(length - key) - 1 > 0 ? (int)(length - key) - 1 : 0,
                 conditions + key + 1);
        for (int i = 0; i < settings->count && key < length; i++) {
            const assay_backend_setting *s = &settings->items[i];
            if (strlen(s->key) != key || strncmp(s->key, conditions, key) != 0) continue;
            found = true;
            alike = fnmatch(glob, s->value, 0) == 0;
        }
        *known &= found;
        all &= alike;
        conditions += length;
        conditions += strspn(conditions, "}{");
    }
    return all;
}

/* Whether there is an operation that "fuzz/OP:..." can mean. */
static bool names_operation(const char *glob)
{
    char op[ASSAY_PATH_SIZE];
    bool found = false;
    snprintf(op, sizeof op, "%.*s", (int)strcspn(glob + strlen(PREFIX), ":"), glob + strlen(PREFIX));
    for (int i = 0; assay_operations[i] != NULL; i++) found |= fnmatch(op, assay_operations[i]->name, 0) == 0;
    return found;
}

assay_status assay_known_read(assay_context *ctx, const char *path, assay_expected_failures *known)
{
    assay_status status;
    int kept = 0;
    const assay_case any = {.name = "--known", .op = "mlp", .config = assay_model_defaults};
    assay_backend_settings settings = {0};
    TRY(assay_expected_failures_read(ctx, path, known));
    TRY(assay_backend_settings_make(ctx, &any, &settings));
    for (int i = 0; i < known->count && status == ASSAY_OK; i++) {
        const assay_expected_failure entry = known->entries[i];
        line_parts parts;
        bool keys = true;
        if (strncmp(entry.pattern, PREFIX, strlen(PREFIX)) != 0) continue; /* a case, of `assay run` */
        const bool has_form = take_apart(entry.pattern, &parts);
        if (has_form) holds(parts.conditions, &settings, &keys);
        if (!has_form) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT,
                                "%s:%d: '%.100s', expected fuzz/OP:TENSOR:HOW, or that and <N with N above 1", path,
                                entry.line, entry.pattern);
        } else if (!names_operation(parts.glob)) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s:%d: '%.100s', expected an operation behind fuzz/, see --op",
                                path, entry.line, entry.pattern);
        } else if (!keys) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s:%d: '%.100s', expected {KEY=VALUE} with a key of the case",
                                path, entry.line, entry.pattern);
        } else {
            known->entries[kept++] = entry;
        }
    }
    if (status == ASSAY_OK) known->count = kept;
cleanup:
    assay_backend_settings_free(&settings);
    if (status != ASSAY_OK) assay_expected_failures_free(known);
    return status;
}

assay_status assay_known_find(assay_context *ctx, const assay_expected_failures *known, const assay_case *c,
                              const assay_reason *reason, assay_expected_failure **found)
{
    char line[ASSAY_REASON_LINE];
    OWNED_BY(assay_backend_settings_free) assay_backend_settings settings = {0};
    *found = NULL;
    if (known == NULL) return ASSAY_OK;
    assay_reason_line(c->op, reason, line);
    MUST(assay_backend_settings_make(ctx, c, &settings));
    for (int i = 0; i < known->count && *found == NULL; i++) {
        line_parts parts;
        bool keys;
        if (take_apart(known->entries[i].pattern, &parts) && fnmatch(parts.glob, line, 0) == 0 &&
            (isinf(parts.bound) || reason->excess < parts.bound) && holds(parts.conditions, &settings, &keys))
            *found = &known->entries[i];
    }
    return ASSAY_OK;
}
