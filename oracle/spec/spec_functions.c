/* The functions of one variable, and the few vector functions, as SPEC writes them. Where a formula would lose digits
 * that binary128 cannot spare (a tail near 0 got as a difference from 1), the same function is written another way. */
#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

spec_quad spec_sigmoid(spec_quad x)
{
    return 1 / (1 + expq(-x));
}

spec_quad spec_activation(assay_activation f, spec_quad x)
{
    switch (f) {
    case ASSAY_SILU:
        return x * spec_sigmoid(x);
    case ASSAY_GELU: /* x/2 (1 + tanh(u)), and (1 + tanh(u)) / 2 = sigmoid(2u) */
        return x * spec_sigmoid(2 * sqrtq(2 / M_PIq) * (x + (spec_quad)44715 / 1000000 * x * x * x));
    case ASSAY_GELU_EXACT: /* x/2 (1 + erf(x / sqrt 2)) */
        return x / 2 * erfcq(-x / sqrtq(2));
    case ASSAY_RELU:
        return x < 0 ? 0 : x;
    case ASSAY_SIGMOID:
        return spec_sigmoid(x);
    case ASSAY_LINEAR:
    case ASSAY_ACTIVATION_COUNT:
        break;
    }
    return x;
}

spec_quad spec_glu(const assay_activation activation[2], assay_glu glu, double limit, spec_quad a, spec_quad b)
{
    spec_quad cut_a = a > limit ? limit : a;
    spec_quad cut_b = b > limit ? limit : b < -limit ? -limit : b;
    switch (glu) {
    case ASSAY_GLU_GPT_OSS:
        return cut_a * spec_sigmoid((spec_quad)1702 / 1000 * cut_a) * (cut_b + 1);
    case ASSAY_GLU_CLAMPED:
        return spec_activation(activation[0], cut_a) * cut_b;
    case ASSAY_GLU_PLAIN:
        break;
    }
    return spec_activation(activation[0], a) * spec_activation(activation[1], b);
}

void spec_softmax(int64_t count, const spec_quad *x, spec_quad *p)
{
    spec_quad largest = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i++) sum += expq(x[i] - largest);
    for (int64_t i = 0; i < count; i++) p[i] = expq(x[i] - largest) / sum;
}

void spec_scores(assay_score_func f, int64_t count, const spec_quad *logits, spec_quad *scores)
{
    if (f == ASSAY_SCORE_SOFTMAX) {
        spec_softmax(count, logits, scores);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        spec_quad x = logits[i];
        if (f == ASSAY_SCORE_SIGMOID) {
            scores[i] = spec_sigmoid(x);
        } else if (f == ASSAY_SCORE_SQRTSOFTPLUS) { /* the root of ln(1 + e^x) */
            scores[i] = sqrtq(x > 0 ? x + log1pq(expq(-x)) : log1pq(expq(x)));
        } else {
            scores[i] = x;
        }
    }
}

void spec_vector_matrix(int64_t rows, int64_t columns, const spec_quad *x, const spec_quad *w, int64_t ld, spec_quad *y)
{
    for (int64_t j = 0; j < columns; j++) y[j] = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) y[j] += x[i] * w[i * ld + j];
    }
}

uint64_t spec_next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15U; /* splitmix64 (Steele, Lea and Flood 2014) */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}
