/* Rotary embedding with YaRN's frequencies, tables in float32: a phase of p radians is off by up to p * 2^-24,
 * 0.01 at position 163839. */
#include "example.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586;

float yarn_magnitude(const assay_backend_request *request, double mscale)
{
    return (float)(0.1 * mscale * log(number(request, "rope_factor")) + 1);
}

/* The pair number where `rotations` turns fit into the original length. */
static double correction(const assay_backend_request *request, int64_t dim, double rotations)
{
    const double length = number(request, "original_max_position_embeddings");
    return (double)dim * log(length / (rotations * TWO_PI)) / (2 * log(number(request, "rope_max_timescale")));
}

static void frequencies(const example *e, float *out, int64_t dim)
{
    const assay_backend_request *request = e->request;
    const bool truncate = is(request, "rope_truncate", "true") && e->bug != YARN_NOT_TRUNCATED;
    double low = correction(request, dim, number(request, "beta_fast"));
    double high = correction(request, dim, number(request, "beta_slow"));
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, (double)dim - 1);
    for (int64_t i = 0; i < dim / 2; i++) {
        const double base = pow(number(request, "rope_max_timescale"), -2.0 * (double)i / (double)dim);
        const double ramp = fmin(fmax(((double)i - low) / (low == high ? 0.001 : high - low), 0), 1);
        const double stretched = base / number(request, "rope_factor") * ramp + base * (1 - ramp);
        out[i] = (float)(is(request, "rope_type", "yarn") ? stretched : base);
    }
}

void rope_set_up(example *e, rope *r, int64_t dim)
{
    const assay_backend_request *request = e->request;
    const int32_t *positions = tensor(request, "inputs/positions")->data;
    const bool scaled = is(request, "rope_type", "yarn") && is(request, "rope_attention_scaling", "true") &&
                        number(request, "rope_factor") > 1;
    float magnitude = scaled ? yarn_magnitude(request, 1) : 1;
    if (e->bug == ROPE_TIMES_MSCALE) magnitude *= yarn_magnitude(request, 1);
    *r = (rope){.tokens = e->tokens, .half = dim / 2};
    r->interleave = is(request, "rope_interleave", "true") != (e->bug == ROPE_OTHER_PAIRS);
    r->pairwise = is(request, "rope_pairwise", "true");
    r->cosine = take(&e->memory, r->tokens * r->half), r->sine = take(&e->memory, r->tokens * r->half);
    float *frequency = take(&e->memory, r->half);
    frequencies(e, frequency, dim);
    for (int64_t i = 0; i < r->tokens * r->half; i++) {
        float phase = (float)positions[i / r->half] * frequency[i % r->half];
        if (e->bug == ROPE_PHASE_BF16) phase = from_bf16(to_bf16(phase));
        r->cosine[i] = cosf(phase) * magnitude;
        r->sine[i] = sinf(phase) * magnitude;
    }
}

void rope_rotate(float *y, const float *x, const rope *r, int64_t t, bool back)
{
    const bool x_pairs = back ? r->pairwise : r->interleave, y_pairs = back ? r->interleave : r->pairwise;
    for (int64_t i = 0; i < r->half; i++) {
        const float a = x[x_pairs ? 2 * i : i], b = x[x_pairs ? 2 * i + 1 : i + r->half];
        const float c = r->cosine[t * r->half + i], s = back ? -r->sine[t * r->half + i] : r->sine[t * r->half + i];
        y[y_pairs ? 2 * i : i] = a * c - b * s;
        y[y_pairs ? 2 * i + 1 : i + r->half] = a * s + b * c;
    }
}
