#include "compare/thresholds.h"

#include <float.h>
#include <math.h>

#include "compare/quantiles.h"

/* |z| above the result has the probability `false_alarm` over `count` draws at most. */
static double two_sided(double false_alarm, int64_t count)
{
    double tail = false_alarm / (2.0 * (double)(count > 1 ? count : 1));
    return assay_normal_upper_quantile(tail > DBL_MIN ? tail : DBL_MIN);
}

assay_thresholds assay_thresholds_of(double false_alarm, int64_t elements, int64_t rows, int64_t statistics)
{
    const double part = false_alarm / (statistics > 0 ? 3 : 2);
    return (assay_thresholds){.element = two_sided(part, elements),
                              .row = two_sided(part, rows),
                              .statistic_tail = statistics > 0 ? part / (2.0 * (double)statistics) : 0};
}

double assay_statistic_quantile(const assay_thresholds *thresholds, double members)
{
    const double tail = thresholds->statistic_tail;
    return assay_student_upper_quantile(tail > DBL_MIN ? tail : DBL_MIN, members - 1) * sqrt(1 + 1 / members);
}
