#include "oracle/spec/spec_internal.h"

/* Row `row` is what the block's scratch holds. */
static void keep(const spec_block *block, const spec_mlp *mlp, const spec_mlp_checkpoints *to, int64_t row)
{
    spec_keep_mlp(to, mlp, row, block->a, block->b, block->h, block->y);
}

static assay_status add_shared(assay_context *ctx, const spec_block *block, spec_tensors *out)
{
    const assay_moe_config *config = block->config;
    if (config->shared_mlp_dim == 0) return ASSAY_OK;
    spec_mlp_checkpoints shared;
    const assay_shape rows = assay_shape_of(2, config->routing.batch, config->routing.sequence);
    assay_status status = spec_add_mlp_checkpoints(ctx, out, &block->shared.config, ASSAY_MLP_SHARED, &rows, &shared);
    for (int64_t t = 0; status == ASSAY_OK && t < assay_shape_count(&rows); t++) {
        spec_mlp_row(&block->shared, block->x->values + t * config->emb_dim, block->a, block->b, block->h, block->y);
        keep(block, &block->shared, &shared, t);
    }
    return status;
}

/* dense [B,S,E], dropping [E,B,C], sorted [T*K] otherwise */
static assay_shape routed_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return assay_shape_of(3, r->batch, r->sequence, r->num_experts);
    if (config->path == ASSAY_MOE_DROPPING) return assay_shape_of(3, r->num_experts, r->batch, spec_capacity(config));
    return assay_shape_of(1, r->batch * r->sequence * (r->num_experts_per_tok + config->fused_shared_experts));
}

static void clear(const spec_block *block)
{
    for (int64_t j = 0; j < block->experts.config.mlp_dim; j++) block->a[j] = block->b[j] = block->h[j] = 0;
    for (int64_t d = 0; d < block->config->emb_dim; d++) block->y[d] = 0;
}

/* Rows without a choice are 0. A shard has its part of the columns: of a and b before the second product, of y once what
 * the shards have added up to is scattered. */
assay_status spec_add_spread_checkpoints(assay_context *ctx, const spec_block *block, const spec_spread *spread,
                                         spec_tensors *out)
{
    assay_status status;
    const assay_shape rows = spec_spread_shape(spread, spread->buffer);
    spec_mlp own = {.config = block->experts.config, .w13_shards = block->experts.w13_shards / spread->hidden_shards};
    spec_mlp_checkpoints routed;
    own.config.mlp_dim /= spread->hidden_shards;
    own.config.emb_dim /= spread->hidden_shards;
    TRY(spec_add_mlp_checkpoints(ctx, out, &own.config, ASSAY_MLP_ROUTED, &rows, &routed));
    for (int64_t row = 0; row < assay_shape_count(&rows); row++) {
        const int64_t part = row / (spread->parts * spread->buffer) % spread->hidden_shards;
        if (spread->choices[row] >= 0) {
            spec_block_choice(block, spread->choices[row]);
        } else {
            clear(block);
        }
        const int64_t column = part * own.config.mlp_dim;
        spec_keep_mlp(&routed, &own, row, block->a + column, block->b + column, block->h + column,
                      block->y + part * own.config.emb_dim);
    }
cleanup:
    return status;
}

/* Places that no choice has taken hold what an expert makes of a row of zeros. */
static void keep_dropping(const spec_block *block, const spec_mlp_checkpoints *routed)
{
    const assay_routing_config *r = &block->config->routing;
    int64_t room = spec_capacity(block->config), k = r->num_experts_per_tok, in_row = r->sequence * k;
    for (int64_t d = 0; d < block->config->emb_dim; d++) block->token[d] = 0;
    for (int64_t row = 0; row < r->num_experts * r->batch * room; row++) {
        spec_block_expert(block, block->token, row / (r->batch * room));
        keep(block, &block->experts, routed, row);
    }
    for (int64_t choice = 0; choice < r->batch * in_row; choice++) {
        int64_t e = block->selected[choice], position = spec_block_position(block, choice);
        if (position >= room || e < 0) continue;
        spec_block_expert(block, spec_block_token(block, choice / k), e);
        keep(block, &block->experts, routed, (e * r->batch + choice / in_row) * room + position);
    }
}

static void keep_routed(const spec_block *block, const int32_t *order, const spec_mlp_checkpoints *routed)
{
    const assay_moe_config *config = block->config;
    const assay_shape rows = routed_rows(config);
    int64_t experts = config->routing.num_experts, k = config->routing.num_experts_per_tok;
    int64_t slots = k + config->fused_shared_experts;
    for (int64_t row = 0; row < assay_shape_count(&rows); row++) {
        const bool dense = config->path == ASSAY_MOE_DENSE;
        const int64_t token = dense ? row / experts : order[row] / slots, slot = dense ? 0 : order[row] % slots;
        if (dense) {
            spec_block_expert(block, spec_block_token(block, token), row % experts);
        } else if (order[row] < 0) {
            clear(block);
        } else if (slot < k) {
            spec_block_choice(block, token * k + slot);
        } else {
            spec_block_expert(block, spec_block_token(block, token), experts + slot - k);
        }
        keep(block, &block->experts, routed, row);
    }
}

assay_status spec_moe_checkpoints(assay_context *ctx, const spec_moe_config *both, const spec_tensors *in,
                                  spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = &both->moe;
    spec_block block = {0};
    spec_tensors routing = {0};
    spec_spread spread = {0};
    spec_mlp_checkpoints routed;
    int32_t *local = NULL;
    const assay_shape rows = routed_rows(config);
    TRY(spec_moe_route(ctx, config, in, &routing));
    TRY(spec_block_read(ctx, config, in, &block));
    block.experts.w13_shards = both->w13_shards;
    TRY(spec_block_gather(ctx, &both->sharding, &block));
    block.weights = spec_tensors_find(&routing, "routing/weights")->values;
    block.selected = spec_tensors_find(&routing, "routing/selected_experts")->indices;
    TRY(spec_localise(ctx, config, in, &routing, &local));
    if (local != NULL) block.selected = local;
    if (spec_is_sharded(both)) {
        block.weight_before_wo = both->sharding.weight_before_wo;
        TRY(spec_spread_make(ctx, &spread, both, 0, block.selected));
        TRY(spec_add_spread_checkpoints(ctx, &block, &spread, out));
    } else {
        TRY(spec_add_mlp_checkpoints(ctx, out, &block.experts.config, ASSAY_MLP_ROUTED, &rows, &routed));
        if (config->path == ASSAY_MOE_DROPPING) {
            keep_dropping(&block, &routed);
        } else {
            keep_routed(&block, spec_tensors_find(&routing, "routing/sorted_selected_experts")->indices, &routed);
        }
    }
    TRY(add_shared(ctx, &block, out));
cleanup:
    spec_block_free(&block);
    spec_spread_free(&spread);
    spec_tensors_free(&routing);
    free(local);
    return status;
}
