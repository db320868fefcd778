/* A statistic along a known error, over all outputs and gradients together: a matched filter.
 *
 * p = sum(filter x error), with the filter that directions/PROFILE/NAME/... has: a candidate with the known error has
 * p = 1, a correct one about 0, within what null/PROFILE/directions/NAME says. How the filter is found says
 * harness/scales/directions.h. */
#pragma once

#include "compare/statistics.h"
#include "compare/thresholds.h"

enum { ASSAY_DIRECTION_NAME = 40, ASSAY_DIRECTION_TEXT = 160 };

/* The sum of filter x (candidate - golden); what is not finite, or has no filter, counts for nothing. */
double assay_projection(int64_t count, const double *filter, const double *golden, const double *candidate);

/* Whether p tells the error from correct implementations. A golden holds no other filters. */
bool assay_direction_is_resolved(const assay_thresholds *thresholds, const double expected[ASSAY_NULL_COLUMNS]);

/* One direction against its null distribution. */
typedef struct assay_direction_result {
    char name[ASSAY_DIRECTION_NAME]; /* of the known error */
    double expected[ASSAY_NULL_COLUMNS];
    int64_t elements, seen;    /* that have a filter; of those, compared */
    bool judged;               /* all were compared: else a part of the error is missing */
    double value, least, most; /* p, and what is allowed */
    double spreads, excess;    /* as of any statistic */
} assay_direction_result;

void assay_direction_judge(const assay_thresholds *thresholds, assay_direction_result *result);
/* The one that is farthest out; NULL: none fails. */
const assay_direction_result *assay_direction_worst(int count, const assay_direction_result *results);
/* "errors are 0.98 of those of rope_type, give or take 0.1; of a correct implementation up to 0.6" */
void assay_direction_text(const assay_direction_result *result, char text[ASSAY_DIRECTION_TEXT]);
