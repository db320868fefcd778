/* The segments of each batch row, and a loop over those of all heads. */
#include "oracle/ops/attention_internal.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

int64_t assay_attention_kv_heads(const assay_attention_config *config)
{
    return config->kv_heads > 0 ? config->kv_heads : config->heads;
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
        for (int64_t i = first; i < length; i++)
            if (ids == NULL || ids[i] == ids[first]) tokens[count++] = (int32_t)i;
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
    return rows->config->variant.sees_next && i + 1 < rows->count ? i + 2 : i + 1;
}

int64_t attention_block(const assay_attention_config *config)
{
    const int64_t window = config->window;
    if (window == 0 || window >= ATTENTION_BLOCK) return ATTENTION_BLOCK;
    return window < ATTENTION_TRIANGLE ? ATTENTION_TRIANGLE : window;
}

typedef struct head_loop {
    const assay_attention_config *config;
    segments_of_rows segments;
    const attention_loop *each;
    double *scratch;
    int workers;
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
    attention_rows rows = {.config = loop->config, .batch = index / kv_heads, .kv = {kv, kv_heads}};
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < group && status == ASSAY_OK; i++) {
        rows.query = (attention_head){loop->config->variant.in_turns ? i * kv_heads + kv : kv * group + i, heads};
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
    int64_t count = 0;
    head_loop loop = {
        .config = config, .each = each, .workers = config->batch * kv_heads >= ctx->threads ? ctx->threads : 1};
    TRY(assay_checked_count(ctx, "scratch of attention", 2, (int64_t[]){loop.workers, each->scratch}, &count));
    TRY(assay_alloc_f64(ctx, "scratch of attention", count, &loop.scratch));
    TRY(alloc_segments(ctx, &loop.segments, segment_ids, config));
    TRY(run_heads(ctx, &loop));
cleanup:
    free_segments(&loop.segments);
    free(loop.scratch);
    return status;
}
