#include "oracle/ops/attention.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/attention_internal.h"
#include "oracle/ops/vector_sums.h"

int64_t assay_attention_kv_heads(const assay_attention_config *config)
{
    return config->kv_heads > 0 ? config->kv_heads : config->heads;
}

assay_status assay_attention_check(assay_context *ctx, const assay_attention_config *config)
{
    if (config->heads < 1 || config->heads % assay_attention_kv_heads(config) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "base_num_kv_heads is %" PRId64 ", expected a divisor of base_num_query_heads (%" PRId64 ")",
                          config->kv_heads, config->heads);
    }
    if (!(config->soft_cap >= 0) || !isfinite(config->soft_cap)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "attn_logits_soft_cap is %g, expected a number above 0, or 0: none",
                          config->soft_cap);
    }
    if (config->window < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "sliding_window_size is %" PRId64 ", expected 1 or more",
                          config->window);
    }
    return ASSAY_OK;
}

assay_status assay_attention_check_segments(assay_context *ctx, const int32_t *segment_ids, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        if (segment_ids[t] >= 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs/segment_ids[%" PRId64 "] is %" PRId32 ", expected 0 or more", t,
                          segment_ids[t]);
    }
    return ASSAY_OK;
}

/* Index of the first that is not finite; count: none. */
static int64_t first_not_finite(int64_t count, const double *values)
{
    bool finite = true;
    for (int64_t i = 0; i < count; i++) finite &= fabs(values[i]) <= DBL_MAX;
    for (int64_t i = 0; !finite && i < count; i++) {
        if (!isfinite(values[i])) return i;
    }
    return count;
}

assay_status assay_attention_check_tokens(assay_context *ctx, const char *path, const double *values, int64_t tokens,
                                          int64_t sequence, int64_t width, const int32_t *segment_ids)
{
    for (int64_t token = 0; values != NULL && token < tokens; token++) {
        if (segment_ids != NULL && segment_ids[token] == 0) continue;
        const int64_t i = first_not_finite(width, values + token * width);
        if (i == width) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s[%" PRId64 ",%" PRId64 ",...] is %g%s, expected a finite number: the token is no padding",
                          path, token / sequence, token % sequence, values[token * width + i],
                          ctx->emulation != NULL ? " once stored" : "");
    }
    return ASSAY_OK;
}

void assay_attention_clear_padding(double *x, bool *cleared, int64_t tokens, int64_t width)
{
    for (int64_t token = 0; token < tokens; token++) {
        const bool clears = first_not_finite(width, x + token * width) < width;
        if (clears) memset(x + token * width, 0, (size_t)width * sizeof *x);
        if (cleared != NULL) cleared[token] = clears;
    }
}

/* For each batch row its tokens by segment, ascending within one; segments begin at `starts`. Padding is left out. */
typedef struct segments_of_rows {
    int32_t *tokens; /* [B,S] */
    int32_t *starts; /* [B,S+1]: starts of the segments of a row, then their end; -1 after it */
} segments_of_rows;

/* A segment begins at each token whose id no earlier token has. */
static void sort_row(int32_t *tokens, int32_t *starts, const int32_t *ids, const assay_attention_config *config)
{
    const int64_t length = config->sequence;
    int32_t count = 0, segments = 0;
    for (int64_t first = 0; first < length; first++) {
        bool known = ids != NULL && ids[first] == 0 && config->mask_padding;
        for (int64_t i = 0; i < first && !known; i++) known = ids == NULL || ids[i] == ids[first];
        if (known) continue;
        starts[segments++] = count;
        for (int64_t i = first; i < length; i++) {
            if (ids == NULL || ids[i] == ids[first]) tokens[count++] = (int32_t)i;
        }
    }
    starts[segments++] = count;
    if (segments <= length) starts[segments] = -1;
}

static assay_status alloc_segments(assay_context *ctx, segments_of_rows *segments, const int32_t *segment_ids,
                                   const assay_attention_config *config)
{
    const int64_t length = config->sequence;
    *segments = (segments_of_rows){0};
    MUST(assay_alloc_i32(ctx, "tokens by segment", config->batch * length, &segments->tokens));
    MUST(assay_alloc_i32(ctx, "starts of segments", config->batch * (length + 1), &segments->starts));
    for (int64_t b = 0; b < config->batch; b++) {
        sort_row(segments->tokens + b * length, segments->starts + b * (length + 1),
                 segment_ids == NULL ? NULL : segment_ids + b * length, config);
    }
    return ASSAY_OK;
}

static void free_segments(segments_of_rows *segments)
{
    free(segments->tokens);
    free(segments->starts);
    *segments = (segments_of_rows){0};
}

static int64_t row_offset(const attention_rows *rows, attention_head head, int64_t i, int64_t dim)
{
    const int64_t token = rows->batch * rows->config->sequence + rows->tokens[i];
    return (token * head.heads + head.index) * dim;
}

void attention_gather(const attention_rows *rows, attention_head head, double *to, const double *tensor, int64_t dim)
{
    for (int64_t i = 0; i < rows->count; i++)
        memcpy(to + i * dim, tensor + row_offset(rows, head, i, dim), (size_t)dim * sizeof *to);
}

void attention_scatter(const attention_rows *rows, attention_head head, double *tensor, const double *from, int64_t dim)
{
    for (int64_t i = 0; i < rows->count; i++)
        memcpy(tensor + row_offset(rows, head, i, dim), from + i * dim, (size_t)dim * sizeof *from);
}

int64_t attention_first_key(const attention_rows *rows, int64_t i)
{
    const int64_t window = rows->config->window;
    int64_t first = i;
    if (window == 0) return 0;
    while (first > 0 && rows->tokens[i] - rows->tokens[first - 1] < window) first--;
    return first;
}

int64_t attention_keys_end(const attention_rows *rows, int64_t i)
{
    return rows->beyond && i + 1 < rows->count ? i + 2 : i + 1;
}

int64_t attention_block(const assay_attention_config *config)
{
    const int64_t window = config->window;
    if (window == 0 || window >= ATTENTION_BLOCK) return ATTENTION_BLOCK;
    return window < ATTENTION_TRIANGLE ? ATTENTION_TRIANGLE : window;
}

double attention_gate(const assay_context *ctx, double lse, double sink)
{
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    double gate = assay_sigmoid(lse - sink);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &gate);
    return gate;
}

double attention_sink_share(const assay_context *ctx, double lse, double sink)
{
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    double share = assay_sigmoid(sink - lse);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share);
    return share;
}

typedef struct head_loop {
    const assay_attention_config *config;
    segments_of_rows segments;
    const attention_loop *each;
    double *scratch;
    int workers;
    bool beyond, modulo; /* a mutant's: see attention_rows; query head n has the keys of head n % Nkv */
} head_loop;

static assay_status run_head(assay_context *ctx, const head_loop *loop, attention_rows *rows, double *scratch)
{
    const int64_t length = loop->config->sequence;
    const int32_t *starts = loop->segments.starts + rows->batch * (length + 1);
    for (int64_t i = 0; i < length && starts[i + 1] >= 0; i++) {
        rows->tokens = loop->segments.tokens + rows->batch * length + starts[i];
        rows->count = starts[i + 1] - starts[i];
        assay_status status = loop->each->segment(ctx, loop->each->job, rows, scratch);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

/* The heads of queries that share a head of keys. */
static assay_status run_group(assay_context *ctx, const head_loop *loop, int64_t index, double *scratch)
{
    const int64_t heads = loop->config->heads, kv_heads = assay_attention_kv_heads(loop->config);
    const int64_t group = heads / kv_heads, kv = index % kv_heads;
    attention_rows rows = {
        .config = loop->config, .batch = index / kv_heads, .kv = {kv, kv_heads}, .beyond = loop->beyond};
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < group && status == ASSAY_OK; i++) {
        rows.query = (attention_head){loop->modulo ? i * kv_heads + kv : kv * group + i, heads};
        rows.first = i == 0;
        status = run_head(ctx, loop, &rows, scratch);
    }
    return status;
}

/* Every worker has its own context and scratch; the first failure, by head, is the result. */
static assay_status run_heads(assay_context *ctx, const head_loop *loop)
{
    const int64_t heads = loop->config->batch * assay_attention_kv_heads(loop->config);
    const int workers = loop->workers;
    assay_status status = ASSAY_OK;
    int64_t failed = heads;
#pragma omp parallel for num_threads(workers) schedule(static)
    for (int worker = 0; worker < workers; worker++) {
        assay_context own = *ctx;
        own.threads = workers > 1 ? 1 : ctx->threads;
        for (int64_t head = worker; head < heads; head += workers) {
            const assay_status found = run_group(&own, loop, head, loop->scratch + worker * loop->each->scratch);
            if (found == ASSAY_OK) continue;
#pragma omp critical
            if (head < failed) {
                failed = head;
                status = found;
                memcpy(ctx->message, own.message, sizeof ctx->message);
            }
            break;
        }
    }
    return status;
}

assay_status attention_for_each(assay_context *ctx, const int32_t *segment_ids, const assay_attention_config *config,
                                const attention_loop *each)
{
    assay_status status = ASSAY_OK;
    const int64_t kv_heads = assay_attention_kv_heads(config);
    const bool shares = kv_heads > 1 && kv_heads < config->heads;
    int64_t count = 0;
    head_loop loop = {.config = config,
                      .each = each,
                      .workers = config->batch * kv_heads >= ctx->threads ? ctx->threads : 1,
                      .beyond = config->sequence > 1 && assay_step_is_changed(ctx, "next key", NULL),
                      .modulo = shares && assay_step_is_changed(ctx, "heads modulo", NULL)};
    TRY(assay_checked_count(ctx, "scratch of attention", 2, (int64_t[]){loop.workers, each->scratch}, &count));
    TRY(assay_alloc_f64(ctx, "scratch of attention", count, &loop.scratch));
    TRY(alloc_segments(ctx, &loop.segments, segment_ids, config));
    TRY(run_heads(ctx, &loop));
cleanup:
    free_segments(&loop.segments);
    free(loop.scratch);
    return status;
}

assay_status attention_scores(assay_context *ctx, double *out, int64_t ld, const double *a, int64_t rows,
                              const double *b, int64_t columns, int64_t k)
{
    assay_matmul_args args = assay_product_abt(out, a, b, rows, columns, k);
    args.ldc = ld;
    return assay_matmul(ctx, &args);
}

/* tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|), and 1 - tanh(x)^2 = 4 e / (1 + e)^2, which loses no digits. A kernel that
 * takes the slope from its rounded tanh has the error of that. */
static double capped(const assay_context *ctx, double x, double *slope)
{
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &x);
    const double e = assay_exp(-2 * fabs(x)), exact = copysign((1 - e) / (1 + e), x);
    double rounded = exact;
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rounded);
    *slope = 4 * e / ((1 + e) * (1 + e)) - (rounded - exact) * (rounded + exact);
    return rounded;
}

void attention_cap(const assay_context *ctx, double soft_cap, double *scores, double *slopes, int64_t count)
{
    if (soft_cap == 0) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, scores);
    for (int64_t i = 0; i < count; i++) {
        double slope;
        scores[i] = soft_cap * capped(ctx, scores[i] / soft_cap, &slope);
        if (slopes != NULL) slopes[i] = slope;
    }
}

/* Partial sums are rounded, as those of a product are: in this order, where terms may cancel, and, as in another order, as
 * those of terms that grow evenly to the last one. */
static void add_row_by_row(const assay_context *ctx, const attention_triangle *t, int64_t first, int64_t end)
{
    for (int64_t row = first; row < end; row++) {
        double *y = t->y + row * t->width;
        const int64_t from = t->transpose ? row : first, to = t->transpose ? end : row + 1;
        for (int64_t i = from; i < to; i++) {
            const double w = t->transpose ? t->w[i * t->ld + row] : t->w[row * t->ld + i];
            assay_add_scaled(ctx, t->width, w, t->x + i * t->width, y);
        }
        assay_round_sums(ctx, ceil((double)(to - from) / 3), t->width, y);
    }
}

/* The part of it that lies in the rows and columns [first, end). */
static assay_status add_part(assay_context *ctx, const attention_triangle *t, int64_t first, int64_t end)
{
    const int64_t middle = first + (end - first) / 2;
    const int64_t to = t->transpose ? first : middle, from = t->transpose ? middle : first;
    const int64_t rows = t->transpose ? middle - first : end - middle, k = end - first - rows;
    assay_matmul_args square = assay_product_ab(t->y + to * t->width, t->w + middle * t->ld + first,
                                                t->x + from * t->width, rows, t->width, k);
    square.lda = t->ld;
    square.transpose_a = t->transpose;
    square.accumulate = true;
    if (end - first <= ATTENTION_TRIANGLE) {
        add_row_by_row(ctx, t, first, end);
        return ASSAY_OK;
    }
    MUST(add_part(ctx, t, first, middle));
    MUST(assay_matmul(ctx, &square));
    return add_part(ctx, t, middle, end);
}

assay_status attention_add_triangle(assay_context *ctx, const attention_triangle *triangle)
{
    const attention_triangle *t = triangle;
    for (int64_t i = 0; i < t->beyond; i++) {
        const int64_t to = t->transpose ? i + 1 : i, from = t->transpose ? i : i + 1;
        assay_add_scaled(ctx, t->width, t->w[i * t->ld + i + 1], t->x + from * t->width, t->y + to * t->width);
    }
    return add_part(ctx, triangle, 0, triangle->size);
}

typedef struct forward_job {
    double *attention_out, *lse;
    const assay_attention_inputs *in;
} forward_job;

/* The sum of a row's exponentials. A sum of `count` positive terms that is rounded after every term has the error of
 * count / 3 roundings of its final value. */
static double sum_row(const assay_context *ctx, const double *p, int64_t count)
{
    double sum = 0;
    for (int64_t j = 0; j < count; j++) sum += p[j];
    assay_round_sums(ctx, ceil((double)count / 3), 1, &sum);
    return sum;
}

/* Half of the rows that are merged have two parts, whose errors are the largest; the others up to ATTENTION_PARTS. */
static int64_t parts_of(const assay_context *ctx, int64_t row)
{
    if (!assay_takes_third_form_at(ctx, row)) return 1;
    return assay_turn_at(ctx, 2 * row, 2) == 0 ? 2 : 3 + assay_turn_at(ctx, 2 * row + 1, ATTENTION_PARTS - 2);
}

attention_softmax attention_softmax_of(const assay_context *ctx, int64_t row, const double *sink)
{
    const bool last = assay_takes_second_form_at(ctx, row);
    const bool gated = !last && sink != NULL && assay_takes_third_form_at(ctx, row);
    return (attention_softmax){.form = last    ? ATTENTION_DIVIDED_LAST
                                       : gated ? ATTENTION_GATED_FIRST
                                               : ATTENTION_DIVIDED_FIRST,
                               .parts = parts_of(ctx, row),
                               .sink = sink};
}

static double rounded_log(const assay_context *ctx, double x)
{
    double log = assay_log(x);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &log);
    return log;
}

/* A kernel that has the keys in parts (split KV, a ring) keeps an lse of each, and merges results by exp(lse_part - lse): where lse is
 * large, its rounding is a common error of the row. How many keys a part has decides which of them share it. In the emulated runs rows
 * take turns here too, and draw the number of parts. Exponentials of a row, of the sum
 * `sum`, become what such a kernel weighs with, times that sum; returns its lse. Not where the rounding of an lse is no small error any
 * more: no correct kernel has that. */
static double merge_parts(const assay_context *ctx, double *p, int64_t count, int64_t parts, double largest, double sum)
{
    double lse[ATTENTION_PARTS], sums[ATTENTION_PARTS], weights[ATTENTION_PARTS];
    const double whole = largest + rounded_log(ctx, sum);
    bool small = true;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t begin = count * part / parts;
        sums[part] = sum_row(ctx, p + begin, count * (part + 1) / parts - begin);
        lse[part] = largest + rounded_log(ctx, sums[part]);
    }
    memcpy(weights, lse, (size_t)parts * sizeof *lse);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, parts, lse);
    for (int64_t part = 0; part < parts; part++) small &= !(fabs(lse[part] - weights[part]) > 0.5);
    if (!small) return whole;
    for (int64_t part = 0; part < parts; part++) weights[part] = assay_exp(lse[part] - largest);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, parts, weights);
    const double merged = largest + rounded_log(ctx, sum_row(ctx, weights, parts));
    double stored = merged;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &stored);
    if (fabs(stored - merged) > 0.5) return whole;
    for (int64_t part = 0; part < parts; part++) {
        const double factor = sums[part] > 0 ? sum * (assay_exp(lse[part] - stored) / sums[part]) : 0;
        for (int64_t j = count * part / parts; j < count * (part + 1) / parts; j++) p[j] *= factor;
    }
    return stored;
}

double attention_softmax_row(const assay_context *ctx, const attention_softmax *how, double *p, int64_t count,
                             double *divisor)
{
    const bool last = how->form == ATTENTION_DIVIDED_LAST;
    double largest = -INFINITY;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    for (int64_t j = 0; j < count; j++) largest = p[j] > largest ? p[j] : largest;
    for (int64_t j = 0; j < count; j++) p[j] -= largest;
    assay_exp_many(ctx, count, p, p);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, count, p);
    const double sum = sum_row(ctx, p, count);
    const double lse =
        how->parts > 1 ? merge_parts(ctx, p, count, how->parts, largest, sum) : largest + rounded_log(ctx, sum);
    const double gate = how->form == ATTENTION_GATED_FIRST ? attention_gate(ctx, lse, *how->sink) : 1;
    *divisor = last ? sum : 1;
    for (int64_t j = 0; j < count && !last; j++) p[j] = p[j] / sum * gate;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    assay_round(ctx, ASSAY_ROUND_OPERAND, count, p);
    return lse;
}

void attention_divide_row(double *out, int64_t wide, double divisor)
{
    for (int64_t d = 0; d < wide && divisor != 1; d++) out[d] /= divisor;
}

/* Queries [first, end) of a segment; p [ATTENTION_BLOCK,ld]. */
static assay_status forward_block(assay_context *ctx, double *out, double *lse, const double *q, const double *k,
                                  const double *v, const double *sink, double *p, const attention_rows *rows,
                                  int64_t first, int64_t end)
{
    const int64_t ld = rows->count, wide = rows->config->v_dim, deep = rows->config->qk_dim;
    const int64_t start = attention_first_key(rows, first), keys = attention_keys_end(rows, end - 1) - start;
    assay_matmul_args rectangle =
        assay_product_ab(out + first * wide, p + start, v + start * wide, end - first, wide, first - start);
    rectangle.lda = ld;
    const attention_triangle triangle = {.w = p + first,
                                         .ld = ld,
                                         .x = v + first * wide,
                                         .y = out + first * wide,
                                         .size = end - first,
                                         .width = wide,
                                         .beyond = rows->beyond ? start + keys - first - 1 : 0};
    double divisors[ATTENTION_BLOCK];
    MUST(attention_scores(ctx, p + start, ld, q + first * deep, end - first, k + start * deep, keys, deep));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = first; i < end; i++) {
        const int64_t seen = attention_first_key(rows, i), count = attention_keys_end(rows, i) - seen;
        double *row = p + (i - first) * ld;
        memset(row + start, 0, (size_t)(seen - start) * sizeof *row);
        attention_cap(ctx, rows->config->soft_cap, row + seen, NULL, count);
        const attention_softmax how = attention_softmax_of(ctx, i, sink);
        lse[i] = attention_softmax_row(ctx, &how, row + seen, count, &divisors[i - first]);
    }
    MUST(assay_matmul(ctx, &rectangle));
    MUST(attention_add_triangle(ctx, &triangle));
    for (int64_t i = first; i < end; i++) attention_divide_row(out + i * wide, wide, divisors[i - first]);
    return ASSAY_OK;
}

void attention_gate_row(const assay_context *ctx, const attention_softmax *how, double *out, int64_t wide, double lse)
{
    if (how->sink == NULL || how->form == ATTENTION_GATED_FIRST) return;
    if (how->form == ATTENTION_DIVIDED_FIRST) assay_round(ctx, ASSAY_ROUND_STORAGE, wide, out);
    const double gate = attention_gate(ctx, lse, *how->sink);
    for (int64_t d = 0; d < wide; d++) out[d] *= gate;
}

static void gate_rows(const assay_context *ctx, double *out, const double *lse, const attention_rows *rows,
                      const double *sink)
{
    const int64_t wide = rows->config->v_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        const attention_softmax how = attention_softmax_of(ctx, i, sink);
        attention_gate_row(ctx, &how, out + i * wide, wide, lse[i]);
    }
}

static assay_status forward_segment(assay_context *ctx, void *self, const attention_rows *rows, double *scratch)
{
    const forward_job *job = self;
    const assay_attention_config *config = rows->config;
    const int64_t count = rows->count, block = attention_block(config), head = rows->query.index;
    double *q = scratch, *k = q + count * config->qk_dim, *v = k + count * config->qk_dim;
    double *out = v + count * config->v_dim, *lse = out + count * config->v_dim, *p = lse + count;
    const double *sink = job->in->sinks == NULL ? NULL : &job->in->sinks[head];
    attention_gather(rows, rows->query, q, job->in->query, config->qk_dim);
    attention_gather(rows, rows->kv, k, job->in->key, config->qk_dim);
    attention_gather(rows, rows->kv, v, job->in->value, config->v_dim);
    assay_round(ctx, ASSAY_ROUND_OPERAND, out - q, q);
    for (int64_t first = 0; first < count; first += block) {
        const int64_t end = count - first < block ? count : first + block;
        assay_status status = forward_block(ctx, out, lse, q, k, v, sink, p, rows, first, end);
        if (status != ASSAY_OK) return status;
    }
    if (sink != NULL) gate_rows(ctx, out, lse, rows, sink);
    attention_scatter(rows, rows->query, job->attention_out, out, config->v_dim);
    double *lse_of_head = job->lse + (rows->batch * config->heads + head) * config->sequence;
    for (int64_t i = 0; i < count; i++) lse_of_head[rows->tokens[i]] = lse[i];
    return ASSAY_OK;
}

static bool has_blind_rows(const assay_attention_inputs *in, const assay_attention_config *config)
{
    bool blind = false;
    for (int64_t t = 0; t < config->batch * config->sequence && in->segment_ids != NULL && config->mask_padding; t++)
        blind |= in->segment_ids[t] == 0;
    return blind;
}

assay_status assay_attention_forward(assay_context *ctx, double *attention_out, double *lse,
                                     const assay_attention_inputs *in, const assay_attention_config *config)
{
    const int64_t rows = config->batch * config->sequence * config->heads;
    const int64_t block = config->sequence < ATTENTION_BLOCK ? config->sequence : ATTENTION_BLOCK;
    const int64_t scratch = config->sequence * (2 * config->qk_dim + 2 * config->v_dim + 1 + block);
    forward_job job = {attention_out, lse, in};
    /* What padding gives. */
    const double blind = has_blind_rows(in, config) && assay_step_is_changed(ctx, "blind rows", NULL) ? (double)NAN : 0;
    for (int64_t i = 0; i < rows * config->v_dim; i++) attention_out[i] = blind;
    for (int64_t i = 0; i < rows; i++) lse[i] = -INFINITY;
    const attention_loop loop = {.segment = forward_segment, .job = &job, .scratch = scratch};
    return attention_for_each(ctx, in->segment_ids, config, &loop);
}

double assay_attention_flops(const assay_attention_config *config, bool backward)
{
    const double length = (double)config->sequence, window = (double)config->window;
    const double hidden = window > 0 && length > window ? (length - window) * (length - window + 1) / 2 : 0;
    const double pairs = length * (length + 1) / 2 - hidden;
    const double heads = (double)config->batch * (double)config->heads;
    const double qk = (double)config->qk_dim, v = (double)config->v_dim;
    return 2 * heads * pairs * (backward ? 3 * qk + 2 * v : qk + v);
}
