#include "harness/plan/golden_open.h"

#include <string.h>

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

assay_status assay_golden_plan(assay_context *ctx, assay_golden *golden, const assay_profile *own)
{
    if (golden->plan.c != NULL) return ASSAY_OK;
    return assay_plan_describe(ctx, &golden->plan, golden->c, golden->reader, own);
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
