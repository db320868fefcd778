/* Other ways of running a case that are no other case: what `run` of an equivalence's form may be. */
#pragma once

#include "harness/operations/operation.h"

/* The case's own choice of experts, given back to it as inputs/.../selected_experts. */
assay_status assay_run_replayed(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out);
/* A MoE block as the sum of three ranks with a third of the experts each. */
assay_status assay_run_ranks(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out);
