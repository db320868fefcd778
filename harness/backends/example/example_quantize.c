/* Codes with a scale for each block of them, and back: every step one float32 operation, as the recipes of
 * docs/operations.md say. Built without the flags that let a compiler divide by multiplying. */
#include "example.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct number_type {
    int fraction, bias; /* bits */
    int most;           /* the code of the largest number */
    float largest;
} number_type;

static const number_type E2M1 = {1, 1, 7, 6}, E4M3 = {3, 7, 126, 448}, E5M2 = {2, 15, 123, 57344};

enum scale_type { IN_E8M0, IN_E4M3, IN_FLOAT32 };

static const struct format {
    const char *name;
    const number_type *element;
    enum scale_type scale;
    int64_t rows, columns; /* of a block */
} FORMATS[] = {
    {"mxfp4", &E2M1, IN_E8M0, 1, 32},
    {"mxfp8_e4m3", &E4M3, IN_E8M0, 1, 32},
    {"mxfp8_e5m2", &E5M2, IN_E8M0, 1, 32},
    {"nvfp4", &E2M1, IN_E4M3, 1, 16},
    {"nvfp4_16x16", &E2M1, IN_E4M3, 16, 16},
    {"fp4_e4m3_1x16", &E2M1, IN_E4M3, 1, 16},
    {"fp4_1x32", &E2M1, IN_FLOAT32, 1, 32},
    {"fp4_1x128", &E2M1, IN_FLOAT32, 1, 128},
    {"fp8_e4m3_1x128", &E4M3, IN_FLOAT32, 1, 128},
    {"fp8_e4m3_128x1", &E4M3, IN_FLOAT32, 128, 1},
    {"fp8_e4m3_128x128", &E4M3, IN_FLOAT32, 128, 128},
    {"fp8_e5m2_1x128", &E5M2, IN_FLOAT32, 1, 128},
    {"fp8_e5m2_128x128", &E5M2, IN_FLOAT32, 128, 128},
};

/* A case: x [rows,columns], scales [bands,blocks] that may be padded to tiles. */
typedef struct recipe {
    const example *e;
    const struct format *format;
    int64_t rows, columns, bands, blocks;
    bool pack, swizzled, of_tensor;
    bool invert, multiply, up, down, subnormal, saturate, ties_down, negative_zero;
    float smallest_amax, largest_of_input;
    float tensor_scale, tensor_multiplier; /* 1 where there is none */
} recipe;

static int64_t up_to(int64_t size, int64_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static float largest_of_type(const char *name)
{
    static const struct {
        const char *name;
        float largest;
    } TYPES[] = {{"bfloat16", 0x1.fep127F},
                 {"float16", 65504},
                 {"float8_e4m3fn", 448},
                 {"float8_e5m2", 57344},
                 {"float4_e2m1fn", 6}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(name, TYPES[i].name) == 0) return TYPES[i].largest;
    return FLT_MAX;
}

static const struct format *format_of(const assay_backend_request *request)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (is(request, "quant_format", FORMATS[i].name)) return &FORMATS[i];
    return NULL;
}

bool quant_format_known(const assay_backend_request *request)
{
    return format_of(request) != NULL;
}

static recipe recipe_of(const example *e, int64_t rows, int64_t columns)
{
    const assay_backend_request *q = e->request;
    recipe r = {.e = e, .format = format_of(q), .rows = rows, .columns = columns};
    r.bands = up_to(rows, r.format->rows) / r.format->rows,
    r.blocks = up_to(columns, r.format->columns) / r.format->columns;
    r.pack = r.format->element == &E2M1 && is(q, "pack_codes", "true");
    r.swizzled = is(q, "quant_scale_layout", "swizzled_128x4");
    r.of_tensor = strncmp(r.format->name, "nvfp4", strlen("nvfp4")) == 0;
    r.invert = is(q, "quant_scale", "invert"), r.multiply = is(q, "quant_scale", "multiply");
    r.up = is(q, "quant_scale_rounding", "up"), r.down = is(q, "quant_scale_rounding", "down");
    r.subnormal = is(q, "quant_subnormal_scale", "true"), r.saturate = is(q, "quant_saturate", "true");
    r.ties_down = is(q, "quant_ties", "down"), r.negative_zero = is(q, "quant_negative_zero", "true");
    r.smallest_amax = (float)number(q, "quant_smallest_amax");
    r.largest_of_input = largest_of_type(setting(q, "dtype"));
    r.tensor_scale = r.tensor_multiplier = 1;
    return r;
}

static int64_t scale_count(const recipe *r)
{
    return r->swizzled ? up_to(r->bands, 128) * up_to(r->blocks, 4) : r->bands * r->blocks;
}

/* Tiles of 128 x 4: in each, row 32 q + i is piece q of line i. */
static int64_t scale_place(const recipe *r, int64_t band, int64_t block)
{
    if (!r->swizzled) return band * r->blocks + block;
    const int64_t tile = band / 128 * (up_to(r->blocks, 4) / 4) + block / 4, row = band % 128;
    const bool by_rows = r->e->bug == SCALES_NOT_SWIZZLED;
    return tile * 512 + (by_rows ? row * 4 : row % 32 * 16 + row / 32 * 4) + block % 4;
}

/* To nearest; beyond the largest number the code after it. */
static int code_of(const number_type *type, float size, bool ties_down)
{
    if (!(size < 2 * type->largest)) return type->most + 1;
    const int least = 1 - type->bias, exponent = size > 0 && ilogbf(size) > least ? ilogbf(size) : least;
    const float steps = ldexpf(size, type->fraction - exponent), whole = floorf(steps), rest = steps - whole;
    const bool more = rest > 0.5F || (rest == 0.5F && !ties_down && fmodf(whole, 2) == 1);
    const int code = (int)whole + more + ((exponent - least) << type->fraction);
    return code > type->most ? type->most + 1 : code;
}

static float number_of(const number_type *type, int code)
{
    const int exponent = code >> type->fraction, mantissa = code & ((1 << type->fraction) - 1);
    const int whole = mantissa + (exponent > 0 ? 1 << type->fraction : 0);
    return ldexpf((float)whole, (exponent > 0 ? exponent : 1) - type->bias - type->fraction);
}

static int element_of(const recipe *r, float x)
{
    const number_type *type = r->format->element;
    const int sign = type == &E2M1 ? 8 : 0x80;
    int code = code_of(type, fabsf(x), r->ties_down);
    if (code > type->most && (r->saturate || type == &E2M1)) code = type->most;
    if (code == 0 && !r->negative_zero) return 0;
    if (code > type->most && type == &E4M3) return code; /* its NaN */
    return signbit(x) ? code | sign : code;
}

static float floor_power(float x)
{
    return ldexpf(1, ilogbf(x));
}

/* s as a power of two; 0: too small to be one. */
static float power_of(const recipe *r, float s)
{
    const float least = r->subnormal ? 0x1p-127F : 0x1p-126F, below = s > 0 ? floor_power(s) : 0;
    if (s == 0) return 0;
    if (r->up) return fmaxf(below == s ? s : 2 * below, least);
    return below < least ? 0 : below;
}

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float reciprocal(float scale)
{
    return scale == 0 ? 0 : fminf(1 / scale, FLT_MAX);
}

static float invert(const recipe *r, float amax)
{
    float e = r->format->element->largest / amax;
    if (amax == 0) return 1;
    if (e > FLT_MAX) e = r->largest_of_input;
    return r->up ? floor_power(e) : e;
}

/* The code of a block's scale, and what its elements are multiplied by. */
static int32_t scale_of(const recipe *r, float amax, float *multiplier)
{
    const float largest = r->format->element->largest, q = r->down ? floor_power(largest) : largest;
    float s = r->multiply ? amax * (1 / q) : amax / q;
    if (r->of_tensor) s = amax * (r->tensor_multiplier * (1 / q));
    if (r->format->scale == IN_E4M3) {
        const int code = code_of(&E4M3, fminf(s, E4M3.largest), false);
        s = number_of(&E4M3, code);
        *multiplier = r->of_tensor ? fminf(1 / (s * r->tensor_scale), FLT_MAX) : reciprocal(s);
        return code;
    }
    if (r->invert) {
        *multiplier = invert(r, amax);
        return bits_of(1 / *multiplier);
    }
    if (r->up || r->down) s = power_of(r, s);
    *multiplier = reciprocal(s);
    if (r->format->scale == IN_FLOAT32) return bits_of(s);
    if (s == 0) *multiplier = r->subnormal ? 0x1p127F : 0;
    return s < 0x1p-126F ? 0 : ilogbf(s) + 127;
}

static float largest_in(const recipe *r, const float *x, int64_t rows, int64_t columns)
{
    float largest = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) largest = fmaxf(largest, fabsf(x[i * r->columns + j]));
    return largest;
}

static void put_code(const recipe *r, int32_t *codes, int64_t place, int code)
{
    const bool high = place % 2 != (r->e->bug == NIBBLES_SWAPPED);
    if (!r->pack) codes[place] = code;
    if (r->pack) codes[place / 2] |= high ? code << 4 : code;
}

static void quantize_block(const recipe *r, int64_t band, int64_t block, const float *x, int32_t *codes,
                           int32_t *scales)
{
    const int64_t top = band * r->format->rows, left = block * r->format->columns;
    const int64_t rows = top + r->format->rows < r->rows ? r->format->rows : r->rows - top;
    const int64_t columns = left + r->format->columns < r->columns ? r->format->columns : r->columns - left;
    const float *first = x + top * r->columns + left;
    float multiplier;
    scales[scale_place(r, band, block)] =
        scale_of(r, fmaxf(largest_in(r, first, rows, columns), r->smallest_amax), &multiplier);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            put_code(r, codes, (top + i) * r->columns + left + j,
                     element_of(r, first[i * r->columns + j] * multiplier));
}

void quantize_run(example *e)
{
    const int64_t *dims = tensor(e->request, "inputs/x")->dims, size = dims[0] * dims[1];
    const float *x = whole(e, "inputs/", "x");
    recipe r = recipe_of(e, dims[0], dims[1]);
    int32_t *codes = take(&e->memory, size), *scales = take(&e->memory, scale_count(&r)), tensor_scale;
    if (r.of_tensor) {
        r.tensor_multiplier = fminf(E2M1.largest * E4M3.largest / largest_in(&r, x, r.rows, r.columns), FLT_MAX);
        r.tensor_scale = 1 / r.tensor_multiplier;
    }
    for (int64_t i = 0; i < r.bands * r.blocks; i++) quantize_block(&r, i / r.blocks, i % r.blocks, x, codes, scales);
    tensor_scale = bits_of(r.tensor_scale);
    store(e, "outputs/", "", "codes", false, codes, r.pack ? size / 2 : size);
    store(e, "outputs/", "", "scale", false, scales, scale_count(&r));
    store(e, "outputs/", "", "tensor_scale", false, &tensor_scale, 1);
}

void dequantize_run(example *e)
{
    const assay_backend_tensor *given = tensor(e->request, "inputs/codes");
    const bool packed = given->type == ASSAY_BACKEND_INT32;
    const int64_t columns = given->dims[1] * (packed ? 2 : 1), size = given->dims[0] * columns;
    const recipe r = recipe_of(e, given->dims[0], columns);
    const float *scales = whole(e, "inputs/", "scale"), *of_tensor = whole(e, "inputs/", "tensor_scale");
    float *y = take(&e->memory, size);
    if (!packed) load(y, given, 0, size);
    for (int64_t i = 0; i < size && packed; i++) {
        const int byte = ((const int32_t *)given->data)[i / 2], code = i % 2 != 0 ? byte >> 4 : byte & 15;
        y[i] = number_of(&E2M1, code & 7) * (code & 8 ? -1.0F : 1.0F);
    }
    for (int64_t i = 0; i < size; i++) {
        y[i] *= scales[scale_place(&r, i / columns / r.format->rows, i % columns / r.format->columns)];
        if (of_tensor != NULL && e->bug != TENSOR_SCALE_MISSING) y[i] *= *of_tensor;
    }
    store(e, "outputs/", "", "y", false, y, size);
}
