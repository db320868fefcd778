#include "oracle/quad/quad_slices.h"

#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"

typedef unsigned __int128 bits128;

enum {
    SIGNIFICAND = 112,   /* stored bits of one in binary128 */
    IS_SPECIAL = 0x7fff, /* the biased exponent of infinity and NaN */
    IS_OUT = IS_SPECIAL, /* of a line */
    NARROW_TAIL = 60,    /* bits that are 0 in a float64 */
    REACH = 8000,        /* powers of two around 1 in which the product of two lines is far from the ends */
    BLOCK = 256,         /* numbers that are cut at a time */
    LEAST_BITS = 112,    /* that slices keep below a line's largest number */
    WIDEST_FIXED = 126,  /* bits that a number may have as an integer */
    BITS_MOST = 25,
    BIAS_F64 = 1023,
    BIAS_F128 = 16383
};

static bits128 bits_of(quad x)
{
    const union {
        quad number;
        bits128 bits;
    } u = {.number = x};
    return u.bits;
}

static int exponent_of(bits128 x)
{
    return (int)(x >> SIGNIFICAND) & IS_SPECIAL;
}

static bits128 significand_of(bits128 x)
{
    return (x & (((bits128)1 << SIGNIFICAND) - 1)) | (bits128)1 << SIGNIFICAND;
}

static int log2_above(int64_t n)
{
    int power = 0;
    while (((int64_t)1 << power) < n) power++;
    return power;
}

quad_cut quad_cut_for(int64_t k)
{
    for (int most = 4; most <= QUAD_SLICES_MOST; most++) {
        int bits = (53 - log2_above(k < 1 ? most : k * most)) / 2 + 1;
        if (bits > BITS_MOST) bits = BITS_MOST;
        if (most * bits - 2 > WIDEST_FIXED) bits = (WIDEST_FIXED + 2) / most;
        if (most * bits - 2 >= LEAST_BITS) return (quad_cut){.bits = bits, .most = most};
    }
    return (quad_cut){0};
}

bool quad_slices_are_out(const quad_slices *slices, int64_t line)
{
    return slices->largest[line] == IS_OUT;
}

void quad_slices_free(quad_slices *slices)
{
    for (int p = 0; p < QUAD_SLICES_MOST; p++) free(slices->digits[p]);
    free(slices->sizes);
    free(slices->powers);
    free(slices->largest);
    *slices = (quad_slices){0};
}

/* Of runs [begin,end). A subnormal number counts as one of the least exponent. */
static void find_largest(const quad_layout *from, int64_t begin, int64_t end, int32_t *largest)
{
    for (int64_t i = begin; i < end; i++) {
        const quad *run = from->values + i * from->ld;
        for (int64_t j = 0; j < from->inner; j++) {
            const bits128 x = bits_of(run[j]);
            const int32_t exponent = exponent_of(x) != 0 ? exponent_of(x) : x << 1 != 0;
            int32_t *most = &largest[from->lines_across ? j : i];
            if (exponent > *most) *most = exponent;
        }
    }
}

/* Which line a number of a run belongs to. */
static int64_t line_of(const quad_layout *from, int64_t run, int64_t j)
{
    return from->lines_across ? j : run;
}

/* The bits below its line's power of two down to a number's last one. */
static int depth_of(bits128 x, int32_t largest)
{
    if (largest == IS_OUT || exponent_of(x) == 0) return 0;
    const uint64_t low = (uint64_t)x, high = (uint64_t)(significand_of(x) >> 64);
    const int zeros = low != 0 ? __builtin_ctzll(low) : 64 + __builtin_ctzll(high);
    return largest + 1 - exponent_of(x) + SIGNIFICAND + 1 - zeros;
}

static int deepest(const quad_layout *from, const int32_t *largest, int64_t run)
{
    int most = 0;
    for (int64_t j = 0; j < from->inner; j++) {
        const int depth = depth_of(bits_of(from->values[run * from->ld + j]), largest[line_of(from, run, j)]);
        if (depth > most) most = depth;
    }
    return most;
}

/* A number over its line's power of two, as a float64 with the sign: what does not fit is cut off. */
static double scaled(bits128 x, int32_t largest)
{
    const int exponent = exponent_of(x), field = exponent - largest - 1 + BIAS_F64;
    if (largest == IS_OUT || exponent == 0 || field < 1) return 0;
    const union {
        uint64_t bits;
        double number;
    } u = {.bits = (uint64_t)(x >> 127) << 63 | (uint64_t)field << 52 |
                   (uint64_t)((x << 16) >> 76)}; /* the first 52 of 112 bits */
    return u.number;
}

/* Numbers that are float64: each digit is what rounding to an integer leaves. */
static void cut_narrow(const double *numbers, int64_t count, const quad_cut *cut, int used, double *const *digits,
                       int64_t at)
{
    const double magic = 0x1.8p52, first = ldexp(1, cut->bits - 2), next = ldexp(1, cut->bits);
    double rest[BLOCK];
    for (int64_t i = 0; i < count; i++) rest[i] = numbers[i] * first;
    for (int p = 0; p < used; p++) {
        double *to = digits[p] + at;
        for (int64_t i = 0; i < count; i++) {
            const double digit = (rest[i] + magic) - magic;
            to[i] = digit;
            rest[i] = (rest[i] - digit) * next;
        }
    }
}

/* Any number, as an integer in units of its last digit. */
static void cut_wide(bits128 x, int32_t largest, const quad_cut *cut, int used, double *const *digits, int64_t at)
{
    const int exponent = exponent_of(x), shift = exponent - largest - 1 - SIGNIFICAND + cut->most * cut->bits - 2;
    const bool is_zero = largest == IS_OUT || exponent == 0 || shift < -SIGNIFICAND;
    const bits128 m = is_zero ? 0 : shift >= 0 ? significand_of(x) << shift : significand_of(x) >> -shift;
    const uint64_t half = (uint64_t)1 << (cut->bits - 1), mask = 2 * half - 1;
    __int128 rest = x >> 127 != 0 ? -(__int128)m : (__int128)m;
    for (int p = cut->most - 1; p >= 0; p--) {
        const int64_t digit = p == 0 ? (int64_t)rest : (int64_t)(((uint64_t)rest + half) & mask) - (int64_t)half;
        rest = (rest - digit) >> cut->bits;
        if (p < used) digits[p][at] = (double)digit;
    }
}

static void cut_run(const quad_layout *from, int64_t run, const quad_cut *cut, quad_slices *slices)
{
    const quad *values = from->values + run * from->ld;
    double numbers[BLOCK];
    for (int64_t begin = 0; begin < from->inner; begin += BLOCK) {
        const int64_t count = from->inner - begin < BLOCK ? from->inner - begin : BLOCK;
        const int64_t at = run * from->inner + begin;
        bits128 tails = 0;
        for (int64_t i = 0; i < count; i++) {
            const bits128 x = bits_of(values[begin + i]);
            tails |= x << (128 - NARROW_TAIL);
            numbers[i] = scaled(x, slices->largest[line_of(from, run, begin + i)]);
            slices->sizes[at + i] = fabs(numbers[i]);
        }
        if (tails == 0) {
            cut_narrow(numbers, count, cut, slices->used, slices->digits, at);
            continue;
        }
        for (int64_t i = 0; i < count; i++) {
            const int32_t largest = slices->largest[line_of(from, run, begin + i)];
            cut_wide(bits_of(values[begin + i]), largest, cut, slices->used, slices->digits, at + i);
        }
    }
}

static assay_status take_memory(assay_context *ctx, const quad_layout *from, quad_slices *slices)
{
    const int64_t count = from->outer * from->inner, lines = from->lines_across ? from->inner : from->outer;
    if (slices->sizes == NULL || count > slices->room || lines > slices->line_room) {
        quad_slices_free(slices);
        slices->room = count;
        slices->line_room = lines;
        MUST(assay_alloc_i32(ctx, "exponents of lines", lines, &slices->largest));
        MUST(quad_alloc(ctx, lines, &slices->powers));
        MUST(assay_alloc_f64(ctx, "sizes of numbers", count, &slices->sizes));
    }
    slices->outer = from->outer;
    slices->inner = from->inner;
    slices->lines = lines;
    slices->lines_across = from->lines_across;
    return ASSAY_OK;
}

static assay_status find_exponents(assay_context *ctx, const quad_layout *from, quad_slices *slices)
{
    const int parts = ctx->threads;
    OWNED int32_t *each = NULL; /* [parts,lines] */
    MUST(assay_alloc_i32(ctx, "exponents of lines", parts * slices->lines, &each));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        int32_t *own = each + part * slices->lines;
        for (int64_t line = 0; line < slices->lines; line++) own[line] = 0;
        find_largest(from, from->outer * part / parts, from->outer * (part + 1) / parts, own);
    }
    for (int64_t line = 0; line < slices->lines; line++) {
        int32_t largest = 0;
        for (int part = 0; part < parts; part++) {
            if (each[part * slices->lines + line] > largest) largest = each[part * slices->lines + line];
        }
        if (largest != 0 && abs(largest - BIAS_F128) > REACH) largest = IS_OUT;
        slices->largest[line] = largest;
        slices->powers[line] = largest == 0 || largest == IS_OUT ? 0 : ldexpq(1, largest + 1 - BIAS_F128);
    }
    return ASSAY_OK;
}

assay_status quad_slices_make(assay_context *ctx, const quad_layout *from, const quad_cut *cut, quad_slices *slices)
{
    assay_status status;
    const int threads = ctx->threads;
    int deep = 0;
    TRY(take_memory(ctx, from, slices));
    TRY(find_exponents(ctx, from, slices));
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : deep)
    for (int64_t run = 0; run < from->outer; run++) {
        const int own = deepest(from, slices->largest, run);
        if (own > deep) deep = own;
    }
    slices->used = (deep + 2 + cut->bits - 1) / cut->bits;
    if (slices->used > cut->most) slices->used = cut->most;
    for (int p = 0; p < slices->used; p++) {
        if (slices->digits[p] == NULL) TRY(assay_alloc_f64(ctx, "slices", slices->room, &slices->digits[p]));
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t run = 0; run < from->outer; run++) cut_run(from, run, cut, slices);
cleanup:
    if (status != ASSAY_OK) quad_slices_free(slices);
    return status;
}
