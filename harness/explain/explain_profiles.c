/* Coarser arithmetic: at which other profiles, that store the same type, a failed candidate would pass. */
#include <stdio.h>
#include <string.h>

#include "harness/explain/explain_internal.h"
#include "harness/fixes/fixes.h"
#include "harness/golden/golden_memory.h"

/* The golden's case from the golden's inputs, with the profile's error scales alone. */
static assay_status make_golden(assay_context *ctx, const assay_trial *t, const assay_profile *profile,
                                assay_plan *plan, assay_case *c, assay_tensor_set *tensors, assay_golden *golden)
{
    char set[ASSAY_PRECISION_NAME_SIZE + 16];
    const assay_source source = assay_input_source(t->golden);
    MUST(assay_case_copy(ctx, t->plan->c, c));
    snprintf(set, sizeof set, "profiles=[%s]", profile->precision.name);
    MUST(assay_case_set(ctx, c, set));
    MUST(assay_plan_make(ctx, plan, c));
    MUST(assay_plan_tensors(ctx, tensors, plan, &source));
    return assay_golden_of_memory(ctx, plan, tensors, golden);
}

static assay_status passes_at(assay_context *ctx, const assay_trial *t, const assay_profile *profile,
                              assay_fixture_reader *candidate, bool *passes)
{
    OWNED_BY(assay_case_free) assay_case c = {0};
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set tensors = {0};
    OWNED_BY(assay_golden_close) assay_golden golden = {0}, against = {0};
    OWNED_BY(assay_report_free) assay_report report = {0};
    *passes = false;
    MUST(make_golden(ctx, t, profile, &plan, &c, &tensors, &golden));
    MUST(assay_compare_fixed(ctx, &golden, candidate, profile, t->false_alarm, true, &report, &against));
    *passes = report.verdict == ASSAY_PASS;
    return ASSAY_OK;
}

assay_status assay_coarser_profiles(assay_context *ctx, const assay_trial *t, assay_fixture_reader *candidate,
                                    char *text, size_t size)
{
    int count = 0;
    const assay_profile *profiles = assay_profiles(&count);
    size_t length = 0;
    text[0] = '\0';
    const assay_profile *usual = assay_profile_for_dtype(t->profile->storage);
    if (usual == NULL || strcmp(t->profile->precision.name, usual->precision.name) != 0) return ASSAY_OK;
    for (int i = 0; i < count && length < size; i++) {
        bool passes = false;
        if (profiles[i].coarser == NULL || profiles[i].storage != t->profile->storage) continue;
        MUST(passes_at(ctx, t, &profiles[i], candidate, &passes));
        if (!passes) continue;
        length += (size_t)snprintf(text + length, size - length, "; passes at the profile %s: does the kernel have %s?",
                                   profiles[i].precision.name, profiles[i].coarser);
    }
    return ASSAY_OK;
}
