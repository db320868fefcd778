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

/* Where forward's results go. */
typedef struct decode_results {
    const double *query;
    double *out, *lse;
} decode_results;

static assay_status attend_rows(assay_context *ctx, decode_rows *r, const void *to)
{
    const decode_results *results = to;
    const assay_decode_config *c = r->config;
    const int64_t rows = c->batch * c->sequence * c->heads;
    double *lse = results->lse;
    r->keys = read_of(r, 0);
    for (int64_t split = 1; split < r->plan->splits; split++) {
        const assay_key_range read = read_of(r, split);
        if (read.begin < r->keys.begin) r->keys.begin = read.begin;
        if (read.begin < read.end) r->keys.end = read.end;
    }
    gather_queries(ctx, r, results->query);
    MUST(make_scores(ctx, r));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < r->count; i++) soften_row(ctx, r, i, lse);
    for (int64_t split = 0; split < r->plan->splits; split++) {
        MUST(weigh_values(ctx, r, read_of(r, split)));
        for (int64_t i = 0; i < r->count; i++) {
            const int64_t row = split * rows + row_of(r, i);
            finish_row(ctx, r, i, split, results->out + row * c->v_dim,
                       lse[split * rows + decode_place_of_lse(c, row_of(r, i))]);
        }
    }
    return ASSAY_OK;
}

/* `run` for each block of queries of each head of keys, of one list after the other. */
static assay_status for_each_block(assay_context *ctx, decode_rows *r,
                                   assay_status (*run)(assay_context *ctx, decode_rows *r, const void *self),
                                   const void *self)
{
    const int64_t rows = r->plan->tokens * group_of(r->config);
    for (int64_t unit = 0; unit < r->plan->lists * r->config->kv_heads; unit++) {
        r->list = unit / r->config->kv_heads;
        r->kv = unit % r->config->kv_heads;
        for (r->first = 0; r->first < rows; r->first += DECODE_ROWS) {
            r->count = rows - r->first < DECODE_ROWS ? rows - r->first : DECODE_ROWS;
            MUST(run(ctx, r, self));
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
    return for_each_block(ctx, &r, attend_rows, &(decode_results){query, out, lse});
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

/* --- back --- */

/* A block of queries, whose dout is in `rows.out`, and a block of keys, which are in `rows.gathered`. */
typedef struct decode_block {
    decode_rows rows;
    const assay_decode_call *call;
    const assay_decode_gradients *g;
    double *dquery, *lse, *shift;  /* of queries; as attention_row_gradient has them */
    double *ds, *slope;            /* [count,KEYS], as `rows.p` */
    double *value, *dkey, *dvalue; /* of keys; of latents parts of these */
} decode_block;

/* What came back to a row. */
static void load_row(const assay_context *ctx, const decode_block *b, int64_t split, int64_t i)
{
    const decode_rows *r = &b->rows;
    const assay_decode_config *c = r->config;
    const assay_key_range seen = *decode_seen(r->plan, r->list, token_of(r, i), split);
    const int64_t row = row_of(r, i), rows = c->batch * c->sequence * c->heads, wide = c->v_dim;
    const int64_t place = split * rows + decode_place_of_lse(c, row);
    const double unit = c->base_2 ? LN_2 : 1, *sink = softmax_of(ctx, r, i).sink;
    double *dout = r->out + i * wide, *lse = &b->lse[i];
    memset(dout, 0, (size_t)wide * sizeof *dout);
    if (seen.begin >= seen.end) return;
    *lse = b->call->lse[place] * unit;
    memcpy(dout, b->call->dout + (split * rows + row) * wide, (size_t)wide * sizeof *dout);
    const double through = assay_dot(ctx, wide, dout, b->call->out + (split * rows + row) * wide);
    const double gate = sink == NULL ? 1 : attention_gate(ctx, *lse, *sink);
    b->shift[i] = gate * through - (b->call->dlse == NULL ? 0 : b->call->dlse[place] / unit);
    if (b->g->dsinks != NULL)
        assay_add_scaled(ctx, 1, -attention_sink_share(ctx, *lse, *sink), &through, &b->g->dsinks[row % c->heads]);
    for (int64_t d = 0; d < wide && gate != 1; d++) dout[d] *= gate;
    assay_round(ctx, ASSAY_ROUND_STORAGE, wide, dout);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, lse);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &b->shift[i]);
}

/* Scores and products of dout with values become probabilities and gradients of scores; of keys that the row does not see 0. */
static void soften_back(const assay_context *ctx, const decode_block *b, int64_t split, int64_t i, assay_key_range keys)
{
    const decode_rows *r = &b->rows;
    const assay_decode_config *c = r->config;
    const assay_key_range seen = decode_overlap(*decode_seen(r->plan, r->list, token_of(r, i), split), keys);
    const int64_t first = seen.begin - keys.begin, end = seen.end - keys.begin, count = end - first;
    const double scale = scales_query(ctx, r, i) ? 1 : c->scale;
    double *p = r->p + i * KEYS, *ds = b->ds + i * KEYS, *slope = c->soft_cap > 0 ? b->slope + i * KEYS : NULL;
    for (int64_t j = 0; j < keys.end - keys.begin; j++)
        if (j < first || j >= end) p[j] = ds[j] = 0;
    if (count <= 0) return;
    for (int64_t j = first; j < end; j++) p[j] *= scale;
    attention_cap(ctx, c->soft_cap, p + first, slope, count);
    attention_row_gradient(ctx, p + first, ds + first, slope, b->lse[i], 1, b->shift[i], count);
    for (int64_t j = first; j < end; j++) ds[j] *= scale;
    assay_round(ctx, ASSAY_ROUND_OPERAND, count, ds + first);
}

/* To the cache, as it lies. */
static void add_to_cache(const assay_context *ctx, const decode_block *b, assay_key_range keys, double *cache,
                         const double *from, int64_t width)
{
    const int64_t *rows = b->rows.plan->rows + b->rows.list * b->rows.plan->longest;
    for (int64_t key = keys.begin; key < keys.end; key++, from += width)
        if (rows[key] >= 0)
            assay_add(ctx, width, from, cache + assay_decode_place(b->rows.config, rows[key], b->rows.kv) * width);
}

static assay_status keys_back(assay_context *ctx, const decode_block *b, int64_t split, int64_t first)
{
    const decode_rows *r = &b->rows;
    const assay_decode_config *c = r->config;
    const int64_t wide = c->v_dim, apart = c->latent ? c->width : wide;
    decode_rows values = *r;
    values.gathered = b->value;
    const assay_key_range keys = gather_next(r, r->in->key_cache, c->width, read_of(r, split), first);
    const int64_t count = keys.end - keys.begin;
    if (!c->latent) gather_next(&values, r->in->value_cache, wide, keys, first);
    assay_matmul_args of_values = assay_product_abt(b->ds, r->out, b->value, r->count, count, wide);
    assay_matmul_args to_queries = assay_product_ab(b->dquery, b->ds, r->gathered, r->count, c->width, count);
    assay_matmul_args to_keys = assay_product_atb(b->dkey, b->ds, r->query, count, c->width, r->count);
    assay_matmul_args to_values = assay_product_atb(b->dvalue, r->p, r->out, count, wide, r->count);
    of_values.ldb = to_values.ldc = apart;
    of_values.ldc = to_queries.lda = to_keys.lda = to_values.lda = KEYS;
    to_queries.accumulate = true;
    to_values.accumulate = c->latent;
    MUST(attention_scores(ctx, r->p, KEYS, r->query, r->count, r->gathered, count, c->width));
    MUST(assay_matmul(ctx, &of_values));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < r->count; i++) soften_back(ctx, b, split, i, keys);
    MUST(assay_matmul(ctx, &to_queries));
    MUST(assay_matmul(ctx, &to_keys));
    MUST(assay_matmul(ctx, &to_values));
    add_to_cache(ctx, b, keys, b->g->dkey, b->dkey, c->width);
    if (!c->latent) add_to_cache(ctx, b, keys, b->g->dvalue, b->dvalue, wide);
    return ASSAY_OK;
}

static assay_status rows_back(assay_context *ctx, decode_rows *r, const void *back)
{
    const decode_block *b = back;
    const int64_t width = r->config->width;
    gather_queries(ctx, r, r->in->query);
    memset(b->dquery, 0, (size_t)(r->count * width) * sizeof *b->dquery);
    for (int64_t split = 0; split < r->plan->splits; split++) {
        const assay_key_range read = read_of(r, split);
        for (int64_t i = 0; i < r->count; i++) load_row(ctx, b, split, i);
        for (int64_t first = read.begin; first < read.end; first += KEYS) MUST(keys_back(ctx, b, split, first));
    }
    for (int64_t i = 0; i < r->count; i++) {
        const double scale = scales_query(ctx, r, i) ? r->config->scale : 1;
        for (int64_t d = 0; d < width; d++) b->g->dquery[row_of(r, i) * width + d] = scale * b->dquery[i * width + d];
    }
    return ASSAY_OK;
}

assay_status decode_back(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                         const assay_decode_plan *plan, const assay_decode_call *call, const assay_decode_gradients *g)
{
    const int64_t caches = c->pages * c->stride * c->kv_heads, width = c->width, wide = c->v_dim;
    const int64_t rows = plan->tokens * group_of(c), block = rows < DECODE_ROWS ? rows : DECODE_ROWS;
    decode_block b = {.rows = {.config = c, .in = in, .plan = plan}, .call = call, .g = g};
    OWNED double *room = NULL;
    double **const rooms[] = {&b.rows.query, &b.dquery, &b.rows.out,      &b.lse,  &b.shift, &b.rows.p,
                              &b.ds,         &b.slope,  &b.rows.gathered, &b.dkey, &b.value, &b.dvalue};
    const int64_t sizes[] = {block * width, block * width, block * wide, block,        block,       block * KEYS,
                             block * KEYS,  block * KEYS,  KEYS * width, KEYS * width, KEYS * wide, KEYS * wide};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) sum += sizes[i];
    MUST(assay_alloc_f64(ctx, "scratch of attention", sum, &room));
    double *at = room;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; at += sizes[i], i++) *rooms[i] = at;
    if (c->latent) b.value = b.rows.gathered + c->value_first;
    if (c->latent) b.dvalue = b.dkey + c->value_first;
    memset(g->dkey, 0, (size_t)(caches * width) * sizeof *g->dkey);
    if (!c->latent) memset(g->dvalue, 0, (size_t)(caches * wide) * sizeof *g->dvalue);
    if (g->dsinks != NULL) memset(g->dsinks, 0, (size_t)c->heads * sizeof *g->dsinks);
    return for_each_block(ctx, &b.rows, rows_back, &b);
}
