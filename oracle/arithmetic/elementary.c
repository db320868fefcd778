#include "oracle/arithmetic/elementary.h"

#include <sleef.h>

#include "oracle/arithmetic/elementary_vectors.h"

double assay_exp(double x)
{
    return Sleef_cinz_expd1_u10purec(x);
}

double assay_log(double x)
{
    return Sleef_cinz_logd1_u10purec(x);
}

double assay_log1p(double x)
{
    return Sleef_cinz_log1pd1_u10purec(x);
}

double assay_erf(double x)
{
    return Sleef_cinz_erfd1_u10purec(x);
}

double assay_erfc(double x)
{
    return Sleef_cinz_erfcd1_u15purec(x);
}

double assay_tanh(double x)
{
    return Sleef_cinz_tanhd1_u10purec(x);
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
#ifdef __x86_64__
    if (ctx->isa == ASSAY_ISA_AVX512) {
        assay_exp_many_avx512(count, x, y);
        return;
    }
    if (ctx->isa == ASSAY_ISA_AVX2) {
        assay_exp_many_avx2(count, x, y);
        return;
    }
#else
    (void)ctx;
#endif
    for (int64_t i = 0; i < count; i++) y[i] = assay_exp(x[i]);
}
