#include "oracle/moe/moe.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/base/memory.h"

enum { FUSED_TILE = 16 }; /* fused_moe_func takes token copies by so many */

static assay_status check_path(assay_context *ctx, const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t choices = routing->batch * routing->sequence * routing->num_experts_per_tok;
    bool fused_family = routing->family == ASSAY_ROUTER_FUSED;
    switch (config->path) {
    case ASSAY_MOE_DROPPING:
        if (!(config->capacity_factor > 0) || !isfinite(config->capacity_factor))
            return assay_refuse(ctx, "moe: capacity_factor is %g, expected a number above 0", config->capacity_factor);
        if (routing->family == ASSAY_ROUTER_LLAMA4) {
            return assay_refuse(ctx, "moe: llama4 has no token dropping, found capacity_factor %g",
                                config->capacity_factor);
        }
        break;
    case ASSAY_MOE_FUSED:
        if (!config->fused_weights) return assay_refuse(ctx, "moe: fused_moe_func needs prefuse_moe_weights=true");
        if (choices % FUSED_TILE != 0) {
            return assay_refuse(ctx,
                                "fused_moe_func needs batch*sequence*num_experts_per_tok to be a multiple of %d, found "
                                "%" PRId64,
                                FUSED_TILE, choices);
        }
        break;
    case ASSAY_MOE_DENSE:
    case ASSAY_MOE_SPARSE:
        break;
    }
    if (fused_family != (config->path == ASSAY_MOE_FUSED))
        return assay_refuse(ctx, "moe: the router of fused_moe_func and its path come together");
    if (config->physical_experts > 0 && (config->path != ASSAY_MOE_SPARSE || config->fused_shared_experts > 0)) {
        return assay_refuse(ctx,
                            "moe: %" PRId64 " physical experts need sparse_matmul=true, fused_moe_func=false and "
                            "num_fused_shared_experts=0",
                            config->physical_experts);
    }
    if (config->fused_weights && (config->path == ASSAY_MOE_DENSE || config->path == ASSAY_MOE_DROPPING))
        return assay_refuse(ctx, "prefuse_moe_weights needs sparse_matmul=true");
    return ASSAY_OK;
}

static assay_status check_sizes(assay_context *ctx, const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t dim = config->emb_dim, width = config->moe_mlp_dim, shared = config->shared_mlp_dim, tokens = 0, count = 0;
    if (dim < 1 || width < 1 || shared < 0) {
        return assay_refuse(ctx,
                            "moe: emb_dim %" PRId64 ", moe_mlp_dim %" PRId64 ", width of the shared expert %" PRId64
                            ", expected at least 1, 1 and 0",
                            dim, width, shared);
    }
    MUST(assay_checked_count(ctx, "batch*sequence", 2, (int64_t[]){routing->batch, routing->sequence}, &tokens));
    MUST(assay_checked_count(ctx, "weights/wi", 4, (int64_t[]){assay_moe_experts(config), dim, 2, width}, &count));
    MUST(assay_checked_count(ctx, "weights/shared_experts/wi_0/kernel", 2, (int64_t[]){dim, shared}, &count));
    int64_t per_token = config->path == ASSAY_MOE_DENSE ? routing->num_experts : assay_moe_slots(config);
    int64_t wide = 2 * width > dim ? 2 * width : dim;
    MUST(assay_checked_count(ctx, "moe: rows of the experts", 3, (int64_t[]){tokens, per_token, wide}, &count));
    return assay_checked_count(ctx, "moe: rows of the shared expert", 2, (int64_t[]){tokens, shared}, &count);
}

/* What serving engines have. */
static assay_status check_forms(assay_context *ctx, const assay_moe_config *config)
{
    const bool late = config->late_factor != 0, fused = config->fused_shared_experts != 0;
    const char *key = config->weight_on_input ? "apply_router_weight_on_input"
                      : fused                 ? "num_fused_shared_experts"
                                              : "apply_routed_scaling_factor_on_output";
    if (!late && !fused && !config->weight_on_input) return ASSAY_OK;
    if (config->path != ASSAY_MOE_SPARSE || config->routing.family == ASSAY_ROUTER_LLAMA4)
        return assay_refuse(ctx, "moe: %s needs sparse_matmul=true, and neither fused_moe_func nor llama4", key);
    if (fused && config->glu != ASSAY_GLU_PLAIN) {
        return assay_refuse(
            ctx, "moe: num_fused_shared_experts needs experts without a clamp, which shared ones do not have");
    }
    if (config->fused_shared_experts < 0 || (fused && config->shared_mlp_dim > 0)) {
        return assay_refuse(ctx,
                            "moe: %" PRId64 " fused shared experts beside one of width %" PRId64
                            ", expected one of the two to be 0",
                            config->fused_shared_experts, config->shared_mlp_dim);
    }
    if (late && (!isfinite(config->late_factor) || config->weight_on_input)) {
        return assay_refuse(ctx, "moe: a factor of %g behind the experts%s", config->late_factor,
                            config->weight_on_input ? ", and routing weights before them: expected one of the two"
                                                    : ", expected a finite number other than 0");
    }
    return ASSAY_OK;
}

static assay_status check_local(assay_context *ctx, const assay_moe_config *config)
{
    const int64_t count = config->local_num_experts, offset = config->local_expert_offset;
    const int64_t experts = config->routing.num_experts;
    if (count == 0 && offset == 0) return ASSAY_OK;
    if (count < 1 || offset < 0 || count > experts || offset > experts - count) {
        return assay_refuse(ctx,
                            "local_num_experts is %" PRId64 " and local_expert_offset %" PRId64
                            ", expected at least 1 and 0, and at most num_experts=%" PRId64 " together",
                            count, offset, experts);
    }
    if (config->path == ASSAY_MOE_DENSE || config->path == ASSAY_MOE_DROPPING)
        return assay_refuse(ctx, "local_num_experts needs sparse_matmul=true, found sparse_matmul=false");
    if (config->fused_shared_experts > 0 || config->physical_experts > 0)
        return assay_refuse(ctx, "local_num_experts needs num_fused_shared_experts=0 and num_redundant_experts=0");
    return ASSAY_OK;
}

assay_status assay_moe_check(assay_context *ctx, const assay_moe_config *config)
{
    MUST(assay_routing_check(ctx, &config->routing));
    MUST(check_sizes(ctx, config));
    MUST(check_path(ctx, config));
    MUST(check_forms(ctx, config));
    MUST(check_local(ctx, config));
    if (config->glu != ASSAY_GLU_PLAIN && !(config->limit > 0))
        return assay_refuse(ctx, "moe: mlp_activations_limit is %g, expected a number above 0", config->limit);
    return ASSAY_OK;
}
