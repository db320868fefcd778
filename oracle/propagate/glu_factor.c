#include "oracle/propagate/glu_factor.h"

#include <math.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/ops/glu.h"
#include "oracle/propagate/rules.h"

/* How much a kink at a distance counts where the argument may be off by `sigma`, an envelope of its errors. */
static double kink_weight(double distance, double sigma)
{
    if (distance == 0) return 1;
    return distance > 8 * sigma ? 0 : assay_exp(-assay_square(distance / sigma) / 16);
}

static assay_glu_factor activation_factor(assay_activation f, double x, double sigma)
{
    assay_glu_factor factor = assay_activation_at(f, x);
    factor.slope = fabs(factor.first);
    factor.elementary = f != ASSAY_RELU && f != ASSAY_LINEAR;
    if (f == ASSAY_RELU) {
        factor.jump = kink_weight(fabs(x), sigma);
        factor.slope = fmax(factor.slope, factor.jump);
    }
    return factor;
}

/* What a clamp at a distance does to a factor: `beyond` it nothing moves any more. */
static void clamp_factor(assay_glu_factor *factor, bool beyond, double distance, double sigma)
{
    const double inner = factor->slope * kink_weight(distance, sigma);
    if (beyond) factor->first = factor->second = factor->first_size = factor->slope = factor->jump = 0;
    factor->slope = fmax(factor->slope, inner);
    factor->jump = fmax(factor->jump, inner);
}

assay_glu_factor assay_glu_gate(const assay_gated_mlp_config *config, double a, double sigma)
{
    if (config->glu == ASSAY_GLU_PLAIN) return activation_factor(config->activation[0], a, sigma);
    const double cut = a > config->limit ? config->limit : a;
    assay_glu_factor factor;
    if (config->glu == ASSAY_GLU_GPT_OSS) {
        const double stretch = assay_glu_stretch(config);
        factor = assay_quick_gelu_at(stretch * cut);
        factor.value /= stretch;
        factor.second *= stretch;
        factor.slope = fabs(factor.first);
        factor.elementary = true;
    } else {
        factor = activation_factor(config->activation[0], cut, sigma);
    }
    clamp_factor(&factor, a > config->limit, fabs(a - config->limit), sigma);
    return factor;
}

assay_glu_factor assay_glu_up(const assay_gated_mlp_config *config, double b, double sigma)
{
    if (config->glu == ASSAY_GLU_PLAIN) return activation_factor(config->activation[1], b, sigma);
    assay_glu_factor factor =
        activation_factor(ASSAY_LINEAR, fabs(b) > config->limit ? copysign(config->limit, b) : b, sigma);
    if (config->glu == ASSAY_GLU_GPT_OSS) factor.value += 1;
    clamp_factor(&factor, fabs(b) > config->limit, fabs(fabs(b) - config->limit), sigma);
    return factor;
}
