#include "oracle/spec/spec_internal.h"

/* The checkpoints of one gated MLP; `both` is NULL but with fused weights. */
typedef struct checkpoints {
    spec_quad *a, *b, *both, *y;
} checkpoints;

static assay_status add_checkpoint(assay_context *ctx, spec_tensors *out, const char *path, const assay_shape *rows,
                                   int64_t width, spec_quad **values)
{
    assay_shape shape = *rows;
    shape.dims[shape.rank++] = width;
    return spec_tensors_add(ctx, out, path, &shape, values);
}

/* Row `row` is what the block's scratch holds. */
static void keep(const spec_block *block, int64_t width, const checkpoints *to, int64_t row)
{
    int64_t dim = block->config->emb_dim;
    for (int64_t j = 0; j < width; j++) {
        to->a[row * width + j] = block->a[j];
        to->b[row * width + j] = block->b[j];
        if (to->both == NULL) continue;
        to->both[row * 2 * width + j] = block->a[j];
        to->both[row * 2 * width + width + j] = block->b[j];
    }
    for (int64_t d = 0; d < dim; d++) to->y[row * dim + d] = block->y[d];
}

static assay_status add_shared(assay_context *ctx, const spec_block *block, spec_tensors *out)
{
    const assay_moe_config *config = block->config;
    int64_t width = config->shared_mlp_dim, dim = config->emb_dim;
    if (width == 0) return ASSAY_OK;
    assay_status status = ASSAY_OK;
    checkpoints shared = {0};
    assay_shape rows = assay_shape_of(2, config->routing.batch, config->routing.sequence);
    TRY(add_checkpoint(ctx, out, "checkpoints/mlpwi_0", &rows, width, &shared.a));
    TRY(add_checkpoint(ctx, out, "checkpoints/mlpwi_1", &rows, width, &shared.b));
    TRY(add_checkpoint(ctx, out, "checkpoints/mlpwo", &rows, dim, &shared.y));
    for (int64_t t = 0; t < assay_shape_count(&rows); t++) {
        spec_mlp_row(&block->shared, block->x->values + t * dim, block->a, block->b, block->h, block->y);
        keep(block, width, &shared, t);
    }
cleanup:
    return status;
}

/* dense [B,S,E], dropping [E,B,C], sorted [T*K] otherwise */
static assay_shape routed_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return assay_shape_of(3, r->batch, r->sequence, r->num_experts);
    if (config->path == ASSAY_MOE_DROPPING) return assay_shape_of(3, r->num_experts, r->batch, spec_capacity(config));
    return assay_shape_of(1, r->batch * r->sequence * r->num_experts_per_tok);
}

static assay_status add_routed(assay_context *ctx, const assay_moe_config *config, const assay_shape *rows,
                               spec_tensors *out, checkpoints *routed)
{
    assay_status status;
    const int64_t width = config->moe_mlp_dim;
    TRY(add_checkpoint(ctx, out, "checkpoints/moe_mlpwi_0", rows, width, &routed->a));
    TRY(add_checkpoint(ctx, out, "checkpoints/moe_mlpwi_1", rows, width, &routed->b));
    if (config->fused_weights) TRY(add_checkpoint(ctx, out, "checkpoints/moe_mlpwi", rows, 2 * width, &routed->both));
    TRY(add_checkpoint(ctx, out, "checkpoints/moe_mlpwo", rows, config->emb_dim, &routed->y));
cleanup:
    return status;
}

/* Rows without a choice are 0. */
assay_status spec_add_spread_checkpoints(assay_context *ctx, const spec_block *block, const spec_spread *spread,
                                         spec_tensors *out)
{
    assay_status status;
    const int64_t width = block->config->moe_mlp_dim;
    const assay_shape rows = spec_spread_shape(spread, spread->buffer);
    checkpoints routed = {0};
    TRY(add_routed(ctx, block->config, &rows, out, &routed));
    for (int64_t row = 0; row < assay_shape_count(&rows); row++) {
        if (spread->choices[row] >= 0) {
            spec_block_choice(block, spread->choices[row]);
        } else {
            for (int64_t j = 0; j < width; j++) block->a[j] = block->b[j] = 0;
            for (int64_t d = 0; d < block->config->emb_dim; d++) block->y[d] = 0;
        }
        keep(block, width, &routed, row);
    }
cleanup:
    return status;
}

/* Places that no choice has taken hold what an expert makes of a row of zeros. */
static void keep_dropping(const spec_block *block, const checkpoints *routed)
{
    const assay_routing_config *r = &block->config->routing;
    int64_t room = spec_capacity(block->config), k = r->num_experts_per_tok, in_row = r->sequence * k;
    int64_t width = block->config->moe_mlp_dim;
    for (int64_t d = 0; d < block->config->emb_dim; d++) block->token[d] = 0;
    for (int64_t row = 0; row < r->num_experts * r->batch * room; row++) {
        spec_block_expert(block, block->token, row / (r->batch * room));
        keep(block, width, routed, row);
    }
    for (int64_t choice = 0; choice < r->batch * in_row; choice++) {
        int64_t e = block->selected[choice], position = spec_block_position(block, choice);
        if (position >= room) continue;
        spec_block_expert(block, spec_block_token(block, choice / k), e);
        keep(block, width, routed, (e * r->batch + choice / in_row) * room + position);
    }
}

static void keep_routed(const spec_block *block, const int32_t *order, const checkpoints *routed)
{
    const assay_moe_config *config = block->config;
    const assay_shape rows = routed_rows(config);
    int64_t experts = config->routing.num_experts, k = config->routing.num_experts_per_tok;
    bool dense = config->path == ASSAY_MOE_DENSE;
    for (int64_t row = 0; row < assay_shape_count(&rows); row++) {
        const spec_quad *token = spec_block_token(block, dense ? row / experts : order[row] / k);
        spec_block_expert(block, token, dense ? row % experts : block->selected[order[row]]);
        keep(block, config->moe_mlp_dim, routed, row);
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
    checkpoints routed = {0};
    const assay_shape rows = routed_rows(config);
    TRY(spec_route(ctx, &config->routing, in, &routing));
    TRY(spec_block_read(ctx, config, in, &block));
    block.weights = spec_tensors_find(&routing, "routing/weights")->values;
    block.selected = spec_tensors_find(&routing, "routing/selected_experts")->indices;
    if (spec_is_sharded(both)) {
        block.weight_before_wo = both->sharding.weight_before_wo;
        TRY(spec_spread_make(ctx, &spread, both, 0, block.selected));
        TRY(spec_add_spread_checkpoints(ctx, &block, &spread, out));
    } else {
        TRY(add_routed(ctx, config, &rows, out, &routed));
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
    return status;
}
