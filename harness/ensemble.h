/* Error scales from an ensemble (COMPARING.md): the operation run again in the emulated arithmetic, member after member,
 * its routing held at the golden one. The spread of the members around the golden values is one standard deviation of a
 * correct implementation, for every element of every output, gradient and checkpoint. */
#ifndef ASSAY_HARNESS_ENSEMBLE_H
#define ASSAY_HARNESS_ENSEMBLE_H

#include "harness/golden.h"

/* Evaluates the plan's case: its results, then the error scales that the plan holds, into the sink. Operations that
 * give error scales themselves are asked for them; for the others there is the ensemble. */
assay_status assay_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *in, const assay_sink *out);

/* sigma [rows,columns] from sums of squared errors over the members: an element's own spread is too few draws to stand
 * alone, so it is smoothed over its row and its column. */
void assay_ensemble_smooth(const assay_context *ctx, double *sigma, const double *squares, int members, int64_t rows,
                           int64_t columns);

#endif
