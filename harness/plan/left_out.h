/* Profiles that a case lists and its golden cannot have (docs/comparing.md, "A profile that a case cannot have"). */
#pragma once

#include "harness/plan/plan.h"

/* Fails: the plan's case has no finite error scales for the profile. `reason` may be the context's message. */
assay_status assay_plan_lose(assay_context *ctx, const assay_plan *plan, const char *profile, const char *reason);

/* Whether a golden without the profile is of use: nobody has asked for it, and there are others. */
bool assay_plan_may_leave_out(const assay_plan *plan, const assay_lost_profile *lost);
/* The plan without it, which has specs and precisions of its own; the rest is the plan's. */
assay_status assay_plan_leave_out(assay_context *ctx, const assay_plan *plan, const assay_lost_profile *lost,
                                  assay_plan *without);

/* A golden's plan has not what the golden says was left out. */
assay_status assay_plan_adopt_left_out(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden);
