/* Activations of gated MLPs and their derivatives (MaxText mlp_activations). gelu is the tanh form (jax.nn.gelu);
 * gelu_exact uses erf. */
#pragma once

#include "oracle/base/status.h"

#define ASSAY_ACTIVATION_TABLE(X)                                                                                      \
    X(ASSAY_SILU, "silu")                                                                                              \
    X(ASSAY_GELU, "gelu")                                                                                              \
    X(ASSAY_GELU_EXACT, "gelu_exact")                                                                                  \
    X(ASSAY_RELU, "relu")                                                                                              \
    X(ASSAY_SIGMOID, "sigmoid")                                                                                        \
    X(ASSAY_LINEAR, "linear")

typedef enum assay_activation {
#define X(code, name) code,
    ASSAY_ACTIVATION_TABLE(X)
#undef X
        ASSAY_ACTIVATION_COUNT
} assay_activation;

const char *assay_activation_name(assay_activation f);
bool assay_activation_from_name(const char *name, assay_activation *f);

double assay_sigmoid(double x); /* 1 / (1 + exp(-x)) without overflow; accurate for large negative x */
/* The slope of a sigmoid at x whose value is s: s sigmoid(-x), to full accuracy. Emulated s (1 - s) of the s that is kept,
 * as kernels have it, which cancels where s is near 1. */
double assay_sigmoid_slope(const assay_context *ctx, double x, double s);

/* value[i] = f(x[i]) and derivative[i] = f'(x[i]); either may be NULL or x. relu'(0) = 0 as in JAX. Within a few ulps,
 * but for f' near its zero: there within a few ulps of 1. Vectorised over ctx->isa; the bits do not depend on it. Not
 * threaded: callers split rows. */
void assay_activation_many(const assay_context *ctx, assay_activation f, int64_t count, const double *x, double *value,
                           double *derivative);

/* The same for x sigmoid(1.702 x), the gate of GPT-OSS's experts, which is none of mlp_activations. */
#define ASSAY_GPT_OSS_ALPHA 1.702
void assay_quick_gelu_many(const assay_context *ctx, int64_t count, const double *x, double *value, double *derivative);
