/* Error scales and null distributions from an ensemble (docs/comparing.md): the operation run again in the emulated
 * arithmetic, member after member, its routing held at the golden one. The spread of the members around the golden
 * values is one standard deviation of a correct implementation, for every element of every output, gradient and
 * checkpoint; what each member's statistics are against the spread of the others is the null distribution. */
#pragma once

#include "harness/plan/sections.h"
#include "oracle/arithmetic/emulated.h"

/* What error scales and null distributions follow from, as the attribute error_model of a golden says; it counts up with
 * every change of them. Goldens without the attribute are of "1". */
#define ASSAY_ERROR_MODEL "21"

/* Evaluates the plan's case: its results, then the error scales and null distributions that the sink wants, into the
 * sink. An exact case has no members (assay_ensemble_members): its scales are 0. So is that of a golden value that is not
 * finite. */
assay_status assay_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *in, const assay_sink *out);

/* What member `number` of the stream of that name runs with, beside ctx->arithmetic = &assay_arithmetic_emulated. */
assay_emulation assay_ensemble_member(const assay_plan *plan, const assay_precision *precision, const char *name,
                                      int number);

/* `in` as a run of the case in the emulated arithmetic reads it: an input, weight or cotangent on a finer grid than the
 * precision's storage is rounded first, each value to the same number wherever it is used; but not one whose type the
 * case names. Nothing is without ctx->emulation. */
typedef struct assay_rounded {
    assay_wrapped wrapped;
    const assay_case *c;
    const assay_precision *inputs; /* what is not rounded by it may be lent; NULL: all is copied */
} assay_rounded;
assay_source assay_rounded_source(assay_rounded *rounded);

/* Sums over the members of squared errors become standard deviations, in place. A few draws are too few for an element
 * to stand alone: half of its variance is its own mean square, half that of a model.
 *
 * The model is a factor for the row times one for the column, for a view of the tensor as a matrix: all axes but the
 * last against the last; any other place where the axes can be cut in two; or each index of the first axis by itself
 * (an expert or a batch has columns of its own). The view that fits best is taken. Views with few rows or columns do
 * not count; if there is no other, their factors are drawn towards the mean. An element without an error in any member
 * stays 0 where its whole row or column of some view is so. One whose sum is not finite stays so and enters no mean. */
assay_status assay_ensemble_smooth(assay_context *ctx, const assay_shape *shape, int members, double *values);
