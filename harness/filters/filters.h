/* Filters along known errors: which mutants a golden has filters for (compare/direction.h says what one is).
 *
 * A mutant that no element and no statistic of a tensor shows for certain moves all results a little. Where all of them
 * together tell it from correct implementations, the golden holds the filter along it. */
#pragma once

#include "harness/mutants/mutant_run.h"
#include "harness/scales/directions.h"

/* Adds to a golden in memory the filters that it is to hold: of a plan that has some already these, and else those that
 * are found. Afterwards the plan has them too. `golden`: of the plan, as its file would have it; nothing happens to one that
 * is too large (assay_direction_members). */
assay_status assay_filters_add(assay_context *ctx, assay_plan *plan, assay_tensor_set *golden);

/* Whether a mutant moves the results of every kernel that has it alike: one that draws errors, or rounds the results
 * themselves, does not. */
bool assay_filter_is_for(const assay_mutant *mutant);

/* What a mutant moves [assay_direction_elements], of all tensors that a filter has; false: something is not finite, or
 * nothing moves. */
bool assay_filter_moved(const assay_plan *plan, const assay_tensor_set *golden, const assay_tensor_set *mutant,
                        double *moved);
