#include "oracle/ops/glu.h"

#include <math.h>

#include "oracle/arithmetic/elementary.h"

enum { CHUNK = 256 };

/* u, u', v, v' of a chunk; u' and v' are 0 beyond a clamp. */
typedef struct factors {
    double u[CHUNK], du[CHUNK], v[CHUNK], dv[CHUNK];
} factors;

static double square(double x)
{
    return x * x;
}

/* NaN stays NaN: no comparison holds for it. */
static inline double clamp_above(double x, double limit)
{
    return x > limit ? limit : x;
}

static inline double clamp_both(double x, double limit)
{
    return x < -limit ? -limit : clamp_above(x, limit);
}

static void clamped_factors(const assay_context *ctx, const double *a, const double *b, int64_t n,
                            const assay_gated_mlp_config *config, factors *f)
{
    const bool gpt_oss = config->glu == ASSAY_GLU_GPT_OSS;
    const double limit = config->limit, shift = gpt_oss ? 1 : 0;
    for (int64_t i = 0; i < n; i++) {
        f->u[i] = clamp_above(a[i], limit);
        f->v[i] = clamp_both(b[i], limit) + shift;
        f->dv[i] = fabs(b[i]) > limit ? 0 : 1;
    }
    if (gpt_oss) {
        assay_quick_gelu_many(ctx, n, f->u, f->u, f->du);
    } else {
        assay_activation_many(ctx, config->activation[0], n, f->u, f->u, f->du);
    }
    for (int64_t i = 0; i < n; i++) f->du[i] = a[i] > limit ? 0 : f->du[i];
}

static void factors_of(const assay_context *ctx, const double *a, const double *b, int64_t n,
                       const assay_gated_mlp_config *config, factors *f)
{
    if (config->glu == ASSAY_GLU_PLAIN) {
        assay_activation_many(ctx, config->activation[0], n, a, f->u, f->du);
        assay_activation_many(ctx, config->activation[1], n, b, f->v, f->dv);
    } else {
        clamped_factors(ctx, a, b, n, config, f);
    }
}

void assay_glu_forward(const assay_context *ctx, double *h, const double *a, const double *b, int64_t count,
                       const assay_gated_mlp_config *config)
{
    factors f;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        factors_of(ctx, a + first, b + first, n, config, &f);
        for (int64_t i = 0; i < n; i++) h[first + i] = f.u[i] * f.v[i];
    }
}

void assay_glu_backward(const assay_context *ctx, double *da, double *db, const double *dh, const double *a,
                        const double *b, int64_t count, const assay_gated_mlp_config *config)
{
    factors f;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        factors_of(ctx, a + first, b + first, n, config, &f);
        for (int64_t i = 0; i < n; i++) {
            f.du[i] = dh[first + i] * (f.du[i] * f.v[i]);
            f.dv[i] = dh[first + i] * (f.u[i] * f.dv[i]);
        }
        for (int64_t i = 0; i < n; i++) {
            da[first + i] = f.du[i];
            db[first + i] = f.dv[i];
        }
    }
}

/* How much a kink at a distance counts where the argument may be off by `sigma`, an envelope of its errors. */
static double kink_weight(double distance, double sigma)
{
    if (distance == 0) return 1;
    return distance > 8 * sigma ? 0 : assay_exp(-square(distance / sigma) / 16);
}

static assay_glu_factor factor_from(const assay_activation_point *point, bool elementary)
{
    return (assay_glu_factor){.value = point->value,
                              .first = point->first,
                              .second = point->second,
                              .first_size = point->first_size,
                              .slope = fabs(point->first),
                              .elementary = elementary};
}

static assay_glu_factor activation_factor(assay_activation f, double x, double sigma)
{
    const assay_activation_point point = assay_activation_at(f, x);
    assay_glu_factor factor = factor_from(&point, f != ASSAY_RELU && f != ASSAY_LINEAR);
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
    const double cut = clamp_above(a, config->limit);
    assay_glu_factor factor;
    if (config->glu == ASSAY_GLU_GPT_OSS) {
        const assay_activation_point point = assay_quick_gelu_at(cut);
        factor = factor_from(&point, true);
    } else {
        factor = activation_factor(config->activation[0], cut, sigma);
    }
    clamp_factor(&factor, a > config->limit, fabs(a - config->limit), sigma);
    return factor;
}

assay_glu_factor assay_glu_up(const assay_gated_mlp_config *config, double b, double sigma)
{
    if (config->glu == ASSAY_GLU_PLAIN) return activation_factor(config->activation[1], b, sigma);
    assay_glu_factor factor = activation_factor(ASSAY_LINEAR, clamp_both(b, config->limit), sigma);
    if (config->glu == ASSAY_GLU_GPT_OSS) factor.value += 1;
    clamp_factor(&factor, fabs(b) > config->limit, fabs(fabs(b) - config->limit), sigma);
    return factor;
}
