/* The shared expert (MaxText RoutedAndSharedMoE): a gated MLP of every token, added to the routed output. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static assay_status alloc_shared(assay_context *ctx, moe_block *block, moe_rows *rows)
{
    const moe_results *r = &block->results;
    assay_status status = ASSAY_OK;
    block->shared = (moe_mlp){
        .config = assay_moe_shared_config(block->config, block->tokens),
        .place = ASSAY_MLP_SHARED,
        .first_result = MOE_SHARED,
    };
    TRY(moe_mlp_alloc(ctx, &block->shared, r, block->in, false));
    TRY(assay_alloc_f64(ctx, "shared y", block->tokens * block->emb_dim, &rows->y));
    if (block->need_dx) TRY(assay_alloc_f64(ctx, "shared dx", block->tokens * block->emb_dim, &rows->dx));
cleanup:
    return status;
}

assay_status moe_shared_run(assay_context *ctx, moe_block *block)
{
    const moe_results *r = &block->results;
    assay_status status = ASSAY_OK;
    moe_rows rows = {.count = block->tokens, .x = block->x, .dy = block->dy};
    bool gradients = block->need_dx || moe_wants_any(r, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS);
    bool any = block->need_y || gradients || moe_wants_any(r, MOE_SHARED, ASSAY_MLP_CHECKPOINTS);
    if (block->config->shared_mlp_dim == 0 || !any) return ASSAY_OK;
    TRY(alloc_shared(ctx, block, &rows));
    TRY(moe_mlp_read(ctx, &block->shared, block->in, 0));
    TRY(moe_mlp_forward(ctx, &block->shared, block, &rows, block->need_y || moe_wants(r, MOE_SHARED + ASSAY_MLPWO)));
    const moe_checkpoint_values values = {block->shared.residuals.a, block->shared.residuals.b, rows.y};
    TRY(moe_checkpoints_put(ctx, &block->checkpoints, block, &block->shared, r, &rows, &values));
    if (gradients) TRY(moe_mlp_backward(ctx, &block->shared, r, &rows));
    if (block->observer != NULL) TRY(block->observer->rows(ctx, block->observer->self, block, &block->shared, &rows));
    if (block->need_y) assay_round(ctx, ASSAY_ROUND_STORAGE, block->tokens * block->emb_dim, block->y);
    if (block->need_dx) assay_round(ctx, ASSAY_ROUND_STORAGE, block->tokens * block->emb_dim, block->dx);
    if (block->need_y) moe_accumulate(ctx, block->y, rows.y, NULL, block->tokens, block->emb_dim);
    if (block->need_dx) moe_accumulate(ctx, block->dx, rows.dx, NULL, block->tokens, block->emb_dim);
cleanup:
    free(rows.y);
    free(rows.dx);
    moe_mlp_free(&block->shared);
    return status;
}
