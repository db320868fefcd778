#include "harness/plan/left_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/profile_yaml.h"

assay_status assay_plan_lose(assay_context *ctx, const assay_plan *plan, const char *profile, const char *reason)
{
    assay_lost_profile lost = {{0}, {0}};
    const char *form = strstr(profile, ASSAY_INACCURATE); /* without one form there is no other */
    snprintf(lost.name, sizeof lost.name, "%.*s", form == NULL ? (int)sizeof lost.name - 1 : (int)(form - profile),
             profile);
    snprintf(lost.reason, sizeof lost.reason, "%.*s", (int)sizeof lost.reason - 1, reason);
    if (plan->lost != NULL) *plan->lost = lost;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: profile %s: %s", plan->c->name, lost.name, lost.reason);
}

bool assay_plan_may_leave_out(const assay_plan *plan, const assay_lost_profile *lost)
{
    bool has = false;
    for (int p = 0; p < plan->precision_count; p++) has |= strcmp(plan->precisions[p].name, lost->name) == 0;
    return has && plan->precision_count > 1 && strcmp(lost->name, plan->asked) != 0 &&
           plan->left_out_count < ASSAY_MOST_LEFT_OUT;
}

static void remove_precision(assay_plan *plan, const char *name)
{
    int kept = 0;
    for (int p = 0; p < plan->precision_count; p++) {
        const char *own = plan->precisions[p].name;
        if (!assay_profile_is_called(own, strlen(own), name)) plan->precisions[kept++] = plan->precisions[p];
    }
    plan->precision_count = kept;
}

/* Not of the profile of that name. */
static bool is_of_another(const void *self, const assay_tensor_spec *spec)
{
    const char *name = self;
    static const assay_tensor_role roles[] = {ASSAY_ROLE_ERROR_SCALE, ASSAY_ROLE_NULL, ASSAY_ROLE_DISCRIMINATION};
    const char *rest = strchr(spec->path, '/');
    bool found = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) found |= spec->role == roles[i];
    return !found || rest == NULL || !assay_profile_is_called(rest + 1, strcspn(rest + 1, "/"), name);
}

assay_status assay_plan_leave_out(assay_context *ctx, const assay_plan *plan, const assay_lost_profile *lost,
                                  assay_plan *without)
{
    assay_status status = assay_plan_select(ctx, plan, is_of_another, lost->name, without);
    without->precisions = calloc((size_t)plan->precision_count + 1, sizeof *without->precisions);
    TRY(status);
    if (without->precisions == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of profiles");
    memcpy(without->precisions, plan->precisions, (size_t)plan->precision_count * sizeof *plan->precisions);
    remove_precision(without, lost->name);
    snprintf(without->profiles_left_out[without->left_out_count++], ASSAY_LEFT_OUT_SIZE, "%s: %s", lost->name,
             lost->reason);
cleanup:
    return status;
}

assay_status assay_plan_adopt_left_out(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden)
{
    const char *const *texts = NULL;
    const int count = assay_fixture_texts(golden, ASSAY_PROFILES_LEFT_OUT, &texts);
    if (count > ASSAY_MOST_LEFT_OUT)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "attribute profiles_left_out has %d texts, expected at most %d", count,
                          ASSAY_MOST_LEFT_OUT);
    for (int i = 0; i < count; i++) {
        char name[ASSAY_PRECISION_NAME_SIZE];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(texts[i], ":"), texts[i]);
        remove_precision(plan, name);
        snprintf(plan->profiles_left_out[plan->left_out_count++], ASSAY_LEFT_OUT_SIZE, "%s", texts[i]);
    }
    return ASSAY_OK;
}
