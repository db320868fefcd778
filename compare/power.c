#include "compare/power.h"

#include <stdio.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

assay_status assay_power_read(assay_context *ctx, assay_fixture_reader *golden, const char *profile, assay_power *power)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    const char *const *names = NULL;
    double *rows = NULL;
    *power = (assay_power){0};
    snprintf(path, sizeof path, "discrimination/%.64s", profile);
    const assay_tensor_spec *spec = assay_fixture_find(golden, path);
    if (spec == NULL) return ASSAY_OK;
    const int count = assay_fixture_texts(golden, "mutants", &names);
    const assay_shape expected = assay_shape_of(2, (int64_t)count, (int64_t)ASSAY_POWER_FIELDS);
    if (count == 0 || !assay_shape_equal(&spec->shape, &expected)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s does not go with the attribute mutants, which has %d names", path,
                          count);
    }
    TRY(assay_alloc_f64(ctx, path, (int64_t)count * ASSAY_POWER_FIELDS, &rows));
    TRY(assay_fixture_read(ctx, golden, path, 0, (int64_t)count * ASSAY_POWER_FIELDS, rows));
    for (int i = 0; i < count; i++) {
        const double *row = rows + (int64_t)i * ASSAY_POWER_FIELDS;
        const bool detected = row[ASSAY_POWER_OUTCOME] == ASSAY_MUTANT_DETECTED;
        const bool passes = row[ASSAY_POWER_OUTCOME] == ASSAY_MUTANT_PASSES;
        power->effective += detected || passes;
        power->detected += detected;
        if (passes && row[ASSAY_POWER_REQUIRED] != 0 && power->vacuous[0] == '\0') {
            snprintf(power->vacuous, sizeof power->vacuous, "%s", names[i]);
        }
    }
    power->stated = true;
cleanup:
    free(rows);
    return status;
}
