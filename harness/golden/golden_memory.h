/* A golden that never was a file. */
#pragma once

#include "harness/plan/golden_open.h"
#include "oracle/base/tensor_set.h"

/* Evaluates the plan's case. `tensors` is assay_plan_tensors' with everything that is given; then it holds what the file
 * would, number for number, and must outlive the golden, which the caller closes, also where this fails. Digests there
 * are none. */
assay_status assay_golden_of_memory(assay_context *ctx, const assay_plan *plan, assay_tensor_set *tensors,
                                    assay_golden *golden);

/* The same from any source, as a reader alone. */
assay_status assay_golden_in_memory(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                    assay_tensor_set *tensors, assay_fixture_reader **reader);

/* The plan's results, but for mutants, into `tensors` with all that is given; from `source`, which may give the
 * choice of experts too. */
assay_status assay_golden_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                   assay_tensor_set *tensors);

/* A reader over a set: those of its tensors that are complete. */
assay_status assay_fixture_of_tensors(assay_context *ctx, const char *kind, const assay_tensor_set *tensors,
                                      assay_fixture_reader **reader);
