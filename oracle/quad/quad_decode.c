/* Attention over a cache, one query at a time and one key after the other. */
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_blocks.h"

/* What every query has. */
typedef struct cache {
    const assay_decode_config *config;
    const quad *key, *value, *kernel;
    const int32_t *table, *lengths; /* of sequences; of lists, NULL: all topk entries */
    const int32_t *indices;         /* of lists */
    quad scale;
} cache;

/* Numbers of a query, a key and a value once heads have their own: in the unabsorbed form Dn + Dr and Dv. */
typedef struct widths {
    int64_t query, value;
} widths;

static widths widths_of(const assay_decode_config *c)
{
    return c->nope > 0 ? (widths){c->nope + c->width - c->v_dim, c->out_dim} : (widths){c->width, c->v_dim};
}

/* A row of the cache. */
typedef struct cache_row {
    int64_t page, slot;
} cache_row;

/* That of key j of a sequence; of entry j of a token's list, where the page is below 0 if there is none. */
static cache_row row_of(const cache *k, int64_t b, int64_t i, int64_t j)
{
    const assay_decode_config *c = k->config;
    if (c->topk == 0) return (cache_row){c->max_pages > 0 ? k->table[b * c->max_pages + j / c->page] : b, j % c->page};
    const int64_t index = k->indices[(b * c->sequence + i) * c->topk + j];
    if (index < 0 || index / c->page >= c->pages) return (cache_row){-1, 0};
    return (cache_row){index / c->page, index % c->page};
}

/* The numbers of a head of keys in a row of a cache whose rows have so many. */
static const quad *cached(const cache *k, const quad *numbers, int64_t width, int64_t head, cache_row at)
{
    const assay_decode_config *c = k->config;
    const int64_t page = at.page, slot = at.slot;
    if (c->heads_first) return numbers + ((page * c->kv_heads + head) * c->stride + slot) * width;
    return numbers + ((page * c->stride + slot) * c->kv_heads + head) * width;
}

/* Key and value of a query head, expanded by the kernel where there is one. */
static void expand(const cache *k, int64_t head, cache_row at, quad *key, quad *value)
{
    const assay_decode_config *c = k->config;
    const int64_t kv = head / (c->heads / c->kv_heads), wide = c->nope + c->out_dim;
    const quad *row = cached(k, k->key, c->width, kv, at);
    const quad *numbers = c->latent ? row : cached(k, k->value, c->v_dim, kv, at);
    if (c->nope == 0) {
        for (int64_t d = 0; d < c->width; d++) key[d] = row[d];
        for (int64_t d = 0; d < c->v_dim; d++) value[d] = numbers[d];
        return;
    }
    for (int64_t d = 0; d < wide; d++) {
        quad sum = 0;
        for (int64_t l = 0; l < c->v_dim; l++) sum += row[l] * k->kernel[(l * c->heads + head) * wide + d];
        *(d < c->nope ? key + d : value + d - c->nope) = sum;
    }
    for (int64_t d = c->v_dim; d < c->width; d++) key[c->nope + d - c->v_dim] = row[d];
}

/* exp(score) of the keys [from,to) that a query sees, less the largest one, and their sum with the values. */
typedef struct sums {
    quad largest, total;
    quad *out; /* [value] */
} sums;

static void add_key(sums *s, quad score, const quad *value, int64_t width)
{
    const quad largest = score > s->largest ? score : s->largest;
    const quad kept = s->total == 0 ? 0 : expq(s->largest - largest), added = expq(score - largest);
    for (int64_t d = 0; d < width; d++) s->out[d] = s->out[d] * kept + added * value[d];
    s->total = s->total * kept + added;
    s->largest = largest;
}

static void attend(const cache *k, int64_t b, int64_t i, int64_t head, int64_t from, int64_t to, const quad *query,
                   quad *scratch, sums *s)
{
    const assay_decode_config *c = k->config;
    const widths w = widths_of(c);
    const int64_t last = c->topk > 0 ? c->topk : k->lengths[b] - c->sequence + i;
    const int64_t first = c->window > 0 ? last - c->window + 1 : 0;
    *s = (sums){.largest = -INFINITY, .out = s->out};
    for (int64_t d = 0; d < w.value; d++) s->out[d] = 0;
    for (int64_t j = from; j < to; j++) {
        quad score = 0;
        const cache_row at = row_of(k, b, i, j);
        if (j > last || j < first || at.page < 0) continue;
        expand(k, head, at, scratch, scratch + w.query);
        for (int64_t d = 0; d < w.query; d++) score += query[d] * scratch[d];
        score *= k->scale;
        if (c->soft_cap > 0) score = c->soft_cap * tanhq(score / c->soft_cap);
        add_key(s, score, scratch + w.query, w.value);
    }
    for (int64_t d = 0; d < w.value && s->total > 0; d++) s->out[d] /= s->total;
}

/* Equal shares of pages or keys; or chunks of what was there before the new tokens, and these. */
static void split_of(const assay_decode_config *c, int64_t length, int64_t split, int64_t *from, int64_t *to)
{
    const int64_t before = length < c->sequence ? 0 : length - c->sequence, size = c->max_pages > 0 ? c->page : 1;
    const int64_t share = ((length + size - 1) / size + c->splits - 1) / c->splits * size;
    const int64_t each = c->chunk > 0 ? c->chunk : share, last = c->chunk > 0 ? before : length;
    const bool own = c->chunk > 0 && split + 1 == c->splits;
    *from = own ? before : split * each;
    *to = own ? length : (split + 1) * each < last ? (split + 1) * each : last;
}

static quad lse_of(const assay_decode_config *c, const sums *s)
{
    if (s->total == 0) return c->empty_row;
    return (s->largest + logq(s->total)) / (c->base_2 ? M_LN2q : 1);
}

/* What comes of all rows: values, which are no node of anything, as a result. */
static quad *results(quad_tape *t, const char *path, assay_shape shape)
{
    quad *values = NULL;
    const quad_node y = quad_constant(t, assay_shape_count(&shape), 1, &values);
    quad_put(t, path, shape, y);
    return values;
}

/* The query of a head, as keys are. */
static void join(const assay_decode_config *c, const quad *query, const quad *query_pe, int64_t row, quad *to)
{
    const int64_t own = c->nope > 0 ? c->nope : c->width, rope = c->width - c->v_dim;
    for (int64_t d = 0; d < own; d++) to[d] = query[row * own + d];
    for (int64_t d = 0; query_pe != NULL && d < rope; d++) to[own + d] = query_pe[row * rope + d];
}

/* `own` of the `width` numbers of each row of a cache, which a stream of bytes has or a tensor. */
static void fill_rows(quad_tape *t, const quad_decode_config *config, int stream, const char *path, int64_t own,
                      int64_t width, quad *to)
{
    const assay_decode_config *c = &config->decode;
    const int64_t rows = c->pages * c->stride * c->kv_heads;
    if (t->status == ASSAY_OK && config->bytes.stream_count > 0)
        quad_cache_numbers(t, &config->bytes.streams[stream], width, to);
    if (config->bytes.stream_count > 0) return;
    const quad *numbers = quad_values(t, quad_input(t, path, rows, own));
    for (int64_t n = 0; t->status == ASSAY_OK && n < rows * own; n++) to[n / own * width + n % own] = numbers[n];
}

void quad_decode(quad_tape *t, const void *self)
{
    const quad_decode_config *config = self;
    const assay_decode_config *c = &config->decode;
    const widths w = widths_of(c);
    const int64_t rows = c->batch * c->sequence * c->heads;
    const int64_t cached_rows = c->pages * c->stride * c->kv_heads;
    const char *path = c->latent ? "inputs/kv_cache" : "inputs/key_cache";
    const int64_t own = config->split_cache ? c->v_dim : c->width;
    quad *key = quad_keep(t, cached_rows * c->width, sizeof *key), *value = NULL;
    const bool naive = c->nope > 0;
    const quad given = config->query_scale != 0 ? config->query_scale : 1 / sqrtq(c->width);
    cache k = {.config = c, .scale = c->latent ? quad_softmax_scale(&config->mla) : given};
    const quad *query =
        quad_values(t, quad_input(t, naive ? "inputs/query_nope" : "inputs/query", rows, naive ? c->nope : c->width));
    const quad *query_pe = naive ? quad_values(t, quad_input(t, "inputs/query_pe", rows, c->width - c->v_dim)) : NULL;
    const quad *sinks = quad_values(t, quad_input_optional(t, "weights/sinks", 1, c->heads));
    if (c->topk > 0) k.indices = quad_input_indices(t, "inputs/indices", c->batch * c->sequence * c->topk);
    k.lengths = c->topk > 0 ? quad_input_indices_optional(t, "inputs/topk_length", c->batch)
                            : quad_input_indices(t, "inputs/cache_seqlens", c->batch);
    if (c->max_pages > 0) k.table = quad_input_indices(t, "inputs/block_table", c->batch * c->max_pages);
    fill_rows(t, config, 0, config->split_cache ? "inputs/ckv_cache" : path, own, c->width, key);
    if (config->split_cache) fill_rows(t, config, 1, "inputs/kpe_cache", c->width - own, c->width, key + own);
    if (!c->latent) value = quad_keep(t, cached_rows * c->v_dim, sizeof *value);
    if (!c->latent) fill_rows(t, config, 1, "inputs/value_cache", c->v_dim, c->v_dim, value);
    k.key = key;
    k.value = value;
    if (naive)
        k.kernel = quad_values(t, quad_input(t, "weights/wkv_b/kernel", c->v_dim, c->heads * (c->nope + c->out_dim)));
    const int64_t b = c->batch, s = c->sequence, n = c->heads;
    quad *out = results(t, "outputs/attention_out", assay_shape_of(4, b, s, n, w.value));
    quad *lse =
        results(t, "outputs/lse", c->lse_tokens_first ? assay_shape_of(3, b, s, n) : assay_shape_of(3, b, n, s));
    quad *split_out = NULL, *split_lse = NULL;
    if (c->splits > 0) {
        split_out = results(t, "checkpoints/partial_out", assay_shape_of(5, c->splits, b, s, n, w.value));
        split_lse = results(t, "checkpoints/partial_lse", assay_shape_of(4, c->splits, b, n, s));
    }
    quad *query_row = quad_keep(t, w.query + w.value, sizeof *query_row),
         *scratch = quad_keep(t, w.query + w.value, sizeof *query_row);
    if (t->status != ASSAY_OK) return;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t head = row % n, i = row / n % s, at = row / n / s;
        const int64_t length = k.lengths == NULL ? c->topk : k.lengths[at];
        const int64_t place = (at * n + head) * s + i;
        sums found = {.out = out + row * w.value};
        join(c, query, query_pe, row, query_row);
        for (int64_t split = 0; split < c->splits; split++) {
            int64_t from, to;
            split_of(c, length, split, &from, &to);
            sums of_split = {.out = split_out + (split * rows + row) * w.value};
            attend(&k, at, i, head, from, to, query_row, scratch, &of_split);
            split_lse[split * rows + place] = lse_of(c, &of_split);
        }
        attend(&k, at, i, head, 0, length, query_row, scratch, &found);
        lse[c->lse_tokens_first ? row : place] = lse_of(c, &found);
        const quad lost = sinks == NULL ? 0 : expq(sinks[head] - found.largest - logq(found.total));
        for (int64_t d = 0; found.total > 0 && d < w.value; d++) found.out[d] /= 1 + lost;
    }
}
