#include "oracle/ops/quantize.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { NIBBLE = 4, MOST_COLUMNS = 512, TILE_ROWS = 128, TILE_COLUMNS = 4, TILE_BAND = 32 };
#define LARGEST 0x1.fffffep127 /* of float32 */

/* A product or quotient of two float32 numbers, rounded once: float64 has more than twice the bits. Nothing here depends on
 * whether the processor flushes float32 subnormals. */
static double f32(double x)
{
    return assay_dtype_round(ASSAY_FLOAT32, x, false);
}

static int32_t code_of(assay_dtype type, double x)
{
    uint32_t code = 0;
    assay_dtype_encode(type, 1, &x, &code);
    return (int32_t)code;
}

assay_quantize_config assay_quantize_default(const assay_block_format *format, int64_t rows, int64_t columns)
{
    const bool powers = format->scale == ASSAY_FLOAT8_E8M0FNU, float32 = format->scale == ASSAY_FLOAT32;
    return (assay_quantize_config){.rows = rows,
                                   .columns = columns,
                                   .format = format,
                                   .rule = format->tensor_scale ? ASSAY_SCALE_INVERT : ASSAY_SCALE_DIVIDE,
                                   .rounding = powers ? ASSAY_SCALE_DOWN : ASSAY_SCALE_NEAREST,
                                   .subnormal_scale = true,
                                   .saturate = true,
                                   .negative_zero = true,
                                   .smallest_amax = float32 ? (float)1e-4 : 0,
                                   .largest_of_input = LARGEST};
}

const char *const assay_scale_rules[] = {
    [ASSAY_SCALE_DIVIDE] = "divide", [ASSAY_SCALE_MULTIPLY] = "multiply", [ASSAY_SCALE_INVERT] = "invert", NULL};
const char *const assay_scale_roundings[] = {
    [ASSAY_SCALE_NEAREST] = "nearest", [ASSAY_SCALE_UP] = "up", [ASSAY_SCALE_DOWN] = "down", NULL};

assay_status assay_quantize_check(assay_context *ctx, const char *prefix, const assay_quantize_config *config)
{
    const assay_block_format *f = config->format;
    const char *rule = assay_scale_rules[config->rule], *rounding = assay_scale_roundings[config->rounding];
    const bool small = f->element == ASSAY_FLOAT4_E2M1FN, float32 = f->scale == ASSAY_FLOAT32;
    const bool e8m0 = f->scale == ASSAY_FLOAT8_E8M0FNU,
               powers = e8m0 || (float32 && rounding != assay_scale_roundings[0]);
    const double amax = config->smallest_amax;
    const struct {
        bool wrong;
        const char *key, *value, *expected;
    } refusals[] = {
        {e8m0 && config->rounding == ASSAY_SCALE_NEAREST, "scale_rounding", rounding, "up or down"},
        {f->scale == ASSAY_FLOAT8_E4M3FN && config->rounding != ASSAY_SCALE_NEAREST, "scale_rounding", rounding,
         "nearest"},
        {float32 && config->rounding == ASSAY_SCALE_DOWN, "scale_rounding", rounding,
         "nearest, or up to a power of two,"},
        {f->tensor_scale && config->rule != ASSAY_SCALE_INVERT, "scale", rule, "invert"},
        {!f->tensor_scale && !float32 && config->rule == ASSAY_SCALE_INVERT, "scale", rule, "divide or multiply"},
        {!config->subnormal_scale && (!powers || config->rule == ASSAY_SCALE_INVERT), "subnormal_scale", "false",
         "true"},
        {config->ties_down && !small, "ties", "down", "even"},
        {!config->saturate && small, "saturate", "false", "true"},
        {config->divide && config->rule == ASSAY_SCALE_INVERT, "elements", "divide",
         "multiply, where quant_scale is invert,"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        if (!refusals[i].wrong) continue;
        return assay_refuse(ctx, "%s%s is %s, expected %s with the format %s", prefix, refusals[i].key,
                            refusals[i].value, refusals[i].expected, f->name);
    }
    if (!(amax >= 0 && amax <= 1))
        return assay_refuse(ctx, "%ssmallest_amax is %g, expected a number from 0 to 1", prefix, amax);
    if (amax == 0 || !f->tensor_scale) return ASSAY_OK;
    return assay_refuse(ctx, "%ssmallest_amax is above 0, expected 0 with the format %s", prefix, f->name);
}

int64_t assay_quantize_row(const assay_quantize_config *config)
{
    return config->pack ? config->columns / 2 : config->columns;
}

int64_t assay_quantize_scales(const assay_quantize_config *config)
{
    int64_t shape[2];
    assay_quantize_scale_shape(config, shape);
    return shape[0] * shape[1];
}

void assay_quantize_scale_shape(const assay_quantize_config *config, int64_t shape[2])
{
    shape[0] = assay_block_count(config->rows, config->format->rows);
    shape[1] = assay_block_count(config->columns, config->format->columns);
    if (!config->swizzle) return;
    shape[0] = assay_block_count(shape[0], TILE_ROWS) * TILE_ROWS;
    shape[1] = assay_block_count(shape[1], TILE_COLUMNS) * TILE_COLUMNS;
}

assay_shape assay_quantize_scales_of(const assay_quantize_config *config, const assay_shape *tensor)
{
    int64_t blocks[2];
    assay_shape shape = *tensor;
    assay_quantize_scale_shape(config, blocks);
    if (config->format->rows > 1) return assay_shape_of(2, blocks[0], blocks[1]);
    shape.dims[shape.rank - 1] = blocks[1];
    return shape;
}

int64_t assay_quantize_scale_place(const assay_quantize_config *config, int64_t band, int64_t block)
{
    int64_t shape[2];
    assay_quantize_scale_shape(config, shape);
    if (!config->swizzle) return band * shape[1] + block;
    const int64_t tile = band / TILE_ROWS * (shape[1] / TILE_COLUMNS) + block / TILE_COLUMNS, row = band % TILE_ROWS;
    return tile * TILE_ROWS * TILE_COLUMNS + row % TILE_BAND * 16 + row / TILE_BAND * TILE_COLUMNS +
           block % TILE_COLUMNS;
}

static double floor_power(double x)
{
    int exponent = 0;
    frexp(x, &exponent);
    return ldexp(1, exponent - 1);
}

/* s > 0 as a power of two; 0: too small to be one. */
static double power_of(const assay_quantize_config *c, double s)
{
    const double least = c->subnormal_scale ? 0x1p-127 : 0x1p-126, below = floor_power(s);
    if (c->rounding == ASSAY_SCALE_UP) return fmax(below == s ? s : 2 * below, least);
    return below < least ? 0 : below;
}

/* What is scaled with: codes back to numbers, and numbers to codes. */
typedef struct scale_pair {
    double scale, multiplier;
} scale_pair;

static double reciprocal(double scale)
{
    return scale == 0 ? 0 : fmin(f32(1 / scale), LARGEST);
}

static scale_pair scale_by_inversion(const assay_quantize_config *c, double amax)
{
    double e = f32(assay_dtype_max(c->format->element) / amax);
    if (amax == 0) return (scale_pair){1, 1};
    if (e > LARGEST) e = c->largest_of_input;
    if (c->rounding == ASSAY_SCALE_UP) e = floor_power(e);
    return (scale_pair){f32(1 / e), e};
}

static scale_pair scale_of(const assay_quantize_config *c, double amax, const scale_pair *of_tensor)
{
    const assay_dtype type = c->format->scale;
    double q = assay_dtype_max(c->format->element);
    if (c->tensor_scale > 0 && !c->format->tensor_scale)
        return (scale_pair){c->tensor_scale, reciprocal(c->tensor_scale)};
    if (!isfinite(amax)) return (scale_pair){type == ASSAY_FLOAT32 ? amax : NAN, isnan(amax) ? NAN : 0};
    if (c->format->tensor_scale) {
        const double s = f32(amax * f32(of_tensor->multiplier * f32(1 / q)));
        const double scale = assay_dtype_round(type, fmin(s, assay_dtype_max(type)), false);
        return (scale_pair){scale, fmin(f32(1 / f32(scale * of_tensor->scale)), LARGEST)};
    }
    if (c->rule == ASSAY_SCALE_INVERT) return scale_by_inversion(c, amax);
    if (c->rounding == ASSAY_SCALE_DOWN) q = floor_power(q);
    double s = c->rule == ASSAY_SCALE_DIVIDE ? f32(amax / q) : f32(amax * f32(1 / q));
    if (c->rounding != ASSAY_SCALE_NEAREST && s > 0) s = power_of(c, s);
    if (type == ASSAY_FLOAT8_E4M3FN) s = assay_dtype_round(type, fmin(s, assay_dtype_max(type)), false);
    if (type == ASSAY_FLOAT8_E8M0FNU && s == 0) return (scale_pair){0x1p-127, c->subnormal_scale ? 0x1p127 : 0};
    return (scale_pair){s, reciprocal(s)};
}

static double largest_of(const assay_quantize_config *c, const double *x, int64_t rows, int64_t columns)
{
    double largest = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            const double size = fabs(x[i * c->columns + j]);
            if (!(size <= largest) && !isnan(largest)) largest = size;
        }
    }
    return largest;
}

static void quantize_row(const assay_quantize_config *c, int64_t count, const scale_pair *s, const double *x,
                         uint8_t codes[MOST_COLUMNS])
{
    const double most = assay_dtype_max(c->format->element);
    const uint8_t sign = c->format->element == ASSAY_FLOAT4_E2M1FN ? 8 : 0x80;
    double y[MOST_COLUMNS];
    for (int64_t j = 0; j < count; j++) {
        y[j] = f32(c->divide && s->multiplier != 0 ? x[j] / s->scale : x[j] * s->multiplier);
        if (c->saturate && !isnan(y[j])) y[j] = copysign(fmin(fabs(y[j]), most), y[j]);
        if (c->ties_down) y[j] = copysign(nextafter(fabs(y[j]), 0), y[j]); /* what is no tie is rounded as before */
    }
    assay_dtype_encode(c->format->element, count, y, codes);
    for (int64_t j = 0; j < count; j++)
        if (!c->negative_zero && codes[j] == sign) codes[j] = 0;
}

/* All blocks of `format->rows` rows. */
static void quantize_rows(const assay_quantize_config *c, int64_t band, const scale_pair *of_tensor, const double *x,
                          int32_t *codes, int32_t *scale)
{
    const assay_block_format *f = c->format;
    const int64_t blocks = assay_block_count(c->columns, f->columns), row = assay_quantize_row(c);
    const int64_t first = band * f->rows, rows = c->rows - first < f->rows ? c->rows - first : f->rows;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t column = block * f->columns;
        const int64_t columns = c->columns - column < f->columns ? c->columns - column : f->columns;
        const double *values = x + first * c->columns + column;
        const double largest = largest_of(c, values, rows, columns);
        const double amax = largest < c->smallest_amax ? c->smallest_amax : largest;
        const scale_pair s = scale_of(c, amax, of_tensor);
        scale[assay_quantize_scale_place(c, band, block)] = code_of(f->scale, s.scale);
        for (int64_t i = 0; i < rows; i++) {
            int32_t *out = codes + (first + i) * row + (c->pack ? column / 2 : column);
            for (int64_t piece = 0; piece < columns; piece += MOST_COLUMNS) {
                uint8_t bits[MOST_COLUMNS];
                const int64_t some = columns - piece < MOST_COLUMNS ? columns - piece : MOST_COLUMNS;
                quantize_row(c, some, &s, values + i * c->columns + piece, bits);
                for (int64_t j = 0; j < some; j += c->pack ? 2 : 1)
                    *out++ = c->pack ? bits[j] | bits[j + 1] << NIBBLE : bits[j];
            }
        }
    }
}

static scale_pair given_scale(const assay_quantize_config *config)
{
    return (scale_pair){config->tensor_scale, f32(1 / config->tensor_scale)};
}

assay_status assay_quantize(assay_context *ctx, int32_t *codes, int32_t *scale, int32_t *tensor_scale, const double *x,
                            const assay_quantize_config *config)
{
    const int64_t bands = assay_block_count(config->rows, config->format->rows), size = config->rows * config->columns;
    scale_pair of_tensor = {1, 1};
    for (int64_t i = 0; i < size; i++) {
        if (isfinite(x[i]) || config->any_number) continue;
        return assay_refuse(ctx, "inputs/x[%" PRId64 ",%" PRId64 "] is %g, expected a finite number",
                            i / config->columns, i % config->columns, x[i]);
    }
    if (config->format->tensor_scale) {
        const double most = assay_dtype_max(config->format->element) * assay_dtype_max(config->format->scale);
        of_tensor.multiplier = fmin(f32(most / largest_of(config, x, config->rows, config->columns)), LARGEST);
        of_tensor.scale = f32(1 / of_tensor.multiplier);
        if (config->tensor_scale > 0) of_tensor = given_scale(config);
        *tensor_scale = code_of(ASSAY_FLOAT32, of_tensor.scale);
    }
    if (config->swizzle) memset(scale, 0, (size_t)assay_quantize_scales(config) * sizeof *scale);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t band = 0; band < bands; band++) quantize_rows(config, band, &of_tensor, x, codes, scale);
    return ASSAY_OK;
}

double assay_quantize_scale(double amax, const assay_quantize_config *config)
{
    const scale_pair of_tensor = given_scale(config);
    return scale_of(config, fmax(amax, config->smallest_amax), &of_tensor).scale;
}

void assay_quantize_by(double *numbers, const double *x, int64_t count, double scale,
                       const assay_quantize_config *config)
{
    const assay_block_format *f = config->format;
    const bool none = f->scale == ASSAY_FLOAT8_E8M0FNU && scale == 0x1p-127 && !config->subnormal_scale;
    scale_pair pair = {scale, none ? 0 : reciprocal(scale)};
    if (f->tensor_scale) pair.multiplier = fmin(f32(1 / f32(scale * config->tensor_scale)), LARGEST);
    for (int64_t first = 0; first < count; first += MOST_COLUMNS) {
        uint8_t bits[MOST_COLUMNS];
        const int64_t some = count - first < MOST_COLUMNS ? count - first : MOST_COLUMNS;
        quantize_row(config, some, &pair, x + first, bits);
        assay_dtype_decode(f->element, some, bits, numbers + first);
    }
}

void assay_dequantize(const assay_context *ctx, double *y, const double *codes, const double *scale,
                      const double *tensor_scale, const assay_quantize_config *config)
{
    const assay_block_format *f = config->format;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < config->rows; i++) {
        for (int64_t j = 0; j < config->columns; j++) {
            const int64_t place = assay_quantize_scale_place(config, i / f->rows, j / f->columns);
            const double value = codes[i * config->columns + j] * scale[place];
            y[i * config->columns + j] = tensor_scale == NULL ? value : value * *tensor_scale;
        }
    }
}

void assay_quantised_decode(const assay_context *ctx, assay_dtype type, int64_t count, const int32_t *bits,
                            double *numbers)
{
#pragma omp parallel for num_threads(ctx->threads) if (count > 4096)
    for (int64_t i = 0; i < count; i++) {
        const uint8_t byte = (uint8_t)bits[i];
        assay_dtype_decode(type, 1, type == ASSAY_FLOAT32 ? (const void *)&bits[i] : (const void *)&byte, &numbers[i]);
    }
}

void assay_unpack_e2m1(double *numbers, const int32_t *codes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t two[] = {(uint8_t)(codes[i] & 15), (uint8_t)(codes[i] >> NIBBLE & 15)};
        assay_dtype_decode(ASSAY_FLOAT4_E2M1FN, 2, two, numbers + 2 * i);
    }
}
