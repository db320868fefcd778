/* What goes to which shard of the experts, and how each sorts what it gets. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/expert_traffic.h"
#include "oracle/mesh/sharded_moe_internal.h"

static void ragged_row(const sharded_run *run, const assay_ragged_params *params, int64_t shard,
                       const assay_traffic *traffic, int32_t *truncated)
{
    const int64_t at = shard * run->sizes.expert_shards;
    assay_all_to_all_params(params->input_offsets + at, params->send_sizes + at, params->output_offsets + at,
                            params->recv_sizes + at, assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT), traffic,
                            truncated);
}

/* Who sends what to whom, once all group sizes are known. */
static assay_status count_traffic(assay_context *ctx, sharded_run *run, sharded_chunk *chunk)
{
    const assay_shard_sizes *s = &run->sizes;
    const assay_mesh *mesh = &run->mesh;
    const int64_t peers = s->expert_shards, local = s->local_experts;
    const assay_shape row = assay_shape_of(2, (int64_t)1, peers);
    OWNED int32_t *truncated = NULL;
    MUST(assay_alloc_i32(ctx, "reshaped_group_sizes", s->shards * peers, &chunk->reshaped_group_sizes));
    MUST(assay_alloc_i32(ctx, "all_shards_group_sizes", s->shards * peers * peers, &chunk->all_shards_group_sizes));
    MUST(assay_alloc_i32(ctx, "truncated traffic", peers * peers, &truncated));
    MUST(assay_ragged_params_alloc(ctx, &chunk->dispatch, mesh, ASSAY_AXIS_EXPERT));
    MUST(assay_ragged_params_alloc(ctx, &chunk->combine, mesh, ASSAY_AXIS_EXPERT));
    for (int64_t i = 0; i < s->shards * peers; i++) {
        int32_t sum = 0;
        for (int64_t e = 0; e < local; e++) sum += chunk->group_sizes[i * local + e];
        chunk->reshaped_group_sizes[i] = sum;
    }
    assay_all_gather_i32(chunk->all_shards_group_sizes, chunk->reshaped_group_sizes, &row, 0, mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < s->shards; shard++) {
        assay_traffic traffic = {
            .sizes = s->batch_sharded ? chunk->all_shards_group_sizes + shard * peers * peers
                                      : chunk->reshaped_group_sizes + shard * peers,
            .expert_shards = peers,
            .batch_sharded = s->batch_sharded,
            .buffer_rows = s->batch_sharded && run->sharding->ragged_buffer_factor > 0 ? s->buffer : -1,
            .direction = ASSAY_DISPATCH,
        };
        ragged_row(run, &chunk->dispatch, shard, &traffic, truncated);
        traffic.direction = ASSAY_COMBINE;
        ragged_row(run, &chunk->combine, shard, &traffic, truncated);
    }
    return ASSAY_OK;
}

/* How each shard sorts what it receives. */
static assay_status sort_locally(assay_context *ctx, sharded_run *run, sharded_chunk *chunk)
{
    const assay_shard_sizes *s = &run->sizes;
    const int64_t peers = s->expert_shards, experts = run->permute.experts;
    const assay_shape row = assay_shape_of(2, (int64_t)1, experts);
    OWNED int32_t *all_sizes = NULL, *sorted_experts = NULL;
    MUST(assay_alloc_i32(ctx, "local_sorted_indices", s->shards * s->buffer, &chunk->local_sorted_indices));
    MUST(assay_alloc_i32(ctx, "group sizes of all senders", s->shards * peers * experts, &all_sizes));
    MUST(assay_alloc_i32(ctx, "sorted experts", s->copies, &sorted_experts));
    assay_all_gather_i32(all_sizes, chunk->group_sizes, &row, 0, &run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < s->shards; shard++) {
        for (int64_t i = 0; i < s->copies; i++) {
            const int32_t choice = chunk->order[shard * s->copies + i]; /* of none: beyond the experts of any shard */
            const int32_t *groups = sharded_groups(run, chunk, shard);
            sorted_experts[i] = choice == ASSAY_NO_EXPERT ? (int32_t)experts : groups[choice];
        }
        const assay_local_permute_args args = {
            .global_group_sizes =
                s->batch_sharded ? all_sizes + shard * peers * experts : chunk->group_sizes + shard * experts,
            .senders = s->batch_sharded ? peers : 1,
            .num_experts = experts,
            .local_experts = s->local_experts,
            .shard = assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT),
            .rows = s->buffer,
            .sorted_experts = s->batch_sharded ? NULL : sorted_experts,
            .truncate = s->batch_sharded && run->sharding->ragged_buffer_factor > 0,
        };
        MUST(assay_local_permute(ctx, chunk->local_sorted_indices + shard * s->buffer,
                                 chunk->local_group_sizes + shard * s->local_experts, NULL, &args));
    }
    return ASSAY_OK;
}

assay_status sharded_plan_traffic(assay_context *ctx, sharded_run *run, sharded_chunk *chunk)
{
    const assay_status status = count_traffic(ctx, run, chunk);
    return status != ASSAY_OK ? status : sort_locally(ctx, run, chunk);
}
