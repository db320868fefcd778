/* The emulated arithmetic: float64 code run as one of the correct implementations that a profile allows, drawn by a seed.
 * The spread of several of them is the error scale of whatever the code computes.
 *
 * Rounding to a type is stochastic: a value between two numbers of the grid goes to one of them, with the probability of
 * its nearness, drawn from a hash of the seed and the value's own bits. So a value of the grid stays; the same value is
 * always rounded the same way within one member (recomputing gives the same bits, whatever the threads), and another seed
 * gives an independent draw. The variance is up to twice that of rounding to nearest: an envelope.
 *   storage    onto the grid of the profile's storage type
 *   others     times 1 + a uniform relative error whose RMS is the profile's unit (precision.h)
 *   products   operands onto the grid of the multiply type (NULL unit: exact); to each element an error is added whose
 *              variance is that of assay_gauge_matmul's partial sums, drawn likewise
 * A float64 storage type moves a value by -1, 0 or 1 ulp with a variance of ulp^2/3. */
#ifndef ASSAY_ARITHMETIC_EMULATED_H
#define ASSAY_ARITHMETIC_EMULATED_H

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/dtype.h"

typedef struct assay_emulation {
    assay_precision precision;
    assay_dtype storage;
    assay_dtype multiply; /* type of a product's operands */
    uint64_t seed;        /* of the member */
} assay_emulation;

/* Needs ctx->emulation. */
extern const assay_arithmetic assay_arithmetic_emulated;

#endif
