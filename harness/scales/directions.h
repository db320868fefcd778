/* What correct implementations of a case have in common at a profile, and a filter along a known error that takes it out.
 *
 * A known error moves the results by d. Errors of correct implementations along d are far from independent: the same
 * scores move them. So the filter is not d over its variances, but C^-1 d / (d^T C^-1 d) with the covariance C of emulated
 * correct runs: what these have in common with d is taken out of it. C is (R^T R + lambda I), R [members,count] being
 * the members' errors over their deviations; its inverse needs no matrix larger than [members,members]:
 *
 *     filter ~ w - R^T A h,    A = (R R^T + lambda I)^-1,  h = R w,  w = d / deviation
 *
 * A member cannot tell what passes a filter that it went into. What it is without the member follows from A (the formula of
 * leaving one out in ridge regression): p_m = (a_m / A_mm) / (w w - h a + a_m^2 / A_mm), a = A h. */
#pragma once

#include "compare/statistics.h"
#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

enum { ASSAY_NEAREST_RUNS = 2 }; /* to nearest: what is given rounded when it is read, or in products */

/* Of all elements that a filter has, one tensor after the other (assay_direction_covers). */
typedef struct assay_correct_runs {
    const assay_profile *profile;
    int members;
    int64_t count;
    double *golden, *scale, *deviation; /* deviation 0: it does not count */
    double *squares;                    /* of a member's errors over deviations, the mean */
    double *nearest[2];                 /* [ASSAY_NEAREST_RUNS,count]: errors as they are, and stored */
    double *errors, *inverse;           /* R [members,count]; A [members,members] */
    double *memory;
} assay_correct_runs;

/* `golden`: what is given, results, choices, and error scales of precision p of the plan. */
assay_status assay_correct_runs_make(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden, int p,
                                     assay_correct_runs *runs);
void assay_correct_runs_free(assay_correct_runs *runs); /* safe on a zeroed struct */

/* The filter along an error [count], on the grid of bfloat16, and what passes it in correct implementations. */
assay_status assay_correct_runs_filter(assay_context *ctx, const assay_correct_runs *runs, const double *moved,
                                       double *filter, double row[ASSAY_NULL_COLUMNS]);
