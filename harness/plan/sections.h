/* How the error scales and null distributions of a plan come: which are propagated by the operation itself, which come
 * from an ensemble of emulated runs, of how many, and what that takes. */
#pragma once

#include "harness/plan/plan.h"

enum { ASSAY_MOST_MEMBERS = 64 };

/* Bytes of inputs that are kept for the members, who read the rest again; and of what the members leave where they are
 * run for null distributions alone. */
#define ASSAY_ENSEMBLE_BYTES 4e9

/* How many runs the ensemble of that precision has: as many as cost little. The case and the profile alone decide it. */
int assay_ensemble_members(const assay_plan *plan, const assay_precision *precision);
int assay_ensemble_most_members(const assay_plan *plan); /* of the plan's precisions */

/* Whether the operation gives error scales of that precision itself. */
bool assay_ensemble_is_propagated(const assay_plan *plan, const assay_precision *precision);

/* Whether such scales are raised to what comes of inputs that are rounded to nearest: too large an error for first order
 * where values cancel, and one that does not average out where a tensor's roundings go one way. Not in cases too large
 * for null distributions. */
bool assay_ensemble_is_raised(const assay_plan *plan, const assay_precision *precision);

/* Whether the operation's own run gives all error scales as they are. */
bool assay_ensemble_needs_no_runs(const assay_plan *plan);

/* Why a golden of the plan's case is to have no null distributions though the plan has room for them; "": it has them.
 * They are left out where the members are run for them alone and would take long, or much memory. The case decides, not
 * the machine: the same case gives the same file. */
void assay_ensemble_null_left_out(const assay_plan *plan, char reason[ASSAY_REASON_SIZE]);

/* Bytes that the ensemble takes beside the operation. */
int64_t assay_ensemble_memory(const assay_plan *plan);
