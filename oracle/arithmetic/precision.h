/* What a profile means to the error propagation: the RMS relative error of a rounding, for each place at which a
 * correct implementation may round. Rounding to nearest: the unit roundoff over sqrt(3). See docs/comparing.md. */
#ifndef ASSAY_ARITHMETIC_PRECISION_H
#define ASSAY_ARITHMETIC_PRECISION_H

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

typedef struct assay_precision {
    char name[ASSAY_PRECISION_NAME_SIZE]; /* the profile's: "bf16" */
    double storage;                       /* tensors that may be stored between kernels: 2^-8 / sqrt(3) for bfloat16 */
    double multiply;                      /* operands as they enter a product */
    double accumulate;                    /* partial sums */
    double router;                        /* logits, scores and routing weights */
    double elementary;                    /* of exp, tanh and the like, and of norms and softmax */
    assay_accumulator accumulator;
    assay_block_scaling scaled; /* such a precision is not propagated: fp8 errors are too large for first order */
    double least;               /* least subnormal number of the storage type: 2^-24 for float16 */
    /* Types to which what is given (inputs, weights, cotangents) may be rounded before it is used, where it lies on a
     * finer grid; float64: it is exact. A router's bias has one of its own: what is added to scores is kept as they
     * are. */
    assay_dtype given, router_bias;
} assay_precision;

/* The RMS of the error of rounding to nearest, over the unit roundoff. */
#define ASSAY_ROUNDING_RMS 0.57735026918962576451
#define ASSAY_FLOAT32_RMS (0x1p-24 * ASSAY_ROUNDING_RMS)

/* The running gauge. Every tensor carries the variance of its error in a correct implementation, propagated to first
 * order: errors made at different places are taken as independent (Higham and Mary 2019), so variances add; terms that
 * share an error are added before squaring. An envelope: every rounding counts as one
 * just above a power of two, where it is largest; the RMS of error / sigma of a correct implementation is 0.5 to 1.
 *
 * out_variance [m,n] = sum over k of a^2 var(b) + b^2 var(a) + 2 multiply^2 a^2 b^2, plus accumulate^2 times the sum of
 * the squares of the k partial sums, which are rounded. (sqrt(k) S with S = sum |a||b| bounds the root of that, but
 * lies above it by a factor of about 2 sqrt(k) where signs are mixed.) Partial sums are taken at the ends of up to 8
 * blocks of ascending k; what they may do between, or in another order, is covered by adding Q = sum a^2 b^2 to the
 * squares: accumulate^2 * block length * (sum over blocks of (partial sum)^2 + Q). a, b as in assay_matmul_args; a NULL
 * variance means an operand that is given, whose variance is that of assay_gauge_given; variances have the layout of
 * their operands (same leading dimension, same transposition). The rounding of the result itself is not in it: see
 * assay_gauge_store.
 *
 * An accumulator that truncates: errors of L partial sums have one mean, and the square of their sum is up to
 * (3 L + 1) / 4 times the sum of their squares. One that takes blocks of L: partial sums are those within a block,
 * accumulate^2 * L / 2 * (sum over blocks of (block's sum)^2 + Q), where they grow from 0; then the float32 roundings
 * of the sum so far after each block; and where it truncates, the square of the mean, accumulate sqrt(3) (L + 1) / 4
 * of the whole sum, since blocks of one sign err in one direction. */
struct assay_matmul_args;
assay_status assay_gauge_matmul(assay_context *ctx, const assay_precision *precision,
                                const struct assay_matmul_args *args, /* c, ldc: where the variance goes */
                                const double *variance_a, const double *variance_b);

/* The same where the product may be stored before it is used: plus assay_gauge_rounding of the product. */
assay_status assay_gauge_matmul_stored(assay_context *ctx, const assay_precision *precision,
                                       const struct assay_matmul_args *args, const double *variance_a,
                                       const double *variance_b);

/* The variance of one sum of products with exact operands, as above. */
double assay_gauge_dot(const assay_precision *precision, int64_t count, const double *a, const double *b);

/* Variance of one rounding: (unit * value)^2. Below the normal numbers of a type, which are `least` apart there, it is
 * least^2 / 12 whatever the value; near 0 it ends at least * |value|, that of rounding stochastically: to nearest such
 * a value becomes 0 and is off by itself. A 0 stays. least 0: no number is too small. */
static inline double assay_gauge_rounding(double unit, double least, double value)
{
    const double size = value < 0 ? -value : value, relative = unit * value;
    const double normal = relative * relative, subnormal = least * (size < least / 12 ? size : least / 12);
    return normal >= subnormal ? normal : subnormal;
}

/* That of a number that is given, rounded to the type; of one that the type has, 0. */
double assay_gauge_given(assay_dtype type, double value);

/* The result is stored: variance[i] += that. */
void assay_gauge_store(double unit, double least, int64_t count, const double *value, double *variance);

#endif
