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

/* The rows' y and dx are there, and d_weights of their choices. */
static assay_status join(assay_context *ctx, moe_block *block)
{
    const assay_moe_observer *observer = block->observer;
    block->placement->join(ctx, block);
    if (observer == NULL || observer->take == NULL) return ASSAY_OK;
    return observer->take(ctx, observer->self, block, &block->rows, ASSAY_MOE_JOINED, NULL);
}

/* y, dx and d_weights of an expert's rows, between the block and one buffer: the first rank may do an expert of its own
 * between two puts, and dense experts have their rows in one place. */
static void move_rows(moe_block *block, double *buffer, bool in)
{
    const moe_rows *rows = &block->rows;
    const int64_t count = rows->count * block->emb_dim;
    double *const places[] = {rows->y, block->need_row_dx ? rows->dx : NULL};
    for (int i = 0; i < 2; i++) {
        if (places[i] == NULL) continue;
        memcpy(in ? places[i] : buffer, in ? buffer : places[i], (size_t)count * sizeof *buffer);
        buffer += count;
    }
    for (int64_t j = 0; block->need_router_gradient && j < rows->size; j++) {
        double *d_weight = &block->d_weights[block->order[rows->first + j]];
        *(in ? d_weight : &buffer[j]) = *(in ? &buffer[j] : d_weight);
    }
}

static assay_status put_rows(assay_context *ctx, moe_block *block)
{
    assay_status status;
    const moe_rows *rows = &block->rows;
    const int64_t parts = block->need_row_dx ? 2 : 1;
    const int64_t count = parts * rows->count * block->emb_dim + (block->need_router_gradient ? rows->size : 0);
    double *buffer = NULL;
    if (block->piece->ranks == NULL) return join(ctx, block);
    TRY(assay_alloc_f64(ctx, "rows for the first rank", count, &buffer));
    move_rows(block, buffer, false);
    TRY(assay_piece_put(ctx, block->piece, MOE_PUT_ROWS, buffer, count * (int64_t)sizeof *buffer));
cleanup:
    free(buffer);
    return status;
}

static assay_status take_expert(assay_context *ctx, void *self, int64_t expert, int what, const void *data,
                                int64_t bytes)
{
    (void)bytes;
    moe_block *block = self;
    if (block->placed_rows != expert) block->placement->place_rows(block, expert);
    block->placed_rows = expert;
    if (what >= MOE_PUTS) {
        return block->observer->take(ctx, block->observer->self, block, &block->rows, what - MOE_PUTS, data);
    }
    move_rows(block, (double *)data, true);
    return join(ctx, block);
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
