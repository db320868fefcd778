/* A candidate stage by stage (docs/comparing.md, "Stage by stage"): each stage is evaluated again from the candidate's own
 * inputs to it, so that what is wrong is found where it is made, with error scales of that stage alone. */
#ifndef ASSAY_HARNESS_STAGES_H
#define ASSAY_HARNESS_STAGES_H

#include "harness/plan/golden_open.h"
#include "harness/power/power_test.h"

/* Refuses cases whose stages nobody evaluates: over a mesh, or under the batch-split schedule. */
assay_status assay_stages_check(assay_context *ctx, const assay_case *c);

/* What wrong stages were judged by: the case evaluated from the candidate's checkpoints, and these, as what is given. Starts zeroed. */
typedef struct assay_stages {
    assay_golden golden;
    assay_tensor_set given;
} assay_stages;
void assay_stages_close(assay_stages *by);

/* After assay_compare_given_choice, which puts the candidate's rows as the golden has them. One run of the golden's case
 * with the golden's engine: at each checkpoint that the candidate gives, the run's own value is what the candidate is held
 * to, and the run goes on from the candidate's. An ensemble of emulated runs does the same; in each of them what the
 * candidate stored is moved by up to half a unit in the last place of the profile's storage type, as a kernel may have kept
 * it finer, or reads it coarser. Choices of experts are the candidate's, judged by the scores of its own inputs; where it
 * gives none, the golden's. *by, unless NULL, is filled where a stage is wrong, and to be closed. *report is zeroed where the operation has no stages or the candidate gives no checkpoint that
 * can be used. */
assay_status assay_compare_stages(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                  const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                  assay_stages *by);

/* The same for mutants (plan->by_stage). */
extern const assay_stage_judge assay_stages_judge;

#endif
