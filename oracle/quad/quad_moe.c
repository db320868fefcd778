/* The MoE block: routing, its experts, the masks of dropping. */
#include <stdlib.h>
#include <string.h>

#include "oracle/quad/quad_internal.h"

/* combine_mask [B,S,E,C] holds the weight of a choice at its expert and position; dispatch_mask where it is not 0. */
static assay_status add_masks(assay_context *ctx, const quad_block *block, quad_tensors *out)
{
    const assay_routing_config *routing = &block->config->routing;
    int64_t experts = routing->num_experts, k = routing->num_experts_per_tok, room = quad_capacity(block->config);
    assay_shape shape = assay_shape_of(4, routing->batch, routing->sequence, experts, room);
    assay_status status = ASSAY_OK;
    quad *combine = NULL;
    int32_t *dispatch = NULL;
    TRY(quad_tensors_add(ctx, out, "routing/combine_mask", &shape, &combine));
    TRY(quad_tensors_add_indices(ctx, out, "routing/dispatch_mask", &shape, &dispatch));
    int64_t count = assay_shape_count(&shape), choices = routing->batch * routing->sequence * k;
    for (int64_t i = 0; i < count; i++) combine[i] = 0;
    for (int64_t choice = 0; choice < choices; choice++) {
        int64_t position = quad_block_position(block, choice);
        if (position >= room || block->selected[choice] < 0) continue;
        combine[(choice / k * experts + block->selected[choice]) * room + position] = block->weights[choice];
    }
    for (int64_t i = 0; i < count; i++) dispatch[i] = combine[i] != 0;
cleanup:
    return status;
}

/* In the place of the routing's own sizes and order, those of all slots: the choices, and behind them the shared experts. */
static assay_status add_slots(assay_context *ctx, const assay_moe_config *config, quad_tensors *routed,
                              quad_tensors *out)
{
    static const char *const kept[] = {"routing/selected_experts", "routing/weights",      "routing/margin",
                                       "outputs/lb_loss",          "outputs/bias_updates", "outputs/z_loss"};
    const int64_t k = config->routing.num_experts_per_tok, n = config->fused_shared_experts, slots = k + n;
    const int64_t experts = config->routing.num_experts, tokens = config->routing.batch * config->routing.sequence;
    const assay_shape shape = assay_shape_of(3, config->routing.batch, config->routing.sequence, slots);
    const assay_shape copies = assay_shape_of(1, tokens * slots), all = assay_shape_of(1, experts + n);
    assay_status status = ASSAY_OK;
    int32_t *ids = NULL, *order = NULL, *sizes = NULL;
    quad *weights = NULL;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (quad_tensors_find(routed, kept[i]) != NULL) TRY(quad_tensors_move(ctx, routed, kept[i], out));
    }
    TRY(quad_tensors_add_indices(ctx, out, "routing/topk_ids", &shape, &ids));
    TRY(quad_tensors_add(ctx, out, "routing/topk_weights", &shape, &weights));
    TRY(quad_tensors_add_indices(ctx, out, "routing/sorted_selected_experts", &copies, &order));
    TRY(quad_tensors_add_indices(ctx, out, "routing/group_sizes", &all, &sizes));
    for (int64_t i = 0; i < tokens * slots; i++) {
        const int64_t slot = i % slots, choice = i / slots * k + slot;
        ids[i] = slot < k ? quad_tensors_find(out, kept[0])->indices[choice] : (int32_t)(experts + slot - k);
        weights[i] = slot < k                   ? quad_tensors_find(out, kept[1])->values[choice]
                     : config->late_factor != 0 ? 1 / (quad)config->late_factor
                                                : 1;
    }
    quad_sort_by_expert(tokens * slots, ids, experts + n, order, sizes);
cleanup:
    return status;
}

assay_status quad_moe_route(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                            quad_tensors *out)
{
    quad_tensors routed = {0};
    if (config->fused_shared_experts == 0) return quad_route(ctx, &config->routing, in, out);
    assay_status status = quad_route(ctx, &config->routing, in, &routed);
    if (status == ASSAY_OK) status = add_slots(ctx, config, &routed, out);
    quad_tensors_free(&routed);
    return status;
}

/* The replica of each choice: of those of its expert, by ascending id, the one at the token modulo their count. */
static assay_status add_replicas(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                                 const quad_tensor *selected, quad_tensors *out)
{
    assay_status status;
    const int64_t k = config->routing.num_experts_per_tok, count = assay_shape_count(&selected->shape);
    const int32_t *map = NULL;
    int32_t *physical = NULL;
    TRY(quad_read_indices(ctx, in, "inputs/physical_to_logical_map", config->physical_experts, &map));
    TRY(quad_tensors_add_indices(ctx, out, "routing/physical_experts", &selected->shape, &physical));
    for (int64_t i = 0; i < count; i++) {
        int64_t replicas = 0, passed = 0;
        physical[i] = -1; /* a slot of none */
        for (int64_t p = 0; p < config->physical_experts; p++) replicas += map[p] == selected->indices[i];
        for (int32_t p = 0; p < config->physical_experts; p++) {
            if (map[p] == selected->indices[i] && passed++ == i / k % replicas) physical[i] = p;
        }
    }
cleanup:
    return status;
}

assay_status quad_localise(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                           quad_tensors *out, int32_t **selected)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *routing = &config->routing;
    const int64_t choices = routing->batch * routing->sequence * routing->num_experts_per_tok;
    const int64_t first = config->local_expert_offset, here = config->local_num_experts;
    const int32_t *chosen = quad_tensors_find(out, "routing/selected_experts")->indices, *map = NULL;
    const assay_shape sizes_shape = assay_shape_of(1, here);
    int32_t *sizes = NULL;
    *selected = NULL;
    if (here == 0) return ASSAY_OK;
    TRY(quad_read_optional_indices(ctx, in, "inputs/expert_map", routing->num_experts, &map));
    TRY(assay_alloc_i32(ctx, "local experts", choices, selected));
    for (int64_t i = 0; i < choices; i++) {
        const int64_t expert = chosen[i];
        const bool own = expert >= first && expert < first + here;
        (*selected)[i] = (int32_t)(expert < 0 ? -1 : map != NULL ? map[expert] : own ? expert - first : -1);
    }
    TRY(quad_tensors_add_indices(ctx, out, "routing/local_group_sizes", &sizes_shape, &sizes));
    quad_sort_by_expert(choices, *selected, here, quad_tensors_find(out, "routing/sorted_selected_experts")->indices,
                        sizes);
cleanup:
    return status;
}

/* One of the blocks that are computed at once. Starts zeroed. */
typedef struct run {
    int32_t *local; /* the choice by the numbers that experts have here, or NULL */
    quad_tensors *out;
} run;

static assay_status start(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in, run *own,
                          quad_block *block)
{
    assay_status status;
    TRY(quad_moe_route(ctx, &config->moe, in, own->out));
    TRY(quad_block_read(ctx, &config->moe, in, block));
    block->experts.w13_shards = config->w13_shards;
    TRY(quad_tensors_add(ctx, own->out, "outputs/y", &block->x->shape, &block->y));
    TRY(quad_localise(ctx, &config->moe, in, own->out, &own->local));
    block->weights = quad_tensors_find(own->out, "routing/weights")->values;
    block->selected = quad_tensors_find(own->out, "routing/selected_experts")->indices;
    if (own->local != NULL) block->selected = own->local;
    TRY(quad_block_hold(ctx, in, quad_tensors_find(own->out, "routing/sorted_selected_experts"), block));
cleanup:
    return status;
}

static assay_status finish(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in, const run *own,
                           const quad_block *block)
{
    assay_status status = ASSAY_OK;
    if (config->path == ASSAY_MOE_DROPPING) TRY(add_masks(ctx, block, own->out));
    if (config->physical_experts > 0)
        TRY(add_replicas(ctx, config, in, quad_tensors_find(own->out, "routing/selected_experts"), own->out));
cleanup:
    return status;
}

assay_status quad_moe_many(assay_context *ctx, const quad_moe_config *config, int count, const quad_tensors *in,
                           quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    quad_block *blocks = NULL;
    run *runs = NULL;
    if (quad_is_sharded(config)) {
        for (int i = 0; i < count && status == ASSAY_OK; i++) status = quad_sharded_moe(ctx, config, &in[i], &out[i]);
        return status;
    }
    blocks = calloc((size_t)count, sizeof *blocks);
    runs = calloc((size_t)count, sizeof *runs);
    if (blocks == NULL || runs == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a list of blocks"));
    for (int i = 0; i < count; i++) {
        runs[i].out = &out[i];
        TRY(start(ctx, config, &in[i], &runs[i], &blocks[i]));
    }
    TRY(quad_block_combine(ctx, count, blocks));
    for (int i = 0; i < count; i++) TRY(finish(ctx, &config->moe, &in[i], &runs[i], &blocks[i]));
cleanup:
    for (int i = 0; i < count; i++) {
        if (blocks != NULL) quad_block_free(&blocks[i]);
        if (runs != NULL) free(runs[i].local);
    }
    free(blocks);
    free(runs);
    return status;
}

assay_status quad_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in, quad_tensors *out)
{
    return quad_moe_many(ctx, config, 1, in, out);
}

bool quad_moe_streams(const quad_moe_config *config, const char *path)
{
    const assay_gated_mlp_config expert = {
        .emb_dim = config->moe.emb_dim, .mlp_dim = config->moe.moe_mlp_dim, .fused = config->moe.fused_weights};
    const assay_tensor_table weights = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    for (int i = 0; i < weights.count && !quad_is_sharded(config); i++) {
        char own[ASSAY_PATH_SIZE];
        if (weights.rows[i].name == NULL || weights.rows[i].kind == ASSAY_BIAS) continue;
        assay_tensor_path("weights/", "", &weights.rows[i], own);
        if (strcmp(own, path) == 0) return true;
    }
    return false;
}
