/* What a profile means to emulation: the RMS relative error of a rounding, for each place at
 * which a correct implementation may round. Rounding to nearest: the unit roundoff over sqrt(3). See docs/comparing.md. */
#pragma once

#include "oracle/base/dtype.h"

#define ASSAY_PRECISION_NAME_SIZE 32

/* The accumulator of products. Of another sum nothing but `accumulate` is taken. */
typedef struct assay_accumulator {
    /* Bits are cut off instead of rounded. `accumulate` is still the RMS of one error: the unit in the last place over
     * sqrt(3). Their mean is sqrt(3)/2 of that, towards 0, and does not average out. */
    bool truncate;
    int64_t block; /* products that it takes; the sums of blocks are added in float32. 0: all of them */
} assay_accumulator;

/* Operands of linear layers in fp8, each block with a scale (emulated.h). Then `accumulate` and
 * the accumulator are those of these products; others, and other sums, are added up in float32. */
typedef struct assay_block_scaling {
    assay_dtype type;
    int64_t block; /* 0: nothing is scaled */
} assay_block_scaling;

/* Some steps have a form that is as right as another one and far less accurate: a variance as the mean of squares less the square of
 * the mean. Where a golden has error scales for each form its emulated runs take one of them; elsewhere rows take turns. A kernel may
 * have the less accurate form with sums in a finer type, which are rounded once. */
typedef enum assay_accuracy {
    ASSAY_FORMS_IN_TURN,
    ASSAY_FORM_ACCURATE,
    ASSAY_FORM_INACCURATE,
    ASSAY_FORM_ROUNDED_ONCE
} assay_accuracy;

typedef struct assay_precision {
    char name[ASSAY_PRECISION_NAME_SIZE]; /* the profile's: "bf16" */
    double storage;                       /* tensors that may be stored between kernels: 2^-8 / sqrt(3) for bfloat16 */
    double multiply;                      /* operands as they enter a product */
    double accumulate;                    /* partial sums */
    double router;                        /* logits, scores and routing weights */
    double elementary;                    /* of exp, tanh and the like, and of norms and softmax */
    assay_accumulator accumulator;
    assay_block_scaling scaled;
    /* Types to which what is given (inputs, weights, cotangents) may be rounded before it is used, where it lies on a
     * finer grid; float64: it is exact. A router's bias has one of its own: what is added to scores is kept as they
     * are. */
    assay_dtype inputs, router_bias;
    assay_accuracy form;
    bool inputs_beyond; /* only numbers beyond the range of `given` are rounded to it: its grid is no coarser */
} assay_precision;

/* The RMS of the error of rounding to nearest, over the unit roundoff. */
#define ASSAY_ROUNDING_RMS 0.57735026918962576451
#define ASSAY_FLOAT32_RMS (0x1p-24 * ASSAY_ROUNDING_RMS)
