/* The MoE block: routing, its experts, the masks of dropping. */
#include <stdlib.h>

#include "oracle/spec/spec_internal.h"

/* combine_mask [B,S,E,C] holds the weight of a choice at its expert and position; dispatch_mask where it is not 0. */
static assay_status add_masks(assay_context *ctx, const spec_block *block, spec_tensors *out)
{
    const assay_routing_config *routing = &block->config->routing;
    int64_t experts = routing->num_experts, k = routing->num_experts_per_tok, room = spec_capacity(block->config);
    assay_shape shape = assay_shape_of(4, routing->batch, routing->sequence, experts, room);
    assay_status status = ASSAY_OK;
    spec_quad *combine = NULL;
    int32_t *dispatch = NULL;
    TRY(spec_tensors_add(ctx, out, "routing/combine_mask", &shape, &combine));
    TRY(spec_tensors_add_indices(ctx, out, "routing/dispatch_mask", &shape, &dispatch));
    int64_t count = assay_shape_count(&shape), choices = routing->batch * routing->sequence * k;
    for (int64_t i = 0; i < count; i++) combine[i] = 0;
    for (int64_t choice = 0; choice < choices; choice++) {
        int64_t position = spec_block_position(block, choice);
        if (position >= room || block->selected[choice] < 0) continue;
        combine[(choice / k * experts + block->selected[choice]) * room + position] = block->weights[choice];
    }
    for (int64_t i = 0; i < count; i++) dispatch[i] = combine[i] != 0;
cleanup:
    return status;
}

assay_status spec_localise(assay_context *ctx, const assay_moe_config *config, const spec_tensors *in,
                           spec_tensors *out, int32_t **selected)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *routing = &config->routing;
    const int64_t choices = routing->batch * routing->sequence * routing->num_experts_per_tok;
    const int64_t first = config->local_expert_offset, here = config->local_num_experts;
    const int32_t *chosen = spec_tensors_find(out, "routing/selected_experts")->indices, *map = NULL;
    const assay_shape sizes_shape = assay_shape_of(1, here);
    int32_t *sizes = NULL;
    *selected = NULL;
    if (here == 0) return ASSAY_OK;
    TRY(spec_read_optional_indices(ctx, in, "inputs/expert_map", routing->num_experts, &map));
    TRY(assay_alloc_i32(ctx, "local experts", choices, selected));
    for (int64_t i = 0; i < choices; i++) {
        const int64_t expert = chosen[i];
        const bool own = expert >= first && expert < first + here;
        (*selected)[i] = (int32_t)(expert < 0 ? -1 : map != NULL ? map[expert] : own ? expert - first : -1);
    }
    TRY(spec_tensors_add_indices(ctx, out, "routing/local_group_sizes", &sizes_shape, &sizes));
    spec_sort_by_expert(choices, *selected, here, spec_tensors_find(out, "routing/sorted_selected_experts")->indices,
                        sizes);
cleanup:
    return status;
}

assay_status spec_moe(assay_context *ctx, const spec_moe_config *both, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = &both->moe;
    spec_block block = {0};
    spec_quad *y = NULL;
    int32_t *local = NULL;
    if (spec_is_sharded(both)) return spec_sharded_moe(ctx, both, in, out);
    TRY(spec_route(ctx, &config->routing, in, out));
    TRY(spec_block_read(ctx, config, in, &block));
    TRY(spec_tensors_add(ctx, out, "outputs/y", &block.x->shape, &y));
    block.weights = spec_tensors_find(out, "routing/weights")->values;
    block.selected = spec_tensors_find(out, "routing/selected_experts")->indices;
    TRY(spec_localise(ctx, config, in, out, &local));
    if (local != NULL) block.selected = local;
    spec_block_combine(&block, y);
    if (config->path == ASSAY_MOE_DROPPING) TRY(add_masks(ctx, &block, out));
cleanup:
    spec_block_free(&block);
    free(local);
    return status;
}
