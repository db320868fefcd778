#include "harness/plan/golden_open.h"

#include <string.h>

#include "harness/plan/inputs.h"

assay_status assay_golden_open(assay_context *ctx, const char *path, assay_golden *golden)
{
    assay_status status;
    assay_fixture_reader *reader = NULL;
    TRY(assay_fixture_open_golden(ctx, path, &reader));
    TRY(assay_golden_read(ctx, reader, path, golden));
cleanup:
    return status;
}

assay_status assay_golden_read(assay_context *ctx, assay_fixture_reader *reader, const char *path, assay_golden *golden)
{
    const char *yaml = assay_fixture_text(reader, "case_yaml");
    *golden = (assay_golden){.reader = reader};
    if (yaml == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the attribute case_yaml is missing", path);
    return assay_cases_parse_stored(ctx, path, yaml, strlen(yaml), &golden->c, &golden->case_count);
}

/* Weights that the golden leaves to the seed. */
static assay_status add_drawn(assay_context *ctx, assay_golden *golden)
{
    assay_status status;
    assay_inputs inputs = {0};
    assay_recipe recipe;
    const assay_plan *plan = &golden->plan;
    TRY(assay_inputs_open(ctx, &inputs, plan->c, &plan->list, NULL));
    const assay_source drawn = assay_inputs_source(&inputs);
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (!assay_is_drawn(plan->c, spec) || assay_fixture_find(golden->reader, spec->path) != NULL) continue;
        if (drawn.recipe(drawn.self, spec->path, &recipe)) {
            TRY(assay_fixture_add_recipe(ctx, golden->reader, spec, &recipe));
        }
    }
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

assay_status assay_golden_plan(assay_context *ctx, assay_golden *golden, const assay_profile *own)
{
    assay_status status;
    if (golden->plan.c != NULL) return ASSAY_OK;
    TRY(assay_plan_describe(ctx, &golden->plan, golden->c, golden->reader, own));
    TRY(add_drawn(ctx, golden));
cleanup:
    return status;
}

const assay_arithmetic *assay_golden_engine(const assay_golden *golden)
{
    const char *engine = assay_fixture_text(golden->reader, "engine");
    return engine == NULL ? NULL : assay_arithmetic_by_name(engine);
}

void assay_golden_close(assay_golden *golden)
{
    assay_plan_free(&golden->plan);
    assay_cases_free(golden->c, golden->case_count);
    assay_fixture_close(golden->reader);
    *golden = (assay_golden){0};
}
