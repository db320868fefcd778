/* The power of the verdict of a golden that is being written. */
#include <stdlib.h>
#include <string.h>

#include "compare/profile.h"
#include "harness/certify/certificate.h"
#include "harness/power/power_test.h"
#include "oracle/base/memory.h"
#include "oracle/base/ranks.h"

#define FALSE_ALARM 1e-6 /* what `assay compare` takes when nothing is said */

/* As a reader of the file will find them. */
static void store(const assay_plan *plan, const assay_tensor_set *results)
{
    const bool exact = assay_plan_is_exact(plan);
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        if (tensor->values == NULL || !assay_tensor_is_complete(tensor)) continue;
        assay_dtype_round_many(tensor->spec.type, tensor->count, tensor->values, tensor->values);
        if (!exact || tensor->spec.role != ASSAY_ROLE_ERROR_SCALE) continue;
        memset(tensor->values, 0, (size_t)tensor->count * sizeof *tensor->values);
    }
}

static assay_status write_fields(assay_context *ctx, const assay_power_test *found, const assay_sink *out)
{
    assay_status status;
    assay_tensor_spec spec;
    double *fields = NULL;
    TRY(assay_power_spec(ctx, found->profile->precision.name, &spec));
    TRY(assay_alloc_f64(ctx, spec.path, assay_shape_count(&spec.shape), &fields));
    assay_power_fields(found, fields);
    TRY(out->write(ctx, out->self, spec.path, assay_shape_count(&spec.shape), fields));
cleanup:
    free(fields);
    return status;
}

assay_status assay_plan_mutants(assay_context *ctx, assay_plan *plan)
{
    assay_status status = ASSAY_OK;
    if (plan->precision_count == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: mutants are judged at a profile, and the case has none",
                          plan->c->name);
    }
    const size_t room = (size_t)plan->spec_count + (size_t)plan->precision_count + 1;
    assay_tensor_spec *more = realloc(plan->specs, room * sizeof *more);
    if (more == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
    plan->specs = more;
    for (int p = 0; p < plan->precision_count; p++) {
        assay_tensor_spec spec;
        TRY(assay_power_spec(ctx, plan->precisions[p].name, &spec));
        TRY(assay_plan_add_spec(ctx, plan, &spec));
    }
    plan->mutants = true;
cleanup:
    return status;
}

assay_status assay_evaluate_with_power(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                       const assay_sink *out, bool quiet)
{
    assay_status status;
    assay_tensor_set results = {0};
    assay_ranks *const ranks = ctx->ranks;
    TRY(assay_plan_tensors(ctx, &results, plan, source));
    assay_tee both = {.first = *out, .second = assay_results_sink(&results)};
    const assay_sink sink = assay_tee_sink(&both);
    TRY(assay_evaluate_as_planned(ctx, plan, source, &sink, quiet));
    if (!assay_ranks_is_first(ctx)) goto cleanup;
    ctx->ranks = NULL; /* mutants are of the first rank */
    store(plan, &results);
    for (int p = 0; p < plan->precision_count; p++) {
        assay_power_test found = {0};
        const assay_profile *profile = assay_plan_profile(plan, plan->precisions[p].name);
        TRY(assay_power_test_run(ctx, plan, &results, profile, FALSE_ALARM, NULL, &found));
        status = write_fields(ctx, &found, out);
        assay_power_test_free(&found);
        TRY(status);
    }
cleanup:
    ctx->ranks = ranks;
    assay_tensor_set_free(&results);
    return status;
}
