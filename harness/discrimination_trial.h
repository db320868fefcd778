/* One mutant after the other, of one golden at one profile. Private to harness/discrimination*.c. */
#ifndef ASSAY_HARNESS_DISCRIMINATION_TRIAL_H
#define ASSAY_HARNESS_DISCRIMINATION_TRIAL_H

#include "harness/discrimination.h"

/* What is the same for all mutants of a golden and a profile. */
typedef struct assay_trial {
    const assay_results *golden;
    const assay_profile *profile;
    double false_alarm;
    const char *folder;           /* for candidates; NULL */
    assay_fixture_reader *reader; /* over the golden */
} assay_trial;

bool assay_path_is_scale(const char *path);
bool assay_path_is_required(const char *path); /* of a candidate */

/* A copy of what was given, and of the golden's results too where `results`. */
assay_status assay_results_copy(assay_context *ctx, const assay_results *golden, bool results, assay_results *copy);

/* Evaluates the mutated case into the candidate, a copy of the golden. Not `*applies`: nothing came of it. */
assay_status assay_mutant_evaluate(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   assay_results *candidate, bool *applies);

#endif
