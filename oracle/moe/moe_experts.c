/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. */
#include "oracle/moe/moe_block.h"

static assay_status alloc_expert(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const int64_t pieces = block->split.pieces;
    int64_t most = 1;
    for (int64_t i = 0; i < block->local_experts * pieces; i++) {
        const int64_t count = block->placement->row_count(block, i / pieces, i % pieces);
        if (count > most) most = count;
    }
    block->expert = (moe_mlp){
        .config = assay_moe_expert_config(block->config, most),
        .place = ASSAY_MLP_ROUTED,
        .first_result = MOE_ROUTED,
        .pieces = pieces,
    };
    TRY(block->placement->alloc_rows(ctx, block, most));
    TRY(moe_mlp_alloc(ctx, &block->expert, block));
    TRY(moe_checkpoints_alloc(ctx, &block->checkpoints, block, &block->expert, &block->results));
cleanup:
    return status;
}

/* Of an expert whose weights are there. */
static assay_status run_piece(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_rows *rows = &block->rows;
    const moe_placement *placement = block->placement;
    TRY(moe_mlp_forward(ctx, &block->expert, block, rows, true));
    const moe_checkpoint_values values = {block->expert.residuals.a, block->expert.residuals.b,
                                          block->expert.residuals.h, rows->y};
    TRY(moe_checkpoints_put(ctx, &block->checkpoints, block, &block->expert, &block->results, rows, &values));
    /* The row of zeros is there for the checkpoints alone. */
    if (block->slots.row != NULL) rows->count = rows->size;
    if (rows->count == 0) return ASSAY_OK;
    if (placement->give_dy != NULL) placement->give_dy(ctx, block);
    if (block->need_backward) TRY(moe_mlp_backward(ctx, &block->expert, rows));
    if (placement->combine != NULL) placement->combine(ctx, block);
cleanup:
    return status;
}

static assay_status run_expert(assay_context *ctx, moe_block *block, int64_t expert)
{
    assay_status status = ASSAY_OK;
    moe_mlp *mlp = &block->expert;
    bool read = false;
    for (int64_t piece = 0; piece < block->split.pieces; piece++) {
        block->placement->take_rows(ctx, block, expert, piece);
        if (block->rows.count == 0) continue;
        if (!read) TRY(assay_weights_read(ctx, block->in, "", &mlp->table, expert, mlp->weights));
        read = true;
        TRY(run_piece(ctx, block));
    }
    TRY(moe_mlp_write(ctx, mlp, &block->results));
    if (block->observer != NULL) TRY(block->observer->rows(ctx, block->observer->self, block, mlp, &block->rows));
cleanup:
    return status;
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    if (!block->need_forward) return ASSAY_OK;
    TRY(alloc_expert(ctx, block));
    for (int64_t e = 0; e < block->local_experts; e++) TRY(run_expert(ctx, block, e));
    TRY(moe_checkpoints_finish(ctx, &block->checkpoints, block, &block->expert, &block->results));
    TRY(block->placement->finish(ctx, block));
cleanup:
    block->placement->free_rows(block);
    moe_checkpoints_free(&block->checkpoints);
    moe_mlp_free(&block->expert);
    return status;
}
