/* The power of a golden's verdict, as it is stored: which mutants the comparer tells from correct candidates
 * (docs/mutants.md).
 *
 * discrimination/PROFILE [mutants,fields] has a row for each mutant of the root attribute `mutants`. */
#ifndef ASSAY_COMPARE_POWER_H
#define ASSAY_COMPARE_POWER_H

#include "fixtures/fixture.h"

/* What became of a mutant. */
#define ASSAY_MUTANT_OUTCOME_TABLE(X)                                                                                  \
    X(NOT_APPLICABLE, "-")    /* the case has nothing that it could change */                                          \
    X(NO_EFFECT, "no effect") /* no result changes by more than one unit of the storage type */                        \
    X(DETECTED, "detected")                                                                                            \
    X(PASSES, "passes")
typedef enum assay_mutant_outcome {
#define X(code, name) ASSAY_MUTANT_##code,
    ASSAY_MUTANT_OUTCOME_TABLE(X)
#undef X
} assay_mutant_outcome;

/* The numbers of a row. */
enum {
    ASSAY_POWER_OUTCOME,
    ASSAY_POWER_REQUIRED, /* 0 or 1 */
    ASSAY_POWER_CHANGED,  /* tensors with an effect */
    ASSAY_POWER_FOUND,    /* of those, the ones that fail by themselves */
    ASSAY_POWER_EXCESS,   /* by how much: the error over its threshold; infinite where any difference is too much */
    ASSAY_POWER_FIELDS
};

typedef struct assay_power {
    bool stated;
    int effective, detected; /* mutants that have an effect, and of those the detected ones */
    char vacuous[64];        /* the first required mutant that would pass; "" */
} assay_power;

/* A golden without a certificate for this profile: not stated. Refuses one that is damaged. */
assay_status assay_power_read(assay_context *ctx, assay_fixture_reader *golden, const char *profile,
                              assay_power *power);

#endif
