/* What the sink wants of a block, asked once; and what belongs to its routing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

static const char *const result_paths[MOE_ROUTED] = {
    [MOE_Y] = "outputs/y",
    [MOE_LB_LOSS] = "outputs/lb_loss",
    [MOE_Z_LOSS] = "outputs/z_loss",
    [MOE_BIAS_UPDATES] = "outputs/bias_updates",
    [MOE_WEIGHTS] = "routing/weights",
    [MOE_SLOT_WEIGHTS] = "routing/topk_weights",
    [MOE_DX] = "gradients/inputs/x",
    [MOE_DKERNEL] = "gradients/weights/gate/kernel",
    [MOE_DBIAS] = "gradients/weights/gate/bias",
    [MOE_DSCALE] = "gradients/weights/per_expert_scale",
    [MOE_DROUTING_WEIGHTS] = "gradients/inputs/routing_weights",
    [MOE_DSHARED_GATE] = "gradients/weights/shared_expert_gate/kernel",
};

/* Of a result of the routed experts or of the shared one. */
static bool mlp_path(const assay_moe_config *config, int result, char path[ASSAY_PATH_SIZE])
{
    const bool shared = result >= MOE_SHARED;
    const int own = result - (shared ? MOE_SHARED : MOE_ROUTED);
    const assay_mlp_place place = shared ? ASSAY_MLP_SHARED : ASSAY_MLP_ROUTED;
    const assay_gated_mlp_config mlp = shared ? assay_moe_shared_config(config, 0) : assay_moe_expert_config(config, 0);
    if (own < ASSAY_MLP_CHECKPOINTS) return assay_mlp_checkpoint_path(&mlp, place, own, path) > 0;
    const assay_tensor_row row = assay_mlp_weight_row(&mlp, place, own - MLP_GRADIENT);
    if (row.name != NULL) assay_tensor_path("gradients/weights/", "", &row, path);
    return row.name != NULL;
}

/* The path of a result; false: the block has no such result. */
static bool result_path(const assay_moe_config *config, int result, char path[ASSAY_PATH_SIZE])
{
    const assay_routing_config *routing = &config->routing;
    const bool balance = routing->hash_rows == 0 && routing->family != ASSAY_ROUTER_FUSED;
    if (result >= MOE_ROUTED) return mlp_path(config, result, path);
    snprintf(path, ASSAY_PATH_SIZE, "%s", result_paths[result]);
    if (result == MOE_Z_LOSS) return routing->z_loss_weight > 0;
    if (result == MOE_LB_LOSS) return balance && routing->load_balance_loss_weight > 0;
    if (result == MOE_SLOT_WEIGHTS) return config->fused_shared_experts > 0;
    return result != MOE_BIAS_UPDATES || (balance && routing->routed_bias_update_rate > 0);
}

/* Whether the block has that result. Of a tensor that is not there (a bias) there is no gradient. */
static bool is_there(const assay_moe_config *config, const assay_source *in, int result, char path[ASSAY_PATH_SIZE])
{
    static const char gradients[] = "gradients/";
    if (!result_path(config, result, path)) return false;
    return strncmp(path, gradients, sizeof gradients - 1) != 0 || in->has(in->self, path + sizeof gradients - 1);
}

void moe_results_open(moe_results *r, const assay_moe_config *config, const assay_source *in, const assay_sink *out)
{
    char path[ASSAY_PATH_SIZE];
    r->out = out;
    r->config = config;
    for (int result = 0; result < MOE_RESULTS; result++)
        r->wanted[result] = is_there(config, in, result, path) && assay_wants(out, path);
}

bool moe_wants(const moe_results *r, int result)
{
    return r->wanted[result];
}

bool moe_wants_any(const moe_results *r, int first, int count)
{
    bool any = false;
    for (int result = first; result < first + count; result++) any |= r->wanted[result];
    return any;
}

bool moe_wants_gradient_checkpoints(const moe_results *r, int first)
{
    return moe_wants_any(r, first + ASSAY_MLPWI_GRADIENT, ASSAY_MLPWO_GRADIENT + 1 - ASSAY_MLPWI_GRADIENT);
}

bool assay_moe_wants_gradient(const assay_moe_config *config, const assay_source *in, const assay_sink *out)
{
    moe_results r;
    moe_results_open(&r, config, in, out);
    return moe_wants_any(&r, MOE_DX, MOE_ROUTED - MOE_DX) ||
           moe_wants_any(&r, MOE_ROUTED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS) ||
           moe_wants_any(&r, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS) ||
           moe_wants_gradient_checkpoints(&r, MOE_ROUTED) || moe_wants_gradient_checkpoints(&r, MOE_SHARED);
}

assay_status moe_write(assay_context *ctx, const moe_results *r, int result, int64_t count, const double *values)
{
    char path[ASSAY_PATH_SIZE];
    if (!r->wanted[result]) return ASSAY_OK;
    result_path(r->config, result, path);
    return r->out->write(ctx, r->out->self, path, count, values);
}

/* --- routing --- */

/* Of each shard of the mesh, those of mlp_tensor innermost, which have the same. */
static int64_t devices(const moe_block *block)
{
    return block->sizes.shards * block->sizes.hidden_shards;
}

/* [M,C,count] of the sites' [count]. */
static assay_status write_integers(assay_context *ctx, const moe_block *block, const char *path, int64_t count,
                                   const int32_t *values)
{
    for (int64_t device = 0; device < devices(block); device++) {
        for (int64_t c = 0; c < block->sizes.chunks; c++) {
            const int64_t site = c * block->sizes.shards + device / block->sizes.hidden_shards;
            MUST(assay_write_result_i32(ctx, block->results.out, path, count, values + site * count));
        }
    }
    return ASSAY_OK;
}

static assay_status write_metadata(assay_context *ctx, const moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t peers = s->expert_shards;
    for (int64_t device = 0; peers > 1 && device < devices(block); device++) {
        const int32_t id = (int32_t)assay_mesh_index(&block->sharding->mesh, device, ASSAY_AXIS_EXPERT);
        MUST(assay_write_result_i32(ctx, block->results.out, "routing/expert_shard_id", 1, &id));
    }
    if (!s->exchanges) return ASSAY_OK;
    MUST(write_integers(ctx, block, "routing/local_sorted_indices", s->buffer, block->local_sorted_indices));
    MUST(write_integers(ctx, block, "routing/reshaped_group_sizes", peers, block->reshaped_group_sizes));
    if (!s->batch_sharded) return ASSAY_OK;
    return write_integers(ctx, block, "routing/all_shards_group_sizes", peers * peers, block->all_shards_group_sizes);
}

/* By the order in which shards and chunks sort: each expert's choices where copies are sorted by something else. */
static assay_status write_group_sizes(assay_context *ctx, const moe_block *block)
{
    static const char path[] = "routing/group_sizes";
    if (block->placed == NULL) return write_integers(ctx, block, path, block->permute.experts, block->group_sizes);
    for (int64_t device = 0; device < devices(block); device++) {
        for (int64_t c = 0; c < block->sizes.chunks; c++) {
            const int64_t site = c * block->sizes.shards + device / block->sizes.hidden_shards;
            MUST(assay_write_result_i32(ctx, block->results.out, path, block->experts,
                                        block->site[site].routing.group_sizes));
        }
    }
    return ASSAY_OK;
}

/* What experts are chosen by: no result, but what a backend's own choice is judged by. */
static assay_status write_selecting(assay_context *ctx, const moe_block *block, const moe_site *site, int64_t first,
                                    int64_t tokens)
{
    static const char path[] = "routing/biased_scores";
    OWNED double *selecting = NULL;
    if (!assay_wants(block->results.out, path) || site->inputs.logits == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "biased scores", tokens * block->experts, &selecting));
    MUST(assay_routing_selecting(ctx, selecting, &site->inputs, first, tokens, &block->routing));
    return assay_write_result(ctx, block->results.out, path, tokens * block->experts, selecting);
}

/* Of so many tokens of a site from `first` on. */
static assay_status write_tokens(assay_context *ctx, const moe_block *block, int64_t number, int64_t first,
                                 int64_t tokens)
{
    const moe_results *r = &block->results;
    const moe_site *site = &block->site[number];
    const int64_t slots = block->permute.experts_per_token, choices = tokens * block->chosen;
    const int64_t choice = first * block->chosen, copy = number * block->sizes.copies + first * slots;
    MUST(assay_write_result_i32(ctx, r->out, "routing/selected_experts", choices,
                                site->routing.selected_experts + choice));
    for (int64_t i = 0; block->replicas.first != NULL && i < choices; i++) {
        int32_t id = block->placed[copy + i];
        if (!block->sharded && id != ASSAY_NO_EXPERT) id = block->replicas.ids[id];
        MUST(assay_write_result_i32(ctx, r->out, "routing/physical_experts", 1, &id));
    }
    MUST(write_selecting(ctx, block, site, first, tokens));
    MUST(moe_write(ctx, r, MOE_WEIGHTS, choices, site->routing.weights + choice));
    MUST(assay_write_result(ctx, r->out, "routing/margin", tokens, site->routing.margin + first));
    if (block->slot_ids != NULL)
        MUST(assay_write_result_i32(ctx, r->out, "routing/topk_ids", tokens * slots, block->slot_ids + copy));
    return moe_write(ctx, r, MOE_SLOT_WEIGHTS, tokens * slots, block->weights + copy);
}

/* What every token got, [B,S,...]: from the site that owns it, which with the ring routes others' tokens as well. */
static assay_status write_all_tokens(assay_context *ctx, const moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    for (int64_t row = 0; row < s->owners * s->own_batch; row++) {
        const int64_t shard = row / s->own_batch * (s->shards / s->owners);
        const int64_t part =
            block->sharding->ring_of_experts ? assay_mesh_index(&block->mesh, shard, ASSAY_AXIS_EXPERT) : 0;
        const int64_t first = (part * s->own_batch + row % s->own_batch) * s->sequence;
        for (int64_t c = 0; c < s->chunks; c++)
            MUST(write_tokens(ctx, block, c * s->shards + shard, first, s->sequence));
    }
    return ASSAY_OK;
}

/* The mean of its parts: chunks, and shards where they have one loss together. */
static assay_status write_loss(assay_context *ctx, const moe_block *block, int result)
{
    const int64_t shards = block->sizes.shards, chunks = block->sizes.chunks, losses = block->losses;
    for (int64_t i = 0; i < losses; i++) {
        double loss = 0;
        for (int64_t part = 0; part < shards / losses * chunks; part++) {
            const moe_site *site = &block->site[part % chunks * shards + part / chunks * losses + i];
            double term = result == MOE_LB_LOSS ? site->routing.lb_loss : site->routing.z_loss;
            if (losses < shards) assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &term);
            assay_add_scaled(ctx, 1, 1, &term, &loss);
        }
        loss /= (double)(block->sites / losses);
        for (int64_t copy = 0; copy < block->loss_copies; copy++)
            MUST(moe_write(ctx, &block->results, result, 1, &loss));
    }
    return ASSAY_OK;
}

/* Means over chunks. */
static assay_status write_updates(assay_context *ctx, const moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    OWNED double *updates = NULL;
    if (!moe_wants(&block->results, MOE_BIAS_UPDATES)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "bias updates of a shard", block->experts, &updates));
    for (int64_t device = 0; device < devices(block); device++) {
        memset(updates, 0, (size_t)block->experts * sizeof *updates);
        for (int64_t c = 0; c < s->chunks; c++)
            assay_add_scaled(ctx, block->experts, 1,
                             block->site[c * s->shards + device / s->hidden_shards].routing.bias_updates, updates);
        for (int64_t e = 0; e < block->experts; e++) updates[e] /= (double)s->chunks;
        MUST(moe_write(ctx, &block->results, MOE_BIAS_UPDATES, block->experts, updates));
    }
    return ASSAY_OK;
}

assay_status moe_write_routing(assay_context *ctx, const moe_block *block)
{
    MUST(write_all_tokens(ctx, block));
    MUST(write_loss(ctx, block, MOE_LB_LOSS));
    MUST(write_loss(ctx, block, MOE_Z_LOSS));
    MUST(write_updates(ctx, block));
    MUST(write_group_sizes(ctx, block));
    MUST(write_integers(ctx, block, "routing/sorted_selected_experts", block->sizes.copies, block->order));
    if (block->sharded || block->config->local_num_experts > 0)
        MUST(write_integers(ctx, block, "routing/local_group_sizes", block->sizes.local_experts,
                            block->local_group_sizes));
    return write_metadata(ctx, block);
}
