/* The stored power of a verdict against one that is found now. The table of mutants grows: a row of the one is
 * held against the row of the same name of the other, and what only one of them knows is left alone. */
#include <math.h>
#include <stdlib.h>

#include "harness/power/power_test.h"
#include "oracle/base/memory.h"

/* Of the excess: what a mutant evaluates may come out with other last digits. */
#define AGREES 1e-6

static bool agrees(const double *stored, int fields, const double *found)
{
    for (int i = 0; i < fields; i++) {
        if (i == ASSAY_POWER_REQUIRED) continue; /* the table's to say, not what was found */
        if (i == ASSAY_POWER_BY_STAGE && (stored[i] == 0 || found[i] == 0)) continue; /* not judged */
        const double allowed = i == ASSAY_POWER_EXCESS && isfinite(found[i]) ? AGREES * fabs(found[i]) : 0.0;
        if (stored[i] != found[i] && !(fabs(stored[i] - found[i]) <= allowed)) return false;
    }
    return true;
}

assay_status assay_power_check(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                               const char *path, const double *fields)
{
    const char *const *names = NULL;
    OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
    OWNED double *rows = NULL;
    const int count = assay_fixture_texts(golden, "mutants", &names);
    const int stored = assay_power_fields_of(assay_fixture_find(golden, path), count);
    MUST(assay_alloc_f64(ctx, path, (int64_t)count * stored, &rows));
    MUST(assay_fixture_read(ctx, golden, path, 0, (int64_t)count * stored, rows));
    MUST(assay_mutants_of(ctx, plan, -1, &list));
    for (int i = 0; i < count; i++) {
        const double *row = rows + (int64_t)i * stored;
        const int place = assay_mutant_place(&list, names[i]);
        if (place < 0 || agrees(row, stored, fields + (int64_t)place * ASSAY_POWER_FIELDS)) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: what it says of mutant %s is not what certification finds", path,
                          names[i]);
    }
    return ASSAY_OK;
}
