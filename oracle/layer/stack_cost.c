/* What a stack costs: operations, memory, and what its remat policy keeps, moves and computes again. */
#include "oracle/layer/batch_split.h"
#include "oracle/layer/layer_internal.h"

assay_status assay_stack_remat_model(assay_context *ctx, const assay_stack_config *config, assay_remat_report *report)
{
    assay_status status = assay_stack_check(ctx, config);
    const bool split = config->batch_split_factor > 0;
    *report = (assay_remat_report){0};
    if (status == ASSAY_OK && split) *report = assay_batch_split_model(config);
    for (int64_t layer = config->first_layer;
         status == ASSAY_OK && layer < (split ? config->dense_layers : config->layers); layer++) {
        bool kept[ASSAY_REMAT_SLOTS];
        for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++) {
            const int64_t bytes = layer_checkpoint_count(config, layer, slot) * (int64_t)sizeof(double);
            const assay_remat_action action = assay_remat_action_of(&config->policy, slot);
            kept[slot] = action != ASSAY_REMAT;
            if (action == ASSAY_DEVICE) report->bytes_kept += bytes;
            if (action == ASSAY_OFFLOAD) report->bytes_offloaded += bytes;
        }
        graph g;
        assay_layer_graph(&g, config, layer);
        for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++) {
            if (layer_recomputes(&g, slot) && !kept[slot])
                report->operations_recomputed += graph_operations(&g, layer_tensor(&g, slot));
        }
        if (!layer_is_dense(config, layer)) report->operations_recomputed += layer_moe_recomputed(config, kept);
    }
    return status;
}

double assay_stack_flops(const assay_stack_config *config, bool backward)
{
    double sum = 0;
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) {
        graph g;
        assay_layer_graph(&g, config, layer);
        sum += backward ? graph_backward_operations(&g) : graph_forward_operations(&g);
        if (!layer_is_dense(config, layer)) sum += assay_moe_flops(&config->moe, backward);
    }
    return sum;
}

/* The numbers that one layer has at its peak: weights and gradients, intermediates of the attention half in backward
 * with as many gradients, and the second half. */
static double layer_numbers(const assay_stack_config *config, int64_t layer)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const double tokens = (double)sizes.batch * (double)sizes.sequence, dim = (double)sizes.emb_dim;
    double sum = 12 * tokens * dim;
    const assay_tensor_table weights = layer_weight_table(config, layer);
    for (int i = 0; i < weights.count; i++) sum += 2 * (double)assay_tensor_row_count(&weights.rows[i]);
    for (int slot = ATTENTION_FIRST; slot <= ATTENTION_LAST; slot++)
        sum += 2 * (double)layer_checkpoint_count(config, layer, slot);
    const int of_h = config->mlp.hidden.format != NULL ? 8 : 6; /* with codes and scales */
    if (layer_is_dense(config, layer)) return sum + of_h * tokens * (double)config->mlp.mlp_dim + 2 * tokens * dim;
    const int64_t moe = config->batch_split_factor > 0 ? assay_batch_split_memory(config)
                        : assay_is_sharded(&config->moe, &config->sharding)
                            ? assay_sharded_moe_memory(&config->moe, &config->sharding)
                            : assay_moe_memory(&config->moe);
    return sum + (double)moe / (double)sizeof(double);
}

int64_t assay_stack_memory(const assay_stack_config *config)
{
    const double largest = 0x1p62;
    assay_context ctx = {0};
    assay_remat_report report;
    double most = 0;
    if (assay_stack_remat_model(&ctx, config, &report) != ASSAY_OK) return 0;
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) {
        const double numbers = layer_numbers(config, layer);
        if (numbers > most) most = numbers;
    }
    const double bytes = (double)report.bytes_kept + most * (double)sizeof(double);
    return bytes < largest ? (int64_t)bytes : (int64_t)largest;
}
