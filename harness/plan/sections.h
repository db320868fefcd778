/* The ensemble of emulated runs from which a plan's error scales and null distributions come: of how many, and what that
 * takes. */
#pragma once

#include "harness/plan/plan.h"

enum { ASSAY_MOST_MEMBERS = 64 };

/* Bytes of inputs that are kept for the members, who read the rest again. */
#define ASSAY_ENSEMBLE_BYTES 4e9

/* How many runs the ensemble of that precision has: as many as cost little. The case and the profile alone decide it. */
int assay_ensemble_members(const assay_plan *plan, const assay_precision *precision);
/* Whether as many run once more that store nothing between steps, where storage is coarser than float32: one kernel may have all
 * the steps of a program. */
bool assay_ensemble_keeps(const assay_plan *plan);
int assay_ensemble_most_members(const assay_plan *plan); /* of the plan's precisions */

/* Bytes that the ensemble takes beside the operation. */
int64_t assay_ensemble_memory(const assay_plan *plan);
