/* What codes and their scales may be that a kernel makes of numbers which it computed itself: what the recipe gives for numbers
 * that are off by no more than errors allow. */
#pragma once

#include "oracle/ops/quantize.h"

typedef struct assay_code_range {
    double least, golden, most;
} assay_code_range;

static inline bool assay_code_is_within(const assay_code_range *range, double found)
{
    return found >= range->least && found <= range->most;
}

/* How far off x may be where it may be `tau` off, and the recipe's own steps are float32 in any order. */
double assay_code_reach(double x, double tau);

/* The largest magnitude of a block; grows with its rows. Starts zeroed. */
void assay_amax_range(assay_code_range *amax, int64_t count, const double *x, const double *tau);
assay_code_range assay_scale_range(const assay_code_range *amax, const assay_quantize_config *config);
/* By the scale that the candidate has. */
assay_code_range assay_element_range(double x, double tau, double scale, const assay_quantize_config *config);
