/* One standard deviation of what a kernel quantises itself, h and by a recipe gradients: how near to a boundary a correct
 * implementation may still make another code of it. */
#pragma once

#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* Adds "spread/PATH" for each such tensor (each h below) of the plan's case whose codes `in` does not give: of an ensemble of emulated runs at
 * `precision`; where the candidate gives h itself (a run stage by stage), of its storage alone. `h`: NULL, or gets every h as the
 * plan's case has it, and then every spread is added; codes are then judged one by one, so no spread of an h that has some is below
 * what storing gate, up and h makes. Both sets start zeroed. */
assay_status assay_hidden_deviation(assay_context *ctx, const assay_plan *plan, const assay_precision *precision,
                                    const assay_source *in, assay_tensor_set *h, assay_tensor_set *deviation);
