#include "oracle/propagate/rules.h"

#include <math.h>

double assay_propagate_given(assay_dtype type, double value)
{
    if (type == ASSAY_FLOAT64 || assay_dtype_round(type, value, false) == value) return 0;
    return assay_propagate_rounding(ASSAY_ROUNDING_RMS * assay_dtype_unit_roundoff(type),
                                    assay_dtype_least_subnormal(type), value);
}

void assay_propagate_store(double unit, double least, int64_t count, const double *value, double *variance)
{
    for (int64_t i = 0; i < count; i++) variance[i] += assay_propagate_rounding(unit, least, value[i]);
}

double assay_propagate_partial_squares(int64_t count, double squares, double sum)
{
    const double k = (double)count;
    double total = 0.0;
    for (int64_t j = 1; j <= count; j++) {
        const double share = (double)j / k;
        total += share * share * sum * sum;
        if (j < count) total += share * (1.0 - share) * fmax(k * squares - sum * sum, 0.0) / (k - 1.0);
    }
    return total;
}
