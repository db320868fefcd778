/* silu, gelu and GPT-OSS's gate are x sigmoid(z(x)), with (1 + tanh u) / 2 = sigmoid(2 u) for gelu: a form that does
 * not cancel for negative x. An error of z is one of |z| times the size in the tail of the sigmoid, so z is made in two
 * parts, z + z_low. Both tails of the sigmoid come from t = exp(-|z|): s = 1 / (1 + t) and 1 - s = t / (1 + t). */
#include "oracle/ops/activation.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"

/* Constants in two parts, the second what the first leaves out. */
static const double TWO_SQRT_2_OVER_PI[] = {1.5957691216057308, -9.96930880911092e-17};
static const double CUBIC[] = {0.044715, 2.1960211427085595e-18};
static const double QUICK[] = {ASSAY_GPT_OSS_ALPHA, 4.263256414560601e-17};
static const double SQRT_HALF[] = {0.7071067811865476, -4.833646656726457e-17};
static const double INVERSE_SQRT_PI = 0.5641895835477563;
static const double INVERSE_SQRT_2PI = 0.3989422804014327;

enum { CHUNK = 256 };

/* An activation, or GPT-OSS's gate. */
typedef int form;
enum { QUICK_GELU = ASSAY_ACTIVATION_COUNT };

typedef struct chunk {
    double x[CHUNK], z[CHUNK], z_low[CHUNK], slope[CHUNK], t[CHUNK], value[CHUNK], derivative[CHUNK];
} chunk;

const char *assay_activation_name(assay_activation f)
{
    static const char *const NAMES[] = {
#define X(code, name) name,
        ASSAY_ACTIVATION_TABLE(X)
#undef X
    };
    return NAMES[f];
}

bool assay_activation_from_name(const char *name, assay_activation *f)
{
    for (int i = 0; i < ASSAY_ACTIVATION_COUNT; i++) {
        if (strcmp(name, assay_activation_name((assay_activation)i)) == 0) {
            *f = (assay_activation)i;
            return true;
        }
    }
    return false;
}

double assay_sigmoid(double x)
{
    double t = assay_exp(-fabs(x));
    return (x < 0 ? t : 1) / (1 + t);
}

double assay_sigmoid_slope(const assay_context *ctx, double x, double s)
{
    return s * (ctx->arithmetic->round != NULL ? 1 - s : assay_sigmoid(-x));
}

/* NaN stays NaN. */
static inline double clamp(double x, double limit)
{
    double y = x > limit ? limit : x;
    return y < -limit ? -limit : y;
}

/* z = 2 sqrt(2/pi) (y + cubic y^3). Beyond 32 the sigmoid is 0 or 1, and y^3 could overflow. */
static inline void gelu_argument(double x, double *z, double *z_low, double *slope)
{
    double y = clamp(x, 32), square = y * y, square_low = fma(y, y, -square);
    double p = CUBIC[0] * square;
    double p_low = fma(CUBIC[0], square, -p) + (CUBIC[0] * square_low + CUBIC[1] * square);
    double w = 1 + p, rounded_p = w - 1;
    double w_low = (1 - (w - rounded_p)) + (p - rounded_p) + p_low;
    double yw = y * w, yw_low = fma(y, w, -yw) + y * w_low;
    *z = TWO_SQRT_2_OVER_PI[0] * yw;
    *z_low = fma(TWO_SQRT_2_OVER_PI[0], yw, -*z) + (TWO_SQRT_2_OVER_PI[0] * yw_low + TWO_SQRT_2_OVER_PI[1] * yw);
    *slope = TWO_SQRT_2_OVER_PI[0] * (1 + 3 * p);
}

static inline void quick_argument(double x, double *z, double *z_low, double *slope)
{
    double y = clamp(x, 1024);
    *z = QUICK[0] * y;
    *z_low = fma(QUICK[0], y, -*z) + QUICK[1] * y;
    *slope = QUICK[0];
}

static inline __attribute__((always_inline)) void arguments(form f, int64_t n, chunk *c)
{
    if (f == ASSAY_GELU) {
        for (int64_t i = 0; i < n; i++) gelu_argument(c->x[i], &c->z[i], &c->z_low[i], &c->slope[i]);
    } else if (f == QUICK_GELU) {
        for (int64_t i = 0; i < n; i++) quick_argument(c->x[i], &c->z[i], &c->z_low[i], &c->slope[i]);
    } else {
        for (int64_t i = 0; i < n; i++) {
            c->z[i] = c->x[i];
            c->z_low[i] = 0;
            c->slope[i] = 1;
        }
    }
    for (int64_t i = 0; i < n; i++) c->t[i] = -fabs(c->z[i]);
}

static inline __attribute__((always_inline)) void from_exponentials(form f, int64_t n, chunk *c)
{
    for (int64_t i = 0; i < n; i++) {
        double t = c->t[i] * (1 - copysign(1, c->z[i]) * c->z_low[i]);
        double large = 1 / (1 + t), small = t * large;
        double s = c->z[i] < 0 ? small : large, rest = c->z[i] < 0 ? large : small;
        c->value[i] = f == ASSAY_SIGMOID ? s : c->x[i] * s;
        c->derivative[i] = f == ASSAY_SIGMOID ? s * rest : s * (1 + c->x[i] * (c->slope[i] * rest));
    }
}

/* x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2; what the rounding of the arguments does in the tail is put right. */
static inline __attribute__((always_inline)) void gelu_exact(const assay_context *ctx, int64_t n, chunk *c)
{
    for (int64_t i = 0; i < n; i++) {
        double y = clamp(c->x[i], 64), square = y * y;
        c->z[i] = -y * SQRT_HALF[0];
        c->z_low[i] = fma(-y, SQRT_HALF[0], -c->z[i]) - y * SQRT_HALF[1];
        c->slope[i] = 1 - 0.5 * fma(y, y, -square);
        c->t[i] = -0.5 * square;
    }
    assay_exp_many(ctx, n, c->t, c->t);
    for (int64_t i = 0; i < n; i++) c->value[i] = assay_erfc(c->z[i]);
    for (int64_t i = 0; i < n; i++) {
        double exponential = c->t[i] * c->slope[i];
        double phi = 0.5 * c->value[i] - INVERSE_SQRT_PI * exponential * c->z_low[i];
        c->value[i] = c->x[i] * phi;
        c->derivative[i] = phi + clamp(c->x[i], 64) * (INVERSE_SQRT_2PI * exponential);
    }
}

static inline __attribute__((always_inline)) void with_sigmoid(const assay_context *ctx, form f, int64_t n, chunk *c)
{
    arguments(f, n, c);
    assay_exp_many(ctx, n, c->t, c->t);
    from_exponentials(f, n, c);
}

static inline __attribute__((always_inline)) void without_sigmoid(form f, int64_t n, chunk *c)
{
    for (int64_t i = 0; i < n; i++) {
        double x = c->x[i];
        c->value[i] = f == ASSAY_RELU && x < 0 ? 0 : x;
        c->derivative[i] = f == ASSAY_LINEAR || x > 0 ? 1 : x <= 0 ? 0 : x; /* NaN for NaN */
    }
}

/* With constants, so that each has loops of its own. */
static inline __attribute__((always_inline)) void activate(const assay_context *ctx, form f, int64_t n, chunk *c)
{
    if (f == ASSAY_SIGMOID) with_sigmoid(ctx, ASSAY_SIGMOID, n, c);
    if (f == ASSAY_SILU) with_sigmoid(ctx, ASSAY_SILU, n, c);
    if (f == ASSAY_GELU) with_sigmoid(ctx, ASSAY_GELU, n, c);
    if (f == QUICK_GELU) with_sigmoid(ctx, QUICK_GELU, n, c);
    if (f == ASSAY_GELU_EXACT) gelu_exact(ctx, n, c);
    if (f == ASSAY_RELU) without_sigmoid(ASSAY_RELU, n, c);
    if (f == ASSAY_LINEAR) without_sigmoid(ASSAY_LINEAR, n, c);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void activate_avx2(const assay_context *ctx, form f, int64_t n, chunk *c)
{
    activate(ctx, f, n, c);
}

__attribute__((target("avx512f"))) static void activate_avx512(const assay_context *ctx, form f, int64_t n, chunk *c)
{
    activate(ctx, f, n, c);
}
#endif

static void activate_chunk(const assay_context *ctx, form f, int64_t n, chunk *c)
{
#ifdef __x86_64__
    if (ctx->isa == ASSAY_ISA_AVX512) return activate_avx512(ctx, f, n, c);
    if (ctx->isa == ASSAY_ISA_AVX2) return activate_avx2(ctx, f, n, c);
#endif
    activate(ctx, f, n, c);
}

/* What an emulated run makes of 1 + erf or 1 + tanh, as kernels write gelu: that cancels where x is far below 0. */
static void cancel_as_kernels(const assay_context *ctx, int64_t n, chunk *c)
{
    for (int64_t i = 0; i < n; i++) {
        const double phi = c->x[i] == 0 ? 0.5 : c->value[i] / c->x[i];
        double odd = 2 * phi - 1;
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &odd);
        const double moved = (1 + odd) / 2 - phi;
        if (!isfinite(moved)) continue;
        c->value[i] += c->x[i] * moved;
        c->derivative[i] += moved;
    }
}

/* What an emulated run makes of 1 - s in the slope, of the s that it keeps: near 1 that cancels, up to all that there is of it. */
static void keep_sigmoid(const assay_context *ctx, form f, int64_t n, chunk *c)
{
    for (int64_t i = 0; i < n; i++) {
        if (!(c->z[i] > 0)) continue;
        const double s = 1 / (1 + c->t[i]), rest = c->t[i] / (1 + c->t[i]);
        double kept = s;
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &kept);
        const double moved = clamp(s - kept, rest);
        if (moved != 0) c->derivative[i] += s * (f == ASSAY_SIGMOID ? 1 : c->x[i] * c->slope[i]) * moved;
    }
}

static void activate_many(const assay_context *ctx, form f, int64_t count, const double *x, double *value,
                          double *derivative)
{
    chunk c;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        size_t bytes = (size_t)n * sizeof *x;
        memcpy(c.x, x + first, bytes);
        activate_chunk(ctx, f, n, &c);
        if (ctx->emulation != NULL && (f == ASSAY_GELU || f == ASSAY_GELU_EXACT)) cancel_as_kernels(ctx, n, &c);
        if (derivative != NULL && ctx->emulation != NULL && (f == ASSAY_SILU || f == ASSAY_SIGMOID || f == QUICK_GELU))
            keep_sigmoid(ctx, f, n, &c);
        if (value != NULL) memcpy(value + first, c.value, bytes);
        if (derivative != NULL) memcpy(derivative + first, c.derivative, bytes);
    }
}

void assay_activation_many(const assay_context *ctx, assay_activation f, int64_t count, const double *x, double *value,
                           double *derivative)
{
    activate_many(ctx, (form)f, count, x, value, derivative);
}

void assay_quick_gelu_many(const assay_context *ctx, int64_t count, const double *x, double *value, double *derivative)
{
    activate_many(ctx, QUICK_GELU, count, x, value, derivative);
}
