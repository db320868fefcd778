/* The power of a golden's verdict: which mutants its verdict tells from correct candidates, and by how much.
 *
 * A mutant's candidate is what a backend of the profile would give if it had that bug: the mutated results rounded to
 * the profile's storage type. The comparer itself judges it. */
#pragma once

#include "compare/compare.h"
#include "compare/power.h"
#include "harness/mutants/mutants.h"

typedef struct assay_mutant_result {
    const assay_mutant *mutant;
    assay_mutant_outcome outcome;
    bool required;
    bool equivalent;               /* of a step's: the case gives the same with it, so it is not looked at */
    bool unshown;                  /* the same, but on other data it has an effect (assay_power_find_unshown) */
    int changed, found;            /* tensors with an effect; of those, the ones that fail by themselves */
    bool fails;                    /* the verdict on the candidate */
    assay_mutant_outcome by_stage; /* DETECTED: it fails, or does once it gives its checkpoints too and each stage is
                                      judged by itself; NOT_APPLICABLE: nobody judged stages */
    double excess; /* the largest error over its threshold; of mutants that are judged tensor by tensor the
                           least of these */
    char where[ASSAY_PATH_SIZE]; /* that tensor; "" */
} assay_mutant_result;

typedef struct assay_power_test {
    const assay_profile *profile;
    assay_mutant_list mutants;
    assay_mutant_result *items; /* of each mutant, in their order */
    assay_power power;
} assay_power_test;

/* Judges stages (harness/fixes/fixes.h, which lies above). `check` refuses cases without; `compare` says whether a stage of the candidate is
 * wrong. The golden has the attributes case_yaml and engine. */
typedef struct assay_stage_judge {
    assay_status (*check)(assay_context *ctx, const assay_case *c);
    assay_status (*compare)(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, double false_alarm, bool *fails);
} assay_stage_judge;

/* Sees each mutant's candidate that has an effect, with the verdict on that. */
typedef struct assay_mutant_watch {
    void *self;
    void (*see)(void *self, const assay_tensor_set *candidate, const assay_mutant_result *result);
} assay_mutant_watch;

/* `golden`: all tensors of the plan with its error scales. Refuses a golden that cannot be compared at this profile, or
 * whose own results, rounded, do not pass. `folder`: where the candidates of mutants with an effect are written as
 * MUTANT.h5, NULL for nowhere. Where the plan says who judges stages and the case has some, mutants that pass are judged by
 * these too, with half the false alarms, as in `compare --staged`. Runs on ctx->threads threads, which change nothing. */
assay_status assay_power_test_run(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                  const assay_profile *profile, double false_alarm, const char *folder,
                                  assay_power_test *found);
void assay_power_test_free(assay_power_test *found); /* safe on a zeroed struct */
/* Tells mutants that the case's data does not show from those that are equivalent on other data, too, and so by mathematics. */
assay_status assay_power_find_unshown(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                      assay_power_test *found);
/* Whether a mutant is the first one of a step that this data does not show at all: no mutant of it has an effect. */
bool assay_power_hides(const assay_power_test *found, int mutant, const char **step, int *length);
/* Whether the results that are required are the same but for last digits of float64: 1e-12 of each tensor's largest number. */
bool assay_power_is_same(const assay_tensor_set *golden, const assay_tensor_set *candidate);

/* Of a golden with mutants, whose `results` are there with all that is given: discrimination/PROFILE for each profile. */
assay_status assay_power_evaluate(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *results,
                                  const assay_sink *out);

/* The golden is to hold which mutants it detects, at each of its profiles. */
assay_status assay_plan_mutants(assay_context *ctx, assay_plan *plan);

/* discrimination/PROFILE [mutants,fields] (compare/power.h). */
assay_status assay_power_spec(assay_context *ctx, const char *profile, int mutants, assay_tensor_spec *spec);
/* As many numbers. */
void assay_power_fields(const assay_power_test *found, double *fields);

/* A stored certificate: of the mutants that are known still, it says what `fields` say. */
assay_status assay_power_check(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                               const char *path, const double *fields);
