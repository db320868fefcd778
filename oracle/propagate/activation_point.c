/* Activations and two derivatives at one point. Only error scales need them: plain formulas will do. */
#include <math.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/propagate/glu_factor.h"

/* f = x s(z(x)): f' = s + x s' z', f'' = 2 s' z' + x (s'' z'^2 + s' z''), s' = s r, s'' = s r (r - s), r = 1 - s. */
static assay_glu_factor times_sigmoid(double x, double z, double dz, double ddz)
{
    double s = assay_sigmoid(z), r = assay_sigmoid(-z), ds = s * r;
    return (assay_glu_factor){
        .value = x * s,
        .first = s + x * ds * dz,
        .second = 2 * ds * dz + x * ds * ((r - s) * dz * dz + ddz),
        .first_size = s + fabs(x * ds * dz),
        .first_cancels = z > 0 ? fabs(x * s * s * dz) : 0, /* 1 - s of the s that is kept */
        .first_left = fabs(x * ds * dz),
    };
}

/* Beyond this the tails have gone, and x^3 must not overflow. */
static double within_range(double x)
{
    return x > 64 ? 64 : x < -64 ? -64 : x;
}

static assay_glu_factor gelu_at(double x)
{
    const double scale = 1.5957691216057308 /* 2 sqrt(2/pi) */, cubic = 0.044715;
    const double square = x * x, dz = scale * (1 + 3 * cubic * square);
    assay_glu_factor point = times_sigmoid(x, scale * x * (1 + cubic * square), dz, 6 * scale * cubic * x);
    const double half_tanh = 0.5 - assay_sigmoid(-fabs(scale * x * (1 + cubic * square)));
    if (x < 0) point.cancels = fabs(x) * half_tanh;
    point.first_left = point.first_size;
    point.first_cancels = (x < 0 ? half_tanh : 0) + 2 * fabs(x) * dz * half_tanh * half_tanh; /* 1 - tanh^2 */
    return point;
}

static assay_glu_factor gelu_exact_at(double x)
{
    double phi = 0.5 * assay_erfc(-0.7071067811865476 * x);
    double density = 0.3989422804014327 * assay_exp(-0.5 * x * x);
    return (assay_glu_factor){
        .value = x * phi,
        .first = phi + x * density,
        .second = density * (2 - x * x),
        .first_size = phi + fabs(x * density),
        .cancels = x < 0 ? fabs(x) * (0.5 - phi) : 0,
        .first_cancels = x < 0 ? 0.5 - phi : 0,
        .first_left = phi + fabs(x * density),
    };
}

static assay_glu_factor sigmoid_at(double x)
{
    double s = assay_sigmoid(x), r = assay_sigmoid(-x);
    return (assay_glu_factor){.value = s,
                              .first = s * r,
                              .second = s * r * (r - s),
                              .first_size = s * r,
                              .first_cancels = x > 0 ? s * s : 0, /* 1 - s */
                              .first_left = s * r};
}

assay_glu_factor assay_activation_at(assay_activation f, double x)
{
    assay_glu_factor point = {0};
    switch (f) {
    case ASSAY_SILU:
        point = times_sigmoid(within_range(x), within_range(x), 1, 0);
        break;
    case ASSAY_GELU:
        point = gelu_at(within_range(x));
        break;
    case ASSAY_GELU_EXACT:
        point = gelu_exact_at(within_range(x));
        break;
    case ASSAY_SIGMOID:
        return sigmoid_at(x);
    case ASSAY_RELU:
        point.value = x < 0 ? 0 : x;
        point.first = point.first_size = x > 0;
        return point;
    case ASSAY_LINEAR:
    case ASSAY_ACTIVATION_COUNT:
        return (assay_glu_factor){.value = x, .first = 1, .first_size = 1};
    }
    if (x > 64) point.value = x;
    return point;
}

assay_glu_factor assay_quick_gelu_at(double x)
{
    const double slope = 1.702;
    assay_glu_factor point = times_sigmoid(within_range(x), slope * within_range(x), slope, 0);
    if (x > 64) point.value = x;
    return point;
}
