/* What a configuration of the block says: its MLPs, memory at its peak and floating-point operations. */
#include "oracle/moe/moe.h"

assay_gated_mlp_config assay_moe_expert_config(const assay_moe_config *config, int64_t rows)
{
    return (assay_gated_mlp_config){.rows = rows,
                                    .emb_dim = config->emb_dim,
                                    .mlp_dim = config->moe_mlp_dim,
                                    .activation = {config->activation, ASSAY_LINEAR},
                                    .glu = config->glu,
                                    .limit = config->limit,
                                    .alpha = config->alpha,
                                    .fused = config->fused_weights,
                                    .hidden = config->hidden,
                                    .recipe = config->recipe};
}

assay_gated_mlp_config assay_moe_shared_config(const assay_moe_config *config, int64_t rows)
{
    return (assay_gated_mlp_config){.rows = rows,
                                    .emb_dim = config->emb_dim,
                                    .mlp_dim = config->shared_mlp_dim,
                                    .activation = {config->activation, ASSAY_LINEAR},
                                    .hidden = config->hidden,
                                    .recipe = config->recipe};
}

int64_t assay_moe_slots(const assay_moe_config *config)
{
    return config->routing.num_experts_per_tok + config->fused_shared_experts;
}

int64_t assay_moe_experts(const assay_moe_config *config)
{
    return config->routing.num_experts + config->fused_shared_experts;
}

int64_t assay_moe_local_experts(const assay_moe_config *config)
{
    return config->local_num_experts > 0 ? config->local_num_experts : assay_moe_experts(config);
}

/* Numbers that one gated MLP of `rows` rows takes: its weights with gradients, what forward keeps and the scratch of
 * backward. By a recipe there are codes, scales and numbers of the operands of three products, of which two are there at a time. */
static double mlp_numbers(const assay_moe_config *config, double rows, double groups, double width)
{
    const double dim = (double)config->emb_dim;
    double run = 9 * groups * dim * width + 12 * rows * width + 5 * rows * dim;
    if (config->recipe.recipe != NULL) run += 9 * groups * dim * width + 24 * rows * width + 18 * rows * dim;
    return run;
}

int64_t assay_moe_memory(const assay_moe_config *config)
{
    const double largest = 0x1p62;
    const assay_routing_config *routing = &config->routing;
    double tokens = (double)routing->batch * (double)routing->sequence, experts = (double)routing->num_experts;
    double choices = tokens * (double)assay_moe_slots(config), dim = (double)config->emb_dim;
    double width = (double)config->moe_mlp_dim, wide = 2 * width > dim ? 2 * width : dim;
    double kept = config->path == ASSAY_MOE_DENSE ? tokens : choices + 1; /* outputs that stay */
    const bool joined = assay_quant_recipe_joins_groups(config->recipe.recipe);
    double most = joined ? choices + 1 : tokens + 1; /* rows of one expert */
    double block = 14 * tokens * dim + 16 * choices;
    double router = 8 * dim * experts + 8 * tokens * experts;
    double routed = 2 * kept * dim + most * wide + mlp_numbers(config, most, joined ? experts : 1, width);
    double shared = config->shared_mlp_dim > 0 ? mlp_numbers(config, tokens, 1, (double)config->shared_mlp_dim) : 0;
    if (config->path == ASSAY_MOE_DROPPING) {
        double capacity = (double)assay_expert_capacity(routing, config->capacity_factor);
        routed += 2 * tokens * experts * capacity + 2 * (double)routing->batch * capacity * wide;
    }
    double bytes = (block + router + (routed > shared ? routed : shared)) * (double)sizeof(double);
    if (config->shared_gate) bytes += 3 * tokens * dim * (double)sizeof(double);
    return bytes < largest ? (int64_t)bytes : (int64_t)largest;
}

double assay_moe_flops(const assay_moe_config *config, bool backward)
{
    const assay_routing_config *routing = &config->routing;
    double tokens = (double)routing->batch * (double)routing->sequence, dim = (double)config->emb_dim;
    double experts = (double)routing->num_experts;
    double rows = tokens * (config->path == ASSAY_MOE_DENSE ? experts : (double)assay_moe_slots(config));
    double products = tokens * dim * experts + 3 * rows * dim * (double)config->moe_mlp_dim +
                      3 * tokens * dim * (double)config->shared_mlp_dim;
    if (config->shared_gate) products += tokens * dim;
    /* Each product of forward has two in backward. */
    return (backward ? 2 : 1) * 2 * products;
}
