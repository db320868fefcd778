#include "compare/direction.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* How much of the way to the known error correct implementations may go. The rest is for what else a kernel with this
 * error rounds. */
#define MOST_OF_THE_WAY 0.85

double assay_projection(int64_t count, const double *filter, const double *golden, const double *candidate)
{
    double lanes[ASSAY_LANES] = {0};
    for (int64_t i = 0; i < count; i++) {
        const double along = filter[i] * (candidate[i] - golden[i]);
        lanes[i % ASSAY_LANES] += fabs(along) <= DBL_MAX ? along : 0;
    }
    return assay_add_lanes(lanes);
}

bool assay_direction_is_resolved(const assay_thresholds *thresholds, const double expected[ASSAY_NULL_COLUMNS])
{
    const double spread = expected[ASSAY_NULL_SPREAD];
    if (!(spread > 0)) return false;
    const double farthest = fmax(-expected[ASSAY_NULL_LOW], expected[ASSAY_NULL_HIGH]);
    const double quantile = assay_statistic_quantile(thresholds, expected[ASSAY_NULL_MEMBERS]);
    return farthest + quantile * spread <= MOST_OF_THE_WAY;
}

void assay_direction_judge(const assay_thresholds *thresholds, assay_direction_result *result)
{
    const double *expected = result->expected, spread = expected[ASSAY_NULL_SPREAD];
    result->judged = result->seen == result->elements;
    if (!result->judged) return;
    result->spreads = assay_statistic_quantile(thresholds, expected[ASSAY_NULL_MEMBERS]);
    result->least = expected[ASSAY_NULL_LOW] - result->spreads * spread;
    result->most = expected[ASSAY_NULL_HIGH] + result->spreads * spread;
    result->excess = assay_statistic_deviation(ASSAY_STATISTIC_SLOPE, result->value, expected) / result->spreads;
}

const assay_direction_result *assay_direction_worst(int count, const assay_direction_result *results)
{
    const assay_direction_result *worst = NULL;
    for (int i = 0; i < count; i++) {
        if (!results[i].judged || results[i].excess <= 1) continue;
        if (worst == NULL || results[i].excess > worst->excess) worst = &results[i];
    }
    return worst;
}

void assay_direction_text(const assay_direction_result *result, char text[ASSAY_DIRECTION_TEXT])
{
    snprintf(text, ASSAY_DIRECTION_TEXT,
             "errors are %.2f of those of %s, give or take %.2g; of a correct implementation %.2g to %.2g",
             result->value, result->name, 2 * result->expected[ASSAY_NULL_SPREAD], result->least, result->most);
}
