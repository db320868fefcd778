/* What stages begin with, of a candidate. */
#pragma once

#include "compare/compare.h"
#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* The candidate's checkpoints, at "staged/PATH", as far as they are of use. *taken: how many stages can be judged. */
assay_status assay_stages_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                                assay_fixture_reader *candidate, assay_tensor_set *adopted, int *taken);
