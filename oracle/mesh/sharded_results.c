/* Writing what belongs to the routing over a mesh. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/ops/vector_sums.h"

/* For each shard of the mesh, those of mlp_tensor innermost, which have the same. */
static int64_t devices(const sharded_run *run)
{
    return run->sizes.shards * run->sizes.hidden_shards;
}

/* [M,C,count] of chunks' [M,count], which lie in their structs at `member`. */
static assay_status write_integers(assay_context *ctx, const sharded_run *run, const char *name, int64_t count,
                                   size_t member)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "routing/%s", name);
    for (int64_t device = 0; device < devices(run); device++) {
        for (int64_t c = 0; c < run->sizes.chunks; c++) {
            int32_t *const *values = (int32_t *const *)((const char *)&run->chunks[c] + member);
            MUST(assay_write_result_i32(ctx, run->block->results.out, path, count,
                                        *values + device / run->sizes.hidden_shards * count));
        }
    }
    return ASSAY_OK;
}

static assay_status write_metadata(assay_context *ctx, const sharded_run *run)
{
    static const char shard_id[] = "routing/expert_shard_id";
    const assay_shard_sizes *s = &run->sizes;
    if (s->expert_shards == 1) return ASSAY_OK;
    for (int64_t device = 0; device < devices(run); device++) {
        const int32_t id = (int32_t)assay_mesh_index(&run->sharding->mesh, device, ASSAY_AXIS_EXPERT);
        MUST(assay_write_result_i32(ctx, run->block->results.out, shard_id, 1, &id));
    }
    if (!s->exchanges) return ASSAY_OK;
    MUST(write_integers(ctx, run, "local_sorted_indices", s->buffer, offsetof(sharded_chunk, local_sorted_indices)));
    MUST(write_integers(ctx, run, "reshaped_group_sizes", s->expert_shards,
                        offsetof(sharded_chunk, reshaped_group_sizes)));
    if (!s->batch_sharded) return ASSAY_OK;
    return write_integers(ctx, run, "all_shards_group_sizes", s->expert_shards * s->expert_shards,
                          offsetof(sharded_chunk, all_shards_group_sizes));
}

/* What every token got, from the shard that owns it, [B,S,...]. With the ring a shard routes others' tokens as well. */
static assay_status write_tokens(assay_context *ctx, const sharded_run *run)
{
    const assay_shard_sizes *s = &run->sizes;
    const moe_block *block = run->block;
    const int64_t per_token = run->permute.experts_per_token;
    for (int64_t row = 0; row < block->split.owners * s->own_batch; row++) {
        const int64_t shard = row / s->own_batch * (s->shards / s->owners);
        const int64_t part =
            run->sharding->ring_of_experts ? assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT) : 0;
        const int64_t first = (part * s->own_batch + row % s->own_batch) * s->sequence;
        for (int64_t c = 0; c < s->chunks; c++) {
            const assay_routing *routing = &run->chunks[c].routings[shard];
            const assay_routing_inputs inputs = sharded_routing_inputs(run, &run->chunks[c], shard);
            const int64_t choices = s->sequence * per_token, at = first * per_token;
            MUST(assay_write_result_i32(ctx, block->results.out, "routing/selected_experts", choices,
                                        routing->selected_experts + at));
            if (run->replicas != NULL)
                MUST(assay_write_result_i32(ctx, block->results.out, "routing/physical_experts", choices,
                                            sharded_groups(run, &run->chunks[c], shard) + at));
            MUST(moe_write_selecting(ctx, block, &inputs, first, s->sequence, &run->routing));
            MUST(assay_write_result(ctx, block->results.out, "routing/weights", choices, routing->weights + at));
            MUST(assay_write_result(ctx, block->results.out, "routing/margin", s->sequence, routing->margin + first));
        }
    }
    return ASSAY_OK;
}

/* The mean of its parts: chunks, and shards where they have one loss together. */
static assay_status write_loss(assay_context *ctx, const sharded_run *run, int result)
{
    const assay_shard_sizes *s = &run->sizes;
    const int64_t losses = run->block->split.losses;
    for (int64_t i = 0; i < losses; i++) {
        double loss = 0;
        for (int64_t shard = i; shard < s->shards; shard += losses) {
            for (int64_t c = 0; c < s->chunks; c++) {
                const assay_routing *routing = &run->chunks[c].routings[shard];
                double part = result == MOE_LB_LOSS ? routing->lb_loss : routing->z_loss;
                if (losses < s->shards) assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &part);
                assay_add_scaled(ctx, 1, 1, &part, &loss);
            }
        }
        loss /= (double)(s->chunks * s->shards / losses);
        for (int64_t copy = 0; copy < run->block->split.loss_copies; copy++)
            MUST(moe_write(ctx, &run->block->results, result, 1, &loss));
    }
    return ASSAY_OK;
}

/* Means over chunks. */
static assay_status write_updates(assay_context *ctx, const sharded_run *run)
{
    const assay_shard_sizes *s = &run->sizes;
    const int64_t experts = run->routing.num_experts;
    const double chunks = (double)s->chunks;
    OWNED double *updates = NULL;
    MUST(assay_alloc_f64(ctx, "bias updates of a shard", experts, &updates));
    for (int64_t device = 0; device < devices(run); device++) {
        memset(updates, 0, (size_t)experts * sizeof *updates);
        for (int64_t c = 0; c < s->chunks; c++) {
            const assay_routing *routing = &run->chunks[c].routings[device / s->hidden_shards];
            if (routing->bias_updates != NULL) assay_add_scaled(ctx, experts, 1, routing->bias_updates, updates);
        }
        for (int64_t e = 0; e < experts; e++) updates[e] /= chunks;
        MUST(moe_write(ctx, &run->block->results, MOE_BIAS_UPDATES, experts, updates));
    }
    return ASSAY_OK;
}

assay_status sharded_write_routing(assay_context *ctx, const sharded_run *run)
{
    const assay_shard_sizes *s = &run->sizes;
    MUST(write_tokens(ctx, run));
    MUST(write_loss(ctx, run, MOE_LB_LOSS));
    MUST(write_loss(ctx, run, MOE_Z_LOSS));
    MUST(write_updates(ctx, run));
    const bool placed = run->chunks[0].placed != NULL;
    MUST(write_integers(ctx, run, "group_sizes", run->routing.num_experts,
                        placed ? offsetof(sharded_chunk, choice_sizes) : offsetof(sharded_chunk, group_sizes)));
    MUST(write_integers(ctx, run, "sorted_selected_experts", s->copies, offsetof(sharded_chunk, order)));
    MUST(write_integers(ctx, run, "local_group_sizes", s->local_experts, offsetof(sharded_chunk, local_group_sizes)));
    return write_metadata(ctx, run);
}
