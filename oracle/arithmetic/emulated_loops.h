/* The inner loops of the emulated arithmetic, once for each instruction set, and what they share with its other files.
 * Private to emulated*.c. */
#pragma once

#include <string.h>

#include "oracle/arithmetic/arithmetic.h"

static inline uint64_t emulated_bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double emulated_value_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood 2014): each bit of x changes each of the result with probability
 * one half. */
static inline uint64_t emulated_hash(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The same with 32 bits: the finaliser of MurmurHash3 (Appleby 2011). */
static inline uint32_t emulated_hash32(uint32_t x)
{
    x = (x ^ (x >> 16)) * UINT32_C(0x85ebca6b);
    x = (x ^ (x >> 13)) * UINT32_C(0xc2b2ae35);
    return x ^ (x >> 16);
}

/* Uniform in (-1/2, 1/2), from 24 of 64 random bits. Never nearer than 2^-25 to an end: a number of the grid must not
 * come halfway to the next one. The bits become the top of a mantissa: no conversion from integers, and no rounding. */
static inline double emulated_centred(uint64_t random_bits)
{
    return emulated_value_of(UINT64_C(0x3ff) << 52 | (random_bits & 0xffffff) << 28) - (1.5 - 0x1p-25);
}

/* What the loop of stochastic rounding needs of a type. */
typedef struct emulated_grid {
    double spacing;       /* of the numbers above a power of two, relative to it */
    double least, max;    /* the least spacing; the largest finite number */
    double limit, beyond; /* what is above `limit` becomes that first; what is above max becomes `beyond` */
    double normal;        /* from here on up to max a number of the grid is one without a bit in `below` */
    uint64_t below;
} emulated_grid;

/* How values are rounded somewhere, and with which draws. */
typedef struct emulated_rounder {
    enum { EMULATED_BY_CHANCE, EMULATED_TO_GRID, EMULATED_TO_NEIGHBOUR, EMULATED_RELATIVE, EMULATED_NOTHING } way;
    uint64_t key;
    emulated_grid grid;
    double dither; /* to the grid: the share of its spacing by which numbers are moved, before they go to the nearest */
    double largest; /* relative: the largest error */
} emulated_rounder;

/* The error of an element c: -mean c, and two uniform ones with RMS of `whole` |c| and `spread` sqrt(sum a^2 sum b^2).
 */
typedef struct emulated_sum_error {
    double of_result, of_norm, mean;
} emulated_sum_error;

/* A part of a product, whose rows are `ld` apart; the roots of the sums of squares of its rows of A and columns of B.
 */
typedef struct emulated_block {
    int64_t rows, columns, ld;
    const float *of_rows, *of_columns;
} emulated_block;

typedef struct emulated_loops {
    /* to[i]: from[i] rounded. They may be the same. */
    void (*round)(const emulated_rounder *r, int64_t count, const double *from, double *to);
    /* Whether all of them are normal numbers of the grid, or zero. */
    bool (*are_on_grid)(const emulated_grid *g, int64_t count, const double *values);
    /* A row of a product; of_a: the root of its row's sum of squares; of_b [count]: those of the columns. */
    void (*add_sum_error)(const emulated_sum_error *e, uint64_t key, int64_t count, double *c, double of_a,
                          const double *of_b);
    /* The same of a part of a product whose sums are in float32. */
    void (*add_float32_errors)(const emulated_sum_error *e, uint32_t key, const emulated_block *block, double *c);
    double (*sum_of_squares)(int64_t count, const double *values);
    /* squares [count]: plus those of each column of values [rows,count], whose rows are `ld` apart. */
    void (*add_squares)(int64_t rows, int64_t ld, int64_t count, const double *values, double *squares);
} emulated_loops;

const emulated_loops *emulated_loops_for(assay_isa isa);
extern const emulated_loops emulated_loops_scalar;
#ifdef __x86_64__
extern const emulated_loops emulated_loops_avx2, emulated_loops_avx512;
#endif
