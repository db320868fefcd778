/* All query heads of a head of keys, and all tokens of a sequence, are rows of one product with each block of the cache's rows,
 * which are gathered once for them. */
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/ops/attention_internal.h"
#include "oracle/ops/decode_internal.h"

enum { KEYS = 256 }; /* of the cache at a time */

static const double LN_2 = 0x1.62e42fefa39efp-1;

/* The queries of a head of keys, of one sequence: token by token, and within a token head by head. */
typedef struct decode_rows {
    decode_cached cached;
    int64_t first, count; /* of these those that are worked at */
    decode_keys keys;     /* that any of them sees */
    double *query;        /* [count,W] */
    double *gathered;     /* [KEYS,W or V]: rows of the cache, one block after the other */
    double *p;            /* [count,keys] */
    double *out;          /* [count,V] */
    double *divisors;     /* [parts or 1,DECODE_ROWS] */
} decode_rows;

static const assay_decode_config *config_of(const decode_rows *r)
{
    return r->cached.config;
}

static int64_t group_of(const assay_decode_config *c)
{
    return c->heads / c->kv_heads;
}

static int64_t token_of(const decode_rows *r, int64_t i)
{
    return (r->first + i) / group_of(config_of(r));
}

/* Of [B,S,N]. */
static int64_t row_of(const decode_rows *r, int64_t i)
{
    const assay_decode_config *c = config_of(r);
    const int64_t group = group_of(c), member = (r->first + i) % group;
    const int64_t head =
        r->cached.change == HEADS_MODULO ? member * c->kv_heads + r->cached.kv : r->cached.kv * group + member;
    return (r->cached.sequence * c->sequence + token_of(r, i)) * c->heads + head;
}

/* Whether queries are scaled, and stored, before the product; elsewhere scores are. In the emulated runs rows take turns. */
static bool scales_query(const assay_context *ctx, const decode_rows *r, int64_t i)
{
    const assay_decode_config *c = config_of(r);
    return assay_turn_at(ctx, c->batch * c->sequence * c->heads + row_of(r, i), 2) == 1;
}

static double scale_of(const decode_rows *r)
{
    return r->cached.change == LATENT_SCALE ? 1 / sqrt((double)config_of(r)->width) : config_of(r)->scale;
}

static void gather_queries(const assay_context *ctx, const decode_rows *r, const double *query)
{
    const int64_t width = config_of(r)->width;
    for (int64_t i = 0; i < r->count; i++) {
        double *to = r->query + i * width;
        memcpy(to, query + row_of(r, i) * width, (size_t)width * sizeof *to);
        if (!scales_query(ctx, r, i)) continue;
        for (int64_t d = 0; d < width; d++) to[d] *= scale_of(r);
        assay_round(ctx, ASSAY_ROUND_STORAGE, width, to);
    }
}

/* The next keys of a range, gathered. */
static decode_keys gather_next(const decode_rows *r, const double *cache, int64_t width, decode_keys keys,
                               int64_t first)
{
    const decode_keys next = decode_overlap((decode_keys){first, first + KEYS}, keys);
    decode_gather(&r->cached, cache, width, next, r->gathered);
    return next;
}

static assay_status make_scores(assay_context *ctx, const decode_rows *r)
{
    const int64_t width = config_of(r)->width, ld = r->keys.end - r->keys.begin;
    for (int64_t first = r->keys.begin; first < r->keys.end; first += KEYS) {
        const decode_keys next = gather_next(r, r->cached.in->key_cache, width, r->keys, first);
        MUST(attention_scores(ctx, r->p + first - r->keys.begin, ld, r->query, r->count, r->gathered, next.end - first,
                              width));
    }
    return ASSAY_OK;
}

/* out = the probabilities of these keys times their values. */
static assay_status weigh_values(assay_context *ctx, const decode_rows *r, decode_keys keys)
{
    const assay_decode_config *c = config_of(r);
    const int64_t width = c->latent ? c->width : c->v_dim;
    const double *cache = c->latent ? r->cached.in->key_cache : r->cached.in->value_cache;
    memset(r->out, 0, (size_t)(r->count * c->v_dim) * sizeof *r->out);
    for (int64_t first = keys.begin; first < keys.end; first += KEYS) {
        const decode_keys next = gather_next(r, cache, width, keys, first);
        assay_matmul_args product =
            assay_product_ab(r->out, r->p + first - r->keys.begin,
                             r->gathered + (r->cached.change == LAST_NUMBERS ? width - c->v_dim : 0), r->count,
                             c->v_dim, next.end - first);
        product.lda = r->keys.end - r->keys.begin;
        product.ldb = width;
        product.accumulate = first > keys.begin;
        MUST(assay_matmul(ctx, &product));
    }
    return ASSAY_OK;
}

static attention_softmax softmax_of(const assay_context *ctx, const decode_rows *r, int64_t i)
{
    const int64_t row = row_of(r, i);
    const bool sink = r->cached.in->sinks != NULL && config_of(r)->parts == 0;
    attention_softmax how =
        attention_softmax_of(ctx, row, sink ? &r->cached.in->sinks[row % config_of(r)->heads] : NULL);
    if (config_of(r)->parts > 0) how.splits = 1;
    return how;
}

static double stored_lse(const assay_context *ctx, const assay_decode_config *c, double natural)
{
    if (!c->base_2) return natural;
    natural /= LN_2;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &natural);
    return natural;
}

/* What a mutant takes for the log-sum-exp of scores. */
static double other_lse(decode_change change, const double *p, decode_keys keys)
{
    const int64_t begin = change == LSE_OF_PIECE ? keys.begin + (keys.end - keys.begin) / 2 : keys.begin;
    double largest = -INFINITY, sum = 0;
    for (int64_t j = begin; j < keys.end; j++) largest = fmax(largest, p[j]);
    for (int64_t j = begin; j < keys.end; j++) sum += assay_exp(p[j] - largest);
    return change == LARGEST ? largest : largest + assay_log(sum);
}

/* Scores of keys that a softmax runs over, though they are masked. */
static void add_masked(const decode_cached *d, decode_keys weighed, decode_keys seen, double *p)
{
    const double score = d->change == CAPPED_MASK ? -d->config->soft_cap : -INFINITY;
    for (int64_t j = weighed.begin; j < weighed.end && j < decode_length(d); j++)
        if (j < seen.begin || j >= seen.end) p[j] = score;
}

/* Scores of a row become probabilities, in each part by themselves. */
static void soften_row(const assay_context *ctx, const decode_rows *r, int64_t i, double *lse)
{
    const assay_decode_config *c = config_of(r);
    const decode_cached *d = &r->cached;
    const decode_keys seen = decode_seen(d, token_of(r, i));
    const attention_softmax how = softmax_of(ctx, r, i);
    const int64_t row = row_of(r, i), rows = c->batch * c->sequence * c->heads;
    const double scale = scales_query(ctx, r, i) ? 1 : scale_of(r);
    double *p = r->p + i * (r->keys.end - r->keys.begin) - r->keys.begin; /* by key */
    for (int64_t j = r->keys.begin; j < seen.begin; j++) p[j] = 0;
    for (int64_t j = seen.end; j < r->keys.end; j++) p[j] = 0;
    for (int64_t j = seen.begin; j < seen.end && scale != 1; j++) p[j] *= scale;
    attention_cap(ctx, c->soft_cap, p + seen.begin, NULL, seen.end - seen.begin);
    if (d->change != NOTHING) add_masked(d, decode_weighed(d, token_of(r, i)), seen, p);
    for (int64_t part = 0; part < decode_splits(c); part++) {
        const decode_keys keys = decode_seen_of_split(d, token_of(r, i), part);
        const int64_t end = decode_overlap(seen, decode_split(d, part)).end;
        double *to = &lse[part * rows + decode_place_of_lse(c, row)];
        const bool other = d->change == LARGEST || d->change == LSE_OF_PIECE;
        const double natural = other && keys.begin < keys.end ? other_lse(d->change, p, keys) : 0;
        *to = d->change == EMPTY_COUNTED ? 0 : c->empty_row;
        for (int64_t j = keys.end; j < end; j++) p[j] = 0;
        if (keys.begin == keys.end) continue;
        const double made = attention_softmax_row(ctx, &how, p + keys.begin, keys.end - keys.begin,
                                                  &r->divisors[part * DECODE_ROWS + i]);
        *to = stored_lse(ctx, c, other ? natural : made);
    }
}

static void finish_row(const assay_context *ctx, const decode_rows *r, int64_t i, int64_t part, double *out, double lse)
{
    const assay_decode_config *c = config_of(r);
    const attention_softmax how = softmax_of(ctx, r, i);
    const decode_keys keys = decode_seen_of_split(&r->cached, token_of(r, i), part);
    memcpy(out, r->out + i * c->v_dim, (size_t)c->v_dim * sizeof *out);
    if (keys.begin == keys.end) return;
    attention_divide_row(out, c->v_dim, r->divisors[part * DECODE_ROWS + i]);
    attention_gate_row(ctx, &how, out, c->v_dim, c->base_2 ? lse * LN_2 : lse);
    if (c->parts > 0 && how.form == ATTENTION_DIVIDED_FIRST) assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, out);
}

static assay_status attend_rows(assay_context *ctx, const decode_rows *r, const double *query, double *out, double *lse)
{
    const assay_decode_config *c = config_of(r);
    const int64_t parts = decode_splits(c), rows = c->batch * c->sequence * c->heads;
    gather_queries(ctx, r, query);
    MUST(make_scores(ctx, r));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < r->count; i++) soften_row(ctx, r, i, lse);
    for (int64_t part = 0; part < parts; part++) {
        MUST(weigh_values(ctx, r, decode_overlap(r->keys, decode_split(&r->cached, part))));
        for (int64_t i = 0; i < r->count; i++) {
            const int64_t row = part * rows + row_of(r, i);
            finish_row(ctx, r, i, part, out + row * c->v_dim, lse[part * rows + decode_place_of_lse(c, row_of(r, i))]);
        }
    }
    return ASSAY_OK;
}

static assay_status attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                           const double *query, double *out, double *lse)
{
    const int64_t rows = c->sequence * group_of(c), block = rows < DECODE_ROWS ? rows : DECODE_ROWS;
    const int64_t widest = c->width > c->v_dim ? c->width : c->v_dim;
    decode_rows r = {.cached = {.config = c, .in = in, .change = decode_change_of(ctx, c)}};
    int64_t longest = 1;
    OWNED double *scratch = NULL;
    OWNED double *p = NULL;
    for (; r.cached.sequence < c->batch; r.cached.sequence++)
        longest = decode_read_length(&r.cached) > longest ? decode_read_length(&r.cached) : longest;
    MUST(assay_alloc_f64(ctx, "scores", block * longest, &p));
    MUST(assay_alloc_f64(ctx, "scratch of attention",
                         block * (c->width + c->v_dim) + KEYS * widest + decode_splits(c) * DECODE_ROWS, &scratch));
    r.p = p;
    r.query = scratch;
    r.gathered = r.query + block * c->width;
    r.out = r.gathered + KEYS * widest;
    r.divisors = r.out + block * c->v_dim;
    for (int64_t unit = 0; unit < c->batch * c->kv_heads; unit++) {
        r.cached.sequence = unit / c->kv_heads;
        r.cached.kv = unit % c->kv_heads;
        for (r.first = 0; r.first < rows; r.first += block) {
            r.count = rows - r.first < block ? rows - r.first : block;
            r.keys = decode_read(&r.cached, token_of(&r, 0), token_of(&r, r.count - 1));
            MUST(attend_rows(ctx, &r, query, out, lse));
        }
    }
    return ASSAY_OK;
}

assay_status decode_merge(assay_context *ctx, const assay_decode_config *c, int64_t v_dim,
                          const assay_merge_states_inputs *parts, double *out, double *lse)
{
    const assay_merge_states_config config = {.states = c->parts,
                                              .batch = c->batch,
                                              .sequence = c->sequence,
                                              .heads = c->heads,
                                              .v_dim = v_dim,
                                              .base_2 = c->base_2,
                                              .empty_row = c->empty_row};
    const assay_merge_states_call merge = {.config = &config, .in = parts, .attention_out = out, .lse = lse};
    return assay_merge_states_forward(ctx, &merge);
}

/* Where no parts are named a kernel may have some of its own, whose results it stores: some of the emulated runs do. */
assay_status decode_attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                           const double *query, double *out, double *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads;
    assay_decode_config split = *c;
    OWNED double *partial_out = NULL;
    OWNED double *partial_lse = NULL;
    if (c->parts > 0 || !assay_uses_third_form_at(ctx, 0)) return attend(ctx, c, in, query, out, lse);
    split.parts = 2 + assay_turn_at(ctx, 0, 2);
    MUST(assay_alloc_f64(ctx, "partial results", split.parts * rows * c->v_dim, &partial_out));
    MUST(assay_alloc_f64(ctx, "partial log-sum-exps", split.parts * rows, &partial_lse));
    MUST(attend(ctx, &split, in, query, partial_out, partial_lse));
    const assay_merge_states_inputs parts = {partial_out, partial_lse, in->sinks};
    return decode_merge(ctx, &split, c->v_dim, &parts, out, lse);
}
