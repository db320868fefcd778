/* The emulated arithmetic: float64 code run as one of the correct implementations that a profile allows, drawn by a
 * seed. The spread of several of them is the error scale of whatever the code computes.
 *
 * Every draw comes from a hash of the seed and the value's own bits. So the same value always becomes the same one
 * within a member (recomputing gives the same bits, whatever the threads and the instruction set), and another seed
 * gives an independent draw.
 *
 * Storage: stochastic rounding onto the grid of the storage type. A value between two numbers of the grid goes to one
 * of them with the probability of its nearness; on average it stays where it is. A number of the grid stays. The
 * variance is on average twice that of rounding to nearest: an envelope. Above the largest finite number it is rounding
 * to nearest. float64: the next number up or down with a probability of 1/6 each (not 0), a variance of ulp^2 / 3.
 *
 * Router, elementary, accumulate: times 1 + a uniform relative error whose RMS is the profile's unit (precision.h); a
 * unit below what float64 can show is as float64 storage.
 *
 * Products: operands by stochastic rounding onto the grid of the multiply type (float64: as they are), then the
 * product, then an error on each element, the sum of two uniform ones: in proportion to the result, and to
 * sqrt(sum a^2 sum b^2). Its variance is unit^2 k / 8 times the squares of the partial sums at the ends of 8 blocks of the k terms and the
 * sum of a^2 b^2, as expected of a result c whose terms come in random order, from sum a^2 sum b^2 / k in place of sum a^2 b^2: this costs no second product. With
 * `accumulate` the partial sums are all taken to be near c. A result of 0 whose terms are all 0 stays. Any other gets its
 * error, even where the products are small integers and exact; one of 0, whose terms cancel, the second part.
 *
 * The product is the reference one, but where sums are in float32 and rounded to nearest it is one of chains in float32
 * (matmul_float32.h), at half the cost. They begin at a step that the member draws: another order. Chains of other
 * orders still share a part of their errors, and rounding to nearest errs less than the error scale, which counts every
 * rounding as one where it is largest; so two thirds of the variance are drawn as above. To float32 operands are
 * rounded to nearest.
 *
 * Sums with a type of their own err in proportion, as a profile's do; those of float16 go onto its grid besides, which has an end and
 * a beginning.
 *
 * An accumulator that truncates errs towards 0, by what terms in random order lose on average: a uniform share of it, 0
 * to sqrt(3), one for the member, since how many products are added before bits are cut off is the hardware's choice.
 * An accumulator that takes blocks: their sums are added in float32, in an order that the member draws.
 *
 * Block-scaled operands (of products of linear layers): tiles of 1 by `block` along the contraction, of a weight
 * `block` by `block`, counted from the product's own corner. The scale is the tile's largest magnitude over the type's,
 * in float32, or the next power of two from there up: for each largest number in every other member. Stage by stage it is anywhere from
 * that to twice that: there all members quantise the same numbers, and a kernel that weighs them before the product or
 * after has another grid. Numbers are moved by up to a quarter of the
 * grid's spacing, rounded to nearest, and the error stretched to the variance of stochastic rounding. That itself takes
 * a number near the grid to its other neighbour now and then: of so coarse a grid, in a sum of few terms, an error far
 * beyond those of the other members. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/dtype.h"

typedef struct assay_emulation {
    assay_precision precision;
    assay_dtype storage;
    assay_dtype multiply; /* type of a product's operands that are not scaled */
    assay_dtype sums;     /* type of all sums, where they have one of their own; float64: the profile's */
    uint64_t seed;        /* of the member */
    int member;           /* its number */
    bool second_form;     /* where the code has two orders of operations that are equal but for rounding, the second */
    bool
        stores_parts; /* what is made within a step is stored: a softmax before its gradient reads it, e^-x of a sigmoid */
    bool staged;      /* a run stage by stage: see assay_is_staged */
    bool nearest;     /* round to nearest instead; router, elementary and accumulate are exact */
} assay_emulation;

/* Needs ctx->emulation. Not for assay_arithmetic_by_name: nobody chooses it as an engine. */
extern const assay_arithmetic assay_arithmetic_emulated;
