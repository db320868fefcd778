/* The functions of one variable, and the few vector functions, as SPEC writes them. Where a formula would lose digits
 * that binary128 cannot spare (a tail near 0 got as a difference from 1), the same function is written another way. */
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"

quad quad_sigmoid(quad x)
{
    return 1 / (1 + expq(-x));
}

quad quad_activation(assay_activation f, quad x)
{
    switch (f) {
    case ASSAY_SILU:
        return x * quad_sigmoid(x);
    case ASSAY_GELU: /* x/2 (1 + tanh(u)), and (1 + tanh(u)) / 2 = sigmoid(2u) */
        return x * quad_sigmoid(2 * sqrtq(2 / M_PIq) * (x + (quad)44715 / 1000000 * x * x * x));
    case ASSAY_GELU_EXACT: /* x/2 (1 + erf(x / sqrt 2)) */
        return x / 2 * erfcq(-x / sqrtq(2));
    case ASSAY_RELU:
        return x < 0 ? 0 : x;
    case ASSAY_SIGMOID:
        return quad_sigmoid(x);
    case ASSAY_LINEAR:
    case ASSAY_ACTIVATION_COUNT:
        break;
    }
    return x;
}

quad quad_glu(const assay_activation activation[2], assay_glu glu, double limit, quad a, quad b)
{
    quad cut_a = a > limit ? limit : a;
    quad cut_b = b > limit ? limit : b < -limit ? -limit : b;
    switch (glu) {
    case ASSAY_GLU_GPT_OSS:
        return cut_a * quad_sigmoid((quad)1702 / 1000 * cut_a) * (cut_b + 1);
    case ASSAY_GLU_CLAMPED:
        return quad_activation(activation[0], cut_a) * cut_b;
    case ASSAY_GLU_PLAIN:
        break;
    }
    return quad_activation(activation[0], a) * quad_activation(activation[1], b);
}

void quad_softmax(int64_t count, const quad *x, quad *p)
{
    quad largest = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i++) sum += expq(x[i] - largest);
    for (int64_t i = 0; i < count; i++) p[i] = expq(x[i] - largest) / sum;
}

void quad_scores(assay_score_func f, int64_t count, const quad *logits, quad *scores)
{
    if (f == ASSAY_SCORE_SOFTMAX) {
        quad_softmax(count, logits, scores);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        quad x = logits[i];
        if (f == ASSAY_SCORE_SIGMOID) {
            scores[i] = quad_sigmoid(x);
        } else if (f == ASSAY_SCORE_SQRTSOFTPLUS) { /* the root of ln(1 + e^x) */
            scores[i] = sqrtq(x > 0 ? x + log1pq(expq(-x)) : log1pq(expq(x)));
        } else {
            scores[i] = x;
        }
    }
}

void quad_vector_matrix(int64_t rows, int64_t columns, const quad *x, const quad *w, int64_t ld, quad *y)
{
    for (int64_t j = 0; j < columns; j++) y[j] = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) y[j] += x[i] * w[i * ld + j];
    }
}

uint64_t quad_next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15U; /* splitmix64 (Steele, Lea and Flood 2014) */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}
