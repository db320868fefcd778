/* Error scales as results: error_scale/NAME/<path of a result>, NAME that of the precision. */
#pragma once

#include "oracle/arithmetic/precision.h"
#include "oracle/base/tensor.h"

bool assay_wants_scale(const assay_sink *out, const assay_precision *precision, const char *path);
/* The next `count` elements of the scale of the result at `path`, from their variances; nothing when nobody wants it. */
assay_status assay_write_scale(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                               const char *path, int64_t count, const double *variance);
