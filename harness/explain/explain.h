/* Which known bug a failed candidate has. Each mutant (harness/mutants/mutants.h) is a hypothesis: it holds when the comparer,
 * given the mutant's results in place of the golden's, would let the whole candidate pass, and no more is left than a
 * correct candidate leaves. One that explains a part is not claimed: a wrong guess is worse than none. */
#pragma once

#include "harness/fixes/fixes.h"
#include "harness/plan/golden_open.h"
#include "harness/power/power_test.h"

/* Fills explanation and explained_by of the report on a failure; leaves others alone. What keeps it from looking (a
 * case that is too large, that this program cannot evaluate, or without memory) is said there too and is no error. given_too: of a report on stages, the candidate's checkpoints, which
 * mutants go on from as the stages do; else NULL. */
assay_status assay_explain(assay_context *ctx, assay_golden *golden, const assay_tensor_set *given_too,
                           assay_fixture_reader *candidate, const assay_profile *profile, bool quiet,
                           assay_report *report);

/* Whether a failed candidate equals that one mutant. False where it cannot be tried. */
assay_status assay_explains(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, const assay_mutant *mutant, const assay_report *report,
                            bool *holds);
