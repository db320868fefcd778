/* The power of a golden's verdict, as it is stored: which mutants the comparer tells from correct candidates
 * (docs/power.md).
 *
 * discrimination/PROFILE [mutants,fields] has a row for each mutant of the root attribute `mutants`. Earlier goldens lack
 * the last field. */
#pragma once

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
    ASSAY_POWER_BY_STAGE, /* the outcome where candidates give checkpoints; 0: not judged */
    ASSAY_POWER_FIELDS
};

typedef struct assay_power {
    bool stated;
    int effective, detected; /* mutants that have an effect, and of those the detected ones */
    bool stated_by_stage;
    int detected_by_stage; /* where candidates give checkpoints and `compare --staged` judges them */
    char vacuous[64];      /* the first required mutant that would pass; "" */
} assay_power;

/* "46 of 54 mutants that have an effect here are detected", and how many with checkpoints. */
enum { ASSAY_POWER_LINE_SIZE = 160 };
void assay_power_line(const assay_power *power, char line[ASSAY_POWER_LINE_SIZE]);

/* How many fields the rows of a stored certificate have; 0: it is none for so many mutants. */
int assay_power_fields_of(const assay_tensor_spec *stored, int mutants);

/* A golden without a certificate for this profile: not stated. Refuses one that is damaged. */
assay_status assay_power_read(assay_context *ctx, assay_fixture_reader *golden, const char *profile,
                              assay_power *power);
