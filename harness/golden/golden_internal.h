/* What a golden that is written and one that is evaluated again share. Private to harness/golden. */
#pragma once

#include "harness/golden/golden.h"
#include "oracle/base/tensor_set.h"

/* The plan's results, but for mutants; and those of a set, and mutants, into a sink. */
assay_status assay_golden_results(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                  assay_tensor_set *results);
assay_status assay_golden_give_results(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *results,
                                       const assay_sink *out);
