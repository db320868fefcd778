/* A backend with block-scaled fp8 products, written apart from the emulated arithmetic: plain loops, its own e4m3, its
 * own accumulators. Correct as it stands; with a fault it is not. */
#pragma once

#include "oracle/arithmetic/emulated.h"

typedef enum fp8_fault {
    FP8_CORRECT,
    FP8_BLOCK_UNSCALED,   /* the scale of the weight's last block is forgotten */
    FP8_POWER_OFF_BY_ONE, /* the weight's scales are half of what they should be when they are applied */
    FP8_ONE_ACCUMULATOR,  /* the accumulator that truncates takes the whole contraction */
    FP8_TENSOR_SCALE      /* one scale for a whole operand */
} fp8_fault;

typedef struct fp8_kernel {
    assay_emulation types; /* first: the context points to it. Its storage type is used, nothing else */
    bool unscaled;         /* no product is in fp8; every one has the accumulators of `bits` */
    bool power_of_two;     /* scales */
    int bits;              /* after the point that accumulators keep within a block; 0: float32 */
    fp8_fault fault;
} fp8_kernel;

/* Needs ctx->emulation = &kernel.types. Other products than those of linear layers: bfloat16 operands, float32 sums. */
extern const assay_arithmetic fp8_arithmetic;

/* x with so many bits after the point, the rest cut off. */
double fp8_truncated(double x, int bits);
