#include "oracle/moe/moe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

enum { FUSED_TILE = 16 }; /* fused_moe_func takes token copies by so many */

static assay_status check_path(assay_context *ctx, const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t choices = routing->batch * routing->sequence * routing->num_experts_per_tok;
    bool fused_family = routing->family == ASSAY_ROUTER_FUSED;
    switch (config->path) {
    case ASSAY_MOE_DROPPING:
        if (!(config->capacity_factor > 0) || !isfinite(config->capacity_factor)) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: capacity_factor is %g, expected a number above 0",
                              config->capacity_factor);
        }
        if (routing->family == ASSAY_ROUTER_LLAMA4) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: llama4 has no token dropping, found capacity_factor %g",
                              config->capacity_factor);
        }
        break;
    case ASSAY_MOE_FUSED:
        if (!config->fused_weights) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: fused_moe_func needs prefuse_moe_weights=true");
        }
        if (choices % FUSED_TILE != 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "fused_moe_func needs batch*sequence*num_experts_per_tok to be a multiple of %d, found "
                              "%" PRId64,
                              FUSED_TILE, choices);
        }
        break;
    case ASSAY_MOE_DENSE:
    case ASSAY_MOE_SPARSE:
        break;
    }
    if (fused_family != (config->path == ASSAY_MOE_FUSED)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: the router of fused_moe_func and its path come together");
    }
    if (config->physical_experts > 0 && (config->path != ASSAY_MOE_SPARSE || config->fused_shared_experts > 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "moe: %" PRId64 " physical experts need sparse_matmul=true, fused_moe_func=false and "
                          "num_fused_shared_experts=0",
                          config->physical_experts);
    }
    if (config->fused_weights && (config->path == ASSAY_MOE_DENSE || config->path == ASSAY_MOE_DROPPING)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "prefuse_moe_weights needs sparse_matmul=true");
    }
    return ASSAY_OK;
}

static assay_status check_sizes(assay_context *ctx, const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t dim = config->emb_dim, width = config->moe_mlp_dim, shared = config->shared_mlp_dim, tokens = 0, count = 0;
    if (dim < 1 || width < 1 || shared < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
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
    if (config->path != ASSAY_MOE_SPARSE || config->routing.family == ASSAY_ROUTER_LLAMA4) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "moe: %s needs sparse_matmul=true, and neither fused_moe_func nor llama4", key);
    }
    if (fused && config->glu != ASSAY_GLU_PLAIN) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "moe: num_fused_shared_experts needs experts without a clamp, which shared ones do not have");
    }
    if (config->fused_shared_experts < 0 || (fused && config->shared_mlp_dim > 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "moe: %" PRId64 " fused shared experts beside one of width %" PRId64
                          ", expected one of the two to be 0",
                          config->fused_shared_experts, config->shared_mlp_dim);
    }
    if (late && (!isfinite(config->late_factor) || config->weight_on_input)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: a factor of %g behind the experts%s", config->late_factor,
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
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "local_num_experts is %" PRId64 " and local_expert_offset %" PRId64
                          ", expected at least 1 and 0, and at most num_experts=%" PRId64 " together",
                          count, offset, experts);
    }
    if (config->path == ASSAY_MOE_DENSE || config->path == ASSAY_MOE_DROPPING) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "local_num_experts needs sparse_matmul=true, found sparse_matmul=false");
    }
    if (config->fused_shared_experts > 0 || config->physical_experts > 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "local_num_experts needs num_fused_shared_experts=0 and num_redundant_experts=0");
    }
    return ASSAY_OK;
}

assay_status assay_moe_check(assay_context *ctx, const assay_moe_config *config)
{
    MUST(assay_routing_check(ctx, &config->routing));
    MUST(check_sizes(ctx, config));
    MUST(check_path(ctx, config));
    MUST(check_forms(ctx, config));
    MUST(check_local(ctx, config));
    if (config->glu != ASSAY_GLU_PLAIN && !(config->limit > 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "moe: mlp_activations_limit is %g, expected a number above 0",
                          config->limit);
    }
    return ASSAY_OK;
}

static void find_needs(moe_block *block)
{
    const moe_results *r = &block->results;
    block->need_y = moe_wants(r, MOE_Y);
    block->need_dx = moe_wants(r, MOE_DX);
    block->need_router_gradient = moe_wants_any(r, MOE_DX, MOE_DROUTING_WEIGHTS + 1 - MOE_DX);
    const bool weighs_x = block->llama4 || block->config->weight_on_input;
    block->need_row_dx = block->need_dx || (weighs_x && block->need_router_gradient);
    bool weights = moe_wants_any(r, MOE_ROUTED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS);
    /* The gradient of a weight on h comes from the experts. */
    block->need_backward = block->need_row_dx || weights || moe_wants_gradient_checkpoints(r, MOE_ROUTED) ||
                           (block->split.weighs_h && block->need_router_gradient);
    block->need_forward =
        block->need_y || block->need_router_gradient || weights || moe_wants_any(r, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS);
}

static void set_sizes(moe_block *block)
{
    const assay_moe_config *config = block->config;
    block->tokens = config->routing.batch * config->routing.sequence;
    block->per_token = assay_moe_slots(config);
    block->experts = config->routing.num_experts;
    block->local_experts = assay_moe_local_experts(config);
    const bool joins = assay_quant_recipe_joins_groups(config->recipe.recipe);
    block->joined = joins ? block->local_experts / block->split.expert_shards : 1;
    block->emb_dim = config->emb_dim;
    block->llama4 = config->routing.family == ASSAY_ROUTER_LLAMA4;
}

static assay_status open_block(assay_context *ctx, moe_block *block)
{
    const assay_source *in = block->in;
    set_sizes(block);
    const int64_t count = block->tokens * block->emb_dim;
    find_needs(block);
    MUST(assay_alloc_f64(ctx, "inputs/x", count, &block->x));
    MUST(in->read(ctx, in->self, "inputs/x", 0, count, block->x));
    if (block->need_y) MUST(assay_alloc_f64(ctx, "outputs/y", count, &block->y));
    if (block->need_row_dx) MUST(assay_alloc_f64(ctx, "gradients/inputs/x", count, &block->dx));
    if (block->need_backward || block->need_router_gradient || moe_wants(&block->results, MOE_DSHARED_GATE) ||
        moe_wants_gradient_checkpoints(&block->results, MOE_SHARED) ||
        moe_wants_any(&block->results, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS)) {
        /* An output without a cotangent is not differentiated. */
        MUST(assay_alloc_zeros(ctx, "cotangents/y", count, &block->dy));
        if (in->has(in->self, "cotangents/y")) MUST(in->read(ctx, in->self, "cotangents/y", 0, count, block->dy));
    }
    return ASSAY_OK;
}

static void close_block(moe_block *block)
{
    moe_router_free(&block->router);
    free(block->x);
    free(block->dy);
    free(block->scaled_dy);
    free(block->slot_ids);
    free(block->slot_weights);
    free(block->y);
    free(block->dx);
    free(block->d_weights);
    free(block->gate);
    free(block->scaled_x);
    free(block->order);
    free(block->group_sizes);
    free(block->replica_sizes);
    free(block->combine);
    free(block->slots.row);
}

assay_status moe_block_run(assay_context *ctx, moe_block *block, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    moe_results_open(&block->results, block->config, block->in, out);
    TRY(open_block(ctx, block));
    TRY(moe_router_forward(ctx, block));
    TRY(moe_experts_run(ctx, block));
    if (block->need_router_gradient) TRY(moe_router_backward(ctx, block));
    TRY(moe_shared_run(ctx, block));
    TRY(moe_write(ctx, &block->results, MOE_Y, block->tokens * block->emb_dim, block->y));
    TRY(moe_write(ctx, &block->results, MOE_DX, block->tokens * block->emb_dim, block->dx));
cleanup:
    close_block(block);
    return status;
}

assay_status moe_read_replicas(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                               assay_replicas *replicas)
{
    const int64_t physical = config->physical_experts;
    OWNED int32_t *map = NULL;
    MUST(assay_alloc_i32(ctx, "inputs/physical_to_logical_map", physical, &map));
    MUST(in->read_i32(ctx, in->self, "inputs/physical_to_logical_map", 0, physical, map));
    return assay_replicas_make(ctx, replicas, map, physical, config->routing.num_experts);
}

static moe_block block_of(const assay_moe_config *config, const assay_source *in)
{
    static const moe_path *const paths[] = {
        [ASSAY_MOE_DENSE] = &moe_path_dense,
        [ASSAY_MOE_DROPPING] = &moe_path_dropping,
        [ASSAY_MOE_SPARSE] = &moe_path_sparse,
        [ASSAY_MOE_FUSED] = &moe_path_sparse, /* it differs in its router */
    };
    const assay_routing_config *routing = &config->routing;
    const bool dense = config->path == ASSAY_MOE_DENSE;
    return (moe_block){
        .config = config,
        .in = in,
        .placement = &moe_one_device,
        .split = {.shards = 1,
                  .losses = 1,
                  .loss_copies = 1,
                  .owners = 1,
                  .pieces = 1,
                  .expert_shards = 1,
                  .tensor_shards = 1,
                  .emb_chunks = 1,
                  .hidden_shards = 1},
        .path = paths[config->path],
        .kept_rows = dense ? routing->batch * routing->sequence * routing->num_experts : 0,
    };
}

assay_status assay_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                           const assay_sink *out)
{
    MUST(assay_moe_check(ctx, config));
    moe_block block = block_of(config, in);
    if (config->physical_experts == 0) return moe_block_run(ctx, &block, out);
    OWNED_BY(assay_replicas_free) assay_replicas replicas = {0};
    MUST(moe_read_replicas(ctx, config, in, &replicas));
    block.placed = &replicas;
    block.split.pieces = replicas.most;
    return moe_block_run(ctx, &block, out);
}
