/* What a configuration of the block says: its MLPs and floating-point operations. */
#include "oracle/moe/moe.h"

assay_gated_mlp_config assay_moe_expert_config(const assay_moe_config *config, int64_t rows)
{
    return (assay_gated_mlp_config){.rows = rows,
                                    .emb_dim = config->emb_dim,
                                    .mlp_dim = config->moe_mlp_dim,
                                    .activation = {config->activation, ASSAY_LINEAR},
                                    .glu = config->glu,
                                    .limit = config->limit,
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
