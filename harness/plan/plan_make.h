/* Making a plan of a case. */
#pragma once

#include "harness/plan/plan.h"

/* Prepares the case and chooses datasets by its gradients, checkpoints and profiles. Of these some may be a user's own:
 * the golden's, or this one (NULL: none). A golden that has null distributions keeps them, however large. */
assay_status assay_plan_describe(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                 const assay_fixture_reader *golden, const assay_profile *own);
/* The same for a run stage by stage. */
assay_status assay_plan_describe_stages(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                        const assay_fixture_reader *golden, const assay_profile *own);
/* Refuses sizes beyond this machine's memory. */
assay_status assay_plan_require_memory(assay_context *ctx, const assay_plan *plan);
/* Both, with profiles that are built in. */
assay_status assay_plan_make(assay_context *ctx, assay_plan *plan, const assay_case *c);
/* Both. */
assay_status assay_plan_make_with(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                  const assay_fixture_reader *golden, const assay_profile *own);
/* Adds a profile to the case's, where it is not among them. */
assay_status assay_case_add_profile(assay_context *ctx, assay_case *c, const char *name);
