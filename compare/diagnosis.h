/* What a wrong tensor looks like: hypotheses tried one by one, each with what it leaves unexplained. Only one that
 * explains the tensor to within its error scales is said; a wrong guess is worse than none. */
#pragma once

#include "compare/compare.h"

/* Larger tensors are not diagnosed, so that memory stays bounded. */
#define ASSAY_DIAGNOSIS_MOST (INT64_C(1) << 22)

/* Fills report->diagnosis for the first wrong tensor of the data flow whose values were compared; "" where nothing
 * fits. */
assay_status assay_diagnose(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, assay_report *report);

/* --- the pieces, for tests --- */

/* One tensor: golden, candidate and standard deviations (rounding included) [count]; labels of the axes or NULL. */
typedef struct assay_wrong_tensor {
    const double *golden, *candidate, *sigma;
    int64_t count;
    assay_shape shape;
    const char *labels[ASSAY_MAX_RANK];
} assay_wrong_tensor;

/* What it looks like, or "". */
assay_status assay_diagnose_tensor(assay_context *ctx, const assay_wrong_tensor *t, char *text, size_t size);
