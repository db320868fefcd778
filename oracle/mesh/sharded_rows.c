/* Where rows go: tokens to the shards that route them, copies of tokens to the shards of their experts, and back. Each
 * way has its transpose, which gradients take. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/ops/vector_sums.h"

static const assay_mesh_axis EXPERT = ASSAY_AXIS_EXPERT;

/* Chunk c of row `row` of the batch in whole [B,S,...]; `bytes` of a token. */
static size_t chunk_at(const sharded_run *run, int64_t c, int64_t row, size_t bytes)
{
    return (size_t)((row * run->sizes.chunks + c) * run->sizes.sequence) * bytes;
}

/* With the ring a shard gathers the tokens of its expert axis, else it routes its own; a batch that is not split belongs to
 * every shard. */
void sharded_spread(const sharded_run *run, int64_t c, size_t bytes, void *routed, const void *whole)
{
    const assay_shard_sizes *s = &run->sizes;
    const size_t chunk = (size_t)s->sequence * bytes;
    char *to = routed;
    for (int64_t i = 0; i < s->shards * s->batch; i++, to += chunk) {
        const int64_t shard = i / s->batch, part = i % s->batch / s->own_batch;
        const int64_t owner = run->sharding->ring_of_experts ? assay_mesh_peer(&run->mesh, shard, EXPERT, part)
                                                             : shard / (s->shards / s->owners);
        const int64_t row = owner * s->own_batch + i % s->own_batch;
        memcpy(to, (const char *)whole + chunk_at(run, c, row, bytes), chunk);
    }
}

assay_status sharded_collect(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width,
                             assay_rounding rounding, double *whole, double *routed)
{
    const assay_shard_sizes *s = &run->sizes;
    const assay_shape shape = assay_shape_of(3, s->batch, s->sequence, width);
    const int64_t count = assay_shape_count(&shape), batch = run->block->config->routing.batch;
    const int64_t chunk = s->sequence * width, alike = s->shards / s->owners;
    OWNED double *part = NULL;
    MUST(assay_alloc_f64(ctx, "a chunk of the tokens", batch * chunk, &part));
    if (s->expert_shards > 1 && (run->sharding->ring_of_experts || alike > 1))
        assay_round(ctx, rounding, s->shards * count, routed);
    if (run->sharding->ring_of_experts) {
        assay_psum_scatter(ctx, part, routed, &shape, 0, &run->mesh, EXPERT);
    } else {
        for (int64_t shard = 0; shard < s->shards; shard++) {
            double *sum = part + shard / alike * count;
            const double *term = routed + shard * count;
            if (shard % alike == 0) memcpy(sum, term, (size_t)count * sizeof *sum);
            if (shard % alike > 0) assay_add(ctx, count, term, sum);
        }
    }
    for (int64_t row = 0; row < batch; row++)
        memcpy(whole + chunk_at(run, c, row, (size_t)width), part + row * chunk, (size_t)chunk * sizeof *part);
    return ASSAY_OK;
}

/* Whether copies stay on the shard that sorted them, where its experts' rows come first; fused_moe_func: where they lie
 * among those of the others. */
static bool stays(const sharded_run *run)
{
    return !run->sizes.exchanges;
}

/* received[indices[i]] is sorted[i]: a gather one way, and a scatter the other. */
static void sort_received(const assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                          double *rows, const double *received)
{
    const int64_t buffer = run->sizes.buffer;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < run->sizes.shards * buffer; i++) {
        const int64_t from = i / buffer * buffer + chunk->local_sorted_indices[i];
        memcpy(rows + i * width, received + from * width, (size_t)width * sizeof *rows);
    }
}

static void unsort_received(const assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                            double *received, const double *rows)
{
    const int64_t buffer = run->sizes.buffer;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < run->sizes.shards * buffer; i++) {
        const int64_t to = i / buffer * buffer + chunk->local_sorted_indices[i];
        memcpy(received + to * width, rows + i * width, (size_t)width * sizeof *rows);
    }
}

static size_t bytes_of(const sharded_run *run, int64_t rows, int64_t width)
{
    return (size_t)(run->sizes.shards * rows * width) * sizeof(double);
}

static assay_ragged_dims dispatch_dims(const sharded_run *run, int64_t width)
{
    return (assay_ragged_dims){run->sizes.copies, run->sizes.buffer, width};
}

static assay_ragged_dims combine_dims(const sharded_run *run, int64_t width)
{
    return (assay_ragged_dims){run->sizes.buffer, run->sizes.copies, width};
}

assay_status sharded_dispatch(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                              double *rows, const double *sorted)
{
    const assay_ragged_dims dims = dispatch_dims(run, width);
    const double *received = sorted; /* a batch that is not split is there already */
    if (stays(run)) {
        memcpy(rows, sorted, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    if (run->sizes.batch_sharded) {
        MUST(assay_ragged_all_to_all(ctx, run->received, sorted, &chunk->dispatch, &dims, &run->mesh, EXPERT));
        received = run->received;
    }
    sort_received(ctx, run, chunk, width, rows, received);
    return ASSAY_OK;
}

assay_status sharded_dispatch_transpose(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk,
                                        int64_t width, double *sorted, const double *rows)
{
    const assay_ragged_dims dims = dispatch_dims(run, width);
    if (stays(run)) {
        memcpy(sorted, rows, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    if (!run->sizes.batch_sharded) {
        unsort_received(ctx, run, chunk, width, sorted, rows);
        return ASSAY_OK;
    }
    unsort_received(ctx, run, chunk, width, run->received, rows);
    return assay_ragged_all_to_all_transpose(ctx, sorted, NULL, run->received, &chunk->dispatch, &dims, &run->mesh,
                                             EXPERT);
}

assay_status sharded_combine(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                             double *sorted, const double *rows)
{
    const assay_ragged_dims dims = combine_dims(run, width);
    const double *sent = rows;
    if (stays(run)) {
        memcpy(sorted, rows, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    if (run->sizes.batch_sharded) {
        unsort_received(ctx, run, chunk, width, run->received, rows);
        sent = run->received;
    }
    memset(sorted, 0, bytes_of(run, run->sizes.copies, width)); /* what was cut comes back as 0 */
    return assay_ragged_all_to_all(ctx, sorted, sent, &chunk->combine, &dims, &run->mesh, EXPERT);
}

assay_status sharded_combine_transpose(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk,
                                       int64_t width, double *rows, const double *sorted)
{
    const assay_ragged_dims dims = combine_dims(run, width);
    if (stays(run)) {
        memcpy(rows, sorted, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    double *sent = run->sizes.batch_sharded ? run->received : rows;
    MUST(assay_ragged_all_to_all_transpose(ctx, sent, NULL, sorted, &chunk->combine, &dims, &run->mesh, EXPERT));
    if (run->sizes.batch_sharded) sort_received(ctx, run, chunk, width, rows, sent);
    return ASSAY_OK;
}
