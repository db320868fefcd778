#include "harness/mutants/correct_run.h"

#include <string.h>

#include "harness/mutants/mutant_run.h"
#include "harness/scales/ensemble.h"

assay_status assay_correct_run(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                               const assay_profile *profile, int number, assay_tensor_set *candidate)
{
    assay_precision precision = assay_case_precision(plan->c, profile);
    for (int p = 0; p < plan->precision_count; p++) /* of two forms of a step the accurate one */
        if (strcmp(plan->precisions[p].name, precision.name) == 0) precision.form = plan->precisions[p].form;
    const assay_emulation emulation = assay_ensemble_member(plan, &precision, "correct", number);
    const assay_source given = assay_input_and_choice_source(golden);
    assay_rounded rounded = {{&given, NULL}, plan->c, NULL};
    const assay_source in = assay_rounded_source(&rounded);
    assay_context emulated = *ctx;
    MUST(assay_tensor_set_copy(ctx, golden, candidate));
    for (int i = 0; i < candidate->count; i++) {
        const assay_tensor_role role = candidate->items[i].spec.role;
        const bool of_golden = role == ASSAY_ROLE_ERROR_SCALE || role == ASSAY_ROLE_NULL;
        if (!assay_role_is_input(role) && !of_golden) candidate->items[i].written = 0;
    }
    const assay_sink out = assay_results_sink(candidate);
    if (!assay_plan_is_exact(plan)) { /* whose kernels have no errors */
        emulated.arithmetic = &assay_arithmetic_emulated;
        emulated.emulation = &emulation;
    }
    const assay_status status = assay_operation_run(&emulated, plan->operation, plan->c, &in, &out);
    memcpy(ctx->message, emulated.message, sizeof ctx->message);
    if (status == ASSAY_OK) assay_candidate_round(candidate, profile);
    return status;
}
