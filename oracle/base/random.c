#include "oracle/base/random.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/random_kernels.h"

/* Elements are made in whole windows, whose places do not depend on the slice that is asked for. Those of bell are so fast
 * that beginning a window of 256 would show. */
enum { WINDOW = 256, BELL_WINDOW = 1024, POWER_BLOCK = 128 };

static const char *const DISTRIBUTION_NAMES[ASSAY_DISTRIBUTION_COUNT] = {
#define X(code, name) [code] = name,
    ASSAY_DISTRIBUTION_TABLE(X)
#undef X
};

const char *assay_distribution_name(assay_distribution d)
{
    return DISTRIBUTION_NAMES[d];
}

bool assay_distribution_from_name(const char *name, assay_distribution *d)
{
    for (int i = 0; i < ASSAY_DISTRIBUTION_COUNT; i++) {
        if (strcmp(name, DISTRIBUTION_NAMES[i]) == 0) {
            *d = (assay_distribution)i;
            return true;
        }
    }
    return false;
}

static uint64_t fnv1a_64(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t splitmix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

assay_random_stream assay_random_stream_of(uint64_t seed, const char *path, assay_random_purpose purpose)
{
    uint64_t key = fnv1a_64(path) ^ splitmix64(seed);
    return (assay_random_stream){{(uint32_t)key, (uint32_t)(key >> 32)}, purpose};
}

uint32_t assay_random_lane(const assay_random_stream *stream, uint64_t index)
{
    uint32_t lanes[4];
    assay_random_scalar.lanes(lanes, 1, stream, index / 4);
    return lanes[index % 4];
}

uint64_t assay_random_bits(uint64_t seed, const char *path, uint64_t index)
{
    assay_random_stream stream = assay_random_stream_of(seed, path, ASSAY_DRAW_BITS);
    uint32_t lanes[4];
    assay_random_scalar.lanes(lanes, 1, &stream, index / 2);
    const uint32_t *pair = lanes + 2 * (index % 2);
    return pair[0] | (uint64_t)pair[1] << 32;
}

static const assay_random_kernels *const kernels[] = {[ASSAY_ISA_SCALAR] = &assay_random_scalar,
                                                      [ASSAY_ISA_AVX2] = &assay_random_avx2,
                                                      [ASSAY_ISA_AVX512] = &assay_random_avx512};

static bool integer_within(double x, double least, double most)
{
    return x >= least && x <= most && x == rint(x);
}

/* Neither a product nor a sum of such ones leaves float32's normal numbers. */
static bool bell_number(double x)
{
    return x == 0 || (fabs(x) >= 0x1p-100 && fabs(x) <= 0x1p100);
}

assay_status assay_random_check(assay_context *ctx, const assay_fill *fill, const char *path, const assay_shape *shape)
{
    const char *wanted = NULL;
    double low = fill->low, high = fill->high;
    switch (fill->distribution) {
    case ASSAY_UNIFORM:
        if (!(low <= high)) wanted = "low <= high";
        break;
    case ASSAY_INTEGERS:
    case ASSAY_NEAR_TIES:
        if (!(integer_within(low, -0x1p31, 0x1p31) && integer_within(high, low, 0x1p31) && high - low < 0x1p32)) {
            wanted = "whole numbers low <= high, up to 2^31 in size, fewer than 2^32 apart";
        }
        break;
    case ASSAY_BLOCK_POWERS:
    case ASSAY_ROW_POWERS:
        if (!(integer_within(low, -1000, 1000) && integer_within(high, low, 1000))) {
            wanted = "whole numbers low <= high within [-1000, 1000]";
        }
        break;
    case ASSAY_EXPERTS:
        if (!(integer_within(high, (double)assay_row_length(shape) - 1, INT32_MAX) && shape->rank > 0)) {
            wanted = "a last axis, and a whole number high with high + 1 at least as large as that axis";
        }
        break;
    case ASSAY_GROUP_SIZES:
        if (!integer_within(high, 0, INT32_MAX) || (assay_shape_count(shape) == 0 && high > 0)) {
            wanted = "a whole number high from 0 to 2^31 - 1, 0 for no groups";
        }
        break;
    case ASSAY_PERMUTATION:
        if (assay_shape_count(shape) > INT32_MAX) wanted = "fewer than 2^31 elements";
        break;
    case ASSAY_RAMP:
        if (!(shape->rank > 0 && integer_within(fill->mean, INT32_MIN, INT32_MAX) &&
              integer_within(fill->scale, INT32_MIN, INT32_MAX) &&
              integer_within(fill->mean + fill->scale * (double)(assay_row_length(shape) - 1), INT32_MIN, INT32_MAX))) {
            wanted = "a last axis, and whole numbers of 32 bits from its first element to its last";
        }
        break;
    case ASSAY_VALUES:
        if (!(fill->value_count > 0 && fill->values != NULL)) wanted = "at least one value";
        break;
    case ASSAY_BELL:
        if (!(bell_number(fill->scale) && bell_number(fill->mean))) {
            wanted = "scale and mean to be 0 or from 2^-100 to 2^100 in size";
        }
        break;
    case ASSAY_NORMAL:
    case ASSAY_CONSTANT:
    case ASSAY_CANCEL:
        break;
    default:
        return assay_refuse(ctx, "%s: no distribution has the number %d", path, (int)fill->distribution);
    }
    if (wanted == NULL) return ASSAY_OK;
    char text[128];
    assay_shape_text(shape, text, sizeof text);
    const bool affine = fill->distribution == ASSAY_RAMP || fill->distribution == ASSAY_BELL;
    return assay_refuse(ctx, "%s %s: distribution %s needs %s; %s is %g, %s %g", path, text,
                        DISTRIBUTION_NAMES[fill->distribution], wanted, affine ? "mean" : "low",
                        affine ? fill->mean : low, affine ? "scale" : "high", affine ? fill->scale : high);
}

/* All that the elements of one tensor depend on. */
typedef struct tensor_draw {
    const assay_fill *fill;
    const assay_random_kernels *kernels;
    assay_random_stream elements, extras;
    int64_t last_axis, window;
    assay_dtype grid;
    float bell_step;
    int drop; /* bell: bits that its float32 loses to the grid at once; it is rounded like all others where there are none */
} tensor_draw;

static void draw_normals(const tensor_draw *t, int64_t first, double *values)
{
    const assay_fill *fill = t->fill;
    uint32_t lanes[WINDOW] __attribute__((aligned(64)));
    t->kernels->lanes(lanes, WINDOW / 4, &t->elements, (uint64_t)first / 4);
    t->kernels->normals(values, WINDOW, lanes);
    for (int i = 0; i < WINDOW; i++) values[i] = fill->mean + fill->scale * values[i];
}

/* Normals that are rounded to the grid at once. Near ones do where what they may be off by makes no difference: then
 * they are the bits of draw_normals. Says false elsewhere. */
static bool draw_rounded_normals(const tensor_draw *t, int64_t first, double *values)
{
    const assay_fill *fill = t->fill;
    const double off = fabs(fill->scale) * 0x1p-43; /* twice and more of 2^-45, and of the rounding of the product */
    uint32_t lanes[WINDOW] __attribute__((aligned(64)));
    double above[WINDOW] __attribute__((aligned(64)));
    t->kernels->lanes(lanes, WINDOW / 4, &t->elements, (uint64_t)first / 4);
    t->kernels->near_normals(values, WINDOW, lanes);
    for (int i = 0; i < WINDOW; i++) {
        const double x = fill->mean + fill->scale * values[i], margin = off + fabs(x) * 0x1p-50;
        values[i] = x - margin;
        above[i] = x + margin;
    }
    assay_dtype_round_many(t->grid, WINDOW, values, values);
    assay_dtype_round_many(t->grid, WINDOW, above, above);
    return memcmp(values, above, sizeof above) == 0;
}

static void draw_uniform(const tensor_draw *t, int64_t first, double *values)
{
    const assay_fill *fill = t->fill;
    uint32_t lanes[WINDOW] __attribute__((aligned(64)));
    t->kernels->lanes(lanes, WINDOW / 4, &t->elements, (uint64_t)first / 4);
    for (int i = 0; i < WINDOW; i++) values[i] = fill->low + (fill->high - fill->low) * (lanes[i] * 0x1p-32);
}

/* start + step * a whole number from low to high */
static void draw_integers(const tensor_draw *t, int64_t first, double start, double step, double *values)
{
    const assay_fill *fill = t->fill;
    const uint64_t choices = (uint64_t)(fill->high - fill->low) + 1;
    uint32_t lanes[WINDOW] __attribute__((aligned(64)));
    t->kernels->lanes(lanes, WINDOW / 4, &t->elements, (uint64_t)first / 4);
    for (int i = 0; i < WINDOW; i++) {
        values[i] = start + step * (fill->low + (double)assay_random_below(lanes[i], choices));
    }
}

static void draw_near_ties(const tensor_draw *t, int64_t first, double *values)
{
    double base = assay_dtype_round(t->grid, t->fill->mean == 0 ? 1 : t->fill->mean, false);
    double ulp = ldexp(2 * assay_dtype_unit_roundoff(t->grid), ilogb(base));
    draw_integers(t, first, base, fmax(ulp, assay_dtype_least_subnormal(t->grid)), values);
}

static void draw_pattern(const tensor_draw *t, int64_t first, double *values)
{
    const assay_fill *fill = t->fill;
    int64_t place = first % fill->value_count;
    for (int i = 0; i < WINDOW; i++) {
        values[i] = fill->scale * fill->values[place] + fill->mean;
        place = place + 1 < fill->value_count ? place + 1 : 0;
    }
}

static void draw_powers(const tensor_draw *t, int64_t first, int64_t block_size, double *values)
{
    const assay_fill *fill = t->fill;
    const uint64_t choices = (uint64_t)(fill->high - fill->low) + 1;
    const int64_t blocks_per_row = (t->last_axis + block_size - 1) / block_size;
    int64_t block_now = -1;
    int power = 0;
    draw_normals(t, first, values);
    for (int i = 0; i < WINDOW; i++) {
        int64_t row = (first + i) / t->last_axis, column = (first + i) % t->last_axis;
        int64_t block = row * blocks_per_row + column / block_size;
        if (block != block_now) {
            uint32_t lane = assay_random_lane(&t->extras, (uint64_t)block);
            power = (int)fill->low + (int)assay_random_below(lane, choices);
            block_now = block;
        }
        values[i] = ldexp(values[i], power);
    }
}

static void draw_cancelling(const tensor_draw *t, int64_t first, double *values)
{
    uint32_t lanes[WINDOW] __attribute__((aligned(64)));
    draw_normals(t, first, values);
    t->kernels->lanes(lanes, WINDOW / 4, &t->extras, (uint64_t)first / 4);
    for (int i = 1; i < WINDOW; i += 2) {
        double part = lanes[i] * 0x1p-31 - 1; /* [-1, 1) */
        values[i] = -(values[i - 1] * (1 + 0x1p-10 * part));
    }
}

/* A sum of four bytes has the variance 4 (256^2 - 1) / 12 = 21845. With 15 bits of the step its product with a whole
 * number up to 510 is exact in float32. */
static float bell_step(double scale)
{
    int exponent;
    const double step = rint(ldexp(frexp(scale / sqrt(21845), &exponent), 15));
    return (float)ldexp(step, exponent - 15);
}

static void draw_bells(const tensor_draw *t, int64_t first, double *values)
{
    const float mean = (float)t->fill->mean + 0.0F; /* no -0 */
    t->kernels->bells(values, BELL_WINDOW / 4, &t->elements, (uint64_t)first / 4, mean, t->bell_step, t->drop);
}

/* How many bits of float32 a type of its range lacks; -1: the type has another range. */
static int bits_to_drop(assay_dtype type)
{
    switch (type) {
    case ASSAY_FLOAT64:
    case ASSAY_FLOAT32:
        return 0;
    case ASSAY_TFLOAT32:
        return 13;
    case ASSAY_BFLOAT16:
        return 16;
    default:
        return -1;
    }
}

/* Elements [first, first + t->window), also those beyond the tensor. */
static void draw_window(const tensor_draw *t, int64_t first, double *values)
{
    const assay_fill *fill = t->fill;
    switch (fill->distribution) {
    case ASSAY_NORMAL:
        if (t->grid != ASSAY_FLOAT64 && draw_rounded_normals(t, first, values)) return;
        draw_normals(t, first, values);
        break;
    case ASSAY_UNIFORM:
        draw_uniform(t, first, values);
        break;
    case ASSAY_INTEGERS:
        draw_integers(t, first, fill->mean, fill->scale, values);
        break;
    case ASSAY_NEAR_TIES:
        draw_near_ties(t, first, values);
        break;
    case ASSAY_VALUES:
        draw_pattern(t, first, values);
        break;
    case ASSAY_BLOCK_POWERS:
        draw_powers(t, first, POWER_BLOCK, values);
        break;
    case ASSAY_ROW_POWERS:
        draw_powers(t, first, t->last_axis, values);
        break;
    case ASSAY_CANCEL:
        draw_cancelling(t, first, values);
        break;
    case ASSAY_BELL:
        draw_bells(t, first, values);
        break;
    default: /* constant: the whole-tensor distributions do not come here */
        for (int i = 0; i < WINDOW; i++) values[i] = fill->mean;
    }
    if (fill->distribution == ASSAY_BELL && bits_to_drop(t->grid) >= 0) return; /* it is on the grid */
    assay_dtype_round_many(t->grid, t->window, values, values);
}

assay_status assay_random_fill(assay_context *ctx, const assay_fill *fill, uint64_t seed, const char *path,
                               const assay_shape *shape, assay_dtype grid, int64_t first, int64_t count, double *out)
{
    int64_t total = 0;
    assay_status status = assay_checked_count(ctx, path, shape->rank, shape->dims, &total);
    if (status == ASSAY_OK) status = assay_random_check(ctx, fill, path, shape);
    if (status != ASSAY_OK) return status;
    if (fill->distribution >= ASSAY_EXPERTS) {
        return assay_refuse(ctx, "%s: distribution %s is for int32 tensors", path,
                            DISTRIBUTION_NAMES[fill->distribution]);
    }
    if (first < 0 || count < 0 || first > total || count > total - first) {
        return assay_refuse(ctx, "%s: elements from %" PRId64 ", %" PRId64 " of them, of %" PRId64, path, first, count,
                            total);
    }
    if (count == 0) return ASSAY_OK;
    const tensor_draw t = {.fill = fill,
                           .kernels = kernels[ctx->isa],
                           .elements = assay_random_stream_of(seed, path, ASSAY_DRAW_ELEMENTS),
                           .extras = assay_random_stream_of(seed, path, ASSAY_DRAW_EXTRAS),
                           .last_axis = assay_row_length(shape),
                           .window = fill->distribution == ASSAY_BELL ? BELL_WINDOW : WINDOW,
                           .grid = grid,
                           .bell_step = fill->distribution == ASSAY_BELL ? bell_step(fill->scale) : 0,
                           .drop = bits_to_drop(grid) > 0 ? bits_to_drop(grid) : 0};
    const int64_t end = first + count;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t window = first / t.window; window <= (end - 1) / t.window; window++) {
        double values[BELL_WINDOW] __attribute__((aligned(64)));
        int64_t start = window * t.window;
        int64_t from = start < first ? first : start, to = start + t.window > end ? end : start + t.window;
        if (to - from == t.window) {
            draw_window(&t, start, out + (start - first));
            continue;
        }
        draw_window(&t, start, values);
        memcpy(out + (from - first), values + (from - start), (size_t)(to - from) * sizeof *out);
    }
    return ASSAY_OK;
}
