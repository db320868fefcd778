/* One mutant after the other, of one golden at one profile. Private to the folders that try mutants. */
#pragma once

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
/* Of a candidate that gives its checkpoints too. */
assay_status assay_trial_staged_reader(assay_context *ctx, const assay_tensor_set *results,
                                       const assay_profile *storage, assay_fixture_reader **reader);

/* A candidate has the tensors that every backend gives: the choice of experts would give away many a mutant, but a
 * backend need not tell it. */
bool assay_is_of_candidate(const assay_tensor *tensor);
/* Checkpoints and the choice of experts: what stages are judged by. */
bool assay_is_of_stages(const assay_tensor *tensor);
/* The type in which a backend of the profile has a result. Codes and scales of h are no stored numbers, and are given as
 * they are. */
assay_dtype assay_candidate_type(const assay_profile *profile, const assay_tensor_spec *spec);
/* Results as they are stored. */
void assay_candidate_round(const assay_tensor_set *candidate, const assay_profile *profile);
