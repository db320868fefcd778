#include "oracle/ops/cache_format.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

enum { BFLOAT16_BYTES = 2, LONGEST_BLOCK = 512 };

#define E4M3 ASSAY_FLOAT8_E4M3FN
#define E2M1 ASSAY_FLOAT4_E2M1FN
#define E8M0 ASSAY_FLOAT8_E8M0FNU

/* name, element, scale, columns of a block, whether the tensor has a scale too, where the scales lie, of what,
 * plain rope, multiples of a token's scales and of pages */
#define FORMATS(X)                                                                                                     \
    X("bfloat16", ASSAY_BFLOAT16, ASSAY_FLOAT32, 0, false, ASSAY_CACHE_NO_SCALES, ASSAY_CACHE_ANY, true, 1, 1)         \
    X("fp8_ds_mla", E4M3, ASSAY_FLOAT32, 128, false, ASSAY_CACHE_IN_ROW, ASSAY_CACHE_LATENT, true, 1, 1)               \
    X("fp8_model1", E4M3, E8M0, 64, false, ASSAY_CACHE_BEHIND, ASSAY_CACHE_LATENT, true, 8, 576)                       \
    X("fp8_indexer", E4M3, ASSAY_FLOAT32, 128, false, ASSAY_CACHE_BEHIND, ASSAY_CACHE_KEYS, false, 1, 1)               \
    X("fp4_indexer", E2M1, E8M0, 32, false, ASSAY_CACHE_BEHIND, ASSAY_CACHE_KEYS, false, 4, 1)                         \
    X("fp8_e4m3", E4M3, ASSAY_FLOAT32, 0, false, ASSAY_CACHE_OF_TENSOR, ASSAY_CACHE_ANY, false, 1, 1)                  \
    X("fp8_e4m3_per_head", E4M3, ASSAY_FLOAT32, 0, false, ASSAY_CACHE_OF_HEAD, ASSAY_CACHE_ANY, false, 1, 1)           \
    X("fp8_e4m3_per_token", E4M3, ASSAY_FLOAT32, 0, false, ASSAY_CACHE_APART, ASSAY_CACHE_ANY, false, 1, 1)            \
    X("mxfp8", E4M3, E8M0, 32, false, ASSAY_CACHE_APART, ASSAY_CACHE_ANY, false, 1, 1)                                 \
    X("nvfp4", E2M1, E4M3, 16, true, ASSAY_CACHE_APART, ASSAY_CACHE_ANY, false, 1, 1)

const char *const assay_cache_format_names[] = {"auto",
#define X(name, ...) name,
                                                FORMATS(X)
#undef X
                                                    NULL};

const assay_cache_format *assay_cache_format_by_name(const char *name)
{
    static const assay_cache_format formats[] = {
#define X(name, element, scale, columns, of_tensor, scales, kind, plain, scale_multiple, page_multiple)                \
    {{name, element, scale, 1, columns, of_tensor}, scales, kind, plain, scale_multiple, page_multiple},
        FORMATS(X)
#undef X
    };
    if (strcmp(name, assay_cache_format_names[0]) == 0) return formats;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].block.name) == 0) return &formats[i];
    return NULL;
}

/* --- where bytes lie --- */

static int64_t rounded_up(int64_t bytes, int64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

static int64_t code_bytes(const assay_cache_config *c)
{
    const assay_dtype element = c->format->block.element;
    if (element == ASSAY_BFLOAT16) return c->columns * BFLOAT16_BYTES;
    return element == E2M1 ? c->columns / 2 : c->columns;
}

static int64_t scale_bytes(const assay_cache_config *c)
{
    const assay_block_format *f = &c->format->block;
    const assay_cache_scales at = c->format->scales;
    if (at != ASSAY_CACHE_IN_ROW && at != ASSAY_CACHE_BEHIND && at != ASSAY_CACHE_APART) return 0;
    const int64_t blocks = f->columns == 0 ? 1 : assay_block_count(c->columns, f->columns);
    return blocks * (f->scale == ASSAY_FLOAT32 ? (int64_t)sizeof(float) : 1);
}

static int64_t all_scale_bytes(const assay_cache_config *c)
{
    return rounded_up(scale_bytes(c), c->format->scale_multiple);
}

static int64_t row_bytes(const assay_cache_config *c)
{
    const int64_t in_row = c->format->scales == ASSAY_CACHE_IN_ROW ? all_scale_bytes(c) : 0;
    return code_bytes(c) + in_row + c->rope * BFLOAT16_BYTES;
}

int64_t assay_cache_page_bytes(const assay_cache_config *c)
{
    const int64_t behind = c->format->scales == ASSAY_CACHE_BEHIND ? all_scale_bytes(c) : 0;
    return rounded_up(c->stride * c->heads * (row_bytes(c) + behind), c->format->page_multiple);
}

int64_t assay_cache_page_scales(const assay_cache_config *c)
{
    return c->format->scales == ASSAY_CACHE_APART ? c->stride * c->heads * all_scale_bytes(c) : 0;
}

assay_cache_row assay_cache_row_of(const assay_cache_config *c, int64_t token, int64_t head)
{
    const int64_t row = c->heads_first ? head * c->stride + token : token * c->heads + head;
    const int64_t codes = row * row_bytes(c), scales = row * all_scale_bytes(c);
    assay_cache_row r = {.codes = codes, .scale_bytes = scale_bytes(c)};
    r.unused_bytes = all_scale_bytes(c) - r.scale_bytes;
    r.rope = codes + row_bytes(c) - c->rope * BFLOAT16_BYTES;
    r.scales = scales;
    if (c->format->scales == ASSAY_CACHE_IN_ROW) r.scales = codes + code_bytes(c);
    if (c->format->scales == ASSAY_CACHE_BEHIND) r.scales = c->stride * c->heads * row_bytes(c) + scales;
    return r;
}

/* --- what is refused --- */

assay_status assay_cache_check(assay_context *ctx, const assay_cache_config *c)
{
    const assay_cache_format *f = c->format;
    const char *name = f->block.name;
    const int64_t most = (INT64_C(1) << 31) / c->pages;
    if (c->stride < c->tokens)
        return assay_refuse(ctx, "pagedattn_page_stride is %" PRId64 ", expected %" PRId64 " or more", c->stride,
                            c->tokens);
    if (f->scales == ASSAY_CACHE_BEHIND && c->stride != c->tokens)
        return assay_refuse(ctx, "pagedattn_page_stride is %" PRId64 ", expected 0: scales of %s lie behind the rows",
                            c->stride, name);
    if (f->block.element == E2M1 && c->columns % 2 != 0)
        return assay_refuse(ctx, "rows have %" PRId64 " numbers, expected an even number: two of %s are a byte",
                            c->columns, name);
    if (f->block.columns == 0 && f->block.element == E4M3 && c->columns > LONGEST_BLOCK)
        return assay_refuse(ctx, "rows have %" PRId64 " numbers, expected at most %d with %s", c->columns,
                            LONGEST_BLOCK, name);
    if (!(row_bytes(c) <= most && assay_cache_page_bytes(c) <= most))
        return assay_refuse(ctx, "the pages have more than 2^31 bytes");
    if (f->block.element == ASSAY_BFLOAT16) return ASSAY_OK;
    assay_quantize_config rules = c->rules;
    rules.format = &f->block;
    return assay_quantize_check(ctx, "quant_", &rules);
}

assay_status assay_cache_check_slots(assay_context *ctx, const assay_cache_config *c, int64_t count,
                                     const int32_t *slots)
{
    const int64_t all = c->pages * c->tokens;
    OWNED bool *taken = NULL;
    MUST(assay_alloc(ctx, "slots that are taken", all, sizeof *taken, &taken));
    memset(taken, 0, (size_t)all * sizeof *taken);
    for (int64_t i = 0; i < count; i++) {
        if (slots[i] < 0) continue;
        if (slots[i] >= all)
            return assay_refuse(ctx, "inputs/slot_mapping[%" PRId64 "] is %d, expected less than %" PRId64, i, slots[i],
                                all);
        if (taken[slots[i]])
            return assay_refuse(ctx, "inputs/slot_mapping[%" PRId64 "] is %d, which another token has, too", i,
                                slots[i]);
        taken[slots[i]] = true;
    }
    return ASSAY_OK;
}

/* --- writing --- */

static void put_bytes(int32_t *to, uint32_t bits, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (int32_t)(bits >> (8 * i) & 0xff);
}

static void put_bfloat16(int32_t *to, int64_t count, const double *numbers)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = 0;
        assay_dtype_encode(ASSAY_BFLOAT16, 1, &numbers[i], &bits);
        put_bytes(to + i * BFLOAT16_BYTES, bits, BFLOAT16_BYTES);
    }
}

/* Rows of a cache, and what one is quantised to before it lies where it belongs. */
typedef struct row_writer {
    const assay_cache_config *config;
    assay_quantize_config rules;
    assay_block_format block;
    int32_t *codes, *scales;
} row_writer;

static assay_status put_codes(assay_context *ctx, const row_writer *w, const double *numbers,
                              const assay_cache_row *row, int32_t *page, int32_t *scales)
{
    const int size = w->block.scale == ASSAY_FLOAT32 ? (int)sizeof(float) : 1;
    const int64_t count = row->scale_bytes / size;
    int32_t of_tensor = 0;
    MUST(assay_quantize(ctx, w->codes, w->scales, &of_tensor, numbers, &w->rules));
    memcpy(page + row->codes, w->codes, (size_t)code_bytes(w->config) * sizeof *page);
    for (int64_t i = 0; i < count; i++) put_bytes(scales + row->scales + i * size, (uint32_t)w->scales[i], size);
    return ASSAY_OK;
}

static assay_status put_token(assay_context *ctx, row_writer *w, const assay_cache_tokens *t, int64_t token,
                              int64_t slot, int32_t *page, int32_t *scales)
{
    const assay_cache_config *c = w->config;
    for (int64_t head = 0; head < c->heads; head++) {
        const assay_cache_row row = assay_cache_row_of(c, slot, head);
        const double *numbers = t->numbers + (token * c->heads + head) * c->columns;
        if (t->scale != NULL) w->rules.tensor_scale = t->scale[c->format->scales == ASSAY_CACHE_OF_HEAD ? head : 0];
        if (w->block.element == ASSAY_BFLOAT16) put_bfloat16(page + row.codes, c->columns, numbers);
        if (w->block.element != ASSAY_BFLOAT16) MUST(put_codes(ctx, w, numbers, &row, page, scales));
        if (c->rope > 0) put_bfloat16(page + row.rope, c->rope, t->rope + token * c->rope);
    }
    return ASSAY_OK;
}

assay_status assay_cache_append(assay_context *ctx, int32_t *bytes, int32_t *scales, const assay_cache_tokens *t,
                                const assay_cache_config *c)
{
    const bool apart = c->format->scales == ASSAY_CACHE_APART;
    row_writer w = {.config = c, .rules = c->rules, .block = c->format->block};
    const int64_t page_bytes = assay_cache_page_bytes(c);
    OWNED int32_t *codes = NULL;
    OWNED int32_t *row_scales = NULL;
    MUST(assay_cache_check_slots(ctx, c, t->count, t->slots));
    MUST(assay_alloc_i32(ctx, "codes", c->columns, &codes));
    MUST(assay_alloc_i32(ctx, "scales", c->columns, &row_scales));
    if (w.block.columns == 0) w.block.columns = c->columns;
    w.rules.rows = 1;
    w.rules.columns = c->columns;
    w.rules.format = &w.block;
    w.rules.pack = w.block.element == E2M1;
    w.codes = codes;
    w.scales = row_scales;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t slot = t->slots[i], number = slot / c->tokens;
        if (slot < 0) continue;
        int32_t *page = bytes + number * page_bytes;
        int32_t *of_page = apart ? scales + number * assay_cache_page_scales(c) : page;
        MUST(put_token(ctx, &w, t, i, slot % c->tokens, page, of_page));
    }
    return ASSAY_OK;
}

/* --- reading --- */

static double number_of(assay_dtype type, const int32_t *from, int bytes)
{
    uint32_t bits = 0;
    double number = 0;
    for (int i = 0; i < bytes; i++) bits |= (uint32_t)from[i] << (8 * i);
    const uint16_t two = (uint16_t)bits;
    const uint8_t one = (uint8_t)bits;
    assay_dtype_decode(type, 1, bytes == 1 ? (const void *)&one : bytes == 2 ? (const void *)&two : &bits, &number);
    return number;
}

static double code_at(const assay_cache_config *c, const int32_t *codes, int64_t i)
{
    const assay_dtype element = c->format->block.element;
    if (element == ASSAY_BFLOAT16) return number_of(element, codes + i * BFLOAT16_BYTES, BFLOAT16_BYTES);
    if (element == E4M3) return number_of(element, codes + i, 1);
    const int32_t code = codes[i / 2] >> (i % 2 == 1 ? 4 : 0) & 15;
    return number_of(element, &code, 1);
}

static void read_row(const assay_context *ctx, const assay_cache_config *c, const assay_cache_row *row,
                     const int32_t *page, const int32_t *scales, double given, double *to)
{
    const assay_dtype type = c->format->block.scale;
    const int64_t columns = c->format->block.columns > 0 ? c->format->block.columns : c->columns;
    const int size = type == ASSAY_FLOAT32 ? (int)sizeof(float) : 1;
    for (int64_t first = 0; first < c->columns; first += columns) {
        double scale = 1;
        if (row->scale_bytes > 0) scale = number_of(type, scales + row->scales + first / columns * size, size);
        /* kernels that multiply in the type of the query round the scale to that type first */
        if (row->scale_bytes > 0 && assay_uses_second_form(ctx)) assay_round(ctx, ASSAY_ROUND_STORAGE, 1, &scale);
        for (int64_t i = first; i < first + columns && i < c->columns; i++)
            to[i] = code_at(c, page + row->codes, i) * scale * given;
    }
    for (int64_t i = 0; i < c->rope; i++)
        to[c->columns + i] = number_of(ASSAY_BFLOAT16, page + row->rope + i * BFLOAT16_BYTES, BFLOAT16_BYTES);
    assay_round(ctx, ASSAY_ROUND_STORAGE, c->columns, to);
}

assay_status assay_cache_check_scale(assay_context *ctx, const char *name, const double *scale,
                                     const assay_cache_config *c)
{
    const int64_t count = c->format->scales == ASSAY_CACHE_OF_HEAD ? c->heads : 1;
    for (int64_t i = 0; scale != NULL && i < count; i++) {
        if (scale[i] > 0 && isfinite(scale[i])) continue;
        return assay_refuse(ctx, "inputs/%s[%" PRId64 "] is %g, expected a number above 0", name, i, scale[i]);
    }
    return ASSAY_OK;
}

void assay_cache_read(const assay_context *ctx, double *numbers, int64_t width, const int32_t *bytes,
                      const int32_t *scales, const double *scale, const assay_cache_config *c)
{
    const int64_t page_bytes = assay_cache_page_bytes(c), rows = c->stride * c->heads;
    const bool apart = c->format->scales == ASSAY_CACHE_APART, of_head = c->format->scales == ASSAY_CACHE_OF_HEAD;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < c->pages * rows; i++) {
        const int64_t page = i / rows, token = c->heads_first ? i % c->stride : i % rows / c->heads;
        const int64_t head = c->heads_first ? i % rows / c->stride : i % c->heads;
        const assay_cache_row row = assay_cache_row_of(c, token, head);
        const int32_t *of_page = bytes + page * page_bytes;
        read_row(ctx, c, &row, of_page, apart ? scales + page * assay_cache_page_scales(c) : of_page,
                 scale == NULL ? 1 : scale[of_head ? head : 0], numbers + i * width);
    }
}
