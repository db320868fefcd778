/* Causal attention on the tape. */
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_product.h"
#include "oracle/quad/tape.h"

enum {
    QUERIES = 64,       /* of a head, that are taken at a time */
    SHORT_SEQUENCE = 32 /* in which one is: half of a block would go into keys that it does not see */
};

/* What is attended, laid out as quad_attend says; sinks and segment_ids may be NULL. */
typedef struct attention_problem {
    const assay_attention_config *config;
    const quad *query, *key, *value, *sinks;
    const int32_t *segment_ids;
    quad *out, *lse; /* written */
} attention_problem;

static bool visible(const attention_problem *p, int64_t b, int64_t query, int64_t key)
{
    if (key > query || (p->config->window > 0 && query - key >= p->config->window)) return false;
    if (p->segment_ids == NULL) return true;
    const int32_t *segments = p->segment_ids + b * p->config->sequence;
    if (p->config->mask_padding && segments[query] == 0) return false;
    return segments[query] == segments[key];
}

static int64_t kv_heads(const assay_attention_config *config)
{
    return config->kv_heads == 0 ? config->heads : config->kv_heads;
}

/* Queries [first, last) of one head, and the keys [begin, last) among which are all that they see. */
typedef struct block {
    const attention_problem *problem;
    int64_t b, head, first, last, begin;
    quad *p; /* [last - first, last - begin]: scores, then probabilities */
} block;

static int64_t row_of(const block *s, int64_t position)
{
    return s->b * s->problem->config->sequence + position;
}

static const quad *at(const block *s, const quad *values, int64_t position, int64_t dim)
{
    const int64_t shared = kv_heads(s->problem->config), kv = s->head * shared / s->problem->config->heads;
    return values + (row_of(s, position) * shared + kv) * dim;
}

static quad *out_of(const block *s, int64_t query)
{
    const assay_attention_config *config = s->problem->config;
    return s->problem->out + (row_of(s, query) * config->heads + s->head) * config->v_dim;
}

static assay_status make_scores(assay_context *ctx, const block *s)
{
    const assay_attention_config *config = s->problem->config;
    const int64_t dim = config->qk_dim, keys = s->last - s->begin;
    return quad_matmul(ctx,
                       &(quad_product){.m = s->last - s->first,
                                       .n = keys,
                                       .k = dim,
                                       .x = s->problem->query + (row_of(s, s->first) * config->heads + s->head) * dim,
                                       .ldx = config->heads * dim,
                                       .w = at(s, s->problem->key, s->begin, dim),
                                       .ldw = kv_heads(config) * dim,
                                       .w_transposed = true,
                                       .y = s->p,
                                       .ldy = keys});
}

static quad capped(const assay_attention_config *config, quad score)
{
    return config->soft_cap == 0 ? score : config->soft_cap * tanhq(score / config->soft_cap);
}

/* One query's scores become probabilities; returns the log of the sum of exponentials. A sink is one more score, whose
 * probability goes nowhere. */
static quad softmax(const block *s, int64_t query)
{
    quad *p = s->p + (query - s->first) * (s->last - s->begin);
    quad largest = 0, sum = 0;
    int64_t count = 0;
    for (int64_t key = s->begin; key < s->last; key++) {
        p[key - s->begin] = capped(s->problem->config, p[key - s->begin]);
        const quad score = p[key - s->begin];
        if (!visible(s->problem, s->b, query, key)) continue;
        if (count++ == 0 || score > largest) largest = score;
    }
    for (int64_t key = s->begin; key < s->last; key++) {
        quad *to = &p[key - s->begin];
        *to = visible(s->problem, s->b, query, key) ? expq(*to - largest) : 0;
        sum += *to;
    }
    if (count == 0) return -INFINITY;
    const quad sink = s->problem->sinks == NULL ? 0 : expq(s->problem->sinks[s->head] - largest);
    for (int64_t i = 0; i < s->last - s->begin; i++) p[i] /= sum + sink;
    return largest + logq(sum);
}

static bool values_are_finite(const block *s)
{
    const int64_t v_dim = s->problem->config->v_dim;
    bool finite = true;
    for (int64_t key = s->begin; key < s->last; key++) {
        const quad *v = at(s, s->problem->value, key, v_dim);
        for (int64_t d = 0; d < v_dim; d++) finite &= finiteq(v[d]) != 0;
    }
    return finite;
}

/* What a query does not see must not reach it, not even as zero times infinity. */
static void add_visible(const block *s, int64_t query)
{
    const int64_t v_dim = s->problem->config->v_dim;
    const quad *p = s->p + (query - s->first) * (s->last - s->begin);
    quad *out = out_of(s, query);
    for (int64_t d = 0; d < v_dim; d++) out[d] = 0;
    for (int64_t key = s->begin; key < s->last; key++) {
        if (!visible(s->problem, s->b, query, key)) continue;
        const quad *v = at(s, s->problem->value, key, v_dim);
        for (int64_t d = 0; d < v_dim; d++) out[d] += p[key - s->begin] * v[d];
    }
}

static assay_status make_out(assay_context *ctx, const block *s)
{
    const assay_attention_config *config = s->problem->config;
    const int64_t v_dim = config->v_dim, keys = s->last - s->begin;
    if (!values_are_finite(s)) {
        for (int64_t query = s->first; query < s->last; query++) add_visible(s, query);
        return ASSAY_OK;
    }
    return quad_matmul(ctx, &(quad_product){.m = s->last - s->first,
                                            .n = v_dim,
                                            .k = keys,
                                            .x = s->p,
                                            .ldx = keys,
                                            .w = at(s, s->problem->value, s->begin, v_dim),
                                            .ldw = kv_heads(config) * v_dim,
                                            .y = out_of(s, s->first),
                                            .ldy = config->heads * v_dim});
}

static assay_status attend(assay_context *ctx, const block *s)
{
    const assay_attention_config *config = s->problem->config;
    quad *lse = s->problem->lse + (s->b * config->heads + s->head) * config->sequence;
    MUST(make_scores(ctx, s));
#pragma omp parallel for num_threads(ctx->threads) schedule(static, 1) if (s->last - s->first > 1)
    for (int64_t query = s->first; query < s->last; query++) lse[query] = softmax(s, query);
    return make_out(ctx, s);
}

static assay_status attend_all(assay_context *ctx, const attention_problem *problem)
{
    const assay_attention_config *config = problem->config;
    const int64_t s = config->sequence, queries = s < SHORT_SEQUENCE ? 1 : QUERIES;
    assay_status status = ASSAY_OK;
    block own = {.problem = problem};
    TRY(quad_alloc(ctx, queries * s, &own.p));
    for (int64_t i = 0; i < config->batch * config->heads; i++) {
        own.b = i / config->heads;
        own.head = i % config->heads;
        for (own.first = 0; own.first < s; own.first = own.last) {
            own.last = own.first + queries < s ? own.first + queries : s;
            own.begin = config->window > 0 && own.first >= config->window ? own.first - config->window + 1 : 0;
            TRY(attend(ctx, &own));
        }
    }
cleanup:
    free(own.p);
    return status;
}

/* --- back --- */

/* The gradients that the sums go into; NULL: nobody wants it. */
typedef struct attention_gradients {
    const quad *out, *lse; /* that came back */
    quad *query, *key, *value, *sinks;
} attention_gradients;

static quad dot(int64_t count, const quad *a, const quad *b)
{
    quad sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(int64_t count, quad factor, const quad *x, quad *sum)
{
    for (int64_t i = 0; sum != NULL && i < count; i++) sum[i] += factor * x[i];
}

static quad *part(quad *of, int64_t offset)
{
    return of == NULL ? NULL : of + offset;
}

/* One query of one head: p_ij = exp(s_ij - lse_i), of which the sink leaves the share g. */
static void query_back(const attention_problem *p, const attention_gradients *d, int64_t b, int64_t head, int64_t query)
{
    const assay_attention_config *c = p->config;
    const int64_t shared = kv_heads(c), kv = head * shared / c->heads, first = b * c->sequence;
    const int64_t row = (first + query) * c->heads + head, at_lse = (b * c->heads + head) * c->sequence + query;
    const quad *q = p->query + row * c->qk_dim, *d_out = d->out + row * c->v_dim, lse = p->lse[at_lse];
    if (isinfq(lse)) return; /* it sees nothing */
    const quad g = p->sinks == NULL ? 1 : 1 / (1 + expq(p->sinks[head] - lse));
    const quad through = dot(c->v_dim, d_out, p->out + row * c->v_dim);
    if (d->sinks != NULL) d->sinks[head] -= through * (1 - g);
    for (int64_t key = 0; key <= query; key++) {
        const int64_t other = (first + key) * shared + kv;
        if (!visible(p, b, query, key)) continue;
        const quad *k = p->key + other * c->qk_dim, score = capped(c, dot(c->qk_dim, q, k));
        const quad probability = expq(score - lse), share = c->soft_cap == 0 ? 0 : score / c->soft_cap;
        const quad d_capped = g * (dot(c->v_dim, d_out, p->value + other * c->v_dim) - through) + d->lse[at_lse];
        const quad d_score = probability * d_capped * (1 - share * share);
        add_scaled(c->qk_dim, d_score, k, part(d->query, row * c->qk_dim));
        add_scaled(c->qk_dim, d_score, q, part(d->key, other * c->qk_dim));
        add_scaled(c->v_dim, g * probability, d_out, part(d->value, other * c->v_dim));
    }
}

typedef struct attention {
    assay_attention_config config;
    const int32_t *segment_ids;
} attention;

/* y: out, and behind it lse. */
static void attend_back(quad_tape *t, const quad_record *y)
{
    const attention *a = y->with;
    const assay_attention_config *c = &a->config;
    const int64_t shared = kv_heads(c), together = c->heads / shared,
                  lse = c->batch * c->sequence * c->heads * c->v_dim;
    const attention_problem p = {.config = c,
                                 .query = quad_values(t, y->from[0]),
                                 .key = quad_values(t, y->from[1]),
                                 .value = quad_values(t, y->from[2]),
                                 .sinks = quad_values(t, y->from[3]),
                                 .segment_ids = a->segment_ids,
                                 .out = y->values,
                                 .lse = y->values + lse};
    const attention_gradients d = {y->gradient,
                                   y->gradient + lse,
                                   quad_into(t, y->from[0]),
                                   quad_into(t, y->from[1]),
                                   quad_into(t, y->from[2]),
                                   quad_into(t, y->from[3])};
    if (t->status != ASSAY_OK) return;
        /* heads that share keys and values, and so add to the same gradients, stay with one thread; so do the sinks' */
#pragma omp parallel for num_threads(t->ctx->threads) schedule(dynamic)
    for (int64_t kv = 0; kv < shared; kv++) {
        for (int64_t i = 0; i < c->batch * together * c->sequence; i++) {
            const int64_t b = i / (together * c->sequence), head = kv * together + i / c->sequence % together;
            query_back(&p, &d, b, head, i % c->sequence);
        }
    }
}

quad_node quad_attend(quad_tape *t, const assay_attention_config *config, quad_node query, quad_node key,
                      quad_node value, quad_node sinks, const int32_t *segment_ids, quad_node *lse)
{
    quad_node y;
    const int64_t rows = config->batch * config->sequence, out = rows * config->heads * config->v_dim;
    attention *with = quad_keep(t, 1, sizeof *with);
    *lse = 0;
    if (query == 0 || key == 0 || value == 0 || with == NULL) return 0;
    *with = (attention){*config, segment_ids};
    quad *values = quad_new(t, 1, out + rows * config->heads,
                            (quad_record){.from = {query, key, value, sinks}, .back = attend_back, .with = with}, &y);
    if (values == NULL) return 0;
    t->status = attend_all(t->ctx, &(attention_problem){.config = config,
                                                        .query = quad_values(t, query),
                                                        .key = quad_values(t, key),
                                                        .value = quad_values(t, value),
                                                        .sinks = quad_values(t, sinks),
                                                        .segment_ids = segment_ids,
                                                        .out = values,
                                                        .lse = values + out});
    *lse = quad_span(t, y, out, rows * config->heads / config->sequence, config->sequence);
    return quad_span(t, y, 0, rows, config->heads * config->v_dim);
}
