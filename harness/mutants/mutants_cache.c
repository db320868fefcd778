/* Caches of bytes: rows and scales that lie elsewhere, or are other ones, as a writer leaves them and as a reader takes them. */
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_decode.h"

/* Of the tensor of bytes of this path; NULL: there is none. `config` is room. */
static const assay_cache_stream *stream_of(const assay_case *c, const char *path, assay_operation_config *config)
{
    assay_context ctx = assay_context_default(1);
    if (assay_operation_configure(&ctx, assay_operation_by_name(c->op), c, config) != ASSAY_OK) return NULL;
    const void *of = config;
    const assay_cache_append_config *bytes = of;
    if (strcmp(c->op, "cache_append") != 0) bytes = &((const decode_config *)of)->quad.bytes;
    for (int64_t i = 0; i < bytes->stream_count; i++)
        if (assay_path_ends(path, bytes->streams[i].bytes)) return &bytes->streams[i];
    return NULL;
}

/* Bytes of pages that are copied, with the rows of one of the two elsewhere. */
typedef struct bytes_copy {
    const assay_cache_config *c;
    int change;
    bool reads; /* from where they are elsewhere; else they go there */
    const int32_t *from, *from_scales;
    int32_t *to, *to_scales;
} bytes_copy;

static int64_t code_bytes(const assay_cache_config *c, const assay_cache_row *row)
{
    return (c->format->scales == ASSAY_CACHE_IN_ROW ? row->scales : row->rope) - row->codes;
}

static assay_cache_row elsewhere(const bytes_copy *b, int64_t token, int64_t head)
{
    const assay_cache_row first = assay_cache_row_of(b->c, 0, 0), second = assay_cache_row_of(b->c, 1, 0);
    assay_cache_row row = assay_cache_row_of(b->c, token, head);
    const int64_t rope = row.rope - row.codes, all = rope + 2 * b->c->rope;
    if (b->change == ASSAY_BYTES_rows_with_scales) {
        row.codes = token * (all + second.scales - first.scales);
        row.rope = row.codes + rope;
        row.scales = row.codes + all;
    }
    if (b->change == ASSAY_BYTES_rope_first) {
        row.rope = row.codes;
        row.codes += 2 * b->c->rope;
        if (b->c->format->scales == ASSAY_CACHE_IN_ROW) row.scales = row.rope + all - row.scale_bytes;
    }
    return row;
}

/* The next code of e8m0 below is half as much. */
static void put_scale(const bytes_copy *b, const int32_t *from, int32_t *to, int64_t size)
{
    uint32_t bits = 0;
    float number = 0;
    for (int64_t i = 0; i < size; i++) bits |= (uint32_t)from[i] << (8 * i);
    memcpy(&number, &bits, sizeof number);
    if (b->change == ASSAY_BYTES_scales_inverted) number = 1 / number;
    if (b->change == ASSAY_BYTES_scales_halved && size > 1) number /= 2;
    if (size > 1) memcpy(&bits, &number, sizeof bits);
    if (b->change == ASSAY_BYTES_scales_halved && size == 1 && bits > 0) bits--;
    if (b->change == ASSAY_BYTES_scales_as_e8m0) bits &= 0x7f800000;
    for (int64_t i = 0; i < size; i++) to[i] = (int32_t)(bits >> (8 * i) & 0xff);
}

static void copy_row(const bytes_copy *b, int64_t page, int64_t token, int64_t head)
{
    const assay_cache_config *c = b->c;
    const bool apart = c->format->scales == ASSAY_CACHE_APART;
    const int64_t at = page * assay_cache_page_bytes(c), scales_at = apart ? page * assay_cache_page_scales(c) : at;
    const assay_cache_row right = assay_cache_row_of(c, token, head), other = elsewhere(b, token, head);
    const assay_cache_row *from = b->reads ? &other : &right, *to = b->reads ? &right : &other;
    const int64_t size = c->format->block.scale == ASSAY_FLOAT32 ? 4 : 1, scales = right.scale_bytes / size;
    const int64_t codes = code_bytes(c, &right), each = c->format->block.columns;
    memcpy(b->to + at + to->codes, b->from + at + from->codes, (size_t)codes * sizeof *b->to);
    memcpy(b->to + at + to->rope, b->from + at + from->rope, (size_t)(2 * c->rope) * sizeof *b->to);
    for (int64_t i = 0; i < scales; i++) {
        int64_t block = i, of = token;
        if (b->change == ASSAY_BYTES_scales_rolled) block = (i + 1) % scales;
        if (b->change == ASSAY_BYTES_scales_of_next) of = (token + 1) % c->tokens;
        if (b->change == ASSAY_BYTES_scales_swizzled && token / 4 * 4 + 4 <= c->stride && i / 4 * 4 + 4 <= scales) {
            of = token / 4 * 4 + i % 4;
            block = i / 4 * 4 + token % 4;
        }
        const assay_cache_row of_scale = b->reads ? elsewhere(b, of, head) : assay_cache_row_of(c, of, head);
        const int32_t *scale = b->from_scales + scales_at + of_scale.scales + block * size;
        put_scale(b, scale, b->to_scales + scales_at + to->scales + i * size, size);
        for (int64_t k = i * each;
             b->change == ASSAY_BYTES_zero_scale && *scale == 0 && k < codes && k < (i + 1) * each; k++)
            b->to[at + to->codes + k] = 0;
    }
}

static bool applies(int change, const assay_cache_config *c)
{
    const assay_cache_format *f = c->format;
    const bool given = f->scales == ASSAY_CACHE_OF_TENSOR || f->scales == ASSAY_CACHE_OF_HEAD;
    const bool float_scales = f->block.scale == ASSAY_FLOAT32 && f->block.element != ASSAY_BFLOAT16 && !given;
    const bool scales = assay_cache_row_of(c, 0, 0).scale_bytes > 0;
#define X(name, where)                                                                                                 \
    case ASSAY_BYTES_##name:                                                                                           \
        return where;
    switch (change) {
        ASSAY_BYTES_TABLE(X)
    }
#undef X
    return false;
}

/* The tensor and its scales, beside a copy of both. */
static bytes_copy copy_of(const assay_mutation *m, const assay_cache_config *c, assay_tensor *bytes, bool reads)
{
    assay_tensor *scales = assay_tensor_beside_of(m, bytes, "_cache", "_cache_scale");
    int32_t *copy = (int32_t *)(void *)m->scratch, *to = scales != NULL ? scales->indices : bytes->indices;
    memcpy(copy, bytes->indices, (size_t)bytes->count * sizeof *copy);
    if (scales != NULL) memcpy(copy + bytes->count, to, (size_t)scales->count * sizeof *copy);
    return (bytes_copy){.c = c,
                        .change = (int)m->row->by,
                        .reads = reads,
                        .from = copy,
                        .from_scales = copy + (scales != NULL ? bytes->count : 0),
                        .to = bytes->indices,
                        .to_scales = to};
}

/* As a reader takes them; of a writer nothing changes, but the bytes that it leaves. A scale that is given is halved, too. */
bool assay_edit_given_bytes(const assay_mutation *m, assay_tensor *tensor)
{
    assay_operation_config room;
    if (tensor->values != NULL)
        return (int)m->row->by == ASSAY_BYTES_scales_halved && assay_case_is_where(m->c, ASSAY_WHERE_given_scales) &&
               assay_scale_values(tensor, 0.5);
    const assay_cache_stream *s = stream_of(m->c, tensor->spec.path, &room);
    if (s == NULL || !applies((int)m->row->by, &s->cache)) return false;
    if (strcmp(m->c->op, "cache_append") == 0) return true;
    const assay_cache_config *c = &s->cache;
    const bytes_copy b = copy_of(m, c, tensor, true);
    for (int64_t i = 0; i < c->pages * c->stride * c->heads; i++)
        copy_row(&b, i / c->heads / c->stride, i / c->heads % c->stride, i % c->heads);
    return true;
}

static void start_again(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_tensor *before = tensor == NULL ? NULL : assay_tensor_beside(m, tensor, "outputs", "inputs");
    if (before != NULL) memcpy(tensor->indices, before->indices, (size_t)before->count * sizeof *before->indices);
}

static void rewrite(const assay_mutation *m, const assay_cache_config *c, assay_tensor *tensor)
{
    const assay_tensor *slots = assay_tensor_set_find(m->tensors, "inputs/slot_mapping");
    const bytes_copy b = copy_of(m, c, tensor, false);
    start_again(m, tensor);
    start_again(m, assay_tensor_beside_of(m, tensor, "_cache", "_cache_scale"));
    for (int64_t i = 0; i < slots->count * c->heads; i++) {
        const int64_t slot = slots->indices[i / c->heads];
        if (slot >= 0) copy_row(&b, slot / c->tokens, slot % c->tokens, i % c->heads);
    }
}

/* As a writer leaves them. A reader's results are what it made of others. */
bool assay_edit_written_bytes(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->count; i++) {
        assay_operation_config room;
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->spec.role != ASSAY_ROLE_OUTPUT || tensor->indices == NULL) continue;
        const assay_cache_stream *s = stream_of(m->c, tensor->spec.path, &room);
        if (s != NULL && applies((int)m->row->by, &s->cache)) rewrite(m, &s->cache, tensor);
    }
    return true;
}

/* --- slots --- */

/* Where two tokens go to one slot the last one stays. */
bool assay_edit_last_of_slots(const assay_mutation *m)
{
    const assay_tensor *slots = assay_tensor_set_find(m->tensors, "inputs/slot_mapping");
    for (int64_t i = 0; i < slots->count; i++)
        for (int64_t k = i + 1; k < slots->count && slots->indices[i] >= 0; k++)
            if (slots->indices[k] == slots->indices[i]) slots->indices[i] = -1;
    return false;
}

/* A page is cleared when a token comes to it. */
bool assay_edit_clear_pages(const assay_mutation *m, assay_tensor *bytes)
{
    const assay_tensor *slots = assay_tensor_set_find(m->tensors, "inputs/slot_mapping");
    const int64_t page = assay_tensor_width(bytes), tokens = m->c->config.pagedattn_tokens_per_page;
    bool cleared = false;
    for (int64_t i = 0; i < slots->count; i++) {
        if (slots->indices[i] < 0) continue;
        memset(bytes->indices + slots->indices[i] / tokens * page, 0, (size_t)page * sizeof *bytes->indices);
        cleared = true;
    }
    return cleared;
}
