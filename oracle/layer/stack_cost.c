/* What a stack costs: operations, memory, and what its remat policy keeps, moves and computes again. */
#include "oracle/layer/batch_split.h"
#include "oracle/layer/layer_internal.h"

assay_status assay_stack_remat_model(assay_context *ctx, const assay_stack_config *config, assay_remat_report *report)
{
    *report = (assay_remat_report){0};
    MUST(assay_stack_check(ctx, config));
    if (config->batch_split_factor > 0) *report = assay_batch_split_model(config);
    for (int64_t layer = config->first_layer; layer < layer_plain_end(config); layer++) {
        bool kept[ASSAY_REMAT_SLOTS];
        graph g;
        assay_layer_graph(&g, config, layer);
        for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++) {
            const int64_t bytes = graph_size(&g, layer_tensor(&g, slot)) * (int64_t)sizeof(double);
            const assay_remat_action action = assay_remat_action_of(&config->policy, slot);
            kept[slot] = action != ASSAY_REMAT;
            if (action == ASSAY_DEVICE) report->bytes_kept += bytes;
            if (action == ASSAY_OFFLOAD) report->bytes_offloaded += bytes;
        }
        report->operations_recomputed += layer_recomputed(config, &g, kept);
    }
    return ASSAY_OK;
}

double assay_stack_flops(const assay_stack_config *config, bool backward)
{
    double sum = 0;
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) {
        graph g;
        assay_layer_graph(&g, config, layer);
        sum += backward ? graph_backward_operations(&g) : graph_forward_operations(&g);
        if (layer >= layer_plain_end(config)) sum += assay_moe_flops(&config->moe, backward);
    }
    return sum;
}

/* The numbers that one layer has at its peak: what its graph has, with gradients, and a block of experts. */
static double layer_numbers(const assay_stack_config *config, int64_t layer)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    graph g;
    assay_layer_graph(&g, config, layer);
    const double sum = 12 * (double)(sizes.batch * sizes.sequence * sizes.emb_dim) + 2 * graph_numbers(&g);
    if (assay_layer_is_dense(config, layer)) return sum;
    const int64_t moe = layer >= layer_plain_end(config) ? assay_batch_split_memory(config)
                                                         : assay_moe_memory(&config->moe, &config->sharding);
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
