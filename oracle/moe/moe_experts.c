/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. Joined,
 * all of them are one. */
#include "oracle/moe/moe_block.h"

static int64_t expert_count(const moe_block *block)
{
    return block->local_experts / block->joined;
}

static assay_status alloc_expert(assay_context *ctx, moe_block *block)
{
    const int64_t pieces = block->split.pieces;
    int64_t most = 1;
    for (int64_t i = 0; i < expert_count(block) * pieces; i++) {
        const int64_t count = block->placement->row_count(block, i / pieces, i % pieces);
        if (count > most) most = count;
    }
    block->expert = (moe_mlp){
        .config = {.mlp = assay_moe_expert_config(block->config, most), .place = ASSAY_MLP_ROUTED}, .pieces = pieces};
    if (block->joined > 1) block->expert.config.mlp.groups = block->joined;
    MUST(block->placement->alloc_rows(ctx, block, most));
    return moe_mlp_alloc(ctx, &block->expert, block);
}

/* Of an expert whose weights are there. */
static assay_status run_piece(assay_context *ctx, moe_block *block)
{
    moe_rows *rows = &block->rows;
    const moe_placement *placement = block->placement;
    MUST(moe_mlp_forward(ctx, &block->expert, rows, true));
    /* The row of zeros is there for the checkpoints alone. */
    if (block->slots.row != NULL) rows->count = rows->size;
    if (rows->count == 0) return ASSAY_OK;
    if (placement->give_dy != NULL) placement->give_dy(ctx, block);
    if (block->need_backward) MUST(moe_mlp_backward(ctx, &block->expert, rows));
    if (placement->combine != NULL) placement->combine(ctx, block);
    return ASSAY_OK;
}

static assay_status run_expert(assay_context *ctx, moe_block *block, int64_t expert)
{
    moe_mlp *mlp = &block->expert;
    bool read = false;
    moe_mlp_begin(mlp);
    for (int64_t i = 0; i < block->split.pieces; i++) {
        block->placement->gather_rows(ctx, block, expert, i);
        if (block->rows.count == 0) continue;
        if (!read) MUST(moe_mlp_read_weights(ctx, mlp, expert));
        read = true;
        MUST(run_piece(ctx, block));
    }
    return moe_mlp_write(ctx, mlp, &block->results);
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    if (!block->need_forward) return ASSAY_OK;
    TRY(alloc_expert(ctx, block));
    for (int64_t expert = 0; expert < expert_count(block); expert++) TRY(run_expert(ctx, block, expert));
    TRY(moe_checkpoints_finish(ctx, &block->expert.checkpoints));
    TRY(block->placement->finish(ctx, block));
cleanup:
    block->placement->free_rows(block);
    moe_mlp_free(&block->expert);
    return status;
}
