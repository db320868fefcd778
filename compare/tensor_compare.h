/* One tensor of a golden against the candidate's, in one pass. Private to compare/. */
#pragma once

#include "compare/compare.h"
#include "compare/thresholds.h"

/* Elements that are read at a time: what the passes over them need stays in a core's cache. */
enum { ASSAY_CHUNK = 1 << 16 };

/* What is the same for all tensors of a fixture. */
typedef struct assay_comparison {
    assay_fixture_reader *golden, *candidate;
    const assay_profile *profile;
    assay_thresholds thresholds;
    double *golden_values, *candidate_values, *scales, *inverse; /* a chunk of each */
    assay_direction_result *directions;                          /* [direction_count]: their values grow */
    int direction_count;
    double *direction_values; /* a chunk of each of them */
    bool *lies_along;         /* [direction_count]: whether the tensor at hand has a part of it */
    int32_t *golden_integers, *candidate_integers;
} assay_comparison;

/* What a pass over a tensor found besides what the result says. */
typedef struct assay_facts {
    int64_t nonfinite; /* elements of the candidate that are NaN, or infinite where the golden is not */
    int64_t first_nonfinite;
    double first_golden, first_candidate; /* there */
    int64_t golden_nan, bad_scale;        /* first element whose golden or error scale is unusable; -1: none */
    bool all_zero;                        /* the golden is */
    bool zeros_pass;                      /* so would a candidate of zeros */
} assay_facts;

/* Each fills the numbers of `result`, whose spec, candidate_type, elements and rows are set. `scale`: path of the error
 * scale. A candidate that cannot be read ends as `*unreadable`, with the reason in ctx->message. */
assay_status assay_scan_floats(assay_context *ctx, const assay_comparison *c, const char *scale,
                               assay_tensor_result *result, assay_facts *facts, bool *unreadable);
assay_status assay_scan_integers(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                                 assay_facts *facts, bool *unreadable);
/* Non-finite values alone: there is no error scale. */
assay_status assay_scan_finite(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                               assay_facts *facts, bool *unreadable);
