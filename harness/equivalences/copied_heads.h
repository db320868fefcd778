/* Attention whose heads of keys are shared, computed as if each head of queries had its own. */
#pragma once

#include "harness/operations/operation.h"

/* The case with a copy of the keys and values, and of their weights, for each head of queries. Results are the case's:
 * of what was copied gradients are summed, and of a checkpoint the first copy is taken. */
assay_status assay_run_copied_heads(assay_context *ctx, const assay_case *c, const assay_source *in,
                                    const assay_sink *out);
