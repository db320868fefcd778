#include "oracle/ops/attention.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/ops/attention_internal.h"

assay_status assay_attention_check(assay_context *ctx, const assay_attention_config *config)
{
    if (config->heads < 1 || config->heads % assay_attention_kv_heads(config) != 0) {
        return assay_refuse(
            ctx, "base_num_kv_heads is %" PRId64 ", expected a divisor of base_num_query_heads (%" PRId64 ")",
            config->kv_heads, config->heads);
    }
    if (!(config->soft_cap >= 0) || !isfinite(config->soft_cap)) {
        return assay_refuse(ctx, "attn_logits_soft_cap is %g, expected a number above 0, or 0: none", config->soft_cap);
    }
    if (config->window < 0) {
        return assay_refuse(ctx, "sliding_window_size is %" PRId64 ", expected 1 or more", config->window);
    }
    return ASSAY_OK;
}

assay_status assay_attention_check_segments(assay_context *ctx, const int32_t *segment_ids, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        if (segment_ids[t] >= 0) continue;
        return assay_refuse(ctx, "inputs/segment_ids[%" PRId64 "] is %" PRId32 ", expected 0 or more", t,
                            segment_ids[t]);
    }
    return ASSAY_OK;
}

/* Index of the first that is not finite; count: none. */
static int64_t first_not_finite(int64_t count, const double *values)
{
    bool finite = true;
    for (int64_t i = 0; i < count; i++) finite &= fabs(values[i]) <= DBL_MAX;
    for (int64_t i = 0; !finite && i < count; i++)
        if (!isfinite(values[i])) return i;
    return count;
}

assay_status assay_attention_check_tokens(assay_context *ctx, const char *path, const double *values, int64_t tokens,
                                          int64_t sequence, int64_t width, const int32_t *segment_ids)
{
    for (int64_t token = 0; values != NULL && token < tokens; token++) {
        if (segment_ids != NULL && segment_ids[token] == 0) continue;
        const int64_t i = first_not_finite(width, values + token * width);
        if (i == width) continue;
        return assay_refuse(
            ctx, "%s[%" PRId64 ",%" PRId64 ",...] is %g%s, expected a finite number: the token is no padding", path,
            token / sequence, token % sequence, values[token * width + i],
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

typedef struct forward_job {
    double *attention_out, *lse;
    const assay_attention_inputs *in;
} forward_job;

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
                                         .beyond = rows->config->variant.sees_next ? start + keys - first - 1 : 0};
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

assay_status assay_attention_forward(assay_context *ctx, double *attention_out, double *lse,
                                     const assay_attention_inputs *in, const assay_attention_config *config)
{
    const int64_t rows = config->batch * config->sequence * config->heads;
    const int64_t block = config->sequence < ATTENTION_BLOCK ? config->sequence : ATTENTION_BLOCK;
    const int64_t scratch = config->sequence * (2 * config->qk_dim + 2 * config->v_dim + 1 + block);
    forward_job job = {attention_out, lse, in};
    for (int64_t i = 0; i < rows * config->v_dim; i++) attention_out[i] = config->variant.blind;
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
