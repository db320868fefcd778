/* h = u(a) v(b): activations of both branches, of clamped values where `limit` is above 0; GPT-OSS's own form. */
enum activation { SILU, GELU, GELU_EXACT, RELU, SIGMOID, LINEAR, GPT_OSS_GATE, PLUS_ONE };

/* (value, slope) */
float2 times_sigmoid(float x, float c)
{
    const float s = sigmoid(c * x);
    return (float2)(x * s, s * (1 + c * x * sigmoid(-c * x)));
}

/* 1 + tanh(u) is 2 sigmoid(2 u), which loses nothing where u is far below 0. */
float2 gelu(float x)
{
    const float root = 0.7978845608f /* sqrt(2 / pi) */, cubic = 0.044715f;
    const float u = 2 * root * (x + cubic * x * x * x), d_u = 2 * root * (1 + 3 * cubic * x * x);
    return (float2)(x * sigmoid(u), sigmoid(u) + x * sigmoid(u) * sigmoid(-u) * d_u);
}

float2 gelu_exact(float x)
{
    const float below = 0.5f * erfc(-0.7071067812f * x), density = 0.3989422804f * exp(-0.5f * x * x);
    return (float2)(x * below, below + x * density);
}

float2 activation_at(enum activation f, float x)
{
    switch (f) {
    case SILU:
        return times_sigmoid(x, 1);
    case GELU:
        return gelu(x);
    case GELU_EXACT:
        return gelu_exact(x);
    case RELU:
        return (float2)(fmax(x, 0), x > 0);
    case SIGMOID:
        return (float2)(sigmoid(x), sigmoid(x) * sigmoid(-x));
    case GPT_OSS_GATE:
        return times_sigmoid(x, 1.702f);
    case PLUS_ONE:
        return (float2)(x + 1, 1);
    default:
        return (float2)(x, 1);
    }
}

/* The gate is clamped from above, the other branch on both sides; beyond, slopes are 0. */
float2 gate_at(int f, float limit, float a)
{
    const bool beyond = limit > 0 && a > limit;
    const float2 u = activation_at((enum activation)f, beyond ? limit : a);
    return (float2)(u.s0, beyond ? 0 : u.s1);
}

float2 up_at(int f, float limit, float b)
{
    const bool beyond = limit > 0 && fabs(b) > limit;
    const float2 v = activation_at((enum activation)f, beyond ? copysign(limit, b) : b);
    return (float2)(v.s0, beyond ? 0 : v.s1);
}

__kernel void glu_forward(__global stored *h, __global const stored *a, __global const stored *b, int count, int gate,
                          int up, float limit)
{
    const int i = get_global_id(0);
    if (i < count) h[i] = put(gate_at(gate, limit, get(a[i])).s0 * up_at(up, limit, get(b[i])).s0);
}

__kernel void glu_backward(__global stored *d_a, __global stored *d_b, __global const stored *d_h,
                           __global const stored *a, __global const stored *b, int count, int gate, int up, float limit)
{
    const int i = get_global_id(0);
    if (i >= count) return;
    const float2 u = gate_at(gate, limit, get(a[i])), v = up_at(up, limit, get(b[i]));
    const float d = get(d_h[i]);
    d_a[i] = put(d * v.s0 * u.s1);
    d_b[i] = put(d * u.s0 * v.s1);
}
