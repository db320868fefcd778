/* The MoE half of a layer under the batch-split schedule (SPEC 11): the plain block's numbers, and where they lie when
 * each shard's batch goes in microbatches, of which every shard gathers the tokens of its expert axis. */
#include "oracle/spec/spec_internal.h"

static assay_status spread_of(assay_context *ctx, const assay_stack_config *config, const int32_t *selected,
                              spec_spread *spread)
{
    const spec_moe_config both = {.moe = config->moe, .sharding = {.mesh = config->sharding.mesh}};
    return spec_spread_make(ctx, spread, &both, config->batch_split_factor, selected);
}

assay_status spec_batch_split_moe(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in,
                                  spec_tensors *out)
{
    static const char *const same[] = {"outputs/y", "routing/selected_experts", "routing/weights", "routing/margin"};
    assay_status status;
    const spec_moe_config plain = {.moe = config->moe};
    spec_tensors whole = {0};
    spec_spread spread = {0};
    TRY(spec_moe(ctx, &plain, in, &whole));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) TRY(spec_tensors_move(ctx, &whole, same[i], out));
    TRY(spread_of(ctx, config, spec_tensors_find(out, "routing/selected_experts")->indices, &spread));
    const assay_shape sizes = spec_spread_shape(&spread, spread.local_experts);
    TRY(spec_tensors_copy_i32(ctx, out, "routing/group_sizes", &sizes, spread.local_sizes));
cleanup:
    spec_spread_free(&spread);
    spec_tensors_free(&whole);
    return status;
}

assay_status spec_batch_split_checkpoints(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in,
                                          spec_tensors *out)
{
    assay_status status;
    spec_tensors routing = {0};
    spec_spread spread = {0};
    spec_block block = {.weight_before_wo = true};
    TRY(spec_route(ctx, &config->moe.routing, in, &routing));
    TRY(spec_block_read(ctx, &config->moe, in, &block));
    block.weights = spec_tensors_find(&routing, "routing/weights")->values;
    block.selected = spec_tensors_find(&routing, "routing/selected_experts")->indices;
    TRY(spread_of(ctx, config, block.selected, &spread));
    TRY(spec_add_spread_checkpoints(ctx, &block, &spread, out));
cleanup:
    spec_block_free(&block);
    spec_spread_free(&spread);
    spec_tensors_free(&routing);
    return status;
}
