/* Reading a golden. */
#pragma once

#include "harness/plan/results.h"

/* Refuses a golden that lacks a dataset of the plan, or has it in another shape or type. The mutants of a stored
 * certificate are those that the file names. */
assay_status assay_golden_check_layout(assay_context *ctx, const assay_plan *plan, const assay_fixture_reader *golden);

/* The inputs, weights and cotangents of an open golden. */
assay_source assay_golden_inputs(assay_fixture_reader *golden);

/* All its tensors, in memory. */
assay_status assay_golden_load(assay_context *ctx, assay_tensor_set *tensors, const assay_plan *plan,
                               assay_fixture_reader *golden);
