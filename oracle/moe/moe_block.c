/* A run of a block: what it needs, from the gate to y and dx. */
#include "oracle/moe/moe_block.h"

#include <stdlib.h>

#include "oracle/base/memory.h"

static void find_needs(moe_block *block)
{
    const moe_results *r = &block->results;
    block->need_y = moe_wants(r, MOE_Y);
    block->need_dx = moe_wants(r, MOE_DX);
    block->need_router_gradient = moe_wants_any(r, MOE_DX, MOE_DROUTING_WEIGHTS + 1 - MOE_DX);
    const bool of_x = block->llama4 || block->weighs_x;
    block->need_row_dx = block->need_dx || (of_x && block->need_router_gradient);
    bool weights = moe_wants_any(r, MOE_ROUTED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS);
    /* The gradient of a weight on h comes from the experts. */
    block->need_backward = block->need_row_dx || weights || moe_wants_gradient_checkpoints(r, MOE_ROUTED) ||
                           (block->weighs_h && block->need_router_gradient);
    block->need_forward =
        block->need_y || block->need_router_gradient || weights || moe_wants_any(r, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS);
}

static moe_block block_of(const assay_moe_config *config, const assay_sharding *of, const assay_source *in)
{
    const bool sharded = assay_is_sharded(config, of), dense = config->path == ASSAY_MOE_DENSE;
    const assay_sharding *sharding = sharded ? of : &assay_one_device;
    const assay_quant_recipe *recipe = config->recipe.recipe; /* some of its scales may be of all groups together */
    const bool joins = recipe != NULL && recipe->w.scales == ASSAY_SCALES_COLUMNS && !recipe->each_group;
    const bool global = config->routing.balance_scope == ASSAY_BALANCE_GLOBAL || !sharded;
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    moe_block block = {
        .config = config,
        .sharding = sharding,
        .sharded = sharded,
        .in = in,
        .mesh = sharding->mesh,
        .sizes = s,
        .routing = config->routing,
        .permute = {s.batch * s.sequence, assay_moe_slots(config), s.expert_shards * s.local_experts, config->emb_dim},
        .sites = s.shards * s.chunks,
        .tokens = config->routing.batch * config->routing.sequence,
        .experts = config->routing.num_experts,
        .emb_dim = config->emb_dim,
        .chosen = config->routing.num_experts_per_tok,
        .local_experts = config->local_num_experts > 0 ? config->local_num_experts : assay_moe_experts(config),
        .pieces = s.shards * s.chunks,
        .losses = global ? 1 : s.shards,
        .loss_copies = global ? 1 : s.hidden_shards,
        .dense = dense,
        .llama4 = config->routing.family == ASSAY_ROUTER_LLAMA4,
        .weighs_x = config->weight_on_input,
        .weighs_h = sharding->weight_before_wo,
    };
    block.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 1;
    block.routing.batch = s.batch;
    block.routing.sequence = s.sequence;
    block.joined = joins ? block.local_experts / s.expert_shards : 1;
    if (dense) block.kept_rows = block.tokens * block.experts;
    if (sharded) block.kept_rows = block.sites * s.buffer;
    return block;
}

static assay_status read_replicas(assay_context *ctx, moe_block *block)
{
    const int64_t physical = block->config->physical_experts;
    OWNED int32_t *map = NULL;
    if (physical == 0) return ASSAY_OK;
    MUST(assay_read_needed_i32(ctx, block->in, "inputs/physical_to_logical_map", physical, &map));
    MUST(assay_replicas_make(ctx, &block->replicas, map, physical, block->experts));
    block->pieces *= block->replicas.most;
    return ASSAY_OK;
}

/* [T,D], where the source lends it or as it is read. */
static assay_status look_at(assay_context *ctx, const moe_block *block, const char *path, double **own,
                            const double **values)
{
    const assay_source *in = block->in;
    const int64_t count = block->tokens * block->emb_dim;
    *values = in->lend == NULL ? NULL : in->lend(in->self, path, 0, count);
    if (*values == NULL) MUST(assay_read_needed(ctx, in, path, count, own));
    if (*values == NULL) *values = *own;
    return ASSAY_OK;
}

/* An output without a cotangent is not differentiated. Outputs of choices get the late factor's share of it. */
static assay_status read_dy(assay_context *ctx, moe_block *block)
{
    const int64_t count = block->tokens * block->emb_dim;
    const double late = block->config->late_factor;
    if (block->in->has(block->in->self, "cotangents/y")) {
        MUST(look_at(ctx, block, "cotangents/y", &block->own_dy, &block->dy));
    } else {
        MUST(assay_alloc_zeros(ctx, "cotangents/y", count, &block->own_dy));
        block->dy = block->own_dy;
    }
    if (late == 0) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "cotangents of the experts", count, &block->scaled_dy));
    for (int64_t i = 0; i < count; i++) block->scaled_dy[i] = late * block->dy[i];
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, block->scaled_dy);
    return ASSAY_OK;
}

static assay_status open_block(assay_context *ctx, moe_block *block)
{
    const int64_t count = block->tokens * block->emb_dim;
    find_needs(block);
    MUST(read_replicas(ctx, block));
    MUST(look_at(ctx, block, "inputs/x", &block->own_x, &block->x));
    /* The dense path adds them up as experts come. */
    if (block->need_y) MUST(assay_alloc_zeros(ctx, "outputs/y", count, &block->y));
    if (block->need_row_dx) MUST(assay_alloc_zeros(ctx, "gradients/inputs/x", count, &block->dx));
    if (block->need_backward || block->need_router_gradient || moe_wants(&block->results, MOE_DSHARED_GATE) ||
        moe_wants_gradient_checkpoints(&block->results, MOE_SHARED) ||
        moe_wants_any(&block->results, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS))
        MUST(read_dy(ctx, block));
    return ASSAY_OK;
}

static void close_block(moe_block *block)
{
    moe_router_free(&block->router);
    moe_route_free(block);
    assay_replicas_free(&block->replicas);
    free(block->own_x);
    free(block->own_dy);
    free(block->scaled_dy);
    free(block->y);
    free(block->dx);
}

assay_status moe_block_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                           const assay_source *in, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    moe_block block = block_of(config, sharding, in);
    moe_results_open(&block.results, config, in, out);
    TRY(open_block(ctx, &block));
    TRY(moe_router_forward(ctx, &block));
    TRY(moe_experts_run(ctx, &block));
    if (block.need_router_gradient) TRY(moe_router_backward(ctx, &block));
    TRY(moe_shared_run(ctx, &block));
    TRY(moe_write(ctx, &block.results, MOE_Y, block.tokens * block.emb_dim, block.y));
    TRY(moe_write(ctx, &block.results, MOE_DX, block.tokens * block.emb_dim, block.dx));
cleanup:
    close_block(&block);
    return status;
}

/* --- memory at its peak --- */

/* Numbers that one gated MLP of `rows` rows takes: its weights with gradients, what forward keeps and the scratch of
 * backward. By a recipe there are codes, scales and numbers of the operands of three products, of which two are there at a time. */
static double mlp_numbers(const assay_moe_config *config, double rows, double groups, double width)
{
    const double dim = (double)config->emb_dim;
    double run = 9 * groups * dim * width + 12 * rows * width + 5 * rows * dim;
    if (config->recipe.recipe != NULL) run += 9 * groups * dim * width + 24 * rows * width + 18 * rows * dim;
    return run;
}

int64_t assay_moe_memory(const assay_moe_config *config, const assay_sharding *sharding)
{
    const double largest = 0x1p62;
    const moe_block block = block_of(config, sharding, NULL);
    const assay_routing_config *routing = &config->routing;
    const double tokens = (double)block.tokens, experts = (double)routing->num_experts, dim = (double)config->emb_dim;
    const double sites = (double)block.sites, slots = (double)assay_moe_slots(config);
    const double copies = sites * (double)block.sizes.copies, rows = sites * (double)block.sizes.buffer;
    const double width = (double)config->moe_mlp_dim, wide = 2 * width > dim ? 2 * width : dim;
    const double of_experts = (double)assay_moe_experts(config) * dim * width;
    const double kept = block.dense ? tokens : rows + 1; /* outputs that stay */
    /* rows of one expert */
    const double of_site = (double)block.sizes.buffer + 1;
    const double most = block.joined > 1 || (block.sharded && of_site < tokens) ? of_site : tokens + 1;
    const double groups = block.joined > 1 ? (double)block.joined : 1;
    double routed = 2 * kept * dim + most * wide + mlp_numbers(config, most, groups, width);
    double shared = config->shared_mlp_dim > 0 ? mlp_numbers(config, tokens, 1, (double)config->shared_mlp_dim) : 0;
    double gate =
        8 * dim * experts + 8 * tokens * experts + 14 * tokens * dim + 4 * (copies + rows) + 16 * tokens * slots;
    if (block.sites > 1) gate += copies / slots * (6 * experts + dim) + 8 * copies + sites * experts;
    if (block.sharded) routed += rows * 2 * width; /* checkpoints are kept whole */
    if (block.sharding->weights_on_shards)
        routed += 8 * of_experts; /* all kernels and their gradients, and one on the shards */
    if (config->path == ASSAY_MOE_DROPPING) {
        const double capacity = (double)assay_expert_capacity(routing, config->capacity_factor);
        routed += 2 * tokens * experts * capacity + 2 * (double)routing->batch * capacity * wide;
    }
    if (config->shared_gate) shared += 3 * tokens * dim;
    /* Beside numbers: structs of each site, and what allocations are rounded up by. */
    const double bytes = (gate + (routed > shared ? routed : shared)) * (double)sizeof(double) + sites * 4096 + 65536;
    return bytes < largest ? (int64_t)bytes : (int64_t)largest;
}
