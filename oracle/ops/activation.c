#include "oracle/ops/activation.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"

/* sqrt(2/pi) and the cubic coefficient of the tanh form of gelu (Hendrycks and Gimpel 2016). */
#define GELU_SCALE 0.79788456080286535588
#define GELU_CUBIC 0.044715
#define SQRT_HALF 0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794

enum { CHUNK = 256 };

static const char *const names[] = {
#define X(code, name) name,
    ASSAY_ACTIVATION_TABLE(X)
#undef X
};

const char *assay_activation_name(assay_activation f) {
    return f >= 0 && f < ASSAY_ACTIVATION_COUNT ? names[f] : "unknown";
}

bool assay_activation_from_name(const char *name, assay_activation *f) {
    for (int i = 0; i < ASSAY_ACTIVATION_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *f = (assay_activation)i;
            return true;
        }
    }
    return false;
}

/* s = sigmoid(v) and t = sigmoid(-v) = 1 - s, both without cancellation, from e = exp(-|v|). */
static void sigmoid_pair(double v, double e, double *s, double *t) {
    double large = 1.0 / (1.0 + e), small = e / (1.0 + e);
    *s = v >= 0 ? large : small;
    *t = v >= 0 ? small : large;
    if (isnan(v)) *s = *t = v;
}

double assay_sigmoid(double x) {
    double s, t;
    sigmoid_pair(x, assay_exp(-fabs(x)), &s, &t);
    return s;
}

/* The argument of the sigmoid in f(x) = x sigmoid(v(x)), with v' and v''. */
static double sigmoid_argument(assay_activation f, double x, double *dv, double *ddv) {
    if (f != ASSAY_GELU) {
        *dv = 1.0;
        *ddv = 0.0;
        return x;
    }
    /* 0.5 (1 + tanh(u)) = sigmoid(2u): the form that does not cancel for negative x */
    *dv = 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * x * x);
    *ddv = 12.0 * GELU_SCALE * GELU_CUBIC * x;
    return 2.0 * GELU_SCALE * (x + GELU_CUBIC * x * x * x);
}

/* silu, gelu and sigmoid from exp(-|v|); beyond its range x * 0 must not become NaN. */
static void from_sigmoid(assay_activation f, double x, double e, double *value, double *derivative) {
    double dv, ddv, s, t;
    double v = sigmoid_argument(f, x, &dv, &ddv);
    sigmoid_pair(v, e, &s, &t);
    double slope = s * t;
    if (f == ASSAY_SIGMOID) {
        *value = s;
        *derivative = slope;
        return;
    }
    *value = s == 0.0 ? 0.0 * s : x * s;
    *derivative = slope == 0.0 ? s : s + x * slope * dv;
}

static void gelu_exact(double x, double *value, double *derivative) {
    double cumulative = 0.5 * assay_erfc(-x * SQRT_HALF);
    double density = INV_SQRT_2PI * assay_exp(-0.5 * x * x);
    *value = cumulative == 0.0 ? 0.0 : x * cumulative;
    *derivative = density == 0.0 ? cumulative : cumulative + x * density;
}

static void algebraic(assay_activation f, double x, double *value, double *derivative) {
    if (f == ASSAY_LINEAR) {
        *value = x;
        *derivative = 1.0;
    } else {
        *value = x > 0 || isnan(x) ? x : 0.0;
        *derivative = isnan(x) ? x : (x > 0 ? 1.0 : 0.0);
    }
}

void assay_activation_many(const assay_context *ctx, assay_activation f, int64_t count, const double *x, double *value,
                           double *derivative) {
    double e[CHUNK];
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        bool exponential = f == ASSAY_SILU || f == ASSAY_GELU || f == ASSAY_SIGMOID;
        if (exponential) {
            for (int64_t i = 0; i < n; i++) {
                double dv, ddv;
                e[i] = -fabs(sigmoid_argument(f, x[first + i], &dv, &ddv));
            }
            assay_exp_many(ctx, n, e, e);
        }
        for (int64_t i = 0; i < n; i++) {
            double y, dy, at = x[first + i];
            if (exponential) {
                from_sigmoid(f, at, e[i], &y, &dy);
            } else if (f == ASSAY_GELU_EXACT) {
                gelu_exact(at, &y, &dy);
            } else {
                algebraic(f, at, &y, &dy);
            }
            if (value != NULL) value[first + i] = y;
            if (derivative != NULL) derivative[first + i] = dy;
        }
    }
}

double assay_activation_second_derivative(assay_activation f, double x) {
    if (f == ASSAY_LINEAR || f == ASSAY_RELU) return 0.0;
    if (f == ASSAY_GELU_EXACT) return INV_SQRT_2PI * assay_exp(-0.5 * x * x) * (2.0 - x * x);
    double dv, ddv, s, t;
    double v = sigmoid_argument(f, x, &dv, &ddv);
    sigmoid_pair(v, assay_exp(-fabs(v)), &s, &t);
    double slope = s * t, curvature = slope * (t - s);
    if (f == ASSAY_SIGMOID) return curvature;
    return slope == 0.0 ? 0.0 : 2.0 * slope * dv + x * (curvature * dv * dv + slope * ddv);
}
