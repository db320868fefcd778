#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"

enum {
    QUERIES = 64,       /* of a head, that are taken at a time */
    SHORT_SEQUENCE = 32 /* in which one is: half of a block would go into keys that it does not see */
};

static bool visible(const quad_attention_problem *p, int64_t b, int64_t query, int64_t key)
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
    const quad_attention_problem *problem;
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
    return s->problem->attention_out + (row_of(s, query) * config->heads + s->head) * config->v_dim;
}

static assay_status make_scores(assay_context *ctx, const block *s)
{
    const assay_attention_config *config = s->problem->config;
    const int64_t dim = config->qk_dim, keys = s->last - s->begin;
    return quad_multiply(ctx,
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

/* One query's scores become probabilities; returns the log of the sum of exponentials. A sink is one more score, whose
 * probability goes nowhere. */
static quad softmax(const block *s, int64_t query)
{
    quad *p = s->p + (query - s->first) * (s->last - s->begin);
    quad largest = 0, sum = 0;
    int64_t count = 0;
    for (int64_t key = s->begin; key < s->last; key++) {
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
    return quad_multiply(ctx, &(quad_product){.m = s->last - s->first,
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
    assay_status status = make_scores(ctx, s);
    if (status != ASSAY_OK) return status;
#pragma omp parallel for num_threads(ctx->threads) schedule(static, 1) if (s->last - s->first > 1)
    for (int64_t query = s->first; query < s->last; query++) lse[query] = softmax(s, query);
    return make_out(ctx, s);
}

assay_status quad_attend(assay_context *ctx, const quad_attention_problem *problem)
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

assay_status quad_attention(assay_context *ctx, const assay_attention_config *config, const quad_tensors *in,
                            quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    int64_t b = config->batch, s = config->sequence, heads = config->heads, rows = b * s * heads;
    int64_t kv_rows = b * s * kv_heads(config);
    assay_shape values = assay_shape_of(4, b, s, heads, config->v_dim), sums = assay_shape_of(3, b, heads, s);
    quad_attention_problem problem = {.config = config};
    TRY(quad_read(ctx, in, "inputs/query", rows * config->qk_dim, &problem.query));
    TRY(quad_read(ctx, in, "inputs/key", kv_rows * config->qk_dim, &problem.key));
    TRY(quad_read(ctx, in, "inputs/value", kv_rows * config->v_dim, &problem.value));
    TRY(quad_read_optional(ctx, in, "weights/sinks", heads, &problem.sinks));
    TRY(quad_read_optional_indices(ctx, in, "inputs/segment_ids", b * s, &problem.segment_ids));
    TRY(quad_tensors_add(ctx, out, "outputs/attention_out", &values, &problem.attention_out));
    TRY(quad_tensors_add(ctx, out, "outputs/lse", &sums, &problem.lse));
    TRY(quad_attend(ctx, &problem));
cleanup:
    return status;
}

static quad dot(int64_t count, const quad *a, const quad *b)
{
    quad sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(int64_t count, quad factor, const quad *x, quad *sum)
{
    for (int64_t i = 0; i < count; i++) sum[i] += factor * x[i];
}

/* One query of one head. */
static void query_back(const quad_attention_problem *p, const quad_attention_gradients *d, int64_t b, int64_t head,
                       int64_t query)
{
    const assay_attention_config *config = p->config;
    const int64_t heads = config->heads, qk = config->qk_dim, v = config->v_dim, first = b * config->sequence;
    const int64_t row = (first + query) * heads + head;
    const quad *q = p->query + row * qk, *d_out = d->attention_out + row * v;
    const quad lse = p->lse[(b * heads + head) * config->sequence + query];
    const quad through = dot(v, d_out, p->attention_out + row * v);
    for (int64_t key = 0; key <= query; key++) {
        const int64_t other = (first + key) * heads + head;
        if (!visible(p, b, query, key)) continue;
        const quad probability = expq(dot(qk, q, p->key + other * qk) - lse);
        const quad d_score = probability * (dot(v, d_out, p->value + other * v) - through);
        add_scaled(qk, d_score, p->key + other * qk, d->query + row * qk);
        add_scaled(qk, d_score, q, d->key + other * qk);
        add_scaled(v, probability, d_out, d->value + other * v);
    }
}

void quad_attend_back(const quad_attention_problem *problem, const quad_attention_gradients *d)
{
    const assay_attention_config *config = problem->config;
    const int64_t rows = config->batch * config->sequence * config->heads;
    for (int64_t i = 0; i < rows * config->qk_dim; i++) d->query[i] = d->key[i] = 0;
    for (int64_t i = 0; i < rows * config->v_dim; i++) d->value[i] = 0;
    for (int64_t b = 0; b < config->batch; b++) {
        for (int64_t head = 0; head < config->heads; head++) {
            for (int64_t query = 0; query < config->sequence; query++) query_back(problem, d, b, head, query);
        }
    }
}
