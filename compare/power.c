#include "compare/power.h"

#include <stdio.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

void assay_power_line(const assay_power *power, char line[ASSAY_POWER_LINE_SIZE])
{
    const int length = snprintf(line, ASSAY_POWER_LINE_SIZE, "%d of %d mutants that have an effect here are detected",
                                power->detected, power->effective);
    if (!power->stated_by_stage) return;
    snprintf(line + length, ASSAY_POWER_LINE_SIZE - (size_t)length, ", %d with checkpoints (--staged)",
             power->detected_by_stage);
}

int assay_power_fields_of(const assay_tensor_spec *stored, int mutants)
{
    for (int64_t fields = ASSAY_POWER_BY_STAGE; mutants > 0 && fields <= ASSAY_POWER_FIELDS; fields++) {
        const assay_shape shape = assay_shape_of(2, (int64_t)mutants, fields);
        if (stored->type == ASSAY_FLOAT64 && assay_shape_equal(&stored->shape, &shape)) return (int)fields;
    }
    return 0;
}

assay_status assay_power_read(assay_context *ctx, assay_fixture_reader *golden, const char *profile, assay_power *power)
{
    char path[ASSAY_PATH_SIZE];
    const char *const *names = NULL;
    OWNED double *rows = NULL;
    *power = (assay_power){0};
    snprintf(path, sizeof path, "discrimination/%.64s", profile);
    const assay_tensor_spec *spec = assay_fixture_find(golden, path);
    if (spec == NULL) return ASSAY_OK;
    const int count = assay_fixture_texts(golden, "mutants", &names);
    const int fields = assay_power_fields_of(spec, count);
    if (fields == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s does not go with the attribute mutants, which has %d names", path,
                          count);
    }
    MUST(assay_alloc_f64(ctx, path, (int64_t)count * fields, &rows));
    MUST(assay_fixture_read(ctx, golden, path, 0, (int64_t)count * fields, rows));
    for (int i = 0; i < count; i++) {
        const double *row = rows + (int64_t)i * fields;
        const bool detected = row[ASSAY_POWER_OUTCOME] == ASSAY_MUTANT_DETECTED;
        const bool passes = row[ASSAY_POWER_OUTCOME] == ASSAY_MUTANT_PASSES;
        power->effective += detected || passes;
        power->detected += detected;
        const double by_stage = fields > ASSAY_POWER_BY_STAGE ? row[ASSAY_POWER_BY_STAGE] : ASSAY_MUTANT_NOT_APPLICABLE;
        power->detected_by_stage += by_stage == ASSAY_MUTANT_DETECTED;
        power->stated_by_stage |= by_stage != ASSAY_MUTANT_NOT_APPLICABLE;
        if (passes && row[ASSAY_POWER_REQUIRED] != 0 && power->vacuous[0] == '\0') {
            snprintf(power->vacuous, sizeof power->vacuous, "%s", names[i]);
        }
    }
    power->stated = true;
    return ASSAY_OK;
}
