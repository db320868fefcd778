/* All query heads of a head of keys, and all tokens of a sequence, are rows of one product with each block of the cache's rows,
 * which are gathered once for them. */
#include "oracle/ops/decode_attention.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/ops/attention_internal.h"
#include "oracle/ops/merge_states.h"

enum {
    ROWS = 128, /* queries at a time */
    KEYS = 256, /* of the cache at a time */
};

/* A second form expands keys and values of every head, where these are no more numbers. */
static const int64_t EXPANDED = INT64_C(1) << 22;

static const double LN_2 = 0x1.62e42fefa39efp-1;

int64_t assay_decode_out_dim(const assay_decode_config *config)
{
    return config->nope > 0 ? config->out_dim : config->v_dim;
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

static int64_t pages_of(const assay_decode_config *c, int64_t keys)
{
    return (keys + c->page - 1) / c->page;
}

/* --- what is refused --- */

static assay_status check_sizes(assay_context *ctx, const assay_decode_config *c)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", c->batch},
                 {"sequence", c->sequence},
                 {"base_num_query_heads", c->heads},
                 {c->latent ? "qk_rope_head_dim" : "head_dim", c->latent ? c->width - c->v_dim : c->width},
                 {c->latent ? "kv_lora_rank" : "head_dim", c->v_dim},
                 {c->max_pages > 0 ? "pagedattn_tokens_per_page" : "cache_length", c->page},
                 {"pagedattn_num_pages", c->pages},
                 {"v_head_dim", assay_decode_out_dim(c)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= 1) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %" PRId64 ", expected 1 or more", sizes[i].name, sizes[i].value);
    }
    if (c->stride < c->page) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "pagedattn_page_stride is %" PRId64 ", expected %" PRId64
                          " (pagedattn_tokens_per_page) or more",
                          c->stride, c->page);
    }
    if (c->nope > 0 && c->splits > 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "num_kv_splits is %" PRId64 ", expected 0: with attn_impl naive no partial results are named",
                          c->splits);
    }
    return ASSAY_OK;
}

assay_status assay_decode_check(assay_context *ctx, const assay_decode_config *c)
{
    const assay_attention_config attention = {
        .heads = c->heads, .kv_heads = c->kv_heads, .window = c->window, .soft_cap = c->soft_cap};
    const int64_t keys = c->max_pages > 0 ? c->max_pages : 1;
    int64_t count = 0;
    MUST(check_sizes(ctx, c));
    MUST(assay_attention_check(ctx, &attention));
    if (!(c->scale > 0) || !isfinite(c->scale)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "query_pre_attn_scalar is %g, expected a number above 0", c->scale);
    }
    MUST(assay_checked_count(ctx, "cache", 4, (int64_t[]){c->pages, c->stride, c->kv_heads, c->width}, &count));
    MUST(assay_checked_count(ctx, "scores", 3, (int64_t[]){ROWS, c->page, keys}, &count));
    return assay_checked_count(ctx, "checkpoints/partial_out", 5,
                               (int64_t[]){c->splits > 0 ? c->splits : 1, c->batch, c->sequence, c->heads, c->v_dim},
                               &count);
}

assay_status assay_decode_check_table(assay_context *ctx, const assay_decode_config *c, const int32_t *block_table,
                                      const int32_t *cache_seqlens)
{
    const int64_t most = c->max_pages > 0 ? c->max_pages * c->page : c->page;
    for (int64_t b = 0; b < c->batch; b++) {
        const int32_t keys = cache_seqlens[b];
        if (keys < 0 || keys > most) {
            return assay_fail(
                ctx, ASSAY_BAD_INPUT,
                "inputs/cache_seqlens[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (%s)", b, keys, most,
                c->max_pages > 0 ? "pagedattn_max_pages_per_group pages of pagedattn_tokens_per_page" : "cache_length");
        }
        for (int64_t m = 0; m < pages_of(c, keys) && c->max_pages > 0; m++) {
            const int32_t page = block_table[b * c->max_pages + m];
            if (page >= 0 && page < c->pages) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "inputs/block_table[%" PRId64 ",%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64
                              " (pagedattn_num_pages): sequence %" PRId64 " has %" PRId32 " keys",
                              b, m, page, c->pages - 1, b, keys);
        }
    }
    return ASSAY_OK;
}

/* --- what mutants change --- */

/* What a mutant takes for what, and the word of the change. */
#define CHANGE_TABLE(X)                                                                                                \
    X(NEXT_KEY, "next key", c->sequence > 1)                                                                           \
    X(FIRST_KEYS, "first keys", c->sequence > 1) /* query i sees the keys up to i */                                   \
    X(ALL_KEYS, "all keys", c->sequence > 1)                                                                           \
    X(HEADS_MODULO, "heads modulo", c->kv_heads > 1 && c->heads > c->kv_heads)                                         \
    X(NEXT_LENGTH, "next length", c->batch > 1)                                                                        \
    X(PARTIAL_PAGE, "partial page", c->max_pages > 0) /* is left out */                                                \
    X(WHOLE_PAGE, "whole page", c->max_pages > 0)                                                                      \
    X(NEXT_PAGE, "next page", c->max_pages > 0) /* is read, too, where the last one is full */                         \
    X(WHOLE_TABLE, "whole table", c->max_pages > 0)                                                                    \
    X(FIRST_TABLE, "first table", c->max_pages > 0 && c->batch > 1)                                                    \
    X(TABLE_TRANSPOSED, "table transposed", c->max_pages > 1 && c->batch > 1)                                          \
    X(NO_TABLE, "no table", c->max_pages > 0)                                                                          \
    X(NO_STRIDE, "no stride", c->stride > c->page)                                                                     \
    X(OTHER_LAYOUT, "other layout", c->kv_heads > 1 && c->stride > 1)                                                  \
    X(LATENT_SCALE, "latent scale", c->latent)                                                                         \
    X(LAST_NUMBERS, "last numbers", c->latent) /* of a key for its value */                                            \
    X(LARGEST, "largest of a split", c->splits > 0)                                                                    \
    X(SPLIT_LOST, "last split", c->splits > 1)                                                                         \
    X(SPLIT_NAN, "empty splits", c->splits > 0)                                                                        \
    X(SPLIT_SINKS, "sinks of splits", c->splits > 1)

typedef enum decode_change {
    NOTHING,
#define X(name, word, applies) name,
    CHANGE_TABLE(X)
#undef X
} decode_change;

static decode_change change_of(const assay_context *ctx, const assay_decode_config *c)
{
#define X(name, word, applies)                                                                                         \
    if ((applies) && assay_step_is_changed(ctx, word, NULL)) return name;
    CHANGE_TABLE(X)
#undef X
    return NOTHING;
}

/* --- attention over the cache --- */

/* The queries of a head of keys, of one sequence: token by token, and within a token head by head. */
typedef struct decode_rows {
    const assay_decode_config *config;
    const assay_decode_inputs *in;
    int64_t sequence, kv;
    int64_t first, count; /* of these those that are worked at */
    int64_t begin, end;   /* of the keys that any of them sees */
    decode_change change;
    double *query;    /* [count,W] */
    double *keys;     /* [KEYS,W or V]: rows of the cache, one block after the other */
    double *p;        /* [count,end-begin] */
    double *out;      /* [count,V] */
    double *divisors; /* [splits or 1,ROWS] */
} decode_rows;

static int64_t group_of(const assay_decode_config *c)
{
    return c->heads / c->kv_heads;
}

static int64_t token_of(const decode_rows *r, int64_t i)
{
    return (r->first + i) / group_of(r->config);
}

/* Of [B,S,N]. */
static int64_t row_of(const decode_rows *r, int64_t i)
{
    const assay_decode_config *c = r->config;
    const int64_t group = group_of(c), member = (r->first + i) % group;
    const int64_t head = r->change == HEADS_MODULO ? member * c->kv_heads + r->kv : r->kv * group + member;
    return (r->sequence * c->sequence + token_of(r, i)) * c->heads + head;
}

/* Of [B,N,S]. */
static int64_t place_of_lse(const assay_decode_config *c, int64_t row)
{
    const int64_t token = row / c->heads;
    return (token / c->sequence * c->heads + row % c->heads) * c->sequence + token % c->sequence;
}

/* How many keys the sequence has, and where each of them is. */
static int64_t length_of(const decode_rows *r)
{
    const assay_decode_config *c = r->config;
    const int64_t keys = r->in->cache_seqlens[r->sequence], tail = keys % c->page;
    if (r->change == NEXT_LENGTH) return r->in->cache_seqlens[(r->sequence + 1) % c->batch];
    if (r->change == PARTIAL_PAGE) return keys - tail;
    if (r->change == WHOLE_PAGE) return tail > 0 ? keys - tail + c->page : keys;
    if (r->change == NEXT_PAGE) return tail == 0 && keys < c->max_pages * c->page ? keys + c->page : keys;
    return r->change == WHOLE_TABLE ? c->max_pages * c->page : keys;
}

static int64_t row_of_key(const decode_rows *r, int64_t key)
{
    const assay_decode_config *c = r->config;
    const int64_t m = key / c->page, entry = r->sequence * c->max_pages + m;
    assay_decode_config as = *c;
    if (r->change == NOTHING) return assay_decode_row(c, r->in->block_table, r->sequence, r->kv, key);
    if (r->change == NO_STRIDE) as.stride = c->page;
    if (r->change == OTHER_LAYOUT) as.heads_first = !c->heads_first;
    const int64_t read = r->change == FIRST_TABLE        ? m
                         : r->change == TABLE_TRANSPOSED ? m * c->batch + r->sequence
                                                         : entry;
    const int64_t page = c->max_pages == 0       ? r->sequence
                         : r->change == NO_TABLE ? entry % c->pages
                                                 : r->in->block_table[read];
    return row_in_page(&as, page >= 0 && page < c->pages ? page : 0, r->kv, key % c->page);
}

static int64_t keys_end(const decode_rows *r, int64_t token)
{
    const int64_t keys = length_of(r), tokens = r->config->sequence;
    int64_t end = keys - tokens + token + 1;
    if (r->change == NEXT_KEY) end++;
    if (r->change == FIRST_KEYS) end = token + 1;
    if (end < 0) return 0;
    return end < keys && r->change != ALL_KEYS ? end : keys;
}

static int64_t keys_begin(const decode_rows *r, int64_t token)
{
    const int64_t end = keys_end(r, token), window = r->config->window;
    return window > 0 && end > window ? end - window : 0;
}

/* A range of keys. */
typedef struct decode_keys {
    int64_t begin, end;
} decode_keys;

static decode_keys overlap(decode_keys a, decode_keys b)
{
    decode_keys both = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
    if (both.end < both.begin) both.end = both.begin;
    return both;
}

/* Of a split, or all of them. */
static decode_keys keys_of_part(const decode_rows *r, int64_t part)
{
    const assay_decode_config *c = r->config;
    const int64_t keys = length_of(r), unit = c->max_pages > 0 ? c->page : 1;
    const int64_t units = (keys + unit - 1) / unit;
    if (c->splits == 0) return (decode_keys){0, keys};
    const int64_t each = (units + c->splits - 1) / c->splits * unit;
    return overlap((decode_keys){part * each, (part + 1) * each}, (decode_keys){0, keys});
}

static decode_keys keys_seen(const decode_rows *r, int64_t i)
{
    return (decode_keys){keys_begin(r, token_of(r, i)), keys_end(r, token_of(r, i))};
}

int64_t assay_decode_keys_of_split(const assay_decode_config *config, const int32_t *cache_seqlens, int64_t split,
                                   int64_t sequence, int64_t token)
{
    const assay_decode_inputs in = {.cache_seqlens = cache_seqlens};
    const decode_rows r = {.config = config, .in = &in, .sequence = sequence};
    const decode_keys keys =
        overlap((decode_keys){keys_begin(&r, token), keys_end(&r, token)}, keys_of_part(&r, split));
    return keys.end - keys.begin;
}

static void gather_keys(const decode_rows *r, const double *cache, int64_t width, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memcpy(r->keys + i * width, cache + row_of_key(r, first + i) * width, (size_t)width * sizeof *cache);
    }
}

/* Whether queries are scaled, and stored, before the product; elsewhere scores are. In the emulated runs rows take turns. */
static bool scales_query(const assay_context *ctx, const decode_rows *r, int64_t i)
{
    const assay_decode_config *c = r->config;
    return assay_rounds_at_random(ctx) && assay_drawn_at(ctx, c->batch * c->sequence * c->heads + row_of(r, i), 2) == 1;
}

static double scale_of(const decode_rows *r)
{
    return r->change == LATENT_SCALE ? 1 / sqrt((double)r->config->width) : r->config->scale;
}

static void gather_queries(const assay_context *ctx, const decode_rows *r, const double *query)
{
    const int64_t width = r->config->width;
    for (int64_t i = 0; i < r->count; i++) {
        double *to = r->query + i * width;
        memcpy(to, query + row_of(r, i) * width, (size_t)width * sizeof *to);
        if (!scales_query(ctx, r, i)) continue;
        for (int64_t d = 0; d < width; d++) to[d] *= scale_of(r);
        assay_round(ctx, ASSAY_ROUND_STORAGE, width, to);
    }
}

static assay_status make_scores(assay_context *ctx, const decode_rows *r)
{
    const int64_t width = r->config->width, ld = r->end - r->begin;
    for (int64_t first = r->begin; first < r->end; first += KEYS) {
        const int64_t count = r->end - first < KEYS ? r->end - first : KEYS;
        gather_keys(r, r->in->key_cache, width, first, count);
        MUST(attention_scores(ctx, r->p + first - r->begin, ld, r->query, r->count, r->keys, count, width));
    }
    return ASSAY_OK;
}

/* out = the probabilities of these keys times their values. */
static assay_status weigh_values(assay_context *ctx, const decode_rows *r, decode_keys keys)
{
    const assay_decode_config *c = r->config;
    const int64_t width = c->latent ? c->width : c->v_dim;
    const double *cache = c->latent ? r->in->key_cache : r->in->value_cache;
    memset(r->out, 0, (size_t)(r->count * c->v_dim) * sizeof *r->out);
    for (int64_t first = keys.begin; first < keys.end; first += KEYS) {
        const int64_t count = keys.end - first < KEYS ? keys.end - first : KEYS;
        assay_matmul_args product =
            assay_product_ab(r->out, r->p + first - r->begin,
                             r->keys + (r->change == LAST_NUMBERS ? width - c->v_dim : 0), r->count, c->v_dim, count);
        gather_keys(r, cache, width, first, count);
        product.lda = r->end - r->begin;
        product.ldb = width;
        product.accumulate = first > keys.begin;
        MUST(assay_matmul(ctx, &product));
    }
    return ASSAY_OK;
}

static attention_softmax softmax_of(const assay_context *ctx, const decode_rows *r, int64_t i)
{
    const int64_t row = row_of(r, i);
    const bool sink = r->in->sinks != NULL && r->config->splits == 0;
    attention_softmax how = attention_softmax_of(ctx, row, sink ? &r->in->sinks[row % r->config->heads] : NULL);
    if (r->config->splits > 0) how.parts = 1;
    return how;
}

static double stored_lse(const assay_context *ctx, const assay_decode_config *c, double natural)
{
    if (!c->base_2) return natural;
    natural /= LN_2;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &natural);
    return natural;
}

/* Scores of a row become probabilities, in each part by themselves. */
static void soften_row(const assay_context *ctx, const decode_rows *r, int64_t i, double *lse)
{
    const assay_decode_config *c = r->config;
    const decode_keys seen = keys_seen(r, i);
    const attention_softmax how = softmax_of(ctx, r, i);
    const int64_t row = row_of(r, i), rows = c->batch * c->sequence * c->heads;
    const int64_t parts = c->splits > 0 ? c->splits : 1;
    const double scale = scales_query(ctx, r, i) ? 1 : scale_of(r);
    double *p = r->p + i * (r->end - r->begin) - r->begin; /* by key */
    for (int64_t j = r->begin; j < seen.begin; j++) p[j] = 0;
    for (int64_t j = seen.end; j < r->end; j++) p[j] = 0;
    for (int64_t j = seen.begin; j < seen.end && scale != 1; j++) p[j] *= scale;
    attention_cap(ctx, c->soft_cap, p + seen.begin, NULL, seen.end - seen.begin);
    for (int64_t part = 0; part < parts; part++) {
        const decode_keys keys = overlap(seen, keys_of_part(r, part));
        double *divisor = &r->divisors[part * ROWS + i], natural = -INFINITY;
        for (int64_t j = keys.begin; j < keys.end && r->change == LARGEST; j++) natural = fmax(natural, p[j]);
        lse[part * rows + place_of_lse(c, row)] = c->empty_row;
        if (keys.begin == keys.end) continue;
        const double made = attention_softmax_row(ctx, &how, p + keys.begin, keys.end - keys.begin, divisor);
        lse[part * rows + place_of_lse(c, row)] = stored_lse(ctx, c, r->change == LARGEST ? natural : made);
    }
}

static void finish_row(const assay_context *ctx, const decode_rows *r, int64_t i, int64_t part, double *out, double lse)
{
    const assay_decode_config *c = r->config;
    const attention_softmax how = softmax_of(ctx, r, i);
    const decode_keys keys = overlap(keys_seen(r, i), keys_of_part(r, part));
    memcpy(out, r->out + i * c->v_dim, (size_t)c->v_dim * sizeof *out);
    if (keys.begin == keys.end) return;
    attention_divide_row(out, c->v_dim, r->divisors[part * ROWS + i]);
    attention_gate_row(ctx, &how, out, c->v_dim, c->base_2 ? lse * LN_2 : lse);
    if (c->splits > 0 && how.form == ATTENTION_DIVIDED_FIRST) assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, out);
}

static assay_status attend_rows(assay_context *ctx, const decode_rows *r, const double *query, double *out, double *lse)
{
    const assay_decode_config *c = r->config;
    const int64_t parts = c->splits > 0 ? c->splits : 1, rows = c->batch * c->sequence * c->heads;
    gather_queries(ctx, r, query);
    MUST(make_scores(ctx, r));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < r->count; i++) soften_row(ctx, r, i, lse);
    for (int64_t part = 0; part < parts; part++) {
        MUST(weigh_values(ctx, r, overlap((decode_keys){r->begin, r->end}, keys_of_part(r, part))));
        for (int64_t i = 0; i < r->count; i++) {
            const int64_t row = part * rows + row_of(r, i);
            finish_row(ctx, r, i, part, out + row * c->v_dim, lse[part * rows + place_of_lse(c, row_of(r, i))]);
        }
    }
    return ASSAY_OK;
}

/* out [splits or 1,B,S,N,V], lse [splits or 1,B,N,S]. */
static assay_status attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                           const double *query, double *out, double *lse)
{
    const int64_t group = group_of(c), rows = c->sequence * group, block = rows < ROWS ? rows : ROWS;
    const int64_t parts = c->splits > 0 ? c->splits : 1, widest = c->width > c->v_dim ? c->width : c->v_dim;
    decode_rows each = {.config = c, .in = in, .change = change_of(ctx, c)};
    int64_t longest = 1;
    OWNED double *scratch = NULL;
    OWNED double *p = NULL;
    for (; each.sequence < c->batch; each.sequence++) longest = length_of(&each) > longest ? length_of(&each) : longest;
    MUST(assay_alloc_f64(ctx, "scores", block * longest, &p));
    MUST(assay_alloc_f64(ctx, "scratch of attention", block * (c->width + c->v_dim) + KEYS * widest + parts * ROWS,
                         &scratch));
    for (int64_t unit = 0; unit < c->batch * c->kv_heads; unit++) {
        for (int64_t first = 0; first < rows; first += block) {
            decode_rows r = {.config = c,
                             .in = in,
                             .sequence = unit / c->kv_heads,
                             .kv = unit % c->kv_heads,
                             .first = first,
                             .count = rows - first < block ? rows - first : block,
                             .change = each.change,
                             .query = scratch,
                             .keys = scratch + block * c->width,
                             .p = p};
            r.out = r.keys + KEYS * widest;
            r.divisors = r.out + block * c->v_dim;
            r.begin = keys_begin(&r, token_of(&r, 0));
            r.end = keys_end(&r, token_of(&r, r.count - 1));
            MUST(attend_rows(ctx, &r, query, out, lse));
        }
    }
    return ASSAY_OK;
}

/* Partial results become the whole, lse [B,N,S]. */
static assay_status merge_splits(assay_context *ctx, const assay_decode_config *c, const double *sinks,
                                 const double *partial_out, const double *partial_lse, double *out, double *lse)
{
    const assay_merge_states_config config = {.states = c->splits,
                                              .batch = c->batch,
                                              .sequence = c->sequence,
                                              .heads = c->heads,
                                              .v_dim = c->v_dim,
                                              .base_2 = c->base_2,
                                              .empty_row = c->empty_row};
    const assay_merge_states_inputs in = {partial_out, partial_lse, sinks};
    const assay_merge_states_call merge = {.config = &config, .in = &in, .attention_out = out, .lse = lse};
    return assay_merge_states_forward(ctx, &merge);
}

/* A kernel may have splits of its own, whose results it stores, where none are named: some of the emulated runs do. */
static assay_status attend_whole(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                 const double *query, double *out, double *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads;
    assay_decode_config split = *c;
    OWNED double *partial_out = NULL;
    OWNED double *partial_lse = NULL;
    if (!assay_takes_third_form_at(ctx, 0)) return attend(ctx, c, in, query, out, lse);
    split.splits = 2 + assay_drawn_at(ctx, 0, 2);
    MUST(assay_alloc_f64(ctx, "partial results", split.splits * rows * c->v_dim, &partial_out));
    MUST(assay_alloc_f64(ctx, "partial log-sum-exps", split.splits * rows, &partial_lse));
    MUST(attend(ctx, &split, in, query, partial_out, partial_lse));
    return merge_splits(ctx, &split, in->sinks, partial_out, partial_lse, out, lse);
}

/* --- from wkv_b on --- */

/* query [B,S,N,W] of query_nope and query_pe. */
static assay_status absorb_queries(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   double *query)
{
    const int64_t tokens = c->batch * c->sequence, rope = c->width - c->v_dim, wide = c->nope + c->out_dim;
    for (int64_t head = 0; head < c->heads; head++) {
        assay_matmul_args product = assay_product_abt(query + head * c->width, in->query + head * c->nope,
                                                      in->kernel + head * wide, tokens, c->v_dim, c->nope);
        product.lda = c->heads * c->nope;
        product.ldb = c->heads * wide;
        product.ldc = c->heads * c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
    }
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        double *to = query + row * c->width;
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, to);
        memcpy(to + c->v_dim, in->query_pe + row * rope, (size_t)rope * sizeof *to);
    }
    return ASSAY_OK;
}

static assay_status release_outputs(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    double *latent, double *attention_out)
{
    const int64_t tokens = c->batch * c->sequence, wide = c->nope + c->out_dim;
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * c->heads * c->v_dim, latent);
    for (int64_t head = 0; head < c->heads; head++) {
        assay_matmul_args product = assay_product_ab(attention_out + head * c->out_dim, latent + head * c->v_dim,
                                                     in->kernel + head * wide + c->nope, tokens, c->out_dim, c->v_dim);
        product.lda = c->heads * c->v_dim;
        product.ldb = c->heads * wide;
        product.ldc = c->heads * c->out_dim;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
    }
    return ASSAY_OK;
}

static assay_status attend_absorbed(assay_context *ctx, const assay_decode_call *call, double *lse)
{
    const assay_decode_config *c = call->config;
    const int64_t rows = c->batch * c->sequence * c->heads;
    OWNED double *query = NULL;
    OWNED double *latent = NULL;
    MUST(assay_alloc_f64(ctx, "absorbed query", rows * c->width, &query));
    MUST(assay_alloc_f64(ctx, "latent output", rows * c->v_dim, &latent));
    MUST(absorb_queries(ctx, c, call->in, query));
    MUST(attend_whole(ctx, c, call->in, query, latent, lse));
    return release_outputs(ctx, c, call->in, latent, call->attention_out);
}

/* Keys and values of every head, [B,L,N,Dn+Dr] and [B,L,N,Dv], of the cache of each sequence. */
static assay_status expand_keys(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                int64_t longest, double *key, double *value)
{
    const int64_t rope = c->width - c->v_dim, wide = c->nope + c->out_dim, deep = c->nope + rope;
    OWNED double *rows = NULL;
    OWNED double *made = NULL;
    MUST(assay_alloc_f64(ctx, "keys of a sequence", longest * c->width, &rows));
    MUST(assay_alloc_f64(ctx, "expanded keys", longest * c->heads * wide, &made));
    for (int64_t b = 0; b < c->batch; b++) {
        const decode_rows r = {.config = c, .in = in, .sequence = b, .keys = rows};
        const int64_t keys = in->cache_seqlens[b];
        assay_matmul_args product = assay_product_ab(made, rows, in->kernel, keys, c->heads * wide, c->v_dim);
        gather_keys(&r, in->key_cache, c->width, 0, keys);
        product.lda = c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
        assay_round(ctx, ASSAY_ROUND_STORAGE, keys * c->heads * wide, made);
        for (int64_t i = 0; i < keys * c->heads; i++) {
            double *to = key + (b * longest * c->heads + i) * deep;
            memcpy(to, made + i * wide, (size_t)c->nope * sizeof *to);
            memcpy(to + c->nope, rows + i / c->heads * c->width + c->v_dim, (size_t)rope * sizeof *to);
            memcpy(value + (b * longest * c->heads + i) * c->out_dim, made + i * wide + c->nope,
                   (size_t)c->out_dim * sizeof *to);
        }
    }
    return ASSAY_OK;
}

/* As a kernel does it that has a head of keys and values for every query head. */
static assay_status attend_expanded(assay_context *ctx, const assay_decode_call *call, int64_t longest, double *lse)
{
    const assay_decode_config *c = call->config;
    const int64_t rope = c->width - c->v_dim, deep = c->nope + rope, rows = c->batch * c->sequence * c->heads;
    const int64_t keys = c->batch * longest * c->heads;
    assay_decode_config heads = *c;
    assay_decode_inputs in = *call->in;
    OWNED double *query = NULL;
    OWNED double *key = NULL;
    OWNED double *value = NULL;
    heads.kv_heads = c->heads;
    heads.width = deep;
    heads.v_dim = c->out_dim;
    heads.pages = c->batch;
    heads.page = heads.stride = longest;
    heads.max_pages = heads.nope = 0;
    heads.latent = heads.heads_first = false;
    MUST(assay_alloc_f64(ctx, "query", rows * deep, &query));
    MUST(assay_alloc_f64(ctx, "keys of every head", keys * deep, &key));
    MUST(assay_alloc_f64(ctx, "values of every head", keys * c->out_dim, &value));
    MUST(expand_keys(ctx, c, call->in, longest, key, value));
    for (int64_t row = 0; row < rows; row++) {
        memcpy(query + row * deep, in.query + row * c->nope, (size_t)c->nope * sizeof *query);
        memcpy(query + row * deep + c->nope, in.query_pe + row * rope, (size_t)rope * sizeof *query);
    }
    in.key_cache = key;
    in.value_cache = value;
    return attend_whole(ctx, &heads, &in, query, call->attention_out, lse);
}

static assay_status attend_from_kernel(assay_context *ctx, const assay_decode_call *call, double *lse)
{
    const assay_decode_config *c = call->config;
    int64_t longest = 1;
    for (int64_t b = 0; b < c->batch; b++)
        longest = call->in->cache_seqlens[b] > longest ? call->in->cache_seqlens[b] : longest;
    const int64_t numbers = c->batch * longest * c->heads * (c->nope + c->width - c->v_dim + c->out_dim);
    return assay_takes_second_form(ctx) && numbers <= EXPANDED ? attend_expanded(ctx, call, longest, lse)
                                                               : attend_absorbed(ctx, call, lse);
}

/* --- the whole --- */

/* lse is made as [B,N,S]. */
static void place_lse(const assay_decode_config *c, double *to, const double *lse)
{
    if (to == NULL) return;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++)
        to[c->lse_tokens_first ? row : place_of_lse(c, row)] = lse[place_of_lse(c, row)];
}

/* Of rows that see no key, in a mutant. */
static void fill_blind(const assay_context *ctx, const assay_decode_config *c, double *out, const double *lse)
{
    const int64_t wide = assay_decode_out_dim(c);
    bool blind = false;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++) blind |= isinf(lse[row]);
    if (!blind || !assay_step_is_changed(ctx, "blind rows", NULL)) return;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++) {
        for (int64_t d = 0; d < wide && isinf(lse[place_of_lse(c, row)]); d++) out[row * wide + d] = NAN;
    }
}

/* Of rows with a split that sees no key, in a mutant whose merge reads what nobody has written. */
static void fill_beside_empty(const assay_decode_config *c, const assay_decode_call *call)
{
    const int64_t rows = c->batch * c->sequence * c->heads;
    for (int64_t i = 0; i < c->splits * rows; i++) {
        const bool empty = isinf(call->partial_lse[i / rows * rows + place_of_lse(c, i % rows)]);
        for (int64_t d = 0; d < c->v_dim && empty; d++) call->attention_out[i % rows * c->v_dim + d] = NAN;
    }
}

assay_status assay_decode_attend(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *c = call->config;
    const assay_decode_inputs *in = call->in;
    OWNED double *lse = NULL;
    MUST(assay_decode_check_table(ctx, c, in->block_table, in->cache_seqlens));
    if (c->splits > 0) return attend(ctx, c, in, in->query, call->partial_out, call->partial_lse);
    MUST(assay_alloc_f64(ctx, "lse", c->batch * c->sequence * c->heads, &lse));
    MUST(c->nope > 0 ? attend_from_kernel(ctx, call, lse)
                     : attend_whole(ctx, c, in, in->query, call->attention_out, lse));
    fill_blind(ctx, c, call->attention_out, lse);
    place_lse(c, call->lse, lse);
    return ASSAY_OK;
}

assay_status assay_decode_merge(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *c = call->config;
    const decode_change change = change_of(ctx, c);
    const double *given = call->in->sinks;
    assay_decode_config as = *c;
    OWNED double *lse = NULL;
    OWNED double *sinks = NULL;
    if (c->splits == 0) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "lse", c->batch * c->sequence * c->heads, &lse));
    MUST(assay_alloc_f64(ctx, "sinks", c->heads, &sinks));
    for (int64_t head = 0; head < c->heads && change == SPLIT_SINKS && given != NULL; head++)
        sinks[head] = given[head] + assay_log((double)c->splits);
    if (change == SPLIT_SINKS && given != NULL) given = sinks;
    if (change == SPLIT_LOST) as.splits--;
    MUST(merge_splits(ctx, &as, given, call->partial_out, call->partial_lse, call->attention_out, lse));
    if (change == SPLIT_NAN) fill_beside_empty(c, call);
    fill_blind(ctx, c, call->attention_out, lse);
    place_lse(c, call->lse, lse);
    return ASSAY_OK;
}

double assay_decode_flops(const assay_decode_config *c, int64_t keys)
{
    const double rows = (double)c->batch * (double)c->sequence * (double)c->heads;
    const double kernel = (double)c->v_dim * (double)(c->nope + c->out_dim);
    return 2 * rows * ((double)keys * (double)(c->width + c->v_dim) + kernel);
}
