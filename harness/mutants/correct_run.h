/* Results of correct kernels: the counterpart of mutants. */
#pragma once

#include "compare/profile.h"
#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* A copy of the golden with what correct kernel `number` of the profile gives, in the types in which it stores results. Its
 * roundings and orders of sums are drawn as those of the error scales' runs, from a stream of its own; it has the golden's
 * choice of experts. */
assay_status assay_correct_run(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                               const assay_profile *profile, int number, assay_tensor_set *candidate);
