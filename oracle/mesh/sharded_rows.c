/* Where rows go: tokens to the shards that route them, copies of tokens to the shards of their experts, and back. Each
 * way has its transpose, which gradients take. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

static const assay_mesh_axis EXPERT = ASSAY_AXIS_EXPERT;

/* Chunk c of every row of the batch, whole [B,S,...] to part [B,S/C,...]; `bytes` of a token. */
static void cut_chunk(const sharded_run *run, int64_t c, size_t bytes, void *part, const void *whole)
{
    const size_t chunk = (size_t)run->sizes.sequence * bytes, chunks = (size_t)run->sizes.chunks;
    for (size_t row = 0; row < (size_t)run->block->config->routing.batch; row++)
        memcpy((char *)part + row * chunk, (const char *)whole + (row * chunks + (size_t)c) * chunk, chunk);
}

static void put_chunk(const sharded_run *run, int64_t c, size_t bytes, void *whole, const void *part)
{
    const size_t chunk = (size_t)run->sizes.sequence * bytes, chunks = (size_t)run->sizes.chunks;
    for (size_t row = 0; row < (size_t)run->block->config->routing.batch; row++)
        memcpy((char *)whole + (row * chunks + (size_t)c) * chunk, (const char *)part + row * chunk, chunk);
}

/* A shard routes what it owns; `bytes` of all of it. A batch that is not split belongs to every shard. */
static void give_own(const sharded_run *run, size_t bytes, void *routed, const void *part)
{
    for (size_t shard = 0; shard < (size_t)run->sizes.shards; shard++) {
        const size_t owner = run->sizes.batch_sharded ? shard : 0;
        memcpy((char *)routed + shard * bytes, (const char *)part + owner * bytes, bytes);
    }
}

assay_status sharded_spread(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width, double *routed,
                            const double *whole)
{
    const assay_shard_sizes *s = &run->sizes;
    const assay_shape own = assay_shape_of(3, s->own_batch, s->sequence, width);
    const int64_t count = assay_shape_count(&own);
    double *part = NULL;
    assay_status status = ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "a chunk of the tokens", run->block->config->routing.batch * s->sequence * width, &part));
    cut_chunk(run, c, (size_t)width * sizeof *part, part, whole);
    if (run->sharding->ring_of_experts) {
        assay_all_gather(ctx, routed, part, &own, 0, &run->sharding->mesh, EXPERT);
    } else {
        give_own(run, (size_t)count * sizeof *part, routed, part);
    }
cleanup:
    free(part);
    return status;
}

assay_status sharded_spread_i32(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width, int32_t *routed,
                                const int32_t *whole)
{
    const assay_shard_sizes *s = &run->sizes;
    const assay_shape own = assay_shape_of(3, s->own_batch, s->sequence, width);
    const int64_t count = assay_shape_count(&own);
    int32_t *part = NULL;
    assay_status status = ASSAY_OK;
    TRY(assay_alloc_i32(ctx, "a chunk of the tokens", run->block->config->routing.batch * s->sequence * width, &part));
    cut_chunk(run, c, (size_t)width * sizeof *part, part, whole);
    if (run->sharding->ring_of_experts) {
        assay_all_gather_i32(routed, part, &own, 0, &run->sharding->mesh, EXPERT);
    } else {
        give_own(run, (size_t)count * sizeof *part, routed, part);
    }
cleanup:
    free(part);
    return status;
}

assay_status sharded_collect(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width,
                             assay_rounding rounding, double *whole, double *routed)
{
    const assay_shard_sizes *s = &run->sizes;
    const assay_shape shape = assay_shape_of(3, s->batch, s->sequence, width);
    const int64_t count = assay_shape_count(&shape);
    double *part = NULL;
    assay_status status = ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "a chunk of the tokens", run->block->config->routing.batch * s->sequence * width, &part));
    if (s->expert_shards > 1 && (run->sharding->ring_of_experts || !s->batch_sharded))
        assay_round(ctx, rounding, s->shards * count, routed);
    if (run->sharding->ring_of_experts) {
        assay_psum_scatter(ctx, part, routed, &shape, 0, &run->sharding->mesh, EXPERT);
    } else {
        memcpy(part, routed, (size_t)((s->batch_sharded ? s->shards : 1) * count) * sizeof *part);
        for (int64_t shard = 1; !s->batch_sharded && shard < s->shards; shard++) {
            for (int64_t i = 0; i < count; i++) part[i] += routed[shard * count + i];
        }
    }
    put_chunk(run, c, (size_t)width * sizeof *part, whole, part);
cleanup:
    free(part);
    return status;
}

/* Whether copies stay on the shard that sorted them, where its experts' rows come first. */
static bool stays(const sharded_run *run)
{
    return run->sharding->ring_of_experts || run->sizes.expert_shards == 1;
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
    assay_status status = ASSAY_OK;
    if (stays(run)) {
        memcpy(rows, sorted, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    if (run->sizes.batch_sharded) {
        TRY(assay_ragged_all_to_all(ctx, run->received, sorted, &chunk->dispatch, &dims, &run->sharding->mesh, EXPERT));
        received = run->received;
    }
    sort_received(ctx, run, chunk, width, rows, received);
cleanup:
    return status;
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
    return assay_ragged_all_to_all_transpose(ctx, sorted, NULL, run->received, &chunk->dispatch, &dims,
                                             &run->sharding->mesh, EXPERT);
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
    return assay_ragged_all_to_all(ctx, sorted, sent, &chunk->combine, &dims, &run->sharding->mesh, EXPERT);
}

assay_status sharded_combine_transpose(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk,
                                       int64_t width, double *rows, const double *sorted)
{
    const assay_ragged_dims dims = combine_dims(run, width);
    assay_status status = ASSAY_OK;
    if (stays(run)) {
        memcpy(rows, sorted, bytes_of(run, run->sizes.copies, width));
        return ASSAY_OK;
    }
    double *sent = run->sizes.batch_sharded ? run->received : rows;
    TRY(assay_ragged_all_to_all_transpose(ctx, sent, NULL, sorted, &chunk->combine, &dims, &run->sharding->mesh,
                                          EXPERT));
    if (run->sizes.batch_sharded) sort_received(ctx, run, chunk, width, rows, sent);
cleanup:
    return status;
}
