/* What the batch-split schedule costs, from the sizes alone. */
#include "oracle/layer/batch_split_internal.h"

assay_remat_report assay_batch_split_model(const assay_stack_config *config)
{
    const stack_run stack = {.config = config};
    const int64_t layers = config->layers - config->dense_layers;
    assay_remat_report sum = {0};
    bs_run run;
    bs_run_of(&run, &stack);
    for (int64_t layer = 0; layer < layers; layer++) {
        const assay_remat_report report = bs_layer_model(&run, layer < layers - 1);
        sum.bytes_kept += report.bytes_kept;
        sum.bytes_offloaded += report.bytes_offloaded;
        sum.operations_recomputed += report.operations_recomputed;
    }
    return sum;
}

int64_t assay_batch_split_memory(const assay_stack_config *config)
{
    const stack_run stack = {.config = config};
    const assay_moe_config *moe = &config->moe;
    const bool quantises = moe->recipe.recipe != NULL;
    double numbers = 0, widest = (double)moe->moe_mlp_dim;
    bs_run run;
    bs_run_of(&run, &stack);
    const double shards = (double)run.sizes.shards, tokens = shards * (double)run.sizes.tokens;
    const double dim = (double)config->mla.emb_dim, rows = shards * (double)run.sizes.copies;
    for (int weight = 0; weight < BS_WEIGHTS; weight++)
        numbers += 6 * shards * (double)bs_weight_count(&run, weight, true); /* two layers, gradients, parts of them */
    if (dim > widest) widest = dim;
    for (int t = 1; t < run.attention.tensor_count; t++)
        if (run.attention.tensors[t].role == GRAPH_CHECKPOINT)
            numbers += (quantises ? 6 : 3) * shards * (double)run.factor * (double)graph_size(&run.attention, t);
    numbers += (double)run.factor * (12 * tokens * dim + 6 * tokens * (double)moe->routing.num_experts);
    numbers += (double)run.factor * (4 * rows * widest + 6 * rows * (double)moe->moe_mlp_dim);
    numbers += (double)run.factor * 6 * tokens * (double)moe->shared_mlp_dim;
    if (quantises) /* what is shown, and how far it may be off */
        numbers += (double)run.factor * 2 *
                   (tokens * (double)(3 * moe->shared_mlp_dim + moe->routing.num_experts) +
                    3 * rows * (double)moe->moe_mlp_dim);
    const double bytes = numbers * (double)sizeof(double);
    return bytes < 0x1p61 ? (int64_t)bytes : INT64_C(1) << 61;
}
