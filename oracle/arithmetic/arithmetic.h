/* Arithmetics: who computes sums of products. An operation is written once and is handed one of these in its context.
 *
 * reference: every output is one chain of fused multiply-adds over increasing k from +0.0, whatever the number of
 *   threads, the instruction set or the blocking. NaN and infinity propagate (where several NaN meet, sign and payload
 *   of the result are the processor's choice); no zero is skipped.
 * blas: OpenBLAS dgemm, loaded when asked for; another order, so other last bits; a second opinion.
 * emulated (emulated.h): one of the correct implementations that a profile allows. */
#pragma once

#include "oracle/base/status.h"

/* What a product is to an arithmetic that treats linear layers in a way of their own (block-scaled fp8). */
typedef enum assay_product {
    ASSAY_PRODUCT_OTHER, /* attention */
    ASSAY_PRODUCT_ROUTER,
    ASSAY_PRODUCT_LINEAR,         /* of a linear layer: B is its weight */
    ASSAY_PRODUCT_LINEAR_GRADIENT /* of its weight: neither operand is one */
} assay_product;

/* C [m,n] = op(A) [m,k] * op(B) [k,n], C overwritten, or continued when `accumulate`: the chain of an element goes on
 * from the value that is there, so that a sum over k can be made in pieces with the bits of one chain. Element (i,p) of
 * op(A) is a[i*lda + p], or a[p*lda + i] when transpose_a; likewise b. A leading dimension is at least a row of what is
 * stored. C may not overlap A or B. m, n or k may be 0 (k = 0 gives zeros, or leaves C when `accumulate`). */
typedef struct assay_matmul_args {
    double *c;
    int64_t ldc;
    const double *a;
    int64_t lda;
    bool transpose_a;
    const double *b;
    int64_t ldb;
    bool transpose_b;
    int64_t m, n, k;
    bool accumulate;
    assay_product kind;
} assay_matmul_args;

/* a b, of a [m,k] and b [k,n] whose rows follow each other without a gap; c [m,n] likewise. What else a product has (rows
 * further apart, a kind, a sum that is continued) is set on what this and the next two return. */
static inline assay_matmul_args assay_product_ab(double *c, const double *a, const double *b, int64_t m, int64_t n,
                                                 int64_t k)
{
    return (assay_matmul_args){.c = c, .ldc = n, .a = a, .lda = k, .b = b, .ldb = n, .m = m, .n = n, .k = k};
}

/* a^T b, of a [k,m] and b [k,n]: a sum over rows, as the gradient of a weight is. */
static inline assay_matmul_args assay_product_atb(double *c, const double *a, const double *b, int64_t m, int64_t n,
                                                  int64_t k)
{
    assay_matmul_args args = assay_product_ab(c, a, b, m, n, k);
    args.lda = m;
    args.transpose_a = true;
    return args;
}

/* a b^T, of a [m,k] and b [n,k], as the gradient of an input is. */
static inline assay_matmul_args assay_product_abt(double *c, const double *a, const double *b, int64_t m, int64_t n,
                                                  int64_t k)
{
    assay_matmul_args args = assay_product_ab(c, a, b, m, n, k);
    args.ldb = k;
    args.transpose_b = true;
    return args;
}

static inline assay_matmul_args assay_product_of_router(assay_matmul_args args)
{
    args.kind = ASSAY_PRODUCT_ROUTER;
    return args;
}

/* Where a correct implementation may round, besides in products. */
typedef enum assay_rounding {
    ASSAY_ROUND_STORAGE,    /* a tensor that may be stored between kernels */
    ASSAY_ROUND_ROUTER,     /* logits, scores and routing weights */
    ASSAY_ROUND_ELEMENTARY, /* results of exp, tanh and the like, of norms and softmax */
    ASSAY_ROUND_ACCUMULATE, /* partial sums, outside of products */
    ASSAY_ROUND_OPERAND     /* operands of a product that is added up without assay_matmul, which rounds its own */
} assay_rounding;

typedef struct assay_arithmetic {
    const char *name;
    assay_status (*load)(assay_context *ctx); /* of a library: refuses where it is missing; NULL: nothing is loaded */
    assay_status (*matmul)(assay_context *ctx, const assay_matmul_args *args);
    /* NULL: nothing is rounded. May be called from several threads; what becomes of a value depends on the value alone.
     */
    void (*round)(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values);
    /* As assay_round_terms; NULL with `round`. */
    void (*round_terms)(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums);
} assay_arithmetic;

/* Whether this run takes the second of two orders of operations that are equal but for rounding: only some of the
 * emulated runs do. */
bool assay_uses_second_form(const assay_context *ctx);
/* The same for a row by itself: of two rows next to each other one does, in every emulated run but that to nearest. */
bool assay_uses_second_form_at(const assay_context *ctx, int64_t row);
/* Whether an emulated run takes the less accurate of two forms at a row (assay_accuracy). */
bool assay_uses_inaccurate_form_at(const assay_context *ctx, int64_t row);
/* Whether that form has its sums exact until they are rounded. */
bool assay_rounds_sums_once(const assay_context *ctx);
/* And so of two pairs of rows, where there is a third form. */
bool assay_uses_third_form_at(const assay_context *ctx, int64_t row);
/* 0 to count - 1: which of as many forms an emulated run takes at a row, where they take turns: over its members each row has every one
 * of them as often. 0 in any other run, and to nearest. */
int64_t assay_turn_at(const assay_context *ctx, int64_t row, int64_t count);
/* Whether this is an emulated run, and not that to nearest. */
bool assay_rounds_at_random(const assay_context *ctx);
/* Whether this run rounds to storage what is made within a step, as where a kernel ends there: the result of a softmax before
 * its gradient reads it, in programs (graph_step.in_parts) also e^-x of a sigmoid. Only some of the emulated runs do. */
bool assay_stores_parts(const assay_context *ctx);

/* Whether this is an emulated run stage by stage, and no run to nearest: there errors of functions show which in a whole
 * run are small beside those of the stages before. */
bool assay_is_staged(const assay_context *ctx);

extern const assay_arithmetic assay_arithmetic_reference;
extern const assay_arithmetic assay_arithmetic_blas;

const assay_arithmetic *assay_arithmetic_by_name(const char *name); /* NULL when there is none */

/* The product in the context's arithmetic. Fails only for want of memory, or for sizes beyond OpenBLAS's integers. */
assay_status assay_matmul(assay_context *ctx, const assay_matmul_args *args);

/* What the context's arithmetic makes of values at such a place: nothing, but in the emulated one. */
void assay_round(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values);

/* The error alone of a rounding of ASSAY_ROUND_ACCUMULATE, as of a term that cancels: at float64 it is no multiple of the number's own unit,
 * of which a few members may all have drawn none. */
double assay_moved_by(const assay_context *ctx, double number);

/* Sums whose partial sums were rounded: errors like those of `roundings` independent ones of the final values. */
void assay_round_sums(const assay_context *ctx, double roundings, int64_t count, double *sums);

/* Sums of `terms` each, whose squares add up to `squares`, in whatever order: partial sums, and terms that are products, were
 * rounded. Where terms cancel that is more than assay_round_sums knows of. */
void assay_round_terms(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums);

/* The best instruction set of this processor. */
assay_isa assay_isa_best(void);
bool assay_isa_supported(assay_isa isa);
const char *assay_isa_name(assay_isa isa); /* "scalar", "avx2", "avx512" */
bool assay_isa_from_name(const char *name, assay_isa *isa);
/* The context's instruction set becomes that of $ASSAY_ISA, if there is one: the numbers are the same with each. */
assay_status assay_isa_from_environment(assay_context *ctx);

/* A context with the reference arithmetic, the best instruction set and `threads` threads. */
assay_context assay_context_default(int threads);
