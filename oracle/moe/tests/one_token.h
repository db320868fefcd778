/* A router of one token without groups, whose weights are not scaled. */
#pragma once

#include "oracle/moe/routing.h"

static inline assay_routing_config one_token(assay_router_family family, assay_score_func f, int64_t experts, int64_t k)
{
    return (assay_routing_config){.batch = 1,
                                  .sequence = 1,
                                  .num_experts = experts,
                                  .num_experts_per_tok = k,
                                  .family = family,
                                  .score_func = f,
                                  .n_routing_groups = -1,
                                  .topk_routing_group = -1,
                                  .routed_scaling_factor = 1};
}
