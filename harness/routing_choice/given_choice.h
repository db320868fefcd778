/* Conditional routing (docs/comparing.md, "Another choice of experts"): a candidate that chose other experts than the golden, or the same
 * in another order, is held against the golden evaluated again given its choice, if a correct router could have made it. */
#ifndef ASSAY_HARNESS_GIVEN_CHOICE_H
#define ASSAY_HARNESS_GIVEN_CHOICE_H

#include "harness/plan/golden_open.h"

/* assay_compare, with report->routing. Where the candidate's choice is the golden's, or is not given, that is all. Else
 * the golden's case is evaluated from the golden's own inputs with the golden's engine: first what experts are chosen
 * by, given the candidate's choice in all layers, with its errors in the profile (an ensemble of emulated runs); then, if
 * no token is wrong, everything that is compared. *against is then that golden, to be closed; else zeroed.
 * Tensors are in the order of the plan of the golden's case, where it can be planned. */
assay_status assay_compare_given_choice(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                        const assay_profile *profile, double false_alarm, bool quiet,
                                        assay_report *report, assay_golden *against);

#endif
