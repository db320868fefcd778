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

static void graph_shares_of(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer,
                            bool backward)
{
    graph g;
    assay_layer_graph(&g, config, layer);
    for (int t = 1; t < g.tensor_count; t++) {
        const int slot = layer_slot(&g, t);
        const bool again = backward && slot >= 0 && layer_recomputes(&g, slot) &&
                           assay_remat_action_of(&config->policy, slot) == ASSAY_REMAT;
        if (g.tensors[t].role != GRAPH_CHECKPOINT) continue;
        for (int i = 0; i < 1 + again; i++) graph_shares(shares, least, &g, t);
    }
    if (backward) graph_backward_shares(shares, least, &g);
}

assay_status assay_stack_shares_of(assay_context *ctx, assay_run_shares *shares, double least,
                                   const assay_stack_config *config, const assay_source *in, const assay_sink *out)
{
    assay_remat_report report;
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    stack_run run = {.config = config, .in = in, .out = out, .tokens = sizes.batch * sizes.sequence};
    run.size = run.tokens * sizes.emb_dim;
    const bool backward = stack_wants_backward(&run);
    MUST(assay_stack_remat_model(ctx, config, &report));
    for (int64_t layer = config->first_layer; layer < stack_plain_layers(config); layer++) {
        graph_shares_of(shares, least, config, layer, backward);
        if (!layer_is_dense(config, layer)) layer_moe_shares(shares, least, &run, layer, backward);
    }
    shares->operations = assay_stack_flops(config, false);
    if (backward) shares->operations += assay_stack_flops(config, true) + report.operations_recomputed;
    shares->weights_twice = backward;
    return ASSAY_OK;
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
                            : assay_moe_memory(&config->moe, 0); /* its error scales are an ensemble's */
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
