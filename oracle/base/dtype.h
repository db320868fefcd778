/* Number types and their grids: rounding, encoding and decoding, all in our own code.
 *
 * Rounding is to nearest, ties to even, subnormals kept. Overflow: IEEE types (and e5m2) round to infinity as IEEE 754
 * says; e4m3fn has no infinity and rounds to NaN (as ml_dtypes does). With `saturate` every overflow of the fp8 types
 * and an infinity become the largest finite value instead (as the OCP FP8 specification's saturating mode).
 *
 * e2m1 (OCP MX specification 1.0, 5.3.3) has neither infinity nor NaN: what is larger than 6 is 6, infinity too; NaN stays
 * NaN when it is rounded and is stored as -0. One code a byte, in the low four bits. e8m0 (5.4.1) is a scale: powers of
 * two from 2^-127 to 2^127 without a sign or 0. Less than 2^-127, 0 too, is 2^-127; a tie goes to the larger power; above 1.5
 * times 2^127, and below 0, is NaN. */
#pragma once

#include <stddef.h>

#include "oracle/base/status.h"

/*    enumerator            name            bytes significand bits  least normal exponent  largest exponent */
#define ASSAY_DTYPE_TABLE(X)                                                                                           \
    X(ASSAY_FLOAT64, "float64", 8, 53, -1022, 1023)                                                                    \
    X(ASSAY_FLOAT32, "float32", 4, 24, -126, 127)                                                                      \
    X(ASSAY_TFLOAT32, "tfloat32", 4, 11, -126, 127) /* stored as float32 */                                            \
    X(ASSAY_BFLOAT16, "bfloat16", 2, 8, -126, 127)                                                                     \
    X(ASSAY_FLOAT16, "float16", 2, 11, -14, 15)                                                                        \
    X(ASSAY_FLOAT8_E4M3FN, "float8_e4m3fn", 1, 4, -6, 8)                                                               \
    X(ASSAY_FLOAT8_E5M2, "float8_e5m2", 1, 3, -14, 15)                                                                 \
    X(ASSAY_FLOAT4_E2M1FN, "float4_e2m1fn", 1, 2, 0, 2)                                                                \
    X(ASSAY_FLOAT8_E8M0FNU, "float8_e8m0fnu", 1, 1, -127, 127)                                                         \
    X(ASSAY_INT32, "int32", 4, 0, 0, 0) /* indices, counts and masks; not a float type */

typedef enum assay_dtype {
#define X(code, name, bytes, digits, emin, emax) code,
    ASSAY_DTYPE_TABLE(X)
#undef X
        ASSAY_DTYPE_COUNT
} assay_dtype;

const char *assay_dtype_name(assay_dtype type);
bool assay_dtype_from_name(const char *name, assay_dtype *type); /* also "bf16", "f32", "f64", "f16", "tf32" */
size_t assay_dtype_size(assay_dtype type);                       /* bytes of a stored element */
double assay_dtype_unit_roundoff(assay_dtype type); /* 2^-significand bits: 2^-8 for bfloat16; 0 for int32 */
double assay_dtype_max(assay_dtype type);           /* largest finite value */
double assay_dtype_least_subnormal(assay_dtype type);

/* Nearest value of the grid. NaN stays NaN. */
double assay_dtype_round(assay_dtype type, double x, bool saturate);
void assay_dtype_round_many(assay_dtype type, int64_t count, const double *x,
                            double *y); /* no saturation; y may be x */

/* Between float64 and the stored bytes (little-endian, native). encode rounds; int32 values are converted exactly.
 * NaN is written with one code only, so that files are the same bytes everywhere; every NaN code is read. */
void assay_dtype_encode(assay_dtype type, int64_t count, const double *x, void *bytes);
void assay_dtype_decode(assay_dtype type, int64_t count, const void *bytes, double *x);
/* The same, faster where x is more than the caches hold: it goes past them, so whoever reads it next reads memory. */
void assay_dtype_decode_past(assay_dtype type, int64_t count, const void *bytes, double *x);
