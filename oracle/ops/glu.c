#include "oracle/ops/glu.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"

enum { CHUNK = 256 };

/* u, u', v, v' of a chunk; u' and v' are 0 beyond a clamp. */
typedef struct factors {
    double u[CHUNK], du[CHUNK], v[CHUNK], dv[CHUNK];
} factors;

/* NaN stays NaN: no comparison holds for it. */
static inline double clamp_above(double x, double limit)
{
    return x > limit ? limit : x;
}

/* In a run stage by stage: f comes with the error of an elementary function; f' with that of its terms, which cancel near
 * its zero; gelu's tanh cancels where x is below 0. relu and linear are exact. */
static void err(const assay_context *ctx, assay_activation function, int64_t n, const double *x, double *f,
                double *slope)
{
    double terms[CHUNK], moved[CHUNK], tanh[CHUNK];
    if (!assay_is_staged(ctx) || function == ASSAY_RELU || function == ASSAY_LINEAR) return;
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(f[i]);
        terms[i] = moved[i] = fmin(size + size / fmax(fabs(x[i]), 0x1p-60), 1 + size);
        tanh[i] = function == ASSAY_GELU && x[i] < 0 ? -0.25 * x[i] : 0;
        f[i] -= tanh[i];
    }
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, n, moved);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, n, tanh);
    for (int64_t i = 0; i < n; i++) f[i] += tanh[i];
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, n, f);
    for (int64_t i = 0; i < n; i++) slope[i] += moved[i] - terms[i];
}

static void clamped_factors(const assay_context *ctx, const double *a, const double *b, int64_t n,
                            const assay_gated_mlp_config *config, factors *f)
{
    const bool gpt_oss = config->glu == ASSAY_GLU_GPT_OSS;
    const double limit = config->limit, shift = gpt_oss ? 1 : 0;
    /* x sigmoid(alpha x) is, at this number times x, that of 1.702 over this number */
    const double stretch = config->alpha > 0 ? config->alpha / ASSAY_GPT_OSS_ALPHA : 1;
    double x[CHUNK];
    for (int64_t i = 0; i < n; i++) {
        f->u[i] = clamp_above(a[i], limit);
        f->v[i] = (b[i] < -limit ? -limit : clamp_above(b[i], limit)) + shift;
        f->dv[i] = fabs(b[i]) > limit ? 0 : 1;
    }
    memcpy(x, f->u, (size_t)n * sizeof *x);
    if (gpt_oss) {
        for (int64_t i = 0; i < n; i++) f->u[i] *= stretch;
        assay_quick_gelu_many(ctx, n, f->u, f->u, f->du);
        for (int64_t i = 0; i < n; i++) f->u[i] /= stretch;
    } else {
        assay_activation_many(ctx, config->activation[0], n, f->u, f->u, f->du);
    }
    err(ctx, config->activation[0], n, x, f->u, f->du);
    for (int64_t i = 0; i < n; i++) f->du[i] = a[i] > limit ? 0 : f->du[i];
}

static void factors_of(const assay_context *ctx, const double *a, const double *b, int64_t n,
                       const assay_gated_mlp_config *config, factors *f)
{
    if (config->glu == ASSAY_GLU_PLAIN) {
        assay_activation_many(ctx, config->activation[0], n, a, f->u, f->du);
        assay_activation_many(ctx, config->activation[1], n, b, f->v, f->dv);
        err(ctx, config->activation[0], n, a, f->u, f->du);
        err(ctx, config->activation[1], n, b, f->v, f->dv);
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
            const double d = dh[first + i];
            da[first + i] = d * f.v[i] * f.du[i];
            db[first + i] = d * f.u[i] * f.dv[i];
        }
    }
}
