/* Codes are found among all of a type, each made from its bits by the definition of the type; float32 steps are rounded from
 * binary128. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/tape.h"

enum { MOST_CODES = 128, FLOAT32_BIAS = 127 };

static quad to_float32(quad x)
{
    int exponent = 0;
    if (x == 0 || !finiteq(x)) return x;
    frexpq(x, &exponent);
    const int last = exponent - 24 > -149 ? exponent - 24 : -149;
    const quad rounded = ldexpq(rintq(ldexpq(x, -last)), last);
    return fabsq(rounded) > FLT_MAX ? copysignq((quad)INFINITY, x) : rounded;
}

/* Of a number that float32 has, at least 0. */
static int32_t float32_bits(quad x)
{
    int exponent = 0;
    if (x == 0) return 0;
    frexpq(x, &exponent);
    const int place = exponent - 1 > -126 ? exponent - 1 : -126; /* of the leading bit, or of the least normal's */
    const int32_t significand = (int32_t)ldexpq(x, 23 - place);
    return significand + ((place + FLOAT32_BIAS - 1) << 23);
}

/* A small type by its definition: the numbers of its codes without the sign, ascending, and what is larger. */
typedef struct small_type {
    int codes, sign, beyond; /* beyond: the code */
    bool beyond_has_sign;
    quad numbers[MOST_CODES];
} small_type;

static small_type small_type_of(assay_dtype type)
{
    const bool e2m1 = type == ASSAY_FLOAT4_E2M1FN, e4m3 = type == ASSAY_FLOAT8_E4M3FN;
    const int fraction_bits = e2m1 ? 1 : e4m3 ? 3 : 2, bias = e2m1 ? 1 : e4m3 ? 7 : 15;
    small_type t = {.codes = e2m1 ? 8 : e4m3 ? 127 : 124, .sign = e2m1 ? 8 : 128, .beyond_has_sign = !e4m3};
    t.beyond = e2m1 ? 7 : t.codes; /* NaN of e4m3, infinity of e5m2 */
    for (int code = 0; code < t.codes; code++) {
        const int exponent = code >> fraction_bits, fraction = code % (1 << fraction_bits);
        const int whole = fraction + (exponent > 0 ? 1 << fraction_bits : 0);
        t.numbers[code] = ldexpq(whole, (exponent > 0 ? exponent : 1) - bias - fraction_bits);
    }
    return t;
}

static int32_t nearest_code(const small_type *t, quad x, bool ties_down, bool saturate)
{
    const quad size = fabsq(x), step = t->numbers[t->codes - 1] - t->numbers[t->codes - 2];
    int best = 0;
    for (int code = 1; code < t->codes; code++) {
        const quad below = size - t->numbers[code - 1], above = t->numbers[code] - size;
        if (above < below || (above == below && !ties_down && code % 2 == 0)) best = code;
    }
    const quad excess = size - t->numbers[t->codes - 1];
    const bool stays = excess < step / 2 || (excess == step / 2 && t->codes % 2 == 1);
    if (stays || saturate) return best + (signbitq(x) ? t->sign : 0);
    return t->beyond + (signbitq(x) && t->beyond_has_sign ? t->sign : 0);
}

static quad largest(const assay_quantize_config *c, const quad *x, int64_t row, int64_t column, int64_t rows,
                    int64_t columns)
{
    quad most = 0;
    for (int64_t i = row; i < row + rows && i < c->rows; i++) {
        for (int64_t j = column; j < column + columns && j < c->columns; j++)
            most = fmaxq(most, fabsq(x[i * c->columns + j]));
    }
    return most;
}

typedef struct quad_scale {
    int32_t code;
    quad times; /* of an element */
} quad_scale;

/* Of the bits of a scale. */
static quad number_of_scale(assay_dtype type, int32_t bits)
{
    if (type == ASSAY_FLOAT8_E8M0FNU) return ldexpq(1, bits - FLOAT32_BIAS);
    if (type == ASSAY_FLOAT8_E4M3FN) return small_type_of(type).numbers[bits];
    const int exponent = bits >> 23, fraction = bits % (1 << 23) + (exponent > 0 ? 1 << 23 : 0);
    return ldexpq(fraction, (exponent > 0 ? exponent : 1) - FLOAT32_BIAS - 23);
}

static quad_scale of_inversion(const assay_quantize_config *c, quad amax, quad q)
{
    int exponent = 0;
    quad e = amax == 0 ? 1 : to_float32(q / amax);
    if (!finiteq(e)) e = c->largest_of_input;
    frexpq(e, &exponent);
    if (c->rounding == ASSAY_SCALE_UP) e = ldexpq(1, exponent - 1);
    return (quad_scale){float32_bits(to_float32(1 / e)), e};
}

/* Scales that are e4m3; g: what the whole tensor is multiplied by, and t its scale; 0 without them. */
static quad_scale of_e4m3(quad amax, quad q, quad g, quad t)
{
    const small_type e4m3 = small_type_of(ASSAY_FLOAT8_E4M3FN);
    const quad s = g == 0 ? to_float32(amax / q) : to_float32(amax * to_float32(g * to_float32(1 / q)));
    quad_scale scale = {.code = nearest_code(&e4m3, s, false, true)};
    const quad stored = e4m3.numbers[scale.code];
    if (g == 0) {
        scale.times = stored == 0 ? 0 : to_float32(1 / stored);
    } else {
        scale.times = fminq(to_float32(1 / to_float32(stored * t)), FLT_MAX);
    }
    return scale;
}

static quad_scale of_block(const assay_quantize_config *c, quad amax, quad g, quad t)
{
    const small_type element = small_type_of(c->format->element);
    const bool power = c->rounding != ASSAY_SCALE_NEAREST;
    quad q = element.numbers[element.codes - 1];
    int exponent = 0;
    if (c->format->scale == ASSAY_FLOAT8_E4M3FN) return of_e4m3(amax, q, g, t);
    if (c->rule == ASSAY_SCALE_INVERT) return of_inversion(c, amax, q);
    frexpq(q, &exponent);
    if (c->rounding == ASSAY_SCALE_DOWN) q = ldexpq(1, exponent - 1);
    const quad s = c->rule == ASSAY_SCALE_DIVIDE ? to_float32(amax / q) : to_float32(amax * to_float32(1 / q));
    if (!power) return (quad_scale){float32_bits(s), s == 0 ? 0 : fminq(to_float32(1 / s), FLT_MAX)};
    const int least = c->subnormal_scale ? -127 : -126;
    const quad part = frexpq(s, &exponent);
    int place = exponent - 1 + (c->rounding == ASSAY_SCALE_UP && part > 0.5Q);
    if (c->rounding == ASSAY_SCALE_UP && s > 0 && place < least) place = least;
    const bool none = s == 0 || place < least;
    if (c->format->scale == ASSAY_FLOAT32)
        return none ? (quad_scale){0, 0} : (quad_scale){float32_bits(ldexpq(1, place)), ldexpq(1, -place)};
    if (none) return (quad_scale){0, c->subnormal_scale ? ldexpq(1, 127) : 0};
    return (quad_scale){place + FLOAT32_BIAS, ldexpq(1, -place)};
}

static assay_shape scales_shape(const assay_quantize_config *c)
{
    const assay_block_format *f = c->format;
    const int64_t rows = (c->rows + f->rows - 1) / f->rows, columns = (c->columns + f->columns - 1) / f->columns;
    return c->swizzle ? assay_shape_of(2, (rows + 127) / 128 * 128, (columns + 3) / 4 * 4)
                      : assay_shape_of(2, rows, columns);
}

/* Of a block, as the address [i/128, j/4, i % 32, i % 128 / 32, j % 4]. */
static int64_t address(const assay_quantize_config *c, const assay_shape *shape, int64_t i, int64_t j)
{
    const int64_t wide = shape->dims[1];
    return c->swizzle ? (((i / 128 * (wide / 4) + j / 4) * 32 + i % 32) * 4 + i % 128 / 32) * 4 + j % 4 : i * wide + j;
}

void quad_quantize(quad_tape *t, const void *config)
{
    const assay_quantize_config *c = config;
    const assay_block_format *f = c->format;
    const small_type element = small_type_of(f->element);
    const int64_t row = c->pack ? c->columns / 2 : c->columns;
    const assay_shape shape = scales_shape(c);
    const quad *x = quad_values(t, quad_given(t, "inputs/x", c->rows, c->columns));
    int32_t *codes = quad_put_indices(t, "outputs/codes", assay_shape_of(2, c->rows, row));
    int32_t *scale = quad_put_indices(t, "outputs/scale", shape);
    int32_t *of_tensor =
        f->tensor_scale ? quad_put_indices(t, "outputs/tensor_scale", assay_shape_of(1, (int64_t)1)) : NULL;
    quad g = 0;
    if (t->status != ASSAY_OK) return;
    for (int64_t i = 0; i < shape.dims[0] * shape.dims[1]; i++) scale[i] = 0; /* the padding */
    if (f->tensor_scale) {
        g = fminq(to_float32(448 * 6 / largest(c, x, 0, 0, c->rows, c->columns)), FLT_MAX);
        *of_tensor = float32_bits(to_float32(1 / g));
    }
    for (int64_t i = 0; i < c->rows; i++) {
        for (int64_t j = 0; j < c->columns; j++) {
            const int64_t band = i / f->rows, block = j / f->columns, place = i * row + (c->pack ? j / 2 : j);
            const quad found = largest(c, x, band * f->rows, block * f->columns, f->rows, f->columns);
            const quad_scale s = of_block(c, fmaxq(found, c->smallest_amax), g, g == 0 ? 0 : to_float32(1 / g));
            const quad y = to_float32(x[i * c->columns + j] * s.times);
            const bool saturates = c->saturate || f->element == ASSAY_FLOAT4_E2M1FN;
            int32_t code = nearest_code(&element, y, c->ties_down, saturates);
            if (code == element.sign && !c->negative_zero) code = 0;
            scale[address(c, &shape, band, block)] = s.code;
            codes[place] = c->pack && j % 2 == 1 ? codes[place] + 16 * code : code;
        }
    }
}

void quad_requantise_row(const assay_quantize_config *c, int64_t columns, const quad *h, quad *codes, quad *scale,
                         quad *numbers)
{
    const assay_block_format *f = c->format;
    const small_type element = small_type_of(f->element);
    const bool saturates = c->saturate || f->element == ASSAY_FLOAT4_E2M1FN;
    const quad t = c->tensor_scale, g = f->tensor_scale ? to_float32(1 / t) : 0;
    for (int64_t first = 0; first < columns; first += f->columns) {
        const int64_t end = first + f->columns < columns ? first + f->columns : columns;
        quad amax = c->smallest_amax;
        for (int64_t j = first; j < end; j++) amax = fmaxq(amax, fabsq(h[j]));
        const quad_scale s = of_block(c, amax, g, t);
        const quad wide = number_of_scale(f->scale, s.code);
        if (scale != NULL) scale[first / f->columns] = wide;
        for (int64_t j = first; j < end; j++) {
            const int32_t code = nearest_code(&element, to_float32(h[j] * s.times), c->ties_down, saturates);
            const bool number = code % element.sign < element.codes;
            const quad size = number ? element.numbers[code % element.sign] : (quad)NAN;
            const quad value = code >= element.sign ? -size : size;
            if (codes != NULL) codes[j] = value;
            if (numbers != NULL) numbers[j] = value * wide * (f->tensor_scale ? t : 1);
        }
    }
}

void quad_dequantize(quad_tape *t, const void *config)
{
    const assay_quantize_config *c = config;
    const assay_block_format *f = c->format;
    const small_type e2m1 = small_type_of(ASSAY_FLOAT4_E2M1FN);
    const assay_shape blocks = scales_shape(c);
    const quad *codes = NULL, *of_tensor = quad_values(t, quad_given_optional(t, "inputs/tensor_scale", 1, 1));
    const quad *scale = quad_values(t, quad_given(t, "inputs/scale", blocks.dims[0], blocks.dims[1]));
    const int32_t *bytes = NULL;
    quad *y;
    if (c->pack) bytes = quad_given_indices(t, "inputs/codes", c->rows * c->columns / 2);
    if (!c->pack) codes = quad_values(t, quad_given(t, "inputs/codes", c->rows, c->columns));
    quad_put(t, "outputs/y", assay_shape_of(2, c->rows, c->columns), quad_constant(t, c->rows, c->columns, &y));
    for (int64_t i = 0; t->status == ASSAY_OK && i < c->rows * c->columns; i++) {
        const int64_t block = address(c, &blocks, i / c->columns / f->rows, i % c->columns / f->columns);
        const int nibble = bytes == NULL ? 0 : (int)(i % 2 == 0 ? bytes[i / 2] % 16 : bytes[i / 2] / 16);
        const quad number = e2m1.numbers[nibble % 8];
        y[i] = bytes == NULL ? codes[i] : nibble >= 8 ? -number : number;
        y[i] *= scale[block] * (of_tensor == NULL ? 1 : *of_tensor);
    }
}
