/* The rows of the experts over a mesh: a piece for each chunk and shard, which is there where the shard has the expert. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

const int32_t *sharded_groups(const sharded_run *run, const sharded_chunk *chunk, int64_t shard)
{
    return chunk->placed == NULL ? chunk->routings[shard].selected_experts : chunk->placed + shard * run->sizes.copies;
}

/* What copies are sorted by: an expert, or the first of those that come together, or one of his replicas; -1: he has no such. */
static int64_t group_of(const sharded_run *run, int64_t expert, int64_t replica)
{
    const assay_replicas *r = run->replicas;
    if (r == NULL) return expert * run->block->joined;
    return r->first[expert] + replica < r->first[expert + 1] ? r->ids[r->first[expert] + replica] : -1;
}

/* The groups of a shard, in one chunk; *local is the number among them of the one at hand, -1 where that is elsewhere. Of the
 * pieces of an expert those of his first replica come first. */
static const int32_t *groups_of(const sharded_run *run, int64_t expert, int64_t piece, int64_t *local)
{
    const assay_shard_sizes *s = &run->sizes;
    const int64_t shard = piece % s->shards, c = piece / s->shards % s->chunks;
    const int64_t group = group_of(run, expert, piece / s->shards / s->chunks);
    const int64_t index = assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT);
    *local = group >= 0 && index == group / s->local_experts ? group % s->local_experts : -1;
    return run->chunks[c].local_group_sizes + shard * s->local_experts;
}

static int64_t rows_of(const sharded_run *run, const int32_t *group_sizes, int64_t local)
{
    int64_t rows = 0;
    for (int64_t e = local; local >= 0 && e < local + run->block->joined; e++) rows += group_sizes[e];
    return rows;
}

int64_t sharded_first_group(const sharded_run *run, int64_t shard)
{
    const assay_shard_sizes *s = &run->sizes;
    const bool own_first = s->exchanges || run->sharding->ring_of_experts;
    return own_first ? 0 : assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT) * s->local_experts;
}

int64_t sharded_row_count(const moe_block *block, int64_t expert, int64_t piece)
{
    int64_t local;
    const int32_t *group_sizes = groups_of(block->placed, expert, piece, &local);
    return rows_of(block->placed, group_sizes, local);
}

void sharded_gather_rows(assay_context *ctx, moe_block *block, int64_t expert, int64_t piece)
{
    const sharded_run *run = block->placed;
    const assay_shard_sizes *s = &run->sizes;
    const int64_t c = piece / s->shards % s->chunks, shard = piece % s->shards, dim = block->emb_dim;
    const sharded_chunk *chunk = &run->chunks[c];
    int64_t local, row = 0;
    const int32_t *group_sizes = groups_of(run, expert, piece, &local);
    (void)ctx;
    for (int64_t e = 0; e < local; e++) row += group_sizes[e];
    for (int64_t e = 0; e < sharded_first_group(run, shard); e++)
        row += chunk->group_sizes[shard * run->permute.experts + e];
    const int64_t first = (shard * s->chunks + c) * s->buffer + row;
    row += shard * s->buffer;
    block->rows = (moe_rows){
        .expert = expert,
        .group_sizes = group_sizes,
        .first = first,
        .count = rows_of(run, group_sizes, local),
        .x = chunk->rows_x + row * dim,
        .y = chunk->rows_y + row * dim,
        .dy = block->need_backward ? chunk->rows_dy + row * dim : NULL,
        .dx = block->need_row_dx ? chunk->rows_dx + row * dim : NULL,
        .h_weights = chunk->row_weights == NULL ? NULL : chunk->row_weights + row,
        .d_h_weights = chunk->row_d_weights == NULL ? NULL : chunk->row_d_weights + row,
    };
}

assay_status sharded_alloc_rows(assay_context *ctx, sharded_run *run)
{
    const assay_shard_sizes *s = &run->sizes;
    const moe_block *block = run->block;
    const int64_t dim = block->emb_dim, rows = s->shards * s->buffer, copies = s->shards * s->copies;
    const bool weighs_h = block->split.weighs_h;
    MUST(assay_alloc_f64(ctx, "routed tokens", s->shards * run->permute.tokens * dim, &run->routed));
    MUST(assay_alloc_f64(ctx, "sorted copies", copies * dim, &run->sorted));
    if (s->exchanges && s->batch_sharded) {
        MUST(assay_alloc_f64(ctx, "received rows", rows * dim, &run->received));
    }
    for (int64_t c = 0; c < s->chunks; c++) {
        sharded_chunk *chunk = &run->chunks[c];
        MUST(assay_alloc_f64(ctx, "rows of x", rows * dim, &chunk->rows_x));
        MUST(assay_alloc_zeros(ctx, "rows of y", rows * dim, &chunk->rows_y));
        if (block->need_backward) MUST(assay_alloc_f64(ctx, "rows of dy", rows * dim, &chunk->rows_dy));
        if (block->need_row_dx) MUST(assay_alloc_zeros(ctx, "rows of dx", rows * dim, &chunk->rows_dx));
        if (weighs_h) MUST(assay_alloc_f64(ctx, "weights of rows", rows, &chunk->row_weights));
        if (!block->need_router_gradient) continue;
        if (weighs_h) MUST(assay_alloc_zeros(ctx, "d_weights of rows", rows, &chunk->row_d_weights));
        MUST(assay_alloc_zeros(ctx, "d_weights", copies, &chunk->d_weights));
    }
    return ASSAY_OK;
}

void sharded_free_rows(moe_block *block)
{
    sharded_run *run = block->placed;
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        sharded_chunk *chunk = &run->chunks[c];
        double **const memory[] = {&chunk->rows_x,  &chunk->rows_y,      &chunk->rows_dy,
                                   &chunk->rows_dx, &chunk->row_weights, &chunk->row_d_weights};
        for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
            free(*memory[i]);
            *memory[i] = NULL;
        }
    }
    free(run->routed);
    free(run->sorted);
    free(run->received);
    run->routed = run->sorted = run->received = NULL;
}
