#include "oracle/ops/glu.h"

#include <math.h>
#include <stddef.h>

enum { CHUNK = 256 };
#define GPT_OSS_SLOPE 1.702

/* NaN stays NaN: both comparisons are false for it. */
static double clamp_above(double x, double limit) {
    return x > limit ? limit : x;
}

static double clamp_both(double x, double limit) {
    return x < -limit ? -limit : clamp_above(x, limit);
}

/* g(x) = x sigmoid(1.702 x) from silu(1.702 x) / 1.702: value and derivative over a chunk. */
static void gate_values(const assay_context *ctx, const assay_gated_mlp_config *config, int64_t n, const double *a,
                        double *value, double *derivative) {
    if (config->glu != ASSAY_GLU_GPT_OSS) {
        assay_activation_many(ctx, config->activation[0], n, a, value, derivative);
        return;
    }
    double scaled[CHUNK], s[CHUNK], slope[CHUNK];
    for (int64_t i = 0; i < n; i++)
        scaled[i] = GPT_OSS_SLOPE * a[i];
    assay_activation_many(ctx, ASSAY_SIGMOID, n, scaled, s, slope);
    for (int64_t i = 0; i < n; i++) {
        value[i] = s[i] == 0.0 ? 0.0 : a[i] * s[i];
        derivative[i] = slope[i] == 0.0 ? s[i] : s[i] + scaled[i] * slope[i];
    }
}

static void glu_chunk(const assay_context *ctx, const assay_gated_mlp_config *config, int64_t n, const double *a,
                      const double *b, double *h, double *fa, double *fb) {
    double ca[CHUNK], cb[CHUNK], gate[CHUNK], dgate[CHUNK], up[CHUNK], dup[CHUNK];
    bool clamped = config->glu != ASSAY_GLU_PLAIN;
    if (clamped) {
        double shift = config->glu == ASSAY_GLU_GPT_OSS ? 1.0 : 0.0;
        for (int64_t i = 0; i < n; i++) {
            ca[i] = clamp_above(a[i], config->limit);
            cb[i] = clamp_both(b[i], config->limit);
            up[i] = cb[i] + shift;
            dup[i] = cb[i] == b[i] ? 1.0 : 0.0;
        }
        gate_values(ctx, config, n, ca, gate, dgate);
        for (int64_t i = 0; i < n; i++)
            dgate[i] = ca[i] == a[i] ? dgate[i] : 0.0;
    } else {
        gate_values(ctx, config, n, a, gate, dgate);
        assay_activation_many(ctx, config->activation[1], n, b, up, dup);
    }
    for (int64_t i = 0; i < n; i++) {
        h[i] = gate[i] * up[i];
        if (fa != NULL) fa[i] = dgate[i] * up[i];
        if (fb != NULL) fb[i] = gate[i] * dup[i];
    }
}

void assay_glu_row(const assay_context *ctx, const assay_gated_mlp_config *config, int64_t n, const double *a,
                   const double *b, double *h, double *fa, double *fb) {
    for (int64_t first = 0; first < n; first += CHUNK) {
        int64_t count = n - first < CHUNK ? n - first : CHUNK;
        glu_chunk(ctx, config, count, a + first, b + first, h + first, fa == NULL ? NULL : fa + first,
                  fb == NULL ? NULL : fb + first);
    }
}

/* A(x) with two derivatives, without the clamp. */
typedef struct taylor {
    double value, first, second;
} taylor;

static taylor gate_taylor(const assay_context *ctx, const assay_gated_mlp_config *config, double x) {
    taylor t;
    gate_values(ctx, config, 1, &x, &t.value, &t.first);
    /* x sigmoid(1.702 x) is silu(1.702 x) / 1.702, whose second derivative carries one factor of 1.702 */
    t.second = config->glu == ASSAY_GLU_GPT_OSS
                   ? GPT_OSS_SLOPE * assay_activation_second_derivative(ASSAY_SILU, GPT_OSS_SLOPE * x)
                   : assay_activation_second_derivative(config->activation[0], x);
    return t;
}

assay_glu_curvature assay_glu_curvature_at(const assay_context *ctx, const assay_gated_mlp_config *config, double a,
                                           double b, double reach_a, double reach_b) {
    assay_glu_curvature k = {0};
    bool clamped = config->glu != ASSAY_GLU_PLAIN;
    double limit = config->limit;
    bool a_cut = clamped && a > limit, b_cut = clamped && fabs(b) > limit;
    taylor gate = gate_taylor(ctx, config, clamped ? clamp_above(a, limit) : a), up = {0};
    if (clamped) {
        up.value = clamp_both(b, limit) + (config->glu == ASSAY_GLU_GPT_OSS ? 1.0 : 0.0);
        up.first = 1.0;
    } else {
        assay_activation_many(ctx, config->activation[1], 1, &b, &up.value, &up.first);
        up.second = assay_activation_second_derivative(config->activation[1], b);
    }
    k.aa = a_cut ? 0.0 : gate.second * up.value;
    k.ab = a_cut || b_cut ? 0.0 : gate.first * up.first;
    k.bb = b_cut ? 0.0 : gate.value * up.second;

    bool gate_kink = clamped ? fabs(a - limit) <= reach_a : config->activation[0] == ASSAY_RELU && fabs(a) <= reach_a;
    bool up_kink =
        clamped ? fabs(fabs(b) - limit) <= reach_b : config->activation[1] == ASSAY_RELU && fabs(b) <= reach_b;
    if (gate_kink) k.jump_a = (clamped ? gate.first : 1.0) * up.value;
    if (up_kink) k.jump_b = gate.value;
    return k;
}
