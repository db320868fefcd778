/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. They
 * may be of several ranks, of which the first joins what comes of them in the order of experts. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
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

/* Of a rank that leaves the rest to the first: the expert's rows, and d_weights of its choices. */
static assay_status put_rows(assay_context *ctx, const moe_block *block)
{
    assay_status status;
    const moe_rows *rows = &block->rows;
    const int64_t bytes = rows->count * block->emb_dim * (int64_t)sizeof(double);
    double *weights = NULL;
    TRY(assay_piece_put(ctx, block->piece, MOE_PUT_Y, rows->y, bytes));
    if (block->need_row_dx) TRY(assay_piece_put(ctx, block->piece, MOE_PUT_DX, rows->dx, bytes));
    if (block->need_router_gradient) TRY(assay_alloc_f64(ctx, "d_weights of rows", rows->size, &weights));
    for (int64_t j = 0; weights != NULL && j < rows->size; j++)
        weights[j] = block->d_weights[block->order[rows->first + j]];
    TRY(assay_piece_put(ctx, block->piece, MOE_PUT_WEIGHTS, weights,
                        weights == NULL ? 0 : rows->size * (int64_t)sizeof *weights));
cleanup:
    free(weights);
    return status;
}

static void take_values(double *to, const void *data, int64_t bytes)
{
    if (to != data) memcpy(to, data, (size_t)bytes);
}

/* d_weights of the rows, with which all is there. */
static assay_status join(assay_context *ctx, moe_block *block, const double *weights, int64_t bytes)
{
    const moe_rows *rows = &block->rows;
    const assay_moe_observer *observer = block->observer;
    for (int64_t j = 0; bytes > 0 && j < rows->size; j++) block->d_weights[block->order[rows->first + j]] = weights[j];
    block->placement->join(ctx, block);
    if (observer == NULL || observer->take == NULL) return ASSAY_OK;
    return observer->take(ctx, observer->self, block, rows, ASSAY_MOE_JOINED, NULL);
}

static assay_status take_expert(assay_context *ctx, void *self, int64_t expert, int what, const void *data,
                                int64_t bytes)
{
    moe_block *block = self;
    if (block->placed_rows != expert) block->placement->place_rows(block, expert);
    block->placed_rows = expert;
    switch (what) {
    case MOE_PUT_Y:
        take_values(block->rows.y, data, bytes);
        return ASSAY_OK;
    case MOE_PUT_DX:
        take_values(block->rows.dx, data, bytes);
        return ASSAY_OK;
    case MOE_PUT_WEIGHTS:
        return join(ctx, block, data, bytes);
    default:
        return block->observer->take(ctx, block->observer->self, block, &block->rows, what - MOE_PUTS, data);
    }
}

static assay_status run_expert(assay_context *ctx, void *self, const assay_piece *piece)
{
    assay_status status = ASSAY_OK;
    moe_block *block = self;
    moe_mlp *mlp = &block->expert;
    const int64_t expert = piece->number;
    bool read = false;
    block->piece = piece;
    for (int64_t i = 0; i < block->split.pieces; i++) {
        block->placement->take_rows(ctx, block, expert, i);
        block->placed_rows = expert;
        if (block->rows.count == 0) continue;
        if (!read) TRY(assay_weights_read(ctx, block->in, "", &mlp->table, expert, mlp->weights));
        read = true;
        TRY(run_piece(ctx, block));
        if (block->placement->join != NULL) TRY(put_rows(ctx, block));
    }
    TRY(moe_mlp_write(ctx, mlp, &block->results));
    if (block->observer != NULL) TRY(block->observer->rows(ctx, block->observer->self, block, mlp, &block->rows));
cleanup:
    return status;
}

/* Checkpoints that are kept whole, and replicas, are of one process. */
static bool is_everywhere(const moe_block *block)
{
    const bool kept = block->kept_rows > 0 && moe_wants_any(&block->results, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS);
    return kept || block->split.pieces > 1 || block->placement->place_rows == NULL;
}

/* What the rest of the block needs of the experts; its results are the first rank's to write. */
static assay_status share_sums(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const int64_t size = sizeof(double), tokens = block->tokens * block->emb_dim * size;
    if (block->need_y) TRY(assay_ranks_broadcast(ctx, block->y, tokens));
    if (block->need_row_dx) TRY(assay_ranks_broadcast(ctx, block->dx, tokens));
    if (block->need_router_gradient)
        TRY(assay_ranks_broadcast(ctx, block->d_weights, block->tokens * block->per_token * size));
cleanup:
    return status;
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_pieces experts = {.self = block,
                                  .count = block->local_experts,
                                  .everywhere = is_everywhere(block),
                                  .work = run_expert,
                                  .take = take_expert};
    if (!block->need_forward) return ASSAY_OK;
    block->placed_rows = -1;
    TRY(alloc_expert(ctx, block));
    TRY(assay_pieces_run(ctx, &experts));
    if (experts.everywhere || assay_ranks_is_first(ctx)) {
        TRY(moe_checkpoints_finish(ctx, &block->checkpoints, block, &block->expert, &block->results));
        TRY(block->placement->finish(ctx, block));
    } else {
        block->observer = NULL; /* it has seen some of the experts */
    }
    if (!experts.everywhere) TRY(share_sums(ctx, block));
cleanup:
    block->placement->free_rows(block);
    moe_checkpoints_free(&block->checkpoints);
    moe_mlp_free(&block->expert);
    return status;
}
