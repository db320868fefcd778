/* One mutant after the other, of one golden at one profile. Private to the folders that try mutants. */
#ifndef ASSAY_HARNESS_DISCRIMINATION_TRIAL_H
#define ASSAY_HARNESS_DISCRIMINATION_TRIAL_H

#include "harness/mutants/mutants.h"

/* What is the same for all mutants of a golden and a profile. */
typedef struct assay_trial {
    const assay_plan *plan;
    const assay_tensor_set *golden;
    const assay_profile *profile;
    double false_alarm;
    const char *folder;           /* for candidates; NULL */
    bool scales;                  /* what is evaluated anew comes with error scales of its own */
    assay_fixture_reader *reader; /* over the golden */
} assay_trial;

/* A copy of the golden with the mutant's results, not rounded. Not `*applies`: nothing came of it. */
assay_status assay_mutant_make(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                               assay_tensor_set *candidate, bool *applies);

/* The part of it that runs the operation: the mutated case, into a copy of the golden. */
assay_status assay_mutant_evaluate(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   assay_tensor_set *candidate, bool *applies);

/* A reader over the tensors that are there; with `storage` over those of a candidate, in that profile's type. */
assay_status assay_trial_reader(assay_context *ctx, const assay_tensor_set *results, const char *kind,
                                const assay_profile *storage, assay_fixture_reader **reader);

#endif
