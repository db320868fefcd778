/* All tensors of a case in memory: what was given, and what came out. */
#pragma once

#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* Room for everything in the plan, in its order; what `in` has is read from it, unless that is NULL. `tensors` is freed
 * if it fails. */
assay_status assay_plan_tensors(assay_context *ctx, assay_tensor_set *tensors, const assay_plan *plan,
                                const assay_source *in);
/* The error scales of a result at a profile; NULL: it has none. */
assay_tensor *assay_results_scales(const assay_tensor_set *tensors, const assay_profile *profile, const char *path);
/* Of what was given alone. */
assay_source assay_input_source(const assay_tensor_set *tensors);
/* The same, and the choice of experts. */
assay_source assay_input_and_choice_source(const assay_tensor_set *tensors);
/* What is computed, as a file would have it: on the grid of its dataset, and zeros for the scales of an exact case. */
void assay_results_store(const assay_plan *plan, const assay_tensor_set *results);
/* For what comes out, but for null distributions. */
assay_sink assay_results_sink(assay_tensor_set *tensors);

extern const assay_sink assay_nowhere; /* wants all, and keeps nothing */
