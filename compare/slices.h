/* Statistics and slices in words. Private to compare/. */
#pragma once

#include "compare/compare.h"

enum { ASSAY_SLICE_TEXT = 400 };

const char *assay_statistic_name(int statistic); /* "size", "bias", ..., "axis" */

/* "expert 3", "row [0,5]", "columns 128-255"; "" for what is no slice. */
void assay_slice_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT]);

/* What it is and what it might have been at most: "RMS of error / deviation 2.31, of a correct one up to 1.42". */
void assay_statistic_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT]);
