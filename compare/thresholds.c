#include "compare/thresholds.h"

#include <float.h>
#include <gsl/gsl_cdf.h>

/* |z| above the result has the probability `false_alarm` over `count` draws at most. */
static double two_sided(double false_alarm, int64_t count)
{
    double tail = false_alarm / (2.0 * (double)(count > 1 ? count : 1));
    return gsl_cdf_ugaussian_Qinv(tail > DBL_MIN ? tail : DBL_MIN);
}

assay_thresholds assay_thresholds_of(double false_alarm, int64_t elements, int64_t rows)
{
    return (assay_thresholds){.element = two_sided(0.5 * false_alarm, elements),
                              .row = two_sided(0.5 * false_alarm, rows)};
}
