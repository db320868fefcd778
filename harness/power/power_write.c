/* The power of the verdict of a golden that is being written. */
#include <stdlib.h>

#include "compare/profile.h"
#include "harness/power/power_test.h"
#include "oracle/base/memory.h"

#define FALSE_ALARM 1e-6 /* what `assay compare` takes when nothing is said */

static assay_status write_fields(assay_context *ctx, const assay_power_test *found, const assay_sink *out)
{
    assay_tensor_spec spec;
    OWNED double *fields = NULL;
    MUST(assay_power_spec(ctx, found->profile->precision.name, found->mutants.count, &spec));
    MUST(assay_alloc_f64(ctx, spec.path, assay_shape_count(&spec.shape), &fields));
    assay_power_fields(found, fields);
    return out->write(ctx, out->self, spec.path, assay_shape_count(&spec.shape), fields);
}

assay_status assay_plan_mutants(assay_context *ctx, assay_plan *plan)
{
    OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
    if (plan->precision_count == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: mutants are judged at a profile, and the case has none",
                          plan->c->name);
    }
    const int room = plan->spec_count + plan->precision_count + 1;
    MUST(assay_grow(ctx, "the list of datasets", room, sizeof *plan->specs, &plan->specs));
    MUST(assay_mutants_of(ctx, plan, -1, &list));
    for (int p = 0; p < plan->precision_count; p++) {
        assay_tensor_spec spec;
        MUST(assay_power_spec(ctx, plan->precisions[p].name, list.count, &spec));
        MUST(assay_plan_add_spec(ctx, plan, &spec));
    }
    plan->mutants = true;
    return ASSAY_OK;
}

assay_status assay_power_evaluate(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *results,
                                  const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    for (int p = 0; p < plan->precision_count; p++) {
        assay_power_test found = {0};
        const assay_profile *profile = assay_plan_profile(plan, plan->precisions[p].name);
        MUST(assay_power_test_run(ctx, plan, results, profile, FALSE_ALARM, NULL, &found));
        status = write_fields(ctx, &found, out);
        assay_power_test_free(&found);
        MUST(status);
    }
    return status;
}
