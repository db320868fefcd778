#include "support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int say(const assay_backend_request *request, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->message, (size_t)request->message_size, format, arguments);
    va_end(arguments);
    return code;
}

/* ---- by name ---- */

const char *setting(const assay_backend_request *request, const char *key)
{
    for (int i = 0; i < request->setting_count; i++)
        if (strcmp(request->settings[i].key, key) == 0) return request->settings[i].value;
    return "";
}

double number(const assay_backend_request *request, const char *key)
{
    return strtod(setting(request, key), NULL);
}

bool is(const assay_backend_request *request, const char *key, const char *value)
{
    return strcmp(setting(request, key), value) == 0;
}

bool has_quantised_operands(const assay_backend_request *request)
{
    static const char KEY[] = "quant_formats.";
    for (int i = 0; i < request->setting_count; i++)
        if (strncmp(request->settings[i].key, KEY, sizeof KEY - 1) == 0) return true;
    return setting(request, "quant_recipe")[0] != '\0' || setting(request, "quant_hidden_format")[0] != '\0';
}

const assay_backend_tensor *tensor(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->tensor_count; i++)
        if (strcmp(request->tensors[i].path, path) == 0) return &request->tensors[i];
    return NULL;
}

assay_backend_result *result(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->result_count; i++)
        if (strcmp(request->results[i].path, path) == 0) return &request->results[i];
    return NULL;
}

int64_t count_of(int32_t rank, const int64_t *dims)
{
    int64_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= dims[i];
    return count;
}

/* ---- numbers ---- */

uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t code)
{
    uint32_t bits = (uint32_t)code << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t to_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float size = fabsf(x);
    if (x != x) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size < 0x1p-14F) return sign | (uint16_t)rintf(size * 0x1p24F); /* subnormal: steps of 2^-24 */
    bits &= 0x7fffffff;
    bits -= 112U << 23; /* the exponent's bias: 127 becomes 15 */
    return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

float from_f16(uint16_t code)
{
    const int exponent = code >> 10 & 31, mantissa = code & 1023;
    float size = ldexpf((float)(mantissa + (exponent > 0 ? 1024 : 0)), (exponent > 0 ? exponent : 1) - 25);
    if (exponent == 31) size = mantissa > 0 ? NAN : INFINITY;
    return code & 0x8000 ? -size : size;
}

static float from_f8(uint8_t code, bool e4m3)
{
    const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, top = (0x7f >> mantissa_bits);
    const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const int whole = mantissa + (exponent > 0 ? 1 << mantissa_bits : 0);
    float size = ldexpf((float)whole, (exponent > 0 ? exponent : 1) - bias - mantissa_bits);
    if (e4m3 && (code & 0x7f) == 0x7f) size = NAN; /* e4m3fn has one NaN and no infinity */
    if (!e4m3 && exponent == top) size = mantissa > 0 ? NAN : INFINITY;
    return code & 0x80 ? -size : size;
}

static float from_e2m1(uint8_t code)
{
    static const float sizes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

static float from_e8m0(uint8_t code)
{
    return code == 0xff ? NAN : ldexpf(1, code - 127);
}

static float number_at(const assay_backend_tensor *t, int64_t i)
{
    switch (t->type) {
    case ASSAY_BACKEND_FLOAT64:
        return (float)((const double *)t->data)[i];
    case ASSAY_BACKEND_FLOAT32:
        return ((const float *)t->data)[i];
    case ASSAY_BACKEND_BFLOAT16:
        return from_bf16(((const uint16_t *)t->data)[i]);
    case ASSAY_BACKEND_FLOAT16:
        return from_f16(((const uint16_t *)t->data)[i]);
    case ASSAY_BACKEND_FLOAT8_E4M3FN:
        return from_f8(((const uint8_t *)t->data)[i], true);
    case ASSAY_BACKEND_FLOAT8_E5M2:
        return from_f8(((const uint8_t *)t->data)[i], false);
    case ASSAY_BACKEND_FLOAT4_E2M1FN:
        return from_e2m1(((const uint8_t *)t->data)[i]);
    case ASSAY_BACKEND_FLOAT8_E8M0FNU:
        return from_e8m0(((const uint8_t *)t->data)[i]);
    case ASSAY_BACKEND_INT32:
        return (float)((const int32_t *)t->data)[i];
    }
    return NAN;
}

void load(float *out, const assay_backend_tensor *t, int64_t first, int64_t count)
{
    for (int64_t i = 0; t != NULL && i < count; i++) out[i] = number_at(t, first + i);
}

void write_result(assay_backend_result *r, assay_backend_type type, const void *values, int64_t count)
{
    const float *floats = (const float *)values;
    if (r == NULL) return;
    r->written = count_of(r->rank, r->dims) == count;
    if (!r->written) return;
    r->type = type;
    if (type == ASSAY_BACKEND_FLOAT32 || type == ASSAY_BACKEND_INT32) memcpy(r->data, values, (size_t)count * 4);
    for (int64_t i = 0; i < count && type == ASSAY_BACKEND_BFLOAT16; i++) ((uint16_t *)r->data)[i] = to_bf16(floats[i]);
    for (int64_t i = 0; i < count && type == ASSAY_BACKEND_FLOAT16; i++) ((uint16_t *)r->data)[i] = to_f16(floats[i]);
    for (int64_t i = 0; i < count && type == ASSAY_BACKEND_FLOAT64; i++) ((double *)r->data)[i] = floats[i];
}

/* ---- memory ---- */

void *take(memory *m, int64_t count)
{
    enum { ALIGNMENT = 64 };
    if (m->count == m->room) {
        void **blocks = (void **)realloc(m->blocks, (size_t)(2 * m->room + 64) * sizeof *blocks);
        if (blocks == NULL) longjmp(m->out_of_memory, 1);
        m->blocks = blocks;
        m->room = 2 * m->room + 64;
    }
    const size_t size = ((size_t)count * sizeof(float) / ALIGNMENT + 1) * ALIGNMENT;
    void *block = aligned_alloc(ALIGNMENT, size);
    if (block == NULL) longjmp(m->out_of_memory, 1);
    memset(block, 0, size);
    return m->blocks[m->count++] = block;
}

void give_back(memory *m, int count)
{
    while (m->count > count) free(m->blocks[--m->count]);
    if (count > 0) return;
    free(m->blocks);
    m->blocks = NULL;
    m->room = 0;
}
