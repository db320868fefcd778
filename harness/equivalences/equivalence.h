/* Two ways of computing the same thing, held against each other. */
#pragma once

#include "harness/equivalences/counterpart.h"
#include "harness/plan/results.h"

/* What must hold between the two. */
typedef enum assay_holding {
    ASSAY_HOLDS_BITS,  /* the same bits */
    ASSAY_HOLDS_SCALES /* within ASSAY_EQUIVALENCE_SCALES error scales of float64, the rounding of the result included */
} assay_holding;

#define ASSAY_EQUIVALENCE_SCALES 10.0

/* The other form of a case: it with another configuration. */
typedef struct assay_other_form {
    assay_case c;                         /* a copy whose lists are the case's own: not to be freed */
    assay_holding holding;                /* the equivalence's, unless the form says otherwise */
    char reversed[ASSAY_PROGRAM_LETTERS]; /* axes of a program of which it has the last index first; "": none */
    bool other_shards; /* what each shard has of its own (its leading axis) is another number as well */
} assay_other_form;

typedef struct assay_equivalence {
    const char *name, *summary;
    assay_holding holding;
    /* Fills the other form, which starts as the case itself; false where the case has none. */
    bool (*other)(const assay_case *c, assay_other_form *form);
} assay_equivalence;

extern const assay_equivalence assay_equivalences[];                  /* ends with a NULL name */
const assay_equivalence *assay_equivalence_by_name(const char *name); /* NULL when there is none */

/* The other form of a case; false where it has none. */
bool assay_other_form_of(const assay_case *c, const assay_equivalence *equivalence, assay_other_form *form);

/* A case with its numbers in memory: what it is given, and what comes out. Starts zeroed, and stays where it is. */
typedef struct assay_form {
    assay_case c; /* lists are another's, but for `inputs` */
    assay_plan plan;
    assay_tensor_set results;
    const char *reversed; /* assay_other_form's; NULL: it is no other form */
} assay_form;
void assay_form_free(assay_form *form);

/* Of two forms' fused weights, seen from the first. */
assay_layouts assay_form_layouts(const assay_form *own, const assay_form *theirs);

/* The case evaluated, with the error scales of the profile, or none where it is NULL. All equivalences of the case
 * share it. */
assay_status assay_form_evaluate(assay_context *ctx, const assay_case *c, const assay_profile *profile,
                                 assay_form *form);
/* Its other form with the same given numbers, not evaluated. */
assay_status assay_form_of_other(assay_context *ctx, const assay_other_form *other, const assay_form *one,
                                 assay_form *form);
/* The same, evaluated, with the error scales of the profile. */
assay_status assay_form_evaluate_other(assay_context *ctx, const assay_other_form *other, const assay_form *one,
                                       const assay_profile *profile, assay_form *form);

/* Evaluates what its plan holds from what it is given. */
assay_status assay_form_run(assay_context *ctx, assay_form *form);

/* What was found. */
typedef struct assay_equivalence_result {
    bool applies, holds;
    assay_holding holding;
    int tensors;  /* compared */
    double worst; /* largest difference in error scales; where bits are to be the same, by 2^-53 of the number */
    char path[ASSAY_PATH_SIZE]; /* of the worst, or of the first that differs */
    int64_t index;              /* there */
    double one, other;          /* values there */
} assay_equivalence_result;

/* Evaluates the other form, where the case has one, and holds its results against the one's, which has the error scales
 * of f64 where the scales are to hold. */
assay_status assay_equivalence_check(assay_context *ctx, const assay_form *one, const assay_equivalence *equivalence,
                                     assay_equivalence_result *result);
