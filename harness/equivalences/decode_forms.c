#include "harness/equivalences/decode_forms.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { UNUSED_BYTE = 255 };

/* One of the two forms: where its keys lie. */
typedef struct side {
    const quad_decode_config *config;
    const assay_tensor_set *tensors;
    const int32_t *table, *lengths;
} side;

bool assay_decode_lies_elsewhere(const assay_case *one, const assay_case *other)
{
    const assay_model_config *a = &one->config, *b = &other->config;
    return (assay_operation_by_name(one->op)->components & ASSAY_USES_DECODE) != 0 &&
           (one->batch != other->batch || a->pagedattn_num_pages != b->pagedattn_num_pages ||
            a->pagedattn_tokens_per_page != b->pagedattn_tokens_per_page);
}

bool assay_decode_is_moved(const char *path)
{
    static const char *const names[] = {"cache_seqlens", "block_table"};
    bool moved = strstr(path, "_cache") != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) moved |= assay_path_ends(path, names[i]);
    return moved;
}

static assay_tensor *given(const side *s, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", name);
    assay_tensor *tensor = assay_tensor_set_find(s->tensors, path);
    if (tensor != NULL) tensor->written = tensor->count;
    return tensor;
}

/* Of a sequence of the other form, which sequence of the one it is, and how many of its keys it has. */
static int64_t sequence_of(const side *from, const side *to, int64_t b)
{
    return b / (to->config->decode.batch / from->config->decode.batch);
}

static int32_t length_of(const side *from, const side *to, int64_t b)
{
    const int64_t each = to->config->decode.batch / from->config->decode.batch;
    const int64_t length = from->lengths[b / each] - (each - 1) + b % each;
    return length > 0 ? (int32_t)length : 0;
}

/* From the last page to the first; those of the one form, where a token is a sequence. */
static void fill_table(const side *from, const side *to, int32_t *table)
{
    const assay_decode_config *d = &to->config->decode;
    const bool same = d->batch != from->config->decode.batch;
    for (int64_t i = 0; i < d->batch * d->max_pages; i++) {
        table[i] = same ? from->table[sequence_of(from, to, i / d->max_pages) * d->max_pages + i % d->max_pages]
                        : (int32_t)(d->batch * d->max_pages - 1 - i);
    }
}

static int64_t page_of(const side *s, int64_t b, int64_t key)
{
    const assay_decode_config *d = &s->config->decode;
    return d->max_pages > 0 ? s->table[b * d->max_pages + key / d->page] : b;
}

static void move_numbers(const side *from, const side *to, const char *name)
{
    const assay_decode_config *a = &from->config->decode, *b = &to->config->decode;
    const assay_tensor *old = given(from, name), *new = given(to, name);
    const int64_t width = new->count / (b->pages * b->stride * b->kv_heads);
    for (int64_t i = 0; i < new->count; i++) new->values[i] = NAN;
    for (int64_t s = 0; s < b->batch; s++) {
        for (int64_t i = 0; i < to->lengths[s] * b->kv_heads; i++) {
            const int64_t key = i / b->kv_heads, head = i % b->kv_heads;
            const int64_t p = page_of(from, sequence_of(from, to, s), key), q = page_of(to, s, key);
            memcpy(new->values + assay_decode_place(b, q * b->stride + key % b->page, head) * width,
                   old->values + assay_decode_place(a, p * a->stride + key % a->page, head) * width,
                   (size_t)width * sizeof *new->values);
        }
    }
}

static void move_row(const assay_cache_config *c, const int32_t *old, const assay_cache_row *a, int32_t *new,
                     const assay_cache_row *b)
{
    memcpy(new + b->codes, old + a->codes, (size_t)(a->rope + 2 * c->rope - a->codes) * sizeof *new);
}

static void move_bytes(const side *from, const side *to, int64_t stream)
{
    const assay_cache_stream *x = &from->config->bytes.streams[stream], *y = &to->config->bytes.streams[stream];
    const assay_decode_config *d = &to->config->decode;
    const assay_tensor *old = given(from, x->bytes), *new = given(to, y->bytes);
    const assay_tensor *old_scales = given(from, x->scales), *new_scales = given(to, y->scales);
    const assay_cache_scales at = x->cache.format->scales;
    for (int64_t i = 0; i < new->count; i++) new->indices[i] = UNUSED_BYTE;
    for (int64_t i = 0; new_scales != NULL && i < new_scales->count; i++) new_scales->indices[i] = UNUSED_BYTE;
    for (int64_t s = 0; s < d->batch; s++) {
        for (int64_t i = 0; i < to->lengths[s] * d->kv_heads; i++) {
            const int64_t key = i / d->kv_heads, head = i % d->kv_heads;
            const int64_t p = page_of(from, sequence_of(from, to, s), key), q = page_of(to, s, key);
            const assay_cache_row a = assay_cache_row_of(&x->cache, key % x->cache.tokens, head);
            const assay_cache_row b = assay_cache_row_of(&y->cache, key % y->cache.tokens, head);
            const int32_t *page = old->indices + p * assay_cache_page_bytes(&x->cache);
            int32_t *other = new->indices + q *assay_cache_page_bytes(&y->cache);
            move_row(&x->cache, page, &a, other, &b);
            if (at == ASSAY_CACHE_APART) {
                page = old_scales->indices + p * assay_cache_page_scales(&x->cache);
                other = new_scales->indices + q * assay_cache_page_scales(&y->cache);
            }
            if (at == ASSAY_CACHE_APART || at == ASSAY_CACHE_BEHIND)
                memcpy(other + b.scales, page + a.scales, (size_t)a.scale_bytes * sizeof *other);
        }
    }
}

assay_status assay_decode_move(assay_context *ctx, const assay_case *one, const assay_tensor_set *from,
                               const assay_case *other, const assay_tensor_set *to)
{
    static const char *const caches[] = {"kv_cache", "ckv_cache", "kpe_cache", "key_cache", "value_cache"};
    const assay_operation *operation = assay_operation_by_name(one->op);
    assay_operation_config a, b;
    MUST(assay_operation_configure(ctx, operation, one, &a));
    MUST(assay_operation_configure(ctx, operation, other, &b));
    side x = {.config = (const void *)&a, .tensors = from}, y = {.config = (const void *)&b, .tensors = to};
    const assay_tensor *old_table = given(&x, "block_table"), *new_table = given(&y, "block_table");
    int32_t *lengths = given(&y, "cache_seqlens")->indices;
    x.lengths = given(&x, "cache_seqlens")->indices;
    x.table = old_table != NULL ? old_table->indices : NULL;
    for (int64_t s = 0; s < y.config->decode.batch; s++) lengths[s] = length_of(&x, &y, s);
    if (new_table != NULL) fill_table(&x, &y, new_table->indices);
    y.lengths = lengths;
    y.table = new_table != NULL ? new_table->indices : NULL;
    for (int64_t i = 0; i < x.config->bytes.stream_count; i++) move_bytes(&x, &y, i);
    for (size_t i = 0; i < sizeof caches / sizeof *caches && x.config->bytes.stream_count == 0; i++)
        if (given(&x, caches[i]) != NULL) move_numbers(&x, &y, caches[i]);
    return ASSAY_OK;
}
