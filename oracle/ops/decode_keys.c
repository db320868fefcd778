#include <math.h>
#include <string.h>

#include "oracle/ops/decode_internal.h"

decode_change decode_change_of(const assay_context *ctx, const assay_decode_config *c)
{
    DECODE_CHANGES(ASSAY_CHANGE_FOUND)
    return NOTHING;
}

static int64_t row_in_page(const assay_decode_config *c, int64_t page, int64_t head, int64_t row)
{
    return c->heads_first ? (page * c->kv_heads + head) * c->stride + row
                          : (page * c->stride + row) * c->kv_heads + head;
}

int64_t assay_decode_row(const assay_decode_config *c, const int32_t *block_table, int64_t sequence, int64_t head,
                         int64_t key)
{
    const int64_t page = c->max_pages == 0 ? sequence : block_table[sequence * c->max_pages + key / c->page];
    return row_in_page(c, page, head, key % c->page);
}

int64_t decode_place_of_lse(const assay_decode_config *c, int64_t row)
{
    const int64_t token = row / c->heads;
    return (token / c->sequence * c->heads + row % c->heads) * c->sequence + token % c->sequence;
}

int64_t decode_splits(const assay_decode_config *config)
{
    return config->parts > 0 ? config->parts : 1;
}

/* Of a sequence. */
static int64_t most_keys(const assay_decode_config *c)
{
    return c->max_pages > 0 ? c->max_pages * c->page : c->page;
}

int64_t decode_length(const decode_cached *d)
{
    const assay_decode_config *c = d->config;
    const int64_t keys = d->in->cache_seqlens[d->sequence], tail = keys % c->page;
    if (d->change == NEXT_LENGTH) return d->in->cache_seqlens[(d->sequence + 1) % c->batch];
    if (d->change == PARTIAL_PAGE) return keys - tail;
    if (d->change == WHOLE_PAGE) return tail > 0 ? keys - tail + c->page : keys;
    if (d->change == NEXT_PAGE) return tail == 0 && keys < most_keys(c) ? keys + c->page : keys;
    if (d->change == NEWEST_LOST) return keys > 0 ? keys - 1 : 0;
    if (d->change == ONE_MORE) return keys > 0 && keys < most_keys(c) ? keys + 1 : keys;
    return d->change == WHOLE_TABLE || d->change == WRAPPED ? most_keys(c) : keys;
}

int64_t decode_read_length(const decode_cached *d)
{
    const int64_t keys = decode_length(d), page = d->config->page;
    return d->change == ZERO_LANES || d->change == TAIL_WEIGHED ? (keys + page - 1) / page * page : keys;
}

/* Keys that the sequence had before these tokens. */
static int64_t context_of(const decode_cached *d)
{
    const int64_t keys = decode_length(d);
    return keys > d->config->sequence ? keys - d->config->sequence : 0;
}

/* Of entry m of the sequence, where a mutant reads entry `read` of all. */
static int64_t page_of_entry(const decode_cached *d, int64_t m, int64_t read)
{
    const assay_decode_config *c = d->config;
    const int32_t *table = d->in->block_table;
    if (c->max_pages == 0) return d->sequence;
    if (d->change == NO_TABLE) return (d->sequence * c->max_pages + m) % c->pages;
    if (d->change == ADJACENT && m % 2 == 1) return table[read - 1] + INT64_C(1);
    if (d->change == WRAPPED && table[read] == -1) return c->pages - 1;
    return table[read];
}

static int64_t row_of_key(const decode_cached *d, int64_t key)
{
    const assay_decode_config *c = d->config;
    if (d->change == FIRST_CHUNK && key < context_of(d)) key %= c->chunk;
    assay_decode_config as = *c;
    if (d->change == NOTHING) return assay_decode_row(c, d->in->block_table, d->sequence, d->kv, key);
    if (d->change == NO_STRIDE) as.stride = c->page;
    if (d->change == OTHER_LAYOUT) as.heads_first = !c->heads_first;
    if (d->change == HALF_PAGES) as.stride = as.page = c->page / 2;
    const int64_t m = key / as.page, entries = c->max_pages > 0 ? c->batch * c->max_pages : 1;
    const int64_t entry = (d->sequence * c->max_pages + m) % entries;
    const int64_t read = d->change == FIRST_TABLE        ? m
                         : d->change == TABLE_TRANSPOSED ? m * c->batch + d->sequence
                                                         : entry;
    const int64_t page = page_of_entry(d, m, read);
    return row_in_page(&as, page >= 0 && page < c->pages ? page : 0, d->kv, key % as.page);
}

void decode_gather(const decode_cached *d, const double *cache, int64_t width, decode_keys keys, double *to)
{
    for (int64_t key = keys.begin; key < keys.end; key++, to += width) {
        memcpy(to, cache + row_of_key(d, key) * width, (size_t)width * sizeof *cache);
        if (d->change == ZERO_LANES && key >= decode_length(d)) memset(to, 0, (size_t)width * sizeof *to);
    }
}

decode_keys decode_overlap(decode_keys a, decode_keys b)
{
    decode_keys both = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
    if (both.end < both.begin) both.end = both.begin;
    return both;
}

static int64_t keys_end(const decode_cached *d, int64_t token)
{
    const int64_t keys = decode_length(d), tokens = d->config->sequence;
    int64_t end = keys - tokens + token + 1;
    if (d->change == NEXT_KEY) end++;
    if (d->change == FIRST_KEYS) end = token + 1;
    if (end < 0) return 0;
    return end < keys && d->change != ALL_KEYS ? end : keys;
}

decode_keys decode_seen(const decode_cached *d, int64_t token)
{
    const int64_t end = keys_end(d, token), window = d->config->window;
    const int64_t begin = window > 0 && end > window ? end - window : 0;
    return (decode_keys){d->change == WHOLE_WINDOW ? begin - begin % d->config->page : begin, end};
}

decode_keys decode_weighed(const decode_cached *d, int64_t token)
{
    decode_keys keys = decode_seen(d, token);
    if (d->change == CAPPED_MASK) keys = (decode_keys){0, decode_length(d)};
    if (d->change == ZERO_LANES) keys.end = decode_read_length(d);
    return keys;
}

decode_keys decode_read(const decode_cached *d, int64_t first, int64_t last)
{
    const decode_keys keys = {decode_weighed(d, first).begin, decode_weighed(d, last).end};
    return d->change == TAIL_WEIGHED ? (decode_keys){keys.begin, decode_read_length(d)} : keys;
}

decode_keys decode_split(const decode_cached *d, int64_t part)
{
    const assay_decode_config *c = d->config;
    const int64_t keys = decode_read_length(d), context = context_of(d), unit = c->max_pages > 0 ? c->page : 1;
    const int32_t *given = d->in->split_starts;
    const int32_t *starts = given == NULL ? NULL : given + d->sequence * (c->parts + 1);
    int64_t size = c->chunk, end = keys;
    if (c->parts == 0) return (decode_keys){0, keys};
    if (starts != NULL) return (decode_keys){starts[part], starts[part + 1]};
    if (c->chunk > 0 && part == c->parts - 1) return (decode_keys){context, keys};
    if (c->chunk > 0) end = context;
    if (c->chunk == 0) size = ((keys + unit - 1) / unit + c->parts - 1) / c->parts * unit;
    /* one that begins behind the end is empty there, so that parts follow each other */
    const int64_t begin = part * size < end ? part * size : end;
    return (decode_keys){begin, begin + size < end ? begin + size : end};
}

decode_keys decode_seen_of_split(const decode_cached *d, int64_t token, int64_t part)
{
    const decode_keys keys = decode_split(d, part), seen = decode_overlap(decode_weighed(d, token), keys);
    if (d->change != CAUSAL_CONTEXT || part == d->config->parts - 1) return seen;
    return decode_overlap(seen, (decode_keys){0, keys.end - d->config->sequence + token + 1});
}
