/* Inputs from a seed, made where they are needed, with the bits that assay has: docs/random-inputs.md is the specification.
 * One header for C, C++, CUDA C and OpenCL C 1.2; nothing to link but libm in C. In OpenCL put its text before a kernel's.
 *
 * A tensor is an assay_draw. `assay show CASE` says its numbers; assay_draw_pair makes two neighbouring elements, and
 * assay_draw_code the bits that the tensor's type has for one:
 *
 *     assay_draw t = {0};
 *     t.distribution = ASSAY_DRAW_NORMAL; t.type = ASSAY_DRAW_BFLOAT16; t.row = columns;
 *     t.key = assay_draw_key(22, "weights/rhs"); t.scale = 0.0873704056661038;
 *     double x[2];
 *     assay_draw_pair(&t, j, x);                                         // elements 2 j and 2 j + 1
 *     out[2 * j] = (uint16_t)assay_draw_code(ASSAY_DRAW_BFLOAT16, x[0]);
 *
 * Whole numbers, or IEEE float64 with + - * / sqrt rounded to nearest even, nothing fused, no fast math: build with
 * -ffp-contract=off, nvcc -fmad=false. bell (assay_draw_bell) needs float32 alone, and does not mind fusing. A device of OpenCL
 * without cl_khr_fp64 has words, bell and bfloat16.
 *
 * The functions do not check: a bound that a distribution cannot have is the caller's error. */
#ifndef ASSAY_RANDOM_H
#define ASSAY_RANDOM_H

#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF
#define ASSAY_DRAW_FUNCTION static
typedef uint assay_draw_u32;
typedef ulong assay_draw_u64;
typedef int assay_draw_i32;
typedef long assay_draw_i64;
#if defined(cl_khr_fp64) || __OPENCL_VERSION__ >= 200
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define ASSAY_DRAW_HAS_FLOAT64
#endif
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __CUDACC__
#define ASSAY_DRAW_FUNCTION static __host__ __device__ inline
#else
#define ASSAY_DRAW_FUNCTION static inline
#endif
#define ASSAY_DRAW_HAS_FLOAT64
typedef uint32_t assay_draw_u32;
typedef uint64_t assay_draw_u64;
typedef int32_t assay_draw_i32;
typedef int64_t assay_draw_i64;
#endif

/* ---- words ---- */

enum { ASSAY_DRAW_ELEMENTS, ASSAY_DRAW_EXTRAS }; /* streams */

/* Word i of a stream: word i mod 4 of Philox4x32-10. */
ASSAY_DRAW_FUNCTION assay_draw_u32 assay_draw_word(assay_draw_u64 key, assay_draw_u32 stream, assay_draw_u64 i)
{
    assay_draw_u32 x0 = (assay_draw_u32)(i / 4), x1 = (assay_draw_u32)(i / 4 >> 32), x2 = stream, x3 = 0;
    assay_draw_u32 k0 = (assay_draw_u32)key, k1 = (assay_draw_u32)(key >> 32);
    const assay_draw_u32 lane = (assay_draw_u32)(i % 4);
    int round;
    for (round = 0; round < 10; round++) {
        const assay_draw_u64 p0 = (assay_draw_u64)0xD2511F53u * x0, p1 = (assay_draw_u64)0xCD9E8D57u * x2;
        x0 = (assay_draw_u32)(p1 >> 32) ^ x1 ^ k0;
        x2 = (assay_draw_u32)(p0 >> 32) ^ x3 ^ k1;
        x1 = (assay_draw_u32)p1;
        x3 = (assay_draw_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return lane < 2 ? (lane == 0 ? x0 : x1) : (lane == 2 ? x2 : x3);
}

/* A whole number in [0, n), n at most 2^32. */
ASSAY_DRAW_FUNCTION assay_draw_u64 assay_draw_below(assay_draw_u32 word, assay_draw_u64 n)
{
    return word * n >> 32;
}

/* ---- bell: float32 alone ---- */

/* mean + step * (the sum of the word's bytes - 510). The product is exact, so that fusing it changes nothing. */
ASSAY_DRAW_FUNCTION float assay_draw_bell_of(assay_draw_u32 word, float mean, float step)
{
    const assay_draw_u32 pairs = (word & 0x00FF00FFu) + (word >> 8 & 0x00FF00FFu);
    const assay_draw_i32 sum = (assay_draw_i32)((pairs + (pairs >> 16)) & 0xFFFFu);
    return mean + step * (float)(sum - 510);
}

/* Element i before its rounding to the type; step: of assay_draw_bell_step. */
ASSAY_DRAW_FUNCTION float assay_draw_bell(assay_draw_u64 key, assay_draw_u64 i, float mean, float step)
{
    return assay_draw_bell_of(assay_draw_word(key, ASSAY_DRAW_ELEMENTS, i), mean, step);
}

/* The code of a number in bfloat16, which must not be NaN. */
ASSAY_DRAW_FUNCTION assay_draw_u32 assay_draw_bfloat16(float x)
{
    assay_draw_u32 bits;
#ifdef __OPENCL_VERSION__
    bits = as_uint(x);
#else
    memcpy(&bits, &x, sizeof bits);
#endif
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

#ifdef ASSAY_DRAW_HAS_FLOAT64

/* ---- sums of two float64, the high part first ---- */

typedef struct assay_draw_sum {
    double high, low;
} assay_draw_sum;

ASSAY_DRAW_FUNCTION assay_draw_u64 assay_draw_bits(double x)
{
#ifdef __OPENCL_VERSION__
    return as_ulong(x);
#else
    assay_draw_u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

ASSAY_DRAW_FUNCTION double assay_draw_double(assay_draw_u64 bits)
{
#ifdef __OPENCL_VERSION__
    return as_double(bits);
#else
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_sum_of(double high, double low)
{
    assay_draw_sum s;
    s.high = high;
    s.low = low;
    return s;
}

/* x without its last 27 bits */
ASSAY_DRAW_FUNCTION double assay_draw_upper(double x)
{
    return assay_draw_double(assay_draw_bits(x) & 0xFFFFFFFFF8000000u);
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_two_sum(double a, double b)
{
    const double s = a + b, v = s - a;
    return assay_draw_sum_of(s, (a - (s - v)) + (b - v));
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_plus(assay_draw_sum x, assay_draw_sum y)
{
    const assay_draw_sum s = assay_draw_two_sum(x.high, y.high);
    return assay_draw_sum_of(s.high, s.low + (x.low + y.low));
}

/* x y, but for what the low parts give */
ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_product(double x, double y)
{
    const double xh = assay_draw_upper(x), yh = assay_draw_upper(y), xl = x - xh, yl = y - yh, high = x * y;
    return assay_draw_sum_of(high, (((xh * yh - high) + xl * yh) + xh * yl) + xl * yl);
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_times(assay_draw_sum x, assay_draw_sum y)
{
    const assay_draw_sum p = assay_draw_product(x.high, y.high);
    return assay_draw_sum_of(p.high, (p.low + x.high * y.low) + x.low * y.high);
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_times_one(assay_draw_sum x, double y)
{
    const assay_draw_sum p = assay_draw_product(x.high, y);
    return assay_draw_sum_of(p.high, p.low + x.low * y);
}

ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_divided(assay_draw_sum n, assay_draw_sum d)
{
    const double t = 1.0 / d.high, x = n.high * t;
    const double dh = assay_draw_upper(d.high), th = assay_draw_upper(t), nh = assay_draw_upper(n.high);
    const double dl = d.high - dh, tl = t - th, nl = n.high - nh;
    const double left = (((1.0 - dh * th) - dh * tl) - dl * th) - dl * tl;
    const double low = ((((nh * th - x) + nh * tl) + nl * th) + nl * tl) + x * left;
    return assay_draw_sum_of(x, t * (n.low - x * d.low) + low);
}

/* ---- ln, sine and cosine ---- */

/* u in (0, 1] */
ASSAY_DRAW_FUNCTION double assay_draw_log(double u)
{
    const assay_draw_i64 e = (assay_draw_i64)(assay_draw_bits(u * (1 / 0.75)) >> 52) - 1023;
    const double m = assay_draw_double(assay_draw_bits(u) - ((assay_draw_u64)e << 52)); /* [0.75, 1.5) */
    const assay_draw_sum x = assay_draw_divided(assay_draw_two_sum(-1.0, m), assay_draw_two_sum(1.0, m));
    const double x2 = x.high * x.high, x4 = x2 * x2, x8 = x4 * x4;
    const double upper_terms = x4 * 0.1532076988502701353 + (x2 * 0.1525629051003428716 + 0.1818605932937785996);
    const double lower_terms = x4 * (x2 * 0.2222214519839380009 + 0.2857142932794299317) +
                               (x2 * 0.3999999999635251990 + 0.6666666666667333541);
    const double tail = x2 * x.high * (x8 * upper_terms + lower_terms);
    const assay_draw_sum s =
        assay_draw_times_one(assay_draw_sum_of(0.693147180559945286226764, 2.319046813846299558417771e-17), (double)e);
    const double a = 2 * x.high, b = 2 * x.low, sum = s.high + a, low = (((s.high - sum) + a) + s.low) + b;
    const double whole = sum + tail;
    return whole + (((sum - whole) + tail) + low);
}

ASSAY_DRAW_FUNCTION double assay_draw_sine_terms(double s)
{
    double u = -2.02461120785182399295868e-14;
    u = u * s + 6.94821830580179461327784e-12;
    u = u * s + -1.75724749952853179952664e-09;
    u = u * s + 3.13361688966868392878422e-07;
    u = u * s + -3.6576204182161551920361e-05;
    return u * s + 0.00249039457019271850274356;
}

ASSAY_DRAW_FUNCTION double assay_draw_cosine_terms(double s)
{
    double u = 9.94480387626843774090208e-16;
    u = u * s + -3.89796226062932799164047e-13;
    u = u * s + 1.15011582539996035266901e-10;
    u = u * s + -2.4611369501044697495359e-08;
    u = u * s + 3.59086044859052754005062e-06;
    return u * s + -0.000325991886927389905997954;
}

/* Cosine (high) and sine (low) of pi times half_turns, which are in [0, 2). */
ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_direction(double half_turns)
{
    const double u = half_turns * 4;
    const int q = ((int)u + 1) & ~1;
    const double t = u - q, s = t * t;
    const assay_draw_sum s2 = assay_draw_product(t, t);
    double sine, cosine, first, second;
    assay_draw_sum x = assay_draw_plus(assay_draw_sum_of(assay_draw_sine_terms(s) * s, 0),
                                       assay_draw_sum_of(-0.0807455121882807852484731, 3.61852475067037104849987e-18));
    x = assay_draw_plus(assay_draw_times(s2, x),
                        assay_draw_sum_of(0.785398163397448278999491, 3.06287113727155002607105e-17));
    x = assay_draw_times_one(x, t);
    sine = x.high + x.low;
    x = assay_draw_plus(assay_draw_sum_of(assay_draw_cosine_terms(s) * s, 0),
                        assay_draw_sum_of(0.0158543442438155018914259, -1.04693272280631521908845e-18));
    x = assay_draw_plus(assay_draw_times(s2, x),
                        assay_draw_sum_of(-0.308425137534042437259529, -1.95698492133633550338345e-17));
    x = assay_draw_plus(assay_draw_times(x, s2), assay_draw_sum_of(1.0, 0));
    cosine = x.high + x.low;
    first = q & 2 ? sine : cosine;
    second = q & 2 ? cosine : sine;
    return assay_draw_sum_of((q + 2) & 4 ? -first : first, q & 4 ? -second : second);
}

/* Box-Muller: normals number 2 j (high) and 2 j + 1 (low). */
ASSAY_DRAW_FUNCTION assay_draw_sum assay_draw_normals(assay_draw_u64 key, assay_draw_u64 j)
{
    const double u = ((double)assay_draw_word(key, ASSAY_DRAW_ELEMENTS, 2 * j) + 1) * (1 / 4294967296.0);
    const double turns = (double)assay_draw_word(key, ASSAY_DRAW_ELEMENTS, 2 * j + 1) * (1 / 2147483648.0);
    const double radius = sqrt(-2.0 * assay_draw_log(u));
    const assay_draw_sum direction = assay_draw_direction(turns);
    return assay_draw_sum_of(radius * direction.high, radius * direction.low);
}

/* ---- types ---- */

typedef enum assay_draw_type {
    ASSAY_DRAW_FLOAT64,
    ASSAY_DRAW_FLOAT32,
    ASSAY_DRAW_TFLOAT32, /* stored as float32 */
    ASSAY_DRAW_BFLOAT16,
    ASSAY_DRAW_FLOAT16,
    ASSAY_DRAW_FLOAT8_E4M3FN, /* has no infinity, and one NaN without a sign */
    ASSAY_DRAW_FLOAT8_E5M2,
    ASSAY_DRAW_FLOAT4_E2M1FN /* a code a byte; has no infinity and no NaN: what is larger than 6 is 6 */
} assay_draw_type;

typedef struct assay_draw_grid {
    int bits, unused, fraction, least; /* unused: low bits that are 0; least: exponent of the least normal number */
    double largest;
    assay_draw_u32 beyond, nan; /* codes of what is larger, and of NaN */
} assay_draw_grid;

ASSAY_DRAW_FUNCTION assay_draw_grid assay_draw_grid_from(int bits, int unused, int fraction, int least, double largest,
                                                         assay_draw_u32 beyond, assay_draw_u32 nan)
{
    assay_draw_grid g;
    g.bits = bits;
    g.unused = unused;
    g.fraction = fraction;
    g.least = least;
    g.largest = largest;
    g.beyond = beyond;
    g.nan = nan;
    return g;
}

/* Not of float64. */
ASSAY_DRAW_FUNCTION assay_draw_grid assay_draw_grid_of(assay_draw_type type)
{
    switch (type) {
    case ASSAY_DRAW_TFLOAT32:
        return assay_draw_grid_from(32, 13, 10, -126, 3.4011621342146535e38, 0x7F800000u, 0x7FC00000u);
    case ASSAY_DRAW_BFLOAT16:
        return assay_draw_grid_from(16, 0, 7, -126, 3.3895313892515355e38, 0x7F80u, 0x7FC0u);
    case ASSAY_DRAW_FLOAT16:
        return assay_draw_grid_from(16, 0, 10, -14, 65504, 0x7C00u, 0x7E00u);
    case ASSAY_DRAW_FLOAT8_E4M3FN:
        return assay_draw_grid_from(8, 0, 3, -6, 448, 0x7Fu, 0x7Fu);
    case ASSAY_DRAW_FLOAT8_E5M2:
        return assay_draw_grid_from(8, 0, 2, -14, 57344, 0x7Cu, 0x7Eu);
    case ASSAY_DRAW_FLOAT4_E2M1FN:
        return assay_draw_grid_from(4, 0, 1, 0, 6, 7u, 8u);
    default:
        return assay_draw_grid_from(32, 0, 23, -126, 3.4028234663852886e38, 0x7F800000u, 0x7FC00000u);
    }
}

ASSAY_DRAW_FUNCTION double assay_draw_power(int exponent)
{
    return assay_draw_double((assay_draw_u64)(1023 + exponent) << 52);
}

/* x rounded to the type, once, ties to even: adding c makes float64's last bit the type's. The code has the bits of the
 * type, in the low end. */
ASSAY_DRAW_FUNCTION assay_draw_u64 assay_draw_code(assay_draw_type type, double x)
{
    assay_draw_grid g;
    double size, least, power, c;
    assay_draw_u64 steps, code;
    if (type == ASSAY_DRAW_FLOAT64) return assay_draw_bits(x);
    g = assay_draw_grid_of(type);
    if (x != x) return g.nan;
    size = x < 0 ? -x : x;
    if (size > assay_draw_power(200)) size = assay_draw_power(200);
    least = assay_draw_power(g.least);
    power = assay_draw_double(assay_draw_bits(size) & 0x7FF0000000000000u);
    if (power < least) power = least;
    c = power * assay_draw_power(52 - g.fraction);
    steps = (assay_draw_bits(power) - assay_draw_bits(least)) >> 52;
    code = (steps << g.fraction) + (assay_draw_bits(size + c) - assay_draw_bits(c));
    code = (size + c) - c > g.largest ? (assay_draw_u64)g.beyond : code << g.unused;
    if (type == ASSAY_DRAW_FLOAT8_E4M3FN && code == g.nan) return code;
    return code | assay_draw_bits(x) >> 63 << (g.bits - 1);
}

/* ---- tensors ---- */

typedef enum assay_draw_distribution {
    ASSAY_DRAW_NORMAL,
    ASSAY_DRAW_UNIFORM,
    ASSAY_DRAW_INTEGERS,
    ASSAY_DRAW_CONSTANT,
    ASSAY_DRAW_NEAR_TIES,
    ASSAY_DRAW_BLOCK_POWERS,
    ASSAY_DRAW_ROW_POWERS,
    ASSAY_DRAW_CANCEL,
    ASSAY_DRAW_BELL,
    ASSAY_DRAW_RAMP
} assay_draw_distribution;

/* A pattern of values needs no drawing: element i is scale * values[i mod count] + mean. */
typedef struct assay_draw {
    assay_draw_u64 key, row; /* row: the length of the last axis */
    double scale, mean, low, high;
    assay_draw_distribution distribution;
    assay_draw_type type;
} assay_draw;

/* scale / sqrt(21845), rounded to 15 bits. */
ASSAY_DRAW_FUNCTION float assay_draw_bell_step(double scale)
{
    assay_draw_u64 bits = assay_draw_bits(scale / sqrt(21845.0));
    bits += ((assay_draw_u64)1 << 37) - 1 + (bits >> 38 & 1);
    return (float)assay_draw_double(bits >> 38 << 38);
}

ASSAY_DRAW_FUNCTION double assay_draw_whole(assay_draw_u32 word, double low, double high)
{
    return low + (double)assay_draw_below(word, (assay_draw_u64)(high - low) + 1);
}

/* mean, or 1, on the type's grid plus a whole number of its spacings there. */
ASSAY_DRAW_FUNCTION double assay_draw_near_tie(const assay_draw *t, assay_draw_u32 word)
{
    const double base = t->mean == 0 ? 1 : t->mean, whole = assay_draw_whole(word, t->low, t->high);
    double size = base < 0 ? -base : base, power, c, ulp;
    int fraction = 52, least = -1022;
    if (t->type != ASSAY_DRAW_FLOAT64) {
        const assay_draw_grid g = assay_draw_grid_of(t->type);
        fraction = g.fraction;
        least = g.least;
        power = assay_draw_double(assay_draw_bits(size) & 0x7FF0000000000000u);
        if (power < assay_draw_power(least)) power = assay_draw_power(least);
        c = power * assay_draw_power(52 - fraction);
        size = (size + c) - c;
    }
    power = assay_draw_double(assay_draw_bits(size) & 0x7FF0000000000000u);
    if (power < assay_draw_power(least)) power = assay_draw_power(least);
    ulp = power * assay_draw_power(-fraction);
    return (base < 0 ? -size : size) + ulp * whole;
}

/* Which power of two block_powers and row_powers give to element i. */
ASSAY_DRAW_FUNCTION int assay_draw_power_of(const assay_draw *t, assay_draw_u64 i)
{
    const assay_draw_u64 size = t->distribution == ASSAY_DRAW_BLOCK_POWERS ? 128 : t->row;
    const assay_draw_u64 block = i / t->row * ((t->row + size - 1) / size) + i % t->row / size;
    return (int)assay_draw_whole(assay_draw_word(t->key, ASSAY_DRAW_EXTRAS, block), t->low, t->high);
}

/* Element i of what needs no other. */
ASSAY_DRAW_FUNCTION double assay_draw_alone(const assay_draw *t, assay_draw_u64 i)
{
    const assay_draw_u32 word = assay_draw_word(t->key, ASSAY_DRAW_ELEMENTS, i);
    switch (t->distribution) {
    case ASSAY_DRAW_UNIFORM:
        return t->low + (t->high - t->low) * ((double)word * (1 / 4294967296.0));
    case ASSAY_DRAW_INTEGERS:
        return t->mean + t->scale * assay_draw_whole(word, t->low, t->high);
    case ASSAY_DRAW_NEAR_TIES:
        return assay_draw_near_tie(t, word);
    case ASSAY_DRAW_BELL:
        return assay_draw_bell_of(word, (float)t->mean, assay_draw_bell_step(t->scale));
    case ASSAY_DRAW_RAMP:
        return t->mean + t->scale * (double)(i % t->row);
    default:
        return t->mean;
    }
}

/* x[0] and x[1]: elements 2 j and 2 j + 1 before they are rounded to the type. */
ASSAY_DRAW_FUNCTION void assay_draw_pair(const assay_draw *t, assay_draw_u64 j, double *x)
{
    const int powers = t->distribution == ASSAY_DRAW_BLOCK_POWERS || t->distribution == ASSAY_DRAW_ROW_POWERS;
    assay_draw_sum n;
    if (!powers && t->distribution != ASSAY_DRAW_NORMAL && t->distribution != ASSAY_DRAW_CANCEL) {
        x[0] = assay_draw_alone(t, 2 * j);
        x[1] = assay_draw_alone(t, 2 * j + 1);
        return;
    }
    n = assay_draw_normals(t->key, j);
    x[0] = t->mean + t->scale * n.high;
    x[1] = t->mean + t->scale * n.low;
    if (powers) {
        x[0] = ldexp(x[0], assay_draw_power_of(t, 2 * j));
        x[1] = ldexp(x[1], assay_draw_power_of(t, 2 * j + 1));
    }
    if (t->distribution == ASSAY_DRAW_CANCEL) {
        const double part = (double)assay_draw_word(t->key, ASSAY_DRAW_EXTRAS, 2 * j + 1) * (1 / 2147483648.0) - 1;
        x[1] = -(x[0] * (1 + part * (1 / 1024.0)));
    }
}

#endif /* ASSAY_DRAW_HAS_FLOAT64 */

#ifndef __OPENCL_VERSION__

/* ---- on the host: keys, and int32 tensors whose elements are drawn one after the other ---- */

/* Of the tensor at `path` ("weights/wi_0"). */
static inline assay_draw_u64 assay_draw_key(assay_draw_u64 seed, const char *path)
{
    assay_draw_u64 hash = 0xCBF29CE484222325u, x = seed + 0x9E3779B97F4A7C15u;
    for (; *path != '\0'; path++) hash = (hash ^ (unsigned char)*path) * 0x100000001B3u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return hash ^ x ^ x >> 31;
}

/* out [rows,columns]: distinct numbers from 0 to high in each row. */
static inline void assay_draw_experts(assay_draw_u64 key, int64_t rows, int64_t columns, int32_t high, int32_t *out)
{
    int64_t r, j, i, rank, id, next;
    for (r = 0; r < rows; r++) {
        for (j = 0; j < columns; j++) {
            const assay_draw_u32 word = assay_draw_word(key, ASSAY_DRAW_ELEMENTS, (assay_draw_u64)(r * columns + j));
            rank = (int64_t)assay_draw_below(word, (assay_draw_u64)(high + 1 - j));
            /* the least id of which `rank` smaller ones are free */
            for (id = -1, next = rank; next != id;) {
                id = next;
                next = rank;
                for (i = 0; i < j; i++) next += out[r * columns + i] <= id;
            }
            out[r * columns + j] = (int32_t)id;
        }
    }
}

static inline int assay_draw_group_is_open(assay_draw_u64 key, int64_t group, int64_t closed)
{
    return group != closed && assay_draw_word(key, ASSAY_DRAW_EXTRAS, (assay_draw_u64)group) >= 1u << 30;
}

/* out [groups]: sizes that add up to total. */
static inline void assay_draw_group_sizes(assay_draw_u64 key, int64_t groups, int32_t total, int32_t *out)
{
    const assay_draw_u32 word = assay_draw_word(key, ASSAY_DRAW_EXTRAS, (assay_draw_u64)groups);
    const int64_t closed = (int64_t)assay_draw_below(word, (assay_draw_u64)groups);
    int64_t open = 0, g, i, k, only = -1;
    for (g = 0; g < groups; g++) open += assay_draw_group_is_open(key, g, closed);
    if (open == 0 && groups > 0) {
        open = 1;
        only = (closed + 1) % groups;
    }
    for (i = 0; i < open - 1; i++) { /* cuts in ascending order */
        const int32_t cut = (int32_t)assay_draw_below(assay_draw_word(key, ASSAY_DRAW_ELEMENTS, (assay_draw_u64)i),
                                                      (assay_draw_u64)total + 1);
        for (k = i; k > 0 && out[k - 1] > cut; k--) out[k] = out[k - 1];
        out[k] = cut;
    }
    if (groups > 0) out[open - 1] = total;
    for (i = open - 1; i > 0; i--) out[i] -= out[i - 1];
    for (g = groups - 1; g >= 0; g--) { /* spread out from the end: group g reads at most from place g */
        const int is_open = only >= 0 ? g == only : assay_draw_group_is_open(key, g, closed);
        out[g] = is_open ? out[--open] : 0;
    }
}

/* out [count]: 0 to count - 1 in random order. */
static inline void assay_draw_permutation(assay_draw_u64 key, int64_t count, int32_t *out)
{
    int64_t i, j;
    for (i = 0; i < count; i++) out[i] = (int32_t)i;
    for (i = count - 1; i > 0; i--) {
        const int32_t kept = out[i];
        j = (int64_t)assay_draw_below(assay_draw_word(key, ASSAY_DRAW_ELEMENTS, (assay_draw_u64)i),
                                      (assay_draw_u64)i + 1);
        out[i] = out[j];
        out[j] = kept;
    }
}

#endif /* __OPENCL_VERSION__ */

#endif
