/* The MoE block: routing, its experts, the masks of dropping. */
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

assay_status spec_moe(assay_context *ctx, const spec_moe_config *both, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = &both->moe;
    spec_block block = {0};
    spec_quad *y = NULL;
    if (spec_is_sharded(both)) return spec_sharded_moe(ctx, both, in, out);
    TRY(spec_route(ctx, &config->routing, in, out));
    TRY(spec_block_read(ctx, config, in, &block));
    TRY(spec_tensors_add(ctx, out, "outputs/y", &block.x->shape, &y));
    block.weights = spec_tensors_find(out, "routing/weights")->values;
    block.selected = spec_tensors_find(out, "routing/selected_experts")->indices;
    spec_block_combine(&block, y);
    if (config->path == ASSAY_MOE_DROPPING) TRY(add_masks(ctx, &block, out));
cleanup:
    spec_block_free(&block);
    return status;
}
