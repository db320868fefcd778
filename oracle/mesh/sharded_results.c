/* What the sink wants of a block over a mesh, and writing it. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

bool sharded_wants(const sharded_run *run, const char *path)
{
    return run->out->wants(run->out->self, path);
}

static void gradient_of(char *gradient, const char *path)
{
    snprintf(gradient, ASSAY_PATH_SIZE, "gradients/%s", path);
}

bool sharded_wants_gradient(const sharded_run *run, const char *path)
{
    char gradient[ASSAY_PATH_SIZE];
    gradient_of(gradient, path);
    return run->in->has(run->in->self, path) && sharded_wants(run, gradient);
}

static assay_gated_mlp_config mlp_config_of(const sharded_run *run, assay_mlp_place place)
{
    return place == ASSAY_MLP_ROUTED ? assay_moe_expert_config(run->config, 0)
                                     : assay_moe_shared_config(run->config, 0);
}

bool sharded_wants_any_gradient(const sharded_run *run, assay_mlp_place place)
{
    const assay_gated_mlp_config config = mlp_config_of(run, place);
    const assay_tensor_table table = assay_mlp_weight_table(&config, place);
    return assay_wants_any_gradient(run->in, run->out, "", &table);
}

bool sharded_wants_any_checkpoint(const sharded_run *run, assay_mlp_place place)
{
    const assay_gated_mlp_config config = mlp_config_of(run, place);
    char path[ASSAY_PATH_SIZE];
    bool wants = false;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++)
        wants |= assay_mlp_checkpoint_path(&config, place, checkpoint, path) > 0 && sharded_wants(run, path);
    return wants;
}

assay_status sharded_write(assay_context *ctx, const sharded_run *run, const char *path, int64_t count,
                           const double *values)
{
    return sharded_wants(run, path) ? run->out->write(ctx, run->out->self, path, count, values) : ASSAY_OK;
}

assay_status sharded_write_gradient(assay_context *ctx, const sharded_run *run, const char *path, int64_t count,
                                    const double *values)
{
    char gradient[ASSAY_PATH_SIZE];
    gradient_of(gradient, path);
    return sharded_wants_gradient(run, path) ? sharded_write(ctx, run, gradient, count, values) : ASSAY_OK;
}

/* [M,C,count] of chunks' [M,count], which lie in their structs at `member`. */
static assay_status write_integers(assay_context *ctx, const sharded_run *run, const char *name, int64_t count,
                                   size_t member)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "routing/%s", name);
    if (!sharded_wants(run, path)) return ASSAY_OK;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        for (int64_t c = 0; c < run->sizes.chunks; c++) {
            int32_t *const *values = (int32_t *const *)((const char *)&run->chunks[c] + member);
            TRY(run->out->write_i32(ctx, run->out->self, path, count, *values + shard * count));
        }
    }
cleanup:
    return status;
}

static assay_status write_metadata(assay_context *ctx, const sharded_run *run)
{
    static const char shard_id[] = "routing/expert_shard_id";
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    if (s->expert_shards == 1) return ASSAY_OK;
    for (int64_t shard = 0; shard < s->shards && sharded_wants(run, shard_id); shard++) {
        const int32_t id = (int32_t)assay_mesh_index(&run->sharding->mesh, shard, ASSAY_AXIS_EXPERT);
        TRY(run->out->write_i32(ctx, run->out->self, shard_id, 1, &id));
    }
    if (run->sharding->ring_of_experts) return ASSAY_OK;
    TRY(write_integers(ctx, run, "local_sorted_indices", s->buffer, offsetof(sharded_chunk, local_sorted_indices)));
    TRY(write_integers(ctx, run, "reshaped_group_sizes", s->expert_shards,
                       offsetof(sharded_chunk, reshaped_group_sizes)));
    if (!s->batch_sharded) return ASSAY_OK;
    TRY(write_integers(ctx, run, "all_shards_group_sizes", s->expert_shards * s->expert_shards,
                       offsetof(sharded_chunk, all_shards_group_sizes)));
cleanup:
    return status;
}

/* What the experts of a row of tokens are chosen by. */
static assay_status write_selecting(assay_context *ctx, const sharded_run *run, int64_t c, int64_t shard, int64_t first)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->sizes.sequence * run->routing.num_experts;
    double *selecting = NULL;
    if (!sharded_wants(run, "routing/biased_scores")) return ASSAY_OK;
    const assay_routing_inputs inputs = sharded_routing_inputs(run, &run->chunks[c], shard);
    TRY(assay_alloc_f64(ctx, "biased scores", count, &selecting));
    TRY(assay_routing_selecting(ctx, selecting, &inputs, first, run->sizes.sequence, &run->routing));
    TRY(sharded_write(ctx, run, "routing/biased_scores", count, selecting));
cleanup:
    free(selecting);
    return status;
}

/* What every token got, from the shard that owns it, [B,S,...]. With the ring a shard routes others' tokens as well. */
static assay_status write_tokens(assay_context *ctx, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    const assay_sink *out = run->out;
    const int64_t per_token = run->permute.experts_per_token, owners = s->batch_sharded ? s->shards : 1;
    const bool wants_experts = sharded_wants(run, "routing/selected_experts");
    for (int64_t row = 0; row < owners * s->own_batch; row++) {
        const int64_t shard = row / s->own_batch;
        const int64_t part =
            run->sharding->ring_of_experts ? assay_mesh_index(&run->sharding->mesh, shard, ASSAY_AXIS_EXPERT) : 0;
        const int64_t first = (part * s->own_batch + row % s->own_batch) * s->sequence;
        for (int64_t c = 0; c < s->chunks; c++) {
            const assay_routing *routing = &run->chunks[c].routings[shard];
            const int64_t choices = s->sequence * per_token;
            if (wants_experts) {
                TRY(out->write_i32(ctx, out->self, "routing/selected_experts", choices,
                                   routing->selected_experts + first * per_token));
            }
            TRY(write_selecting(ctx, run, c, shard, first));
            TRY(sharded_write(ctx, run, "routing/weights", choices, routing->weights + first * per_token));
            TRY(sharded_write(ctx, run, "routing/margin", s->sequence, routing->margin + first));
        }
    }
cleanup:
    return status;
}

/* Means over chunks. */
static assay_status write_balance(assay_context *ctx, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    const int64_t experts = run->routing.num_experts;
    const double chunks = (double)s->chunks;
    const bool loss_on = run->routing.load_balance_loss_weight > 0 && run->routing.hash_rows == 0;
    double *updates = NULL;
    TRY(assay_alloc_f64(ctx, "bias updates of a shard", experts, &updates));
    for (int64_t shard = 0; shard < s->shards; shard++) {
        double loss = 0;
        memset(updates, 0, (size_t)experts * sizeof *updates);
        for (int64_t c = 0; c < s->chunks; c++) {
            const assay_routing *routing = &run->chunks[c].routings[shard];
            loss += routing->lb_loss;
            for (int64_t e = 0; routing->bias_updates != NULL && e < experts; e++)
                updates[e] += routing->bias_updates[e];
        }
        loss /= chunks;
        for (int64_t e = 0; e < experts; e++) updates[e] /= chunks;
        if (loss_on) TRY(sharded_write(ctx, run, "outputs/lb_loss", 1, &loss));
        if (run->chunks[0].routings[shard].bias_updates != NULL) {
            TRY(sharded_write(ctx, run, "outputs/bias_updates", experts, updates));
        }
    }
cleanup:
    free(updates);
    return status;
}

assay_status sharded_write_routing(assay_context *ctx, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    TRY(write_tokens(ctx, run));
    TRY(write_balance(ctx, run));
    TRY(write_integers(ctx, run, "group_sizes", run->routing.num_experts, offsetof(sharded_chunk, group_sizes)));
    TRY(write_integers(ctx, run, "sorted_selected_experts", s->copies, offsetof(sharded_chunk, order)));
    TRY(write_integers(ctx, run, "local_group_sizes", s->local_experts, offsetof(sharded_chunk, local_group_sizes)));
    TRY(write_metadata(ctx, run));
cleanup:
    return status;
}
