#include "oracle/arithmetic/elementary.h"

#include <sleef.h>

double assay_exp(double x)
{
    return Sleef_cinz_expd1_u10purec(x);
}

double assay_expm1(double x)
{
    return Sleef_cinz_expm1d1_u10purec(x);
}

double assay_log(double x)
{
    return Sleef_cinz_logd1_u10purec(x);
}

double assay_log1p(double x)
{
    return Sleef_cinz_log1pd1_u10purec(x);
}

double assay_tanh(double x)
{
    return Sleef_cinz_tanhd1_u10purec(x);
}

double assay_erf(double x)
{
    return Sleef_cinz_erfd1_u10purec(x);
}

double assay_erfc(double x)
{
    return Sleef_cinz_erfcd1_u15purec(x);
}

double assay_sin(double x)
{
    return Sleef_cinz_sind1_u10purec(x);
}

double assay_cos(double x)
{
    return Sleef_cinz_cosd1_u10purec(x);
}

void assay_exp_many(const assay_context *ctx, int64_t count, const double *x, double *y)
{
    (void)ctx;
    for (int64_t i = 0; i < count; i++) y[i] = assay_exp(x[i]);
}
