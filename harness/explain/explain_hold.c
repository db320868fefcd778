/* Whether a candidate is what a mutant would give. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "harness/explain/explain_internal.h"

/* The RMS of error / deviation of a correct candidate is some tenths, in one tensor, whose errors may have one cause,
 * now and then more. A hypothesis that leaves no more than this explains it. */
#define EXPLAINED 2.0

/* Whether all numbers of the candidate's tensor are of that type. */
static bool lies_on_grid(const assay_candidate_results *of_candidate, const char *path, assay_dtype type)
{
    for (int i = 0; i < of_candidate->count; i++) {
        const assay_memory_tensor *tensor = &of_candidate->tensors[i];
        if (strcmp(tensor->spec.path, path) != 0 || tensor->numbers == NULL) continue;
        const int64_t count = assay_shape_count(&tensor->spec.shape);
        for (int64_t k = 0; k < count; k++) {
            const double number = tensor->numbers[k];
            if (isfinite(number) && assay_dtype_round(type, number, false) != number) return false;
        }
    }
    return true;
}

/* Of a mutant that may be in some tensors alone, each tensor is the mutant's or the golden's, and none is left out. */
static bool conclude(const assay_trial *t, const assay_mutant *mutant, const assay_candidate_results *of_candidate,
                     const assay_report *plain, const assay_report *report, double *residual)
{
    double squares = 0.0, elements = 0.0;
    bool holds = report->unknown_count == 0;
    const bool coarser = mutant->results.edit == assay_edit_coarser;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i], *before = assay_result_of(plain, r->spec.path);
        if (assay_tensor_stays(mutant, before, r)) r = before;
        const bool lacks = before != NULL && before->verdict == ASSAY_FAIL && before->finding == ASSAY_FINDING_MISSING;
        holds &= !(mutant->each && lacks);
        const assay_dtype type = assay_coarser_type(assay_profile_type_of(t->profile, &r->spec));
        holds &=
            assay_tensor_is_explained(r) && (!coarser || r == before || lies_on_grid(of_candidate, r->spec.path, type));
        if (!r->compared || r->spec.type == ASSAY_INT32 || lacks) continue;
        squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
        elements += (double)r->elements;
    }
    *residual = elements > 0.0 ? sqrt(squares / elements) : 0.0;
    return holds && *residual <= EXPLAINED;
}

assay_status assay_hypothesis_hold(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   const assay_candidate_results *of_candidate, const assay_report *plain,
                                   assay_tensor_set *results, bool *holds, double *residual)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    *holds = false;
    if (!t->scales) MUST(assay_mutant_expect(ctx, t, mutant, results));
    if (assay_mutant_changes_steps(mutant)) assay_drop_null(results);
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const bool result = !assay_role_is_input(tensor->spec.role) && tensor->spec.role != ASSAY_ROLE_ERROR_SCALE;
        if (result && tensor->values != NULL) assay_nan_to_infinity(tensor->count, tensor->values);
    }
    MUST(assay_expected_compare(ctx, t, results, of_candidate, &report));
    *holds = conclude(t, mutant, of_candidate, plain, &report, residual);
    if (*holds) MUST(assay_beats_golden(ctx, t, mutant, of_candidate, plain, results, &report, holds));
    return ASSAY_OK;
}
