/* The MoE block with its error scales. */
#pragma once

#include "oracle/moe/moe.h"
#include "oracle/propagate/rules.h"

/* assay_moe_run, and for each precision error_scale/NAME/<path of an output, gradient or checkpoint>: one standard
 * deviation, without the rounding of the result itself. Weights are still in memory one expert at a time, and are read
 * once. Scales that the sink does not want are not computed. */
assay_status assay_propagate_moe(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                                 const assay_sink *out, const assay_precision *precisions, int precision_count);
