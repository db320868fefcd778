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

quad quad_activation_slope(assay_activation f, quad x)
{
    const quad s = quad_sigmoid(x), root = sqrtq(2 / M_PIq), cubic = (quad)44715 / 1000000;
    switch (f) {
    case ASSAY_SILU:
        return s + x * s * quad_sigmoid(-x);
    case ASSAY_GELU: { /* of x sigmoid(2u), u = root (x + cubic x^3) */
        const quad u = 2 * root * (x + cubic * x * x * x), slope = 2 * root * (1 + 3 * cubic * x * x);
        return quad_sigmoid(u) + x * slope * quad_sigmoid(u) * quad_sigmoid(-u);
    }
    case ASSAY_GELU_EXACT:
        return erfcq(-x / sqrtq(2)) / 2 + x * expq(-x * x / 2) / sqrtq(2 * M_PIq);
    case ASSAY_RELU:
        return x > 0 ? 1 : 0;
    case ASSAY_SIGMOID:
        return s * quad_sigmoid(-x);
    case ASSAY_LINEAR:
    case ASSAY_ACTIVATION_COUNT:
        break;
    }
    return 1;
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
