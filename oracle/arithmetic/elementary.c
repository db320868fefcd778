#include "oracle/arithmetic/elementary.h"

#include <sleef.h>

#include "oracle/arithmetic/elementary_vectors.h"

#define FUNCTION(name, of_sleef)                                                                                       \
    double assay_##name(double x)                                                                                      \
    {                                                                                                                  \
        return of_sleef(x);                                                                                            \
    }
FUNCTION(exp, Sleef_cinz_expd1_u10purec)
FUNCTION(expm1, Sleef_cinz_expm1d1_u10purec)
FUNCTION(log, Sleef_cinz_logd1_u10purec)
FUNCTION(log1p, Sleef_cinz_log1pd1_u10purec)
FUNCTION(erf, Sleef_cinz_erfd1_u10purec)
FUNCTION(erfc, Sleef_cinz_erfcd1_u15purec)
FUNCTION(tanh, Sleef_cinz_tanhd1_u10purec)
FUNCTION(sin, Sleef_cinz_sind1_u10purec)
FUNCTION(cos, Sleef_cinz_cosd1_u10purec)
#undef FUNCTION

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
