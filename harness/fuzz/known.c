#include "harness/fuzz/known.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "fuzz/"

const char *assay_reason_line(const char *op, const assay_reason *reason, char line[ASSAY_REASON_LINE])
{
    snprintf(line, ASSAY_REASON_LINE, PREFIX "%s:%s:%s", op, reason->where, reason->what);
    for (char *c = line; *c != '\0'; c++) *c = (char)(*c == '#' ? 'N' : *c == ' ' || *c == '\t' ? '_' : *c);
    return line;
}

/* `glob` is what is before the bound, which is infinite where there is none. False where the pattern has another form. */
static bool take_apart(const char *pattern, char glob[ASSAY_PATH_SIZE], double *bound)
{
    char *end = NULL;
    snprintf(glob, ASSAY_PATH_SIZE, "%s", pattern);
    const char *tensor = strchr(glob, ':');
    if (tensor == NULL || strchr(tensor + 1, ':') == NULL) return false;
    char *sign = strchr(glob, '<');
    *bound = (double)INFINITY;
    if (sign == NULL) return true;
    *bound = strtod(sign + 1, &end);
    *sign = '\0';
    return end > sign + 1 && *end == '\0' && *bound > 1;
}

assay_status assay_known_read(assay_context *ctx, const char *path, assay_expected_failures *known)
{
    assay_status status;
    int kept = 0;
    TRY(assay_expected_failures_read(ctx, path, known));
    for (int i = 0; i < known->count; i++) {
        const assay_expected_failure entry = known->entries[i];
        char glob[ASSAY_PATH_SIZE];
        double bound = 0;
        if (strncmp(entry.pattern, PREFIX, strlen(PREFIX)) != 0) continue; /* a case, of `assay run` */
        if (!take_apart(entry.pattern, glob, &bound)) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT,
                                "%s:%d: '%.100s', expected fuzz/OP:TENSOR:HOW, or that and <N with N above 1", path,
                                entry.line, entry.pattern);
            goto cleanup;
        }
        known->entries[kept++] = entry;
    }
    known->count = kept;
    return ASSAY_OK;
cleanup:
    assay_expected_failures_free(known);
    return status;
}

assay_expected_failure *assay_known_find(const assay_expected_failures *known, const char *op,
                                         const assay_reason *reason)
{
    char line[ASSAY_REASON_LINE], glob[ASSAY_PATH_SIZE];
    double bound = 0;
    assay_reason_line(op, reason, line);
    for (int i = 0; known != NULL && i < known->count; i++) {
        if (!take_apart(known->entries[i].pattern, glob, &bound)) continue;
        if (fnmatch(glob, line, 0) == 0 && !(reason->excess >= bound)) return &known->entries[i];
    }
    return NULL;
}
