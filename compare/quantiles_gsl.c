#include <gsl/gsl_cdf.h>

#include "compare/quantiles.h"

double assay_normal_upper_quantile(double tail)
{
    return gsl_cdf_ugaussian_Qinv(tail);
}

double assay_student_upper_quantile(double tail, double freedom)
{
    return gsl_cdf_tdist_Qinv(tail, freedom);
}
