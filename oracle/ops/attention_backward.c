/* The gradient of attention from its lse, in one pass over the queries. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/ops/attention_internal.h"
#include "oracle/ops/vector_sums.h"

typedef struct backward_job {
    const assay_attention_gradients *g;
    const double *dout, *dlse, *out, *lse;
    const assay_attention_inputs *in;
} backward_job;

/* One segment of one head, gathered. */
typedef struct segment {
    double *q, *k, *v, *dq, *dk, *dv;
    double *dout;        /* times the sink's gate, which is all that a sink is to the rest */
    double *factor;      /* of probabilities, by which dout was divided: see set_factor */
    double *lse, *shift; /* shift_i = D_i - dlse_i */
    double *p, *ds;      /* [ATTENTION_BLOCK,count] */
    double *slope;       /* likewise: of capped scores; NULL: they are not capped */
} segment;

static segment cut(const attention_rows *rows, double *scratch)
{
    const int64_t count = rows->count, qk = count * rows->config->qk_dim, v = count * rows->config->v_dim;
    segment s;
    s.q = scratch;
    s.k = s.q + qk;
    s.dq = s.k + qk;
    s.dk = s.dq + qk;
    s.v = s.dk + qk;
    s.dout = s.v + v;
    s.dv = s.dout + v;
    s.factor = s.dv + v;
    s.lse = s.factor + count;
    s.shift = s.lse + count;
    s.p = s.shift + count;
    const int64_t block = (count < ATTENTION_BLOCK ? count : ATTENTION_BLOCK) * count;
    s.ds = s.p + block;
    s.slope = rows->config->soft_cap > 0 ? s.ds + block : NULL;
    return s;
}

/* The gradient of the values rounds probabilities and dout, one of which a kernel gates. In the emulated runs rows take turns. Returns
 * what is left for probabilities. */
static double gate_row(const assay_context *ctx, int64_t wide, double *dout, double gate, int64_t row)
{
    if (assay_uses_third_form_at(ctx, row)) return gate;
    for (int64_t d = 0; d < wide; d++) dout[d] *= gate;
    assay_round(ctx, ASSAY_ROUND_STORAGE, wide, dout);
    return 1;
}

static void load(const assay_context *ctx, const backward_job *job, const attention_rows *rows, segment *s)
{
    const assay_attention_config *config = rows->config;
    const int64_t head = (rows->batch * config->heads + rows->query.index) * config->sequence, wide = config->v_dim;
    attention_gather(rows, rows->query, s->q, job->in->query, config->qk_dim);
    attention_gather(rows, rows->kv, s->k, job->in->key, config->qk_dim);
    attention_gather(rows, rows->kv, s->v, job->in->value, wide);
    attention_gather(rows, rows->query, s->dout, job->dout, wide);
    attention_gather(rows, rows->query, s->dv, job->out, wide); /* a place for it until dv begins */
    for (int64_t i = 0; i < rows->count; i++) {
        s->lse[i] = job->lse[head + rows->tokens[i]];
        s->factor[i] = 1;
        if (job->in->sinks != NULL)
            s->factor[i] = gate_row(ctx, wide, s->dout + i * wide,
                                    attention_gate(ctx, s->lse[i], job->in->sinks[rows->query.index]), i);
        s->shift[i] = s->factor[i] * assay_dot(ctx, wide, s->dout + i * wide, s->dv + i * wide);
        if (job->dlse != NULL) s->shift[i] -= job->dlse[head + rows->tokens[i]];
    }
    for (int64_t i = 0; i < rows->count; i++) {
        double lse = s->lse[i];
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
        if (!(fabs(lse - s->lse[i]) > 0.5))
            s->lse[i] = lse; /* where that is no small error any more no correct kernel has it */
    }
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, rows->count, s->shift);
    assay_round(ctx, ASSAY_ROUND_OPERAND, 2 * rows->count * config->qk_dim, s->q);
    assay_round(ctx, ASSAY_ROUND_OPERAND, rows->count * wide, s->v);
    memset(s->dk, 0, (size_t)(rows->count * config->qk_dim) * sizeof *s->dk);
    memset(s->dv, 0, (size_t)(rows->count * wide) * sizeof *s->dv);
}

/* Automatic differentiation divides dout by the sum of a row's exponentials, which stay as they are: what is rounded lies elsewhere on
 * the grid. Rows take turns. s_ij of row i are in p. */
static void set_factor(const assay_context *ctx, const segment *s, const double *p, int64_t i, int64_t count,
                       int64_t wide)
{
    double largest = -INFINITY, *dout = s->dout + i * wide;
    for (int64_t j = 0; j < count; j++) largest = p[j] > largest ? p[j] : largest;
    const double sum = assay_uses_second_form_at(ctx, i) ? assay_exp(s->lse[i] - largest) : 1;
    if (sum >= 0.5 && sum <= 2 * (double)count) { /* else the row's largest score is not among these */
        for (int64_t d = 0; d < wide && sum != 1; d++) dout[d] /= sum;
        s->factor[i] *= sum;
    }
    assay_round(ctx, ASSAY_ROUND_OPERAND, wide, dout);
}

/* A kernel that multiplies q k^T by the scale multiplies ds by it, too, before it is rounded: in float16 that has fewer
 * digits below the normal numbers. Rows take turns. by: the power of two that is near the scale, which leaves others where they are. */
static void round_scaled(const assay_context *ctx, double *ds, int64_t count, int64_t row, double by)
{
    if (assay_turn_at(ctx, row, 2) == 0) by = 1;
    for (int64_t j = 0; by != 1 && j < count; j++) ds[j] *= by;
    assay_round(ctx, ASSAY_ROUND_OPERAND, count, ds);
    for (int64_t j = 0; by != 1 && j < count; j++) ds[j] /= by;
}

void attention_row_gradient(const assay_context *ctx, double *p, double *ds, const double *slope, double lse,
                            double factor, double shift, int64_t count)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, ds);
    for (int64_t j = 0; j < count; j++) p[j] -= lse;
    assay_exp_many(ctx, count, p, p);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, count, p);
    if (assay_stores_parts(ctx)) assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    for (int64_t j = 0; j < count; j++) {
        ds[j] = p[j] * (factor * ds[j] - shift);
        p[j] *= factor;
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, ds);
    for (int64_t j = 0; slope != NULL && j < count; j++) ds[j] *= slope[j];
    if (slope != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, count, ds);
    assay_round(ctx, ASSAY_ROUND_OPERAND, count, p);
}

/* to [keys,width] += w [rows,keys]^T from [rows,width]: what a block of queries gives to the keys before it. */
static assay_status add_to_keys(assay_context *ctx, double *to, const double *w, int64_t ld, int64_t rows, int64_t keys,
                                const double *from, int64_t width)
{
    assay_matmul_args args = assay_product_atb(to, w, from, keys, width, rows);
    args.lda = ld;
    args.accumulate = true;
    return assay_matmul(ctx, &args);
}

/* The keys of the block itself. */
static assay_status add_triangles(assay_context *ctx, const segment *s, const assay_attention_config *config,
                                  int64_t ld, int64_t first, int64_t end, int64_t beyond)
{
    const int64_t deep = config->qk_dim, wide = config->v_dim;
    const attention_triangle triangles[] = {
        {.w = s->ds + first, .x = s->k + first * deep, .y = s->dq + first * deep, .width = deep},
        {.w = s->ds + first, .x = s->q + first * deep, .y = s->dk + first * deep, .width = deep, .transpose = true},
        {.w = s->p + first, .x = s->dout + first * wide, .y = s->dv + first * wide, .width = wide, .transpose = true},
    };
    for (int i = 0; i < 3; i++) {
        attention_triangle triangle = triangles[i];
        triangle.ld = ld;
        triangle.size = end - first;
        triangle.beyond = beyond;
        MUST(attention_add_triangle(ctx, &triangle));
    }
    return ASSAY_OK;
}

/* Flash kernels compute the scores again, and not always with sums in forward's order: then their errors are no longer those that lse has.
 * Not where these are no small errors any more, nor beside those of scores that are stored in a type of 16 bits. room: for as many scores. */
static assay_status scores_again(assay_context *ctx, double *out, double *room, int64_t ld, const double *q,
                                 int64_t rows, const double *k, int64_t keys, int64_t deep)
{
    MUST(attention_scores(ctx, out, ld, q, rows, k, keys, deep));
    if (ctx->arithmetic != &assay_arithmetic_emulated)
        return ASSAY_OK; /* another's may have more behind its emulation */
    if (!assay_rounds_at_random(ctx) || assay_dtype_unit_roundoff(ctx->emulation->storage) > 0x1p-24) return ASSAY_OK;
    assay_emulation emulation = *ctx->emulation;
    assay_context again = *ctx;
    emulation.seed = ~emulation.seed;
    again.emulation = &emulation;
    assay_status status = attention_scores(&again, room, ld, q, rows, k, keys, deep);
    memcpy(ctx->message, again.message, sizeof ctx->message);
    for (int64_t i = 0; i < rows && status == ASSAY_OK; i++)
        for (int64_t j = i * ld; j < i * ld + keys; j++) out[j] = fabs(room[j] - out[j]) <= 0.5 ? room[j] : out[j];
    return status;
}

static assay_status backward_block(assay_context *ctx, const segment *s, const attention_rows *rows, int64_t first,
                                   int64_t end)
{
    const assay_attention_config *config = rows->config;
    const int64_t ld = rows->count, deep = config->qk_dim, wide = config->v_dim, size = end - first;
    const int64_t start = attention_first_key(rows, first), keys = first - start;
    const int64_t last = attention_keys_end(rows, end - 1);
    assay_matmul_args to_queries =
        assay_product_ab(s->dq + first * deep, s->ds + start, s->k + start * deep, size, deep, keys);
    to_queries.lda = ld;
    MUST(scores_again(ctx, s->p + start, s->ds + start, ld, s->q + first * deep, size, s->k + start * deep,
                      last - start, deep));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = first; i < end; i++) {
        const int64_t seen = attention_first_key(rows, i), at = (i - first) * ld + seen;
        const int64_t count = attention_keys_end(rows, i) - seen;
        attention_cap(ctx, config->soft_cap, s->p + at, s->slope == NULL ? NULL : s->slope + at, count);
        set_factor(ctx, s, s->p + at, i, count, wide);
    }
    MUST(attention_scores(ctx, s->ds + start, ld, s->dout + first * wide, size, s->v + start * wide, last - start,
                          wide));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = first; i < end; i++) {
        const int64_t seen = attention_first_key(rows, i), row = (i - first) * ld, at = row + seen;
        memset(s->p + row + start, 0, (size_t)(seen - start) * sizeof *s->p);
        memset(s->ds + row + start, 0, (size_t)(seen - start) * sizeof *s->ds);
        attention_row_gradient(ctx, s->p + at, s->ds + at, s->slope == NULL ? NULL : s->slope + at, s->lse[i],
                               s->factor[i], s->shift[i], attention_keys_end(rows, i) - seen);
        round_scaled(ctx, s->ds + at, attention_keys_end(rows, i) - seen, i, ldexp(1, -ilogb((double)deep) / 2));
    }
    MUST(assay_matmul(ctx, &to_queries));
    MUST(add_to_keys(ctx, s->dk + start * deep, s->ds + start, ld, size, keys, s->q + first * deep, deep));
    MUST(add_to_keys(ctx, s->dv + start * wide, s->p + start, ld, size, keys, s->dout + first * wide, wide));
    return add_triangles(ctx, s, config, ld, first, end, rows->config->variant.sees_next ? last - first - 1 : 0);
}

/* Keys and values are shared by the heads of a group, whose parts may be stored before they are added up. */
static void give_to_keys(const assay_context *ctx, const attention_rows *rows, double *tensor, double *part,
                         double *sum, int64_t dim)
{
    const int64_t group = rows->query.heads / rows->kv.heads, count = rows->count * dim;
    if (group > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, count, part);
    if (!rows->first) {
        attention_gather(rows, rows->kv, sum, tensor, dim);
        assay_add(ctx, count, sum, part);
    }
    attention_scatter(rows, rows->kv, tensor, part, dim);
}

static assay_status backward_segment(assay_context *ctx, void *self, const attention_rows *rows, double *scratch)
{
    const backward_job *job = self;
    segment s = cut(rows, scratch);
    load(ctx, job, rows, &s);
    const int64_t block = attention_block(rows->config);
    for (int64_t first = 0; first < rows->count; first += block) {
        const int64_t end = rows->count - first < block ? rows->count : first + block;
        assay_status status = backward_block(ctx, &s, rows, first, end);
        if (status != ASSAY_OK) return status;
    }
    attention_scatter(rows, rows->query, job->g->dquery, s.dq, rows->config->qk_dim);
    give_to_keys(ctx, rows, job->g->dkey, s.dk, s.k, rows->config->qk_dim);
    give_to_keys(ctx, rows, job->g->dvalue, s.dv, s.v, rows->config->v_dim);
    return ASSAY_OK;
}

/* A sink is one more score, the same for every row of its head, whose value is zero: p [B S] its probabilities, negated,
 * d [B S] the D of the rows. */
static assay_status sink_gradients(assay_context *ctx, const backward_job *job, const assay_attention_config *config)
{
    const int64_t length = config->sequence, tokens = config->batch * length, wide = config->v_dim;
    const int32_t *segments = config->mask_padding ? job->in->segment_ids : NULL;
    OWNED double *p = NULL, *d = NULL;
    MUST(assay_alloc_f64(ctx, "probabilities of a sink", tokens, &p));
    MUST(assay_alloc_f64(ctx, "products of attention_out with its gradient", tokens, &d));
    for (int64_t head = 0; head < config->heads; head++) {
        const assay_matmul_args sum = assay_product_ab(job->g->dsinks + head, p, d, 1, 1, tokens);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t row = t * config->heads + head;
            const double lse = job->lse[(t / length * config->heads + head) * length + t % length];
            const bool padding = segments != NULL && segments[t] == 0;
            const double sink = job->in->sinks[head];
            /* 1 less the gate is the same, as the derivative of a sigmoid has it, and loses digits */
            const double share = assay_is_staged(ctx) || assay_uses_second_form_at(ctx, t)
                                     ? 1 - attention_gate(ctx, lse, sink)
                                     : attention_sink_share(ctx, lse, sink);
            p[t] = padding ? 0 : -share;
            d[t] = padding ? 0 : assay_dot(ctx, wide, job->dout + row * wide, job->out + row * wide);
        }
        assay_round(ctx, ASSAY_ROUND_STORAGE, tokens, p);
        MUST(assay_matmul(ctx, &sum));
    }
    return ASSAY_OK;
}

assay_status assay_attention_backward(assay_context *ctx, const assay_attention_gradients *g, const double *dout,
                                      const double *dlse, const double *attention_out, const double *lse,
                                      const assay_attention_inputs *in, const assay_attention_config *config)
{
    const int64_t tokens = config->batch * config->sequence, rows = tokens * config->heads;
    const int64_t kv_rows = tokens * assay_attention_kv_heads(config);
    const int64_t block = config->sequence < ATTENTION_BLOCK ? config->sequence : ATTENTION_BLOCK;
    const int64_t scratch =
        config->sequence * (4 * config->qk_dim + 3 * config->v_dim + 3 + (config->soft_cap > 0 ? 3 : 2) * block);
    backward_job job = {g, dout, dlse, attention_out, lse, in};
    /* What padding gives. */
    memset(g->dquery, 0, (size_t)(rows * config->qk_dim) * sizeof *g->dquery);
    memset(g->dkey, 0, (size_t)(kv_rows * config->qk_dim) * sizeof *g->dkey);
    memset(g->dvalue, 0, (size_t)(kv_rows * config->v_dim) * sizeof *g->dvalue);
    MUST(g->dsinks == NULL ? ASSAY_OK : sink_gradients(ctx, &job, config));
    const attention_loop loop = {.segment = backward_segment, .job = &job, .scratch = scratch};
    return attention_for_each(ctx, in->segment_ids, config, &loop);
}
