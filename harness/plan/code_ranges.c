#include "harness/plan/code_ranges.h"

#include <math.h>

static const double RECIPE_SLACK = 0x1p-21;

double assay_code_reach(double x, double tau)
{
    return tau + RECIPE_SLACK * fabs(x);
}

void assay_amax_range(assay_code_range *amax, int64_t count, const double *x, const double *tau)
{
    for (int64_t i = 0; i < count; i++) {
        const double size = fabs(x[i]), off = assay_code_reach(x[i], tau[i]);
        amax->golden = fmax(amax->golden, size);
        amax->least = fmax(amax->least, fmax(size - off, 0));
        amax->most = fmax(amax->most, size + off);
    }
}

assay_code_range assay_scale_range(const assay_code_range *amax, const assay_quantize_config *config)
{
    const double low = assay_quantize_scale(amax->least, config), high = assay_quantize_scale(amax->most, config);
    return (assay_code_range){fmin(low, high), assay_quantize_scale(amax->golden, config), fmax(low, high)};
}

assay_code_range assay_element_range(double x, double tau, double scale, const assay_quantize_config *config)
{
    const double off = assay_code_reach(x, tau), three[3] = {x - off, x, x + off};
    double numbers[3];
    assay_quantize_by(numbers, three, 3, scale, config);
    return (assay_code_range){numbers[0], numbers[1], numbers[2]};
}
