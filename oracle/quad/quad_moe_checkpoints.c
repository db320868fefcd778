#include "oracle/quad/quad_internal.h"

/* Where the rows of a list go. */
typedef struct target {
    const quad_mlp *mlp;
    quad_mlp_checkpoints to;
    int64_t parrows, parts; /* of a shard's part, and how many parts of each row there are; 1: rows are whole */
} target;

static void keep(void *self, int64_t row, const quad *a, const quad *b, const quad *h,
                 const quad *y)
{
    const target *t = self;
    const int64_t part = t->parts > 1 ? row / t->parrows % t->parts : 0;
    const int64_t column = part * t->mlp->config.mlp_dim;
    quad_keep_mlp(&t->to, t->mlp, row, a + column, b + column, h + column, y + part * t->mlp->config.emb_dim);
}

static assay_status add_shared(assay_context *ctx, const quad_block *block, quad_tensors *out)
{
    assay_status status;
    const assay_moe_config *config = block->config;
    const assay_shape shape = assay_shape_of(2, config->routing.batch, config->routing.sequence);
    target t = {.mlp = &block->shared};
    quad_block_rows list = {.count = assay_shape_count(&shape), .keep = keep, .self = &t};
    quad_block_row *rows = NULL;
    if (config->shared_mlp_dim == 0) return ASSAY_OK;
    TRY(quad_add_mlp_checkpoints(ctx, out, &block->shared.config, ASSAY_MLP_SHARED, &shape, &t.to));
    TRY(quad_block_rows_alloc(ctx, list.count, &rows));
    for (int64_t row = 0; row < list.count; row++) {
        rows[row] = (quad_block_row){.block = block, .expert = QUAD_EXPERT_SHARED, .choice = -1, .token = row};
    }
    list.rows = rows;
    TRY(quad_block_compute(ctx, &list));
cleanup:
    free(rows);
    return status;
}

/* dense [B,S,E], dropping [E,B,C], sorted [T*K] otherwise */
static assay_shape routed_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return assay_shape_of(3, r->batch, r->sequence, r->num_experts);
    if (config->path == ASSAY_MOE_DROPPING) return assay_shape_of(3, r->num_experts, r->batch, quad_capacity(config));
    return assay_shape_of(1, r->batch * r->sequence * (r->num_experts_per_tok + config->fused_shared_experts));
}

/* Rows without a choice are 0. A shard has its part of the columns: of a and b before the second product, of y once what
 * the shards have added up to is scattered. */
assay_status quad_add_spread_checkpoints(assay_context *ctx, const quad_block *block, const quad_spread *spread,
                                         quad_tensors *out)
{
    assay_status status;
    const assay_shape shape = quad_spread_shape(spread, spread->buffer);
    quad_mlp own = {.config = block->experts.config, .w13_shards = block->experts.w13_shards / spread->hidden_shards};
    target t = {.mlp = &own, .parrows = spread->parts * spread->buffer, .parts = spread->hidden_shards};
    quad_block_rows list = {.count = assay_shape_count(&shape), .keep = keep, .self = &t};
    quad_block_row *rows = NULL;
    own.config.mlp_dim /= spread->hidden_shards;
    own.config.emb_dim /= spread->hidden_shards;
    TRY(quad_add_mlp_checkpoints(ctx, out, &own.config, ASSAY_MLP_ROUTED, &shape, &t.to));
    TRY(quad_block_rows_alloc(ctx, list.count, &rows));
    for (int64_t row = 0; row < list.count; row++) {
        const int64_t choice = spread->choices[row];
        rows[row] = (quad_block_row){
            .block = block, .expert = choice < 0 ? QUAD_EXPERT_NONE : block->selected[choice], .choice = choice};
    }
    list.rows = rows;
    TRY(quad_block_compute(ctx, &list));
cleanup:
    free(rows);
    return status;
}

/* Places that no choice has taken hold what an expert makes of a row of zeros. */
static void list_dropping(const quad_block *block, quad_block_row *rows)
{
    const assay_routing_config *r = &block->config->routing;
    int64_t room = quad_capacity(block->config), k = r->num_experts_per_tok, in_row = r->sequence * k;
    for (int64_t row = 0; row < r->num_experts * r->batch * room; row++) {
        rows[row] = (quad_block_row){.block = block, .expert = row / (r->batch * room), .choice = -1, .token = -1};
    }
    for (int64_t choice = 0; choice < r->batch * in_row; choice++) {
        int64_t e = block->selected[choice], position = quad_block_position(block, choice);
        if (position >= room || e < 0) continue;
        rows[(e * r->batch + choice / in_row) * room + position].token = choice / k;
    }
}

static void list_routed(const quad_block *block, const int32_t *order, int64_t count, quad_block_row *rows)
{
    const assay_moe_config *config = block->config;
    int64_t experts = config->routing.num_experts, k = config->routing.num_experts_per_tok;
    int64_t slots = k + config->fused_shared_experts;
    for (int64_t row = 0; row < count; row++) {
        const bool dense = config->path == ASSAY_MOE_DENSE;
        const int64_t token = dense ? row / experts : order[row] / slots, slot = dense ? 0 : order[row] % slots;
        if (dense) {
            rows[row] = (quad_block_row){.block = block, .expert = row % experts, .choice = -1, .token = token};
        } else if (order[row] < 0) {
            rows[row] = (quad_block_row){.block = block, .expert = QUAD_EXPERT_NONE, .choice = -1, .token = -1};
        } else if (slot < k) {
            const int64_t choice = token * k + slot;
            rows[row] = (quad_block_row){.block = block, .expert = block->selected[choice], .choice = choice};
        } else {
            rows[row] = (quad_block_row){.block = block, .expert = experts + slot - k, .choice = -1, .token = token};
        }
    }
}

/* Of one device. */
static assay_status add_routed(assay_context *ctx, const quad_block *block, const int32_t *order, quad_tensors *out)
{
    assay_status status;
    const assay_shape shape = routed_rows(block->config);
    target t = {.mlp = &block->experts};
    quad_block_rows list = {.count = assay_shape_count(&shape), .keep = keep, .self = &t};
    quad_block_row *rows = NULL;
    TRY(quad_add_mlp_checkpoints(ctx, out, &block->experts.config, ASSAY_MLP_ROUTED, &shape, &t.to));
    TRY(quad_block_rows_alloc(ctx, list.count, &rows));
    if (block->config->path == ASSAY_MOE_DROPPING) {
        list_dropping(block, rows);
    } else {
        list_routed(block, order, list.count, rows);
    }
    list.rows = rows;
    TRY(quad_block_compute(ctx, &list));
cleanup:
    free(rows);
    return status;
}

assay_status quad_moe_checkpoints(assay_context *ctx, const quad_moe_config *both, const quad_tensors *in,
                                  quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = &both->moe;
    quad_block block = {0};
    quad_tensors routing = {0};
    quad_spread spread = {0};
    int32_t *local = NULL;
    TRY(quad_moe_route(ctx, config, in, &routing));
    TRY(quad_block_read(ctx, config, in, &block));
    block.experts.w13_shards = both->w13_shards;
    TRY(quad_block_gather(ctx, &both->sharding, &block));
    block.weights = quad_tensors_find(&routing, "routing/weights")->values;
    block.selected = quad_tensors_find(&routing, "routing/selected_experts")->indices;
    TRY(quad_localise(ctx, config, in, &routing, &local));
    if (local != NULL) block.selected = local;
    TRY(quad_block_hold(ctx, in, quad_tensors_find(&routing, "routing/sorted_selected_experts"), &block));
    if (quad_is_sharded(both)) {
        block.weight_before_wo = both->sharding.weight_before_wo;
        TRY(quad_spread_make(ctx, &spread, both, 0, block.selected));
        TRY(quad_add_spread_checkpoints(ctx, &block, &spread, out));
    } else {
        const int32_t *order = quad_tensors_find(&routing, "routing/sorted_selected_experts")->indices;
        TRY(add_routed(ctx, &block, order, out));
    }
    TRY(add_shared(ctx, &block, out));
cleanup:
    quad_block_free(&block);
    quad_spread_free(&spread);
    quad_tensors_free(&routing);
    free(local);
    return status;
}
