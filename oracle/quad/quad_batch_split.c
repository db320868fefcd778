/* The MoE half of a layer under the batch-split schedule (SPEC 11): the plain block's numbers, and where they lie when
 * each shard's batch goes in microbatches, of which every shard gathers the tokens of its expert axis. */
#include "oracle/quad/quad_internal.h"

static assay_status spread_of(assay_context *ctx, const assay_stack_config *config, const int32_t *selected,
                              quad_spread *spread)
{
    const quad_moe_config both = {.moe = config->moe, .sharding = {.mesh = config->sharding.mesh}};
    return quad_spread_make(ctx, spread, &both, config->batch_split_factor, selected);
}

assay_status quad_batch_split_moe(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                  quad_tensors *out)
{
    static const char *const same[] = {"outputs/y", "routing/selected_experts", "routing/weights", "routing/margin"};
    assay_status status;
    const quad_moe_config plain = {.moe = config->moe};
    quad_tensors whole = {0};
    quad_spread spread = {0};
    TRY(quad_moe(ctx, &plain, in, &whole));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) TRY(quad_tensors_move(ctx, &whole, same[i], out));
    TRY(spread_of(ctx, config, quad_tensors_find(out, "routing/selected_experts")->indices, &spread));
    const assay_shape sizes = quad_spread_shape(&spread, spread.local_experts);
    TRY(quad_tensors_copy_i32(ctx, out, "routing/group_sizes", &sizes, spread.local_sizes));
cleanup:
    quad_spread_free(&spread);
    quad_tensors_free(&whole);
    return status;
}

assay_status quad_batch_split_checkpoints(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                          quad_tensors *out)
{
    assay_status status;
    quad_tensors routing = {0};
    quad_spread spread = {0};
    quad_block block = {.weight_before_wo = true};
    TRY(quad_route(ctx, &config->moe.routing, in, &routing));
    TRY(quad_block_read(ctx, &config->moe, in, &block));
    block.weights = quad_tensors_find(&routing, "routing/weights")->values;
    block.selected = quad_tensors_find(&routing, "routing/selected_experts")->indices;
    TRY(spread_of(ctx, config, block.selected, &spread));
    TRY(quad_add_spread_checkpoints(ctx, &block, &spread, out));
cleanup:
    quad_block_free(&block);
    quad_spread_free(&spread);
    quad_tensors_free(&routing);
    return status;
}
