#include "harness/plan/golden_read.h"

#include "compare/power.h"
#include "compare/statistics.h"

/* Only what was given: the recorded routing must be found again, not replayed. */
static bool given_has(void *self, const char *path)
{
    assay_fixture_reader *golden = self;
    return assay_role_is_input(assay_role_of(path)) && assay_fixture_find(golden, path) != NULL;
}

assay_source assay_golden_inputs(assay_fixture_reader *golden)
{
    assay_source source = assay_fixture_source(golden);
    source.has = given_has;
    source.self = golden;
    return source;
}

/* The shape of a stored certificate of mutants goes with the names that stand in the file. */
static assay_status check_mutants(assay_context *ctx, const assay_fixture_reader *golden,
                                  const assay_tensor_spec *stored)
{
    const char *const *names = NULL;
    const int count = assay_fixture_texts(golden, "mutants", &names);
    if (assay_power_fields_of(stored, count) > 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s does not go with the attribute mutants, which has %d names",
                      stored->path, count);
}

/* Null distributions of earlier error models lack the last rows (compare/statistics.h). */
static bool has_layout(const assay_plan *plan, const assay_tensor_spec *found, const assay_tensor_spec *expected)
{
    if (found->type != expected->type) return false;
    if (assay_shape_equal(&found->shape, &expected->shape)) return true;
    const int of = expected->role == ASSAY_ROLE_NULL ? assay_plan_find(plan, assay_path_of(expected->path)) : -1;
    return of >= 0 && found->shape.rank == 2 && found->shape.dims[1] == expected->shape.dims[1] &&
           assay_statistics_rows_are_known(&plan->specs[of].shape, found->shape.dims[0]);
}

assay_status assay_golden_check_layout(assay_context *ctx, const assay_plan *plan, const assay_fixture_reader *golden)
{
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *found = assay_fixture_find(golden, plan->specs[i].path);
        if (found == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is missing", plan->specs[i].path);
        if (found->role == ASSAY_ROLE_DISCRIMINATION) {
            MUST(check_mutants(ctx, golden, found));
            continue;
        }
        if (!has_layout(plan, found, &plan->specs[i])) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than its case gives",
                              plan->specs[i].path);
        }
    }
    return ASSAY_OK;
}

assay_status assay_golden_load(assay_context *ctx, assay_tensor_set *tensors, const assay_plan *plan,
                               assay_fixture_reader *golden)
{
    const assay_source in = assay_fixture_source(golden);
    const assay_status status = assay_golden_check_layout(ctx, plan, golden);
    return status == ASSAY_OK ? assay_plan_tensors(ctx, tensors, plan, &in) : status;
}
