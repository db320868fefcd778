/* Attention over a cache: the keys of each sequence or list, gathered, and a softmax over those that a query sees. */
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_blocks.h"

typedef struct cache {
    const assay_decode_config *config;
    quad_node query, key, value, kernel;
    const int32_t *table, *lengths; /* of sequences; of lists, NULL: all topk entries */
    const int32_t *indices;         /* of lists */
    quad scale;
} cache;

/* A sequence, or the list of a token. */
typedef struct keys {
    int64_t first, tokens, count; /* first: of the tokens [B,S] */
    int64_t *row;                 /* [count]: of the cache; -1: there is no such key */
} keys;

/* Of all rows [B,S,N], or of a split of their keys, one group of rows after the other. */
typedef struct results {
    quad_node *out, *lse;
    int64_t groups, rows;
    int64_t *at; /* where a row is; -1: it sees no key */
} results;

static keys keys_of(quad_tape *t, const cache *k, int64_t list)
{
    const assay_decode_config *c = k->config;
    const bool lists = c->topk > 0;
    keys s = {.first = lists ? list : list * c->sequence, .tokens = lists ? 1 : c->sequence};
    s.count = k->lengths == NULL ? c->topk : k->lengths[s.first / c->sequence];
    s.row = quad_indices(t, s.count + 1);
    for (int64_t j = 0; s.row != NULL && j < s.count; j++) {
        const int64_t index = lists ? k->indices[list * c->topk + j] : j;
        const int64_t page = lists              ? index / c->page
                             : c->max_pages > 0 ? k->table[list * c->max_pages + j / c->page]
                                                : list;
        s.row[j] = index < 0 || page >= c->pages ? -1 : page * c->stride + index % c->page;
    }
    return s;
}

/* The numbers of a head in the rows of a cache. */
static quad_node cached(quad_tape *t, const cache *k, const keys *s, quad_node numbers, int64_t head)
{
    const assay_decode_config *c = k->config;
    int64_t *index = quad_indices(t, s->count);
    for (int64_t j = 0; index != NULL && j < s->count; j++) {
        const int64_t row = s->row[j], of_heads = (row / c->stride * c->kv_heads + head) * c->stride + row % c->stride;
        index[j] = row < 0 ? -1 : c->heads_first ? of_heads : row * c->kv_heads + head;
    }
    return index == NULL ? 0 : quad_gather(t, numbers, index, s->count);
}

static quad_node transposed(quad_tape *t, quad_node x)
{
    const int64_t rows = quad_rows(t, x), columns = quad_columns(t, x);
    int64_t *index = quad_indices(t, rows * columns);
    for (int64_t i = 0; index != NULL && i < rows * columns; i++) index[i] = i % rows * columns + i / rows;
    return index == NULL ? 0 : quad_view(t, quad_gather(t, quad_view(t, x, 1), index, rows * columns), rows);
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

/* Whether token i of a sequence sees key j; of a list it sees every key that is there. */
static bool sees(const assay_decode_config *c, const keys *s, int64_t i, int64_t j)
{
    const int64_t last = s->count - s->tokens + i;
    return c->topk > 0 ? s->row[j] >= 0 : j <= last && (c->window == 0 || last - j < c->window);
}

/* Scores [tokens*heads,count] of the keys [from,to), and what comes of the values; row[i] is one of [B,S,N]. */
static void attend(quad_tape *t, const cache *k, const keys *s, quad_node scores, quad_node value, int64_t from,
                   int64_t to, const int64_t *row, results *r)
{
    const int64_t count = quad_rows(t, scores), heads = count / s->tokens;
    quad *mask;
    const quad_node hidden = quad_constant(t, count, s->count, &mask);
    for (int64_t i = 0; mask != NULL && i < count * s->count; i++) {
        const int64_t query = i / s->count, j = i % s->count;
        const bool seen = j >= from && j < to && sees(k->config, s, query / heads, j);
        mask[i] = seen ? 0 : -1e4000Q;
        if (seen) r->at[row[query]] = r->rows + query;
    }
    const quad_node visible = quad_add(t, scores, hidden);
    r->out[r->groups] = quad_linear(t, (quad_layer){.x = quad_softmax(t, visible, NULL), .w = value});
    r->lse[r->groups++] = quad_log_sum_exp(t, visible);
    r->rows += count;
}

/* So many query heads, from `first` on, that have one head of keys and values; r: of all keys, and behind it of the splits. */
static void attend_heads(quad_tape *t, const cache *k, const keys *s, int64_t first, int64_t heads, results *r)
{
    const assay_decode_config *c = k->config;
    const int64_t kv = first / (c->heads / c->kv_heads), wide = c->nope + c->out_dim, count = s->tokens * heads;
    quad_node key = cached(t, k, s, k->key, kv);
    quad_node value = c->latent ? quad_columns_of(t, key, 0, c->v_dim) : cached(t, k, s, k->value, kv);
    int64_t *row = quad_indices(t, count);
    for (int64_t i = 0; row != NULL && i < count; i++) row[i] = (s->first + i / heads) * c->heads + first + i % heads;
    if (row == NULL) return;
    if (c->nope > 0) {
        const quad_node both =
            quad_linear(t, (quad_layer){.x = value, .w = quad_columns_of(t, k->kernel, first * wide, wide)});
        key = quad_beside(t, quad_columns_of(t, both, 0, c->nope),
                          quad_columns_of(t, key, c->v_dim, c->width - c->v_dim));
        value = quad_columns_of(t, both, c->nope, c->out_dim);
    }
    quad_node scores = quad_times(
        t, quad_linear(t, (quad_layer){.x = quad_gather(t, k->query, row, count), .w = transposed(t, key)}), k->scale);
    if (c->soft_cap > 0)
        scores = quad_times(t, quad_map(t, quad_times(t, scores, 1 / (quad)c->soft_cap), QUAD_TANH), c->soft_cap);
    attend(t, k, s, scores, value, 0, s->count, row, r);
    for (int64_t split = 0; t->status == ASSAY_OK && split < c->splits; split++) {
        int64_t from, to;
        split_of(c, s->count, split, &from, &to);
        attend(t, k, s, scores, value, from, to, row, r + 1 + split);
    }
}

static results open_results(quad_tape *t, int64_t rows, int64_t width)
{
    quad *nothing;
    results r = {quad_keep(t, rows + 1, sizeof *r.out), quad_keep(t, rows + 1, sizeof *r.lse), 1, 1,
                 quad_indices(t, rows)};
    for (int64_t i = 0; r.at != NULL && i < rows; i++) r.at[i] = -1;
    if (t->status != ASSAY_OK) return r;
    r.out[0] = quad_constant(t, 1, width, &nothing); /* there may be no other */
    r.lse[0] = quad_constant(t, 1, 1, &nothing);
    return r;
}

/* Rows [B,S,N], and their log-sum-exps; [B,N,S] unless tokens are first. */
static quad_node rows_of(quad_tape *t, const results *r, const assay_decode_config *c, quad_node sinks,
                         bool tokens_first, quad_node *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads, s = c->sequence, n = c->heads;
    int64_t *order = quad_indices(t, rows);
    if (order == NULL) return 0;
    for (int64_t i = 0; i < rows; i++) order[i] = tokens_first ? i : (i / (n * s) * s + i % s) * n + i / s % n;
    const quad_node out = quad_gather(t, quad_concatenate(t, r->out, r->groups), r->at, rows);
    const quad_node natural = quad_gather(t, quad_concatenate(t, r->lse, r->groups), r->at, rows);
    const quad_node stored =
        quad_add(t, quad_times(t, natural, c->base_2 ? 1 / M_LN2q : 1), quad_missing(t, r->at, rows, c->empty_row));
    *lse = quad_gather(t, stored, order, rows);
    return sinks == 0 ? out : quad_weigh(t, out, quad_gates(t, rows, n, natural, sinks));
}

/* `own` numbers of each row of a cache, which a stream of bytes has or a tensor. */
static quad_node numbers_of(quad_tape *t, const quad_decode_config *config, int stream, const char *path, int64_t own)
{
    const assay_decode_config *c = &config->decode;
    const int64_t rows = c->pages * c->stride * c->kv_heads;
    quad *values;
    if (config->bytes.stream_count == 0) return quad_input(t, path, rows, own);
    const quad_node numbers = quad_constant(t, rows, own, &values);
    if (values != NULL) quad_cache_numbers(t, &config->bytes.streams[stream], own, values);
    return numbers;
}

void quad_decode(quad_tape *t, const void *self)
{
    const quad_decode_config *config = self;
    const assay_decode_config *c = &config->decode;
    const int64_t b = c->batch, s = c->sequence, n = c->heads, rows = b * s * n, rope = c->width - c->v_dim;
    const bool naive = c->nope > 0, apart = config->split_cache;
    const int64_t width = naive ? c->out_dim : c->v_dim, together = naive ? 1 : n / c->kv_heads;
    const char *path = !c->latent ? "inputs/key_cache" : apart ? "inputs/ckv_cache" : "inputs/kv_cache";
    const quad given = config->query_scale != 0 ? config->query_scale : 1 / sqrtq(c->width);
    cache k = {.config = c, .scale = c->latent ? quad_softmax_scale(&config->mla) : given};
    k.query = quad_input(t, naive ? "inputs/query_nope" : "inputs/query", rows, naive ? c->nope : c->width);
    if (naive) k.query = quad_beside(t, k.query, quad_input(t, "inputs/query_pe", rows, rope));
    k.key = numbers_of(t, config, 0, path, apart ? c->v_dim : c->width);
    if (apart) k.key = quad_beside(t, k.key, numbers_of(t, config, 1, "inputs/kpe_cache", rope));
    if (!c->latent) k.value = numbers_of(t, config, 1, "inputs/value_cache", c->v_dim);
    const quad_node sinks = quad_input_optional(t, "weights/sinks", 1, n);
    if (naive) k.kernel = quad_input(t, "weights/wkv_b/kernel", c->v_dim, n * (c->nope + c->out_dim));
    if (c->topk > 0) k.indices = quad_input_indices(t, "inputs/indices", b * s * c->topk);
    k.lengths = c->topk > 0 ? quad_input_indices_optional(t, "inputs/topk_length", b)
                            : quad_input_indices(t, "inputs/cache_seqlens", b);
    if (c->max_pages > 0) k.table = quad_input_indices(t, "inputs/block_table", b * c->max_pages);
    results *r = quad_keep(t, c->splits + 1, sizeof *r);
    quad_node *out = quad_keep(t, c->splits + 1, sizeof *out), *lse = quad_keep(t, c->splits + 1, sizeof *lse);
    for (int64_t i = 0; t->status == ASSAY_OK && i <= c->splits; i++) r[i] = open_results(t, rows, width);
    for (int64_t list = 0; t->status == ASSAY_OK && list < (c->topk > 0 ? b * s : b); list++) {
        const keys of = keys_of(t, &k, list);
        for (int64_t head = 0; t->status == ASSAY_OK && head < n && of.count > 0; head += together)
            attend_heads(t, &k, &of, head, together, r);
    }
    for (int64_t i = 0; t->status == ASSAY_OK && i <= c->splits; i++)
        out[i] = rows_of(t, &r[i], c, i == 0 ? sinks : 0, i == 0 && c->lse_tokens_first, &lse[i]);
    if (t->status != ASSAY_OK) return;
    if (c->splits > 0) {
        quad_put(t, "checkpoints/partial_out", assay_shape_of(5, c->splits, b, s, n, width),
                 quad_concatenate(t, out + 1, c->splits));
        quad_put(t, "checkpoints/partial_lse", assay_shape_of(4, c->splits, b, n, s),
                 quad_concatenate(t, lse + 1, c->splits));
    }
    quad_put(t, "outputs/attention_out", assay_shape_of(4, b, s, n, width), out[0]);
    quad_put(t, "outputs/lse", assay_shape_of(3, b, c->lse_tokens_first ? s : n, c->lse_tokens_first ? n : s), lse[0]);
}
