/* All query heads of a head of keys, and all tokens of a sequence, are rows of one product with each block of the cache's rows,
 * which are gathered once for them. */
#include <math.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/attention_internal.h"
#include "oracle/ops/decode_internal.h"
#include "oracle/ops/vector_sums.h"

enum { KEYS = 256 }; /* of the cache at a time */

static const double LN_2 = 0x1.62e42fefa39efp-1;

/* The queries of a head of keys, of one list: token by token, and within a token head by head. */
typedef struct decode_rows {
    const assay_decode_config *config;
    const assay_decode_inputs *in;
    const assay_decode_plan *plan;
    int64_t list, kv;
    int64_t first, count; /* of these those that are worked at */
    assay_key_range keys; /* that any of them sees */
    double *query;        /* [count,W] */
    double *gathered;     /* [KEYS,W or V]: rows of the cache, one block after the other */
    double *p;            /* [count,keys] */
    double *out;          /* [count,V] */
    double *divisors;     /* [splits,DECODE_ROWS] */
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
    const int64_t group = group_of(r->config), token = r->list * r->plan->tokens + token_of(r, i);
    return token * r->config->heads + r->plan->heads[r->kv * group + (r->first + i) % group];
}

/* The keys of a split that a row's softmax runs over: those that it sees, and others only if these weigh, too. */
static assay_key_range keys_of(const decode_rows *r, int64_t token, int64_t split)
{
    const int64_t *starts = r->plan->starts + r->list * (r->plan->splits + 1) + split;
    const assay_key_range seen = *decode_seen(r->plan, r->list, token, split);
    const bool others = r->plan->unseen > -INFINITY && seen.begin < seen.end;
    return others ? (assay_key_range){starts[0], starts[1]} : seen;
}

/* Those that are read for some tokens. */
static assay_key_range read_of(const decode_rows *r, int64_t split)
{
    const int64_t first = token_of(r, 0), last = token_of(r, r->count - 1);
    assay_key_range read = {keys_of(r, first, split).begin, 0};
    for (int64_t token = first; token <= last; token++) {
        const assay_key_range keys = keys_of(r, token, split);
        if (keys.begin < read.begin) read.begin = keys.begin;
        if (keys.begin < keys.end && keys.end > read.end) read.end = keys.end;
    }
    if (read.end < read.begin) read.end = read.begin;
    return read;
}

/* Whether queries are scaled, and stored, before the product; elsewhere scores are. In the emulated runs rows take turns. */
static bool scales_query(const assay_context *ctx, const decode_rows *r, int64_t i)
{
    const assay_decode_config *c = r->config;
    return assay_turn_at(ctx, c->batch * c->sequence * c->heads + row_of(r, i), 2) == 1;
}

static void gather_queries(const assay_context *ctx, const decode_rows *r, const double *query)
{
    const int64_t width = r->config->width;
    for (int64_t i = 0; i < r->count; i++) {
        double *to = r->query + i * width;
        memcpy(to, query + row_of(r, i) * width, (size_t)width * sizeof *to);
        if (!scales_query(ctx, r, i)) continue;
        for (int64_t d = 0; d < width; d++) to[d] *= r->config->scale;
        assay_round(ctx, ASSAY_ROUND_STORAGE, width, to);
    }
}

/* The next keys of a range, gathered. */
static assay_key_range gather_next(const decode_rows *r, const double *cache, int64_t width, assay_key_range keys,
                                   int64_t first)
{
    const assay_key_range next = decode_overlap((assay_key_range){first, first + KEYS}, keys);
    const int64_t *rows = r->plan->rows + r->list * r->plan->longest;
    double *to = r->gathered;
    for (int64_t key = next.begin; key < next.end; key++, to += width) {
        memset(to, 0, (size_t)width * sizeof *to);
        if (rows[key] < 0) continue;
        memcpy(to, cache + assay_decode_place(r->config, rows[key], r->kv) * width, (size_t)width * sizeof *to);
    }
    return next;
}

static assay_status make_scores(assay_context *ctx, const decode_rows *r)
{
    const int64_t width = r->config->width, ld = r->keys.end - r->keys.begin;
    for (int64_t first = r->keys.begin; first < r->keys.end; first += KEYS) {
        const assay_key_range next = gather_next(r, r->in->key_cache, width, r->keys, first);
        MUST(attention_scores(ctx, r->p + first - r->keys.begin, ld, r->query, r->count, r->gathered, next.end - first,
                              width));
    }
    return ASSAY_OK;
}

/* out = the probabilities of these keys times their values. */
static assay_status weigh_values(assay_context *ctx, const decode_rows *r, assay_key_range keys)
{
    const assay_decode_config *c = r->config;
    const int64_t width = c->latent ? c->width : c->v_dim;
    const double *cache = c->latent ? r->in->key_cache : r->in->value_cache;
    memset(r->out, 0, (size_t)(r->count * c->v_dim) * sizeof *r->out);
    for (int64_t first = keys.begin; first < keys.end; first += KEYS) {
        const assay_key_range next = gather_next(r, cache, width, keys, first);
        assay_matmul_args product =
            assay_product_ab(r->out, r->p + first - r->keys.begin, r->gathered + (c->latent ? c->value_first : 0),
                             r->count, c->v_dim, next.end - first);
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
    const bool sink = r->in->sinks != NULL && r->config->splits == 0;
    attention_softmax how = attention_softmax_of(ctx, row, sink ? &r->in->sinks[row % r->config->heads] : NULL);
    if (r->config->splits > 0) how.splits = 1;
    return how;
}

static double stored_lse(const assay_context *ctx, const assay_decode_config *c, double natural)
{
    if (!c->base_2) return natural;
    natural /= LN_2;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &natural);
    return natural;
}

/* Scores of a row become probabilities, in each split by themselves; between them they are 0. */
static void soften_row(const assay_context *ctx, const decode_rows *r, int64_t i, double *lse)
{
    const assay_decode_config *c = r->config;
    const attention_softmax how = softmax_of(ctx, r, i);
    const int64_t place = decode_place_of_lse(c, row_of(r, i)), rows = c->batch * c->sequence * c->heads;
    const double scale = scales_query(ctx, r, i) ? 1 : c->scale;
    double *p = r->p + i * (r->keys.end - r->keys.begin) - r->keys.begin; /* by key */
    int64_t done = r->keys.begin;
    for (int64_t split = 0; split < r->plan->splits; split++) {
        const assay_key_range keys = keys_of(r, token_of(r, i), split);
        const assay_key_range seen = *decode_seen(r->plan, r->list, token_of(r, i), split);
        lse[split * rows + place] = c->empty_row;
        if (keys.begin == keys.end) continue;
        for (; done < keys.begin; done++) p[done] = 0;
        for (int64_t j = seen.begin; j < seen.end && scale != 1; j++) p[j] *= scale;
        attention_cap(ctx, c->soft_cap, p + seen.begin, NULL, seen.end - seen.begin);
        for (int64_t j = keys.begin; j < keys.end; j++) p[j] = j < seen.begin || j >= seen.end ? r->plan->unseen : p[j];
        done = keys.end;
        lse[split * rows + place] = stored_lse(ctx, c,
                                               attention_softmax_row(ctx, &how, p + keys.begin, keys.end - keys.begin,
                                                                     &r->divisors[split * DECODE_ROWS + i]));
    }
    for (; done < r->keys.end; done++) p[done] = 0;
}

static void finish_row(const assay_context *ctx, const decode_rows *r, int64_t i, int64_t split, double *out,
                       double lse)
{
    const assay_decode_config *c = r->config;
    const attention_softmax how = softmax_of(ctx, r, i);
    const assay_key_range keys = keys_of(r, token_of(r, i), split);
    memcpy(out, r->out + i * c->v_dim, (size_t)c->v_dim * sizeof *out);
    for (int64_t d = 0; keys.begin == keys.end && c->splits == 0 && d < c->v_dim; d++) out[d] = c->variant.blind;
    if (keys.begin == keys.end) return;
    attention_divide_row(out, c->v_dim, r->divisors[split * DECODE_ROWS + i]);
    attention_gate_row(ctx, &how, out, c->v_dim, c->base_2 ? lse * LN_2 : lse);
    if (c->splits > 0 && how.form == ATTENTION_DIVIDED_FIRST) assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, out);
}

static assay_status attend_rows(assay_context *ctx, const decode_rows *r, const double *query, double *out, double *lse)
{
    const assay_decode_config *c = r->config;
    const int64_t rows = c->batch * c->sequence * c->heads;
    gather_queries(ctx, r, query);
    MUST(make_scores(ctx, r));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < r->count; i++) soften_row(ctx, r, i, lse);
    for (int64_t split = 0; split < r->plan->splits; split++) {
        MUST(weigh_values(ctx, r, read_of(r, split)));
        for (int64_t i = 0; i < r->count; i++) {
            const int64_t row = split * rows + row_of(r, i);
            finish_row(ctx, r, i, split, out + row * c->v_dim,
                       lse[split * rows + decode_place_of_lse(c, row_of(r, i))]);
        }
    }
    return ASSAY_OK;
}

static assay_status attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                           const assay_decode_plan *plan, const double *query, double *out, double *lse)
{
    const int64_t rows = plan->tokens * group_of(c), block = rows < DECODE_ROWS ? rows : DECODE_ROWS;
    const int64_t widest = c->width > c->v_dim ? c->width : c->v_dim;
    decode_rows r = {.config = c, .in = in, .plan = plan};
    OWNED double *scratch = NULL;
    OWNED double *p = NULL;
    MUST(assay_alloc_f64(ctx, "scores", block * plan->longest, &p));
    MUST(assay_alloc_f64(ctx, "scratch of attention",
                         block * (c->width + c->v_dim) + KEYS * widest + plan->splits * DECODE_ROWS, &scratch));
    r.p = p;
    r.query = scratch;
    r.gathered = r.query + block * c->width;
    r.out = r.gathered + KEYS * widest;
    r.divisors = r.out + block * c->v_dim;
    for (int64_t unit = 0; unit < plan->lists * c->kv_heads; unit++) {
        r.list = unit / c->kv_heads;
        r.kv = unit % c->kv_heads;
        for (r.first = 0; r.first < rows; r.first += block) {
            r.count = rows - r.first < block ? rows - r.first : block;
            r.keys = read_of(&r, 0);
            for (int64_t split = 1; split < plan->splits; split++) {
                const assay_key_range read = read_of(&r, split);
                if (read.begin < r.keys.begin) r.keys.begin = read.begin;
                if (read.begin < read.end) r.keys.end = read.end;
            }
            MUST(attend_rows(ctx, &r, query, out, lse));
        }
    }
    return ASSAY_OK;
}

assay_merge_states_config assay_decode_merge_config(const assay_decode_config *c, int64_t states, int64_t v_dim)
{
    return (assay_merge_states_config){.states = states,
                                       .batch = c->batch,
                                       .sequence = c->sequence,
                                       .heads = c->heads,
                                       .v_dim = v_dim,
                                       .base_2 = c->base_2,
                                       .empty_row = c->empty_row,
                                       .blind = c->variant.blind};
}

/* Where no splits are named a kernel may have some of its own, whose results it stores: some of the emulated runs do. */
assay_status decode_attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                           const assay_decode_plan *plan, const double *query, double *out, double *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads, splits = 2 + assay_turn_at(ctx, 0, 2);
    assay_decode_config split = *c;
    OWNED double *partial_out = NULL;
    OWNED double *partial_lse = NULL;
    OWNED_BY(assay_decode_plan_free) assay_decode_plan cut = {0};
    if (c->splits > 0 || !assay_uses_third_form_at(ctx, 0)) return attend(ctx, c, in, plan, query, out, lse);
    split.splits = splits;
    MUST(assay_alloc_f64(ctx, "partial results", splits * rows * c->v_dim, &partial_out));
    MUST(assay_alloc_f64(ctx, "partial log-sum-exps", splits * rows, &partial_lse));
    MUST(decode_cut(ctx, c, plan, splits, c->max_pages > 0 ? c->page : 1, &cut));
    MUST(attend(ctx, &split, in, &cut, query, partial_out, partial_lse));
    const assay_merge_states_inputs partial = {partial_out, partial_lse, in->sinks};
    const assay_merge_states_config merge = assay_decode_merge_config(c, splits, c->v_dim);
    return assay_merge_states_forward(ctx, out, lse, &partial, &merge);
}

/* Of one query the keys that it sees in a split, as attention_row_gradient has them. room: three numbers of each key, and dout. */
static void row_back(const assay_context *ctx, const decode_rows *r, const assay_decode_call *call,
                     const assay_decode_gradients *g, int64_t split, double *room)
{
    const assay_decode_config *c = r->config;
    const assay_key_range seen = *decode_seen(r->plan, r->list, token_of(r, 0), split);
    const int64_t row = row_of(r, 0), rows = c->batch * c->sequence * c->heads, count = seen.end - seen.begin;
    const int64_t place = split * rows + decode_place_of_lse(c, row), wide = c->v_dim,
                  apart = c->latent ? c->width : wide;
    const int64_t *key = r->plan->rows + r->list * r->plan->longest + seen.begin;
    const double unit = c->base_2 ? LN_2 : 1, scale = scales_query(ctx, r, 0) ? 1 : c->scale;
    const double *values = c->latent ? r->in->key_cache + c->value_first : r->in->value_cache;
    const double *sink = softmax_of(ctx, r, 0).sink;
    double *p = room, *ds = p + count, *slope = c->soft_cap > 0 ? ds + count : NULL, *dout = room + 3 * count;
    double *dvalues = c->latent ? g->dkey + c->value_first : g->dvalue, lse = call->lse[place] * unit;
    if (count == 0) return;
    gather_queries(ctx, r, r->in->query);
    memcpy(dout, call->dout + (split * rows + row) * wide, (size_t)wide * sizeof *dout);
    const double through = assay_dot(ctx, wide, dout, call->out + (split * rows + row) * wide);
    const double gate = sink == NULL ? 1 : attention_gate(ctx, lse, *sink);
    double shift = gate * through - (call->dlse == NULL ? 0 : call->dlse[place] / unit);
    if (g->dsinks != NULL)
        assay_add_scaled(ctx, 1, -attention_sink_share(ctx, lse, *sink), &through, &g->dsinks[row % c->heads]);
    for (int64_t d = 0; d < wide && gate != 1; d++) dout[d] *= gate;
    assay_round(ctx, ASSAY_ROUND_STORAGE, wide, dout);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &shift);
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = key[j] < 0 ? 0 : assay_decode_place(c, key[j], r->kv);
        p[j] = key[j] < 0 ? 0 : scale * assay_dot(ctx, c->width, r->query, r->in->key_cache + at * c->width);
        ds[j] = key[j] < 0 ? 0 : assay_dot(ctx, wide, dout, values + at * apart);
    }
    attention_cap(ctx, c->soft_cap, p, slope, count);
    attention_row_gradient(ctx, p, ds, slope, lse, 1, shift, count);
    attention_round_scaled(ctx, ds, count, row, c->scale);
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = key[j] < 0 ? 0 : assay_decode_place(c, key[j], r->kv);
        if (key[j] < 0) continue;
        assay_add_scaled(ctx, c->width, c->scale * ds[j], r->in->key_cache + at * c->width, g->dquery + row * c->width);
        assay_add_scaled(ctx, c->width, scale * ds[j], r->query, g->dkey + at * c->width);
        assay_add_scaled(ctx, wide, p[j], dout, dvalues + at * apart);
    }
}

/* Threads have heads of keys of their own, to which all that reads these adds in order. */
assay_status assay_decode_backward(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   const assay_decode_plan *plan, const assay_decode_call *call,
                                   const assay_decode_gradients *g)
{
    const int64_t caches = c->pages * c->stride * c->kv_heads, rows = c->batch * c->sequence * c->heads;
    const int64_t each = 3 * plan->longest + c->width + c->v_dim;
    OWNED double *room = NULL;
    MUST(assay_alloc_f64(ctx, "scratch of attention", c->kv_heads * each, &room));
    memset(g->dquery, 0, (size_t)(rows * c->width) * sizeof *g->dquery);
    memset(g->dkey, 0, (size_t)(caches * c->width) * sizeof *g->dkey);
    if (!c->latent) memset(g->dvalue, 0, (size_t)(caches * c->v_dim) * sizeof *g->dvalue);
    if (g->dsinks != NULL) memset(g->dsinks, 0, (size_t)c->heads * sizeof *g->dsinks);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t kv = 0; kv < c->kv_heads; kv++) {
        decode_rows r = {.config = c, .in = in, .plan = plan, .kv = kv, .count = 1, .query = room + kv * each};
        for (r.list = 0; r.list < plan->lists; r.list++)
            for (r.first = 0; r.first < plan->tokens * group_of(c); r.first++)
                for (int64_t split = 0; split < plan->splits; split++)
                    row_back(ctx, &r, call, g, split, r.query + c->width);
    }
    return ASSAY_OK;
}
