/* What a candidate fixes (docs/comparing.md, "Another choice of experts" and on): its choice of experts, the order of an expert's
 * rows, replicas, codes that its kernel quantised; and stage by stage each checkpoint. All of it is taken from the
 * candidate and judged, each by its own rule. Then the golden's case is evaluated again, once, given all of it that is
 * right, and the candidate held against that. */
#pragma once

#include "harness/plan/golden_open.h"
#include "harness/power/power_test.h"

/* assay_compare, with report->routing, order and codes. Where the candidate fixes nothing, or what the golden has, that is
 * all. Else the golden's case is evaluated from the golden's own inputs with the golden's engine: first what experts are
 * chosen by, given the candidate's choice in all layers, with its errors in the profile (an ensemble of emulated runs);
 * then, if no token is wrong, everything that is compared. *against is then that golden, to be closed; else zeroed.
 * The candidate's rows and codes become such as the golden has them. Tensors are in the order of the plan of the golden's
 * case, where it can be planned. */
assay_status assay_compare_fixed(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                 const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                 assay_golden *against);

/* Refuses cases whose stages nobody evaluates: over a mesh, or under the batch-split schedule. */
assay_status assay_stages_check(assay_context *ctx, const assay_case *c);

/* What wrong stages were judged by: the case evaluated from the candidate's checkpoints, and these, as what is given. Starts zeroed. */
typedef struct assay_stages {
    assay_golden golden;
    assay_tensor_set adopted;
} assay_stages;
void assay_stages_close(assay_stages *by);

/* A candidate stage by stage (docs/comparing.md, "Stage by stage"): what is wrong is found where it is made, with error
 * scales of that stage alone. After assay_compare_fixed. One run of the golden's case with the golden's engine: at each
 * checkpoint that the candidate gives, the run's own value is what the candidate is held to, and the run goes on from the
 * candidate's. An ensemble of emulated runs does the same; in each of them what the candidate stored is moved by up to
 * half a unit in the last place of the profile's storage type, as a kernel may have kept it finer, or reads it coarser.
 * Choices of experts are the candidate's, judged by the scores of its own inputs; where it gives none, the golden's. *by,
 * unless NULL, is filled where a stage is wrong, and to be closed. *report is zeroed where the operation has no stages or
 * the candidate gives no checkpoint that can be used. */
assay_status assay_compare_stages(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                  const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                  assay_stages *by);

/* The same for mutants (plan->by_stage). */
extern const assay_stage_judge assay_stages_judge;
