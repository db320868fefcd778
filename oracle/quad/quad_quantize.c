/* Codes are found among all of a type, each made from its bits by the definition of the type; float32 steps are rounded from
 * binary128. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <quadmath.h>
#include <stdio.h>

#include "oracle/quad/quad_blocks.h"
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
    if (c->tensor_scale > 0 && !c->format->tensor_scale)
        return (quad_scale){float32_bits(c->tensor_scale), fminq(to_float32(1 / (quad)c->tensor_scale), FLT_MAX)};
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

/* An element before it becomes a code. */
static quad scaled(const assay_quantize_config *c, quad x, const quad_scale *s)
{
    if (c->divide && s->times != 0) return to_float32(x / number_of_scale(c->format->scale, s->code));
    return to_float32(x * s->times);
}

static int32_t element_code(const assay_quantize_config *c, const small_type *element, quad x, const quad_scale *s)
{
    const bool saturates = c->saturate || c->format->element == ASSAY_FLOAT4_E2M1FN;
    const int32_t code = nearest_code(element, scaled(c, x, s), c->ties_down, saturates);
    return code == element->sign && !c->negative_zero ? 0 : code;
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

typedef struct numbers_of_block {
    int64_t row, row_end, column, column_end;
} numbers_of_block;

static int64_t count_of_blocks(const assay_quantize_config *c)
{
    const assay_block_format *f = c->format;
    return (c->rows + f->rows - 1) / f->rows * ((c->columns + f->columns - 1) / f->columns);
}

static numbers_of_block block_of(const assay_quantize_config *c, int64_t number)
{
    const assay_block_format *f = c->format;
    const int64_t across = (c->columns + f->columns - 1) / f->columns;
    const numbers_of_block b = {.row = number / across * f->rows, .column = number % across * f->columns};
    return (numbers_of_block){b.row, b.row + f->rows < c->rows ? b.row + f->rows : c->rows, b.column,
                              b.column + f->columns < c->columns ? b.column + f->columns : c->columns};
}

void quad_quantize(quad_tape *t, const void *config)
{
    const assay_quantize_config *c = config;
    const assay_block_format *f = c->format;
    const small_type element = small_type_of(f->element);
    const int64_t row = c->pack ? c->columns / 2 : c->columns;
    const assay_shape shape = scales_shape(c);
    const quad *x = quad_values(t, quad_input(t, "inputs/x", c->rows, c->columns));
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
    for (int64_t n = 0; n < count_of_blocks(c); n++) {
        const numbers_of_block b = block_of(c, n);
        const quad found = largest(c, x, b.row, b.column, f->rows, f->columns);
        const quad_scale s = of_block(c, fmaxq(found, c->smallest_amax), g, g == 0 ? 0 : to_float32(1 / g));
        scale[address(c, &shape, b.row / f->rows, b.column / f->columns)] = s.code;
        for (int64_t i = b.row; i < b.row_end; i++) {
            for (int64_t j = b.column; j < b.column_end; j++) {
                const int64_t place = i * row + (c->pack ? j / 2 : j);
                const int32_t code = element_code(c, &element, x[i * c->columns + j], &s);
                codes[place] = c->pack && j % 2 == 1 ? codes[place] + 16 * code : code;
            }
        }
    }
}

void quad_requantise_blocks(const assay_quantize_config *c, const quad *h, quad *codes, quad *scale, quad *numbers)
{
    const assay_block_format *f = c->format;
    const small_type element = small_type_of(f->element);
    const bool saturates = c->saturate || f->element == ASSAY_FLOAT4_E2M1FN;
    const quad t = c->tensor_scale, g = f->tensor_scale ? to_float32(1 / t) : 0;
    for (int64_t n = 0; n < count_of_blocks(c); n++) {
        const numbers_of_block b = block_of(c, n);
        const quad found = largest(c, h, b.row, b.column, f->rows, f->columns);
        const quad_scale s = of_block(c, fmaxq(found, c->smallest_amax), g, t);
        scale[n] = number_of_scale(f->scale, s.code);
        for (int64_t i = b.row; i < b.row_end; i++) {
            for (int64_t at = i * c->columns + b.column; at < i * c->columns + b.column_end; at++) {
                const int32_t code = nearest_code(&element, scaled(c, h[at], &s), c->ties_down, saturates);
                const bool number = code % element.sign < element.codes;
                const quad size = number ? element.numbers[code % element.sign] : (quad)NAN;
                codes[at] = code >= element.sign ? -size : size;
                numbers[at] = codes[at] * scale[n] * (f->tensor_scale ? t : 1);
            }
        }
    }
}

void quad_dequantize(quad_tape *t, const void *config)
{
    const assay_quantize_config *c = config;
    const assay_block_format *f = c->format;
    const small_type e2m1 = small_type_of(ASSAY_FLOAT4_E2M1FN);
    const assay_shape blocks = scales_shape(c);
    const quad *codes = NULL, *of_tensor = quad_values(t, quad_input_optional(t, "inputs/tensor_scale", 1, 1));
    const quad *scale = quad_values(t, quad_input(t, "inputs/scale", blocks.dims[0], blocks.dims[1]));
    const int32_t *bytes = NULL;
    quad *y;
    if (c->pack) bytes = quad_input_indices(t, "inputs/codes", c->rows * c->columns / 2);
    if (!c->pack) codes = quad_values(t, quad_input(t, "inputs/codes", c->rows, c->columns));
    quad_put(t, "outputs/y", assay_shape_of(2, c->rows, c->columns), quad_constant(t, c->rows, c->columns, &y));
    for (int64_t i = 0; t->status == ASSAY_OK && i < c->rows * c->columns; i++) {
        const int64_t block = address(c, &blocks, i / c->columns / f->rows, i % c->columns / f->columns);
        const int nibble = bytes == NULL ? 0 : (int)(i % 2 == 0 ? bytes[i / 2] % 16 : bytes[i / 2] / 16);
        const quad number = e2m1.numbers[nibble % 8];
        y[i] = bytes == NULL ? codes[i] : nibble >= 8 ? -number : number;
        y[i] *= scale[block] * (of_tensor == NULL ? 1 : *of_tensor);
    }
}

/* --- caches --- */

/* One tensor of bytes that tokens go to: how many bytes lie where. */
typedef struct quad_cache {
    const assay_cache_config *c;
    int bits, scale_size; /* of a code, in bits; of a scale, in bytes; 0: there is none */
    int64_t block, blocks, of_scales, row, page, page_scales;
} quad_cache;

static quad_cache quad_cache_of(const assay_cache_config *c)
{
    const assay_cache_format *f = c->format;
    quad_cache q = {.c = c,
                    .bits = f->block.element == ASSAY_BFLOAT16        ? 16
                            : f->block.element == ASSAY_FLOAT4_E2M1FN ? 4
                                                                      : 8};
    q.block = f->block.columns > 0 ? f->block.columns : c->columns;
    q.blocks = (c->columns + q.block - 1) / q.block;
    if (f->scales == ASSAY_CACHE_IN_ROW || f->scales == ASSAY_CACHE_BEHIND || f->scales == ASSAY_CACHE_APART)
        q.scale_size = f->block.scale == ASSAY_FLOAT32 ? 4 : 1;
    q.of_scales = (q.blocks * q.scale_size + f->scale_multiple - 1) / f->scale_multiple * f->scale_multiple;
    q.row = c->columns * q.bits / 8 + 2 * c->rope + (f->scales == ASSAY_CACHE_IN_ROW ? q.of_scales : 0);
    const int64_t rows = c->stride * c->heads;
    q.page = rows * (q.row + (f->scales == ASSAY_CACHE_BEHIND ? q.of_scales : 0));
    q.page = (q.page + f->page_multiple - 1) / f->page_multiple * f->page_multiple;
    q.page_scales = f->scales == ASSAY_CACHE_APART ? rows * q.of_scales : 0;
    return q;
}

/* To nearest, ties to even, from the bits of a float32 number. */
static void put_bfloat16(quad x, int32_t *to)
{
    const uint32_t bits = (uint32_t)float32_bits(fabsq(x)), half = 0x7fff + (bits >> 16 & 1);
    const uint32_t rounded = ((bits + half) >> 16) | (signbitq(x) ? 0x8000u : 0);
    to[0] = (int32_t)(rounded % 256);
    to[1] = (int32_t)(rounded / 256);
}

typedef struct cache_row {
    int32_t *codes, *rope, *scales;
} cache_row;

static cache_row row_at(const quad_cache *q, int64_t slot, int64_t head, int32_t *bytes, int32_t *scales)
{
    const assay_cache_config *c = q->c;
    const int64_t token = slot % c->tokens, page = slot / c->tokens;
    const int64_t row = c->heads_first ? head * c->stride + token : token * c->heads + head;
    int32_t *begin = bytes + page * q->page;
    cache_row r = {.codes = begin + row * q->row};
    r.rope = r.codes + q->row - 2 * c->rope;
    r.scales = r.rope - q->of_scales;
    if (c->format->scales == ASSAY_CACHE_BEHIND) r.scales = begin + c->stride * c->heads * q->row + row * q->of_scales;
    if (c->format->scales == ASSAY_CACHE_APART) r.scales = scales + page * q->page_scales + row * q->of_scales;
    return r;
}

static void put_block(const quad_cache *q, const assay_quantize_config *rules, int64_t block, const quad *x,
                      const cache_row *row)
{
    const small_type element = small_type_of(rules->format->element);
    const int64_t first = block * q->block, columns = q->c->columns;
    const int64_t end = first + q->block < columns ? first + q->block : columns;
    const quad t = rules->format->tensor_scale ? rules->tensor_scale : 0, g = t == 0 ? 0 : to_float32(1 / t);
    quad amax = rules->smallest_amax;
    for (int64_t j = first; j < end; j++) amax = fmaxq(amax, fabsq(x[j]));
    const quad_scale s = of_block(rules, amax, g, t);
    for (int i = 0; i < q->scale_size; i++)
        row->scales[block * q->scale_size + i] = (int32_t)((uint32_t)s.code >> (8 * i)) & 255;
    for (int64_t j = first; j < end; j++) {
        const int32_t code = element_code(rules, &element, x[j], &s);
        if (q->bits == 8) row->codes[j] = code;
        if (q->bits == 4) row->codes[j / 2] = j % 2 == 0 ? code : row->codes[j / 2] + 16 * code;
    }
}

/* The tensor of this name under inputs/, [rows,columns]. */
static const quad *given_under(quad_tape *t, const char *name, int64_t rows, int64_t columns)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", name);
    return quad_values(t, quad_input_optional(t, path, rows, columns));
}

/* NULL where there are none. */
static const int32_t *given_bytes(quad_tape *t, const char *name, int64_t bytes)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", name);
    return bytes == 0 ? NULL : quad_input_indices(t, path, bytes);
}

static int32_t *bytes_as_given(quad_tape *t, const char *name, int64_t pages, int64_t bytes)
{
    char path[ASSAY_PATH_SIZE];
    const int32_t *given = given_bytes(t, name, pages * bytes);
    if (given == NULL) return NULL;
    snprintf(path, sizeof path, "outputs/%s", name);
    int32_t *to = quad_put_indices(t, path, assay_shape_of(2, pages, bytes));
    for (int64_t i = 0; t->status == ASSAY_OK && i < pages * bytes; i++) to[i] = given[i];
    return to;
}

void quad_append_stream(quad_tape *t, const assay_cache_stream *s, int64_t tokens, const quad *x, const quad *second)
{
    const assay_cache_config *c = &s->cache;
    const assay_cache_format *f = c->format;
    const quad_cache q = quad_cache_of(c);
    const int64_t scales = f->scales == ASSAY_CACHE_OF_HEAD ? c->heads : 1;
    const quad *scale = given_under(t, s->scale, 1, scales);
    const int32_t *slots = quad_input_indices(t, "inputs/slot_mapping", tokens);
    int32_t *bytes = bytes_as_given(t, s->bytes, c->pages, q.page);
    int32_t *of_scales = bytes_as_given(t, s->scales, c->pages, q.page_scales);
    quad *numbers = quad_keep(t, c->columns, sizeof *numbers);
    assay_quantize_config rules = c->rules;
    assay_block_format format = f->block;
    rules.format = &format;
    if (t->status != ASSAY_OK) return;
    for (int64_t i = 0; i < tokens * c->heads; i++) {
        const int64_t token = i / c->heads, head = i % c->heads;
        if (slots[token] < 0) continue;
        const cache_row row = row_at(&q, slots[token], head, bytes, of_scales);
        if (scale != NULL) rules.tensor_scale = (double)scale[scales > 1 ? head : 0];
        for (int64_t j = 0; j < c->columns; j++)
            numbers[j] = to_float32(j < s->first_columns ? x[i * s->first_columns + j]
                                                         : second[token * s->second_columns + j - s->first_columns]);
        for (int64_t j = 0; q.bits == 16 && j < c->columns; j++) put_bfloat16(numbers[j], row.codes + 2 * j);
        for (int64_t b = 0; q.bits < 16 && b < q.blocks; b++) put_block(&q, &rules, b, numbers, &row);
        for (int64_t j = 0; j < c->rope; j++) put_bfloat16(to_float32(second[token * c->rope + j]), row.rope + 2 * j);
    }
}

static quad bfloat16_at(const int32_t *bytes)
{
    const quad size = number_of_scale(ASSAY_FLOAT32, (bytes[1] % 128 * 256 + bytes[0]) << 16);
    return bytes[1] >= 128 ? -size : size;
}

static quad code_at(const quad_cache *q, const small_type *element, const int32_t *codes, int64_t i)
{
    if (q->bits == 16) return bfloat16_at(codes + 2 * i);
    const int32_t code = q->bits == 8 ? codes[i] : codes[i / 2] / (i % 2 == 0 ? 1 : 16) % 16;
    const int32_t size = code % element->sign;
    const quad number = size < element->codes ? element->numbers[size] : (quad)NAN;
    return code >= element->sign ? -number : number;
}

/* Unused rows may hold any bytes. */
static quad scale_at(const quad_cache *q, const int32_t *scales, int64_t block)
{
    const int32_t *at = scales + block * q->scale_size;
    int64_t bits = 0;
    for (int i = q->scale_size; i > 0; i--) bits = bits * 256 + at[i - 1];
    const bool none = q->scale_size == 1 ? bits == 255 : bits > INT32_MAX;
    return none ? (quad)NAN : number_of_scale(q->c->format->block.scale, (int32_t)bits);
}

void quad_cache_numbers(quad_tape *t, const assay_cache_stream *s, int64_t width, quad *to)
{
    const assay_cache_config *c = &s->cache;
    const quad_cache q = quad_cache_of(c);
    const bool plain = q.bits == 16;
    const small_type element = plain ? (small_type){0} : small_type_of(c->format->block.element);
    const int64_t given = c->format->scales == ASSAY_CACHE_OF_HEAD ? c->heads : 1;
    const quad *scale = given_under(t, s->scale, 1, given);
    int32_t *bytes = (int32_t *)(uintptr_t)given_bytes(t, s->bytes, c->pages * q.page);
    int32_t *scales = (int32_t *)(uintptr_t)given_bytes(t, s->scales, c->pages * q.page_scales);
    for (int64_t i = 0; t->status == ASSAY_OK && i < c->pages * c->tokens * c->heads; i++) {
        const int64_t slot = i / c->heads, head = i % c->heads, page = slot / c->tokens, token = slot % c->tokens;
        const cache_row row = row_at(&q, slot, head, bytes, scales);
        quad *numbers = to + width * (c->heads_first ? (page * c->heads + head) * c->stride + token
                                                     : (page * c->stride + token) * c->heads + head);
        for (int64_t j = 0; j < c->columns; j++) {
            numbers[j] = code_at(&q, &element, row.codes, j);
            if (q.scale_size > 0) numbers[j] *= scale_at(&q, row.scales, j / q.block);
            if (scale != NULL) numbers[j] *= scale[given > 1 ? head : 0];
        }
        for (int64_t j = 0; j < c->rope; j++) numbers[c->columns + j] = bfloat16_at(row.rope + 2 * j);
    }
}
