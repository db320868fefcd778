/* The gate of a gated MLP, h = u(a) v(b): an activation of each branch, perhaps of clamped values, or GPT-OSS's. */
#include "example.h"

#include <math.h>
#include <string.h>

static const char *const NAMES[ACTIVATION_COUNT] = {
    [SILU] = "silu", [GELU] = "gelu",       [GELU_EXACT] = "gelu_exact",
    [RELU] = "relu", [SIGMOID] = "sigmoid", [LINEAR] = "linear",
};

static enum activation find(const char *name, size_t length)
{
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (strlen(NAMES[i]) == length && strncmp(name, NAMES[i], length) == 0) return (enum activation)i;
    return ACTIVATION_COUNT;
}

bool glu_known(const assay_backend_request *request)
{
    const glu g = glu_of(request, DENSE);
    return g.gate != ACTIVATION_COUNT && g.up != ACTIVATION_COUNT;
}

glu glu_of(const assay_backend_request *request, enum mlp_place place)
{
    const bool gpt_oss = is(request, "decoder_block", "gpt_oss");
    const bool deepseek = strncmp(setting(request, "decoder_block"), "deepseek", 8) == 0;
    const bool clamped = place == DENSE || (place == ROUTED && (gpt_oss || deepseek));
    const char *names = setting(request, "mlp_activations");
    const size_t first = strcspn(names, ",");
    const char *second = names + first + (names[first] == ',');
    return (glu){.gate = find(names, first),
                 .up = place == DENSE ? find(second, strlen(second)) : LINEAR,
                 .limit = clamped ? (float)number(request, "mlp_activations_limit") : 0,
                 .gpt_oss = gpt_oss && clamped};
}

typedef struct point {
    float value, slope;
} point;

/* x sigmoid(c x) */
static point times_sigmoid(float x, float c)
{
    const float s = sigmoid(c * x);
    return (point){x * s, s * (1 + c * x * sigmoid(-c * x))};
}

static point gelu(float x)
{
    const float root = 0.7978845608F /* sqrt(2 / pi) */, cubic = 0.044715F;
    const float t = tanhf(root * (x + cubic * x * x * x)), d_t = (1 - t * t) * root * (1 + 3 * cubic * x * x);
    return (point){0.5F * x * (1 + t), 0.5F * (1 + t) + 0.5F * x * d_t};
}

static point gelu_exact(float x)
{
    const float below = 0.5F * erfcf(-0.7071067812F * x), density = 0.3989422804F * expf(-0.5F * x * x);
    return (point){x * below, below + x * density};
}

static point activation_at(enum activation f, float x)
{
    switch (f) {
    case SILU:
        return times_sigmoid(x, 1);
    case GELU:
        return gelu(x);
    case GELU_EXACT:
        return gelu_exact(x);
    case RELU:
        return (point){fmaxf(x, 0), x > 0};
    case SIGMOID:
        return (point){sigmoid(x), sigmoid(x) * sigmoid(-x)};
    case LINEAR:
    case ACTIVATION_COUNT:
        break;
    }
    return (point){x, 1};
}

glu_point glu_at(const glu *g, float a, float b)
{
    const bool clamped = g->limit > 0, a_beyond = clamped && a > g->limit, b_beyond = clamped && fabsf(b) > g->limit;
    const float a_in = a_beyond ? g->limit : a, b_in = b_beyond ? copysignf(g->limit, b) : b;
    const point u = g->gpt_oss ? times_sigmoid(a_in, 1.702F) : activation_at(g->gate, a_in);
    const point v = g->gpt_oss ? (point){b_in + 1, 1} : activation_at(g->up, b_in);
    return (glu_point){u.value, v.value, a_beyond ? 0 : u.slope, b_beyond ? 0 : v.slope};
}
