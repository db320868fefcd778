/* What may stand in a golden. Private to harness/golden/golden.c. */
#pragma once

#include "cases/case.h"
#include "oracle/base/tensor.h"

/* Refuses what is not finite, as the dataset's type has it, among its elements [first, first + count). Lawful are the
 * log-sum-exp -inf of a query that sees no key, and the margin inf where every expert is chosen or a table chooses.
 * What was given is not looked at (padding may hold NaN), nor are certificates and the excess of mutants. */
assay_status assay_golden_require_finite(assay_context *ctx, const assay_case *c, const assay_tensor_spec *spec,
                                         int64_t first, int64_t count, const double *values);
