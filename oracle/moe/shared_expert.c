/* The shared expert (MaxText RoutedAndSharedMoE): a gated MLP of every token, those of each owner
 * together, added to the routed output. By a recipe scales are of the tokens of all owners. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

static int64_t piece_count(const moe_block *block)
{
    return block->config->recipe.recipe == NULL ? block->sizes.owners : 1;
}

static assay_status alloc_shared(assay_context *ctx, moe_block *block, moe_rows *all)
{
    const int64_t pieces = piece_count(block), count = block->tokens * block->emb_dim;
    block->shared = (moe_mlp){.config = {.mlp = assay_moe_shared_config(block->config, block->tokens / pieces),
                                         .place = ASSAY_MLP_SHARED,
                                         .owners = block->sizes.owners / pieces},
                              .pieces = pieces};
    MUST(moe_mlp_alloc(ctx, &block->shared, block));
    MUST(assay_alloc_f64(ctx, "shared y", count, &all->y));
    if (block->need_dx) MUST(assay_alloc_f64(ctx, "shared dx", count, &all->dx));
    return ASSAY_OK;
}

static bool needs_gradients(const moe_block *block)
{
    return block->need_dx || moe_wants(&block->results, MOE_DSHARED_GATE) ||
           moe_wants_any(&block->results, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS) ||
           moe_wants_gradient_checkpoints(&block->results, MOE_SHARED);
}

static bool is_needed(const moe_block *block)
{
    const bool any = block->need_y || moe_wants_any(&block->results, MOE_SHARED, ASSAY_MLP_CHECKPOINTS);
    return block->config->shared_mlp_dim > 0 && (any || needs_gradients(block));
}

static assay_status run_pieces(assay_context *ctx, moe_block *block, const moe_rows *all, bool gradients)
{
    const moe_results *r = &block->results;
    const int64_t pieces = piece_count(block), tokens = block->tokens / pieces;
    const bool gate = gradients && block->config->shared_gate;
    const bool down = block->need_y || gate || moe_wants(r, MOE_SHARED + ASSAY_MLPWO);
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t at = piece * tokens * block->emb_dim;
        const moe_rows rows = {.first = piece * tokens,
                               .count = tokens,
                               .x = all->x + at,
                               .y = all->y + at,
                               .dy = gradients ? all->dy + at : NULL,
                               .dx = all->dx == NULL ? NULL : all->dx + at};
        MUST(moe_mlp_forward(ctx, &block->shared, &rows, down));
        if (gradients) MUST(moe_mlp_backward(ctx, &block->shared, &rows));
    }
    if (gradients) MUST(moe_mlp_write(ctx, &block->shared, r));
    return ASSAY_OK;
}

/* Its rows are stored already; a mesh stores them once more. */
static void join(const assay_context *ctx, const moe_block *block, double *total, double *term)
{
    const int64_t count = block->tokens * block->emb_dim;
    if (block->sharded) assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, total);
    assay_add(ctx, count, term, total);
}

assay_status moe_shared_run(assay_context *ctx, moe_block *block)
{
    moe_mlp *mlp = &block->shared;
    assay_status status = ASSAY_OK;
    moe_rows all = {.count = block->tokens, .x = block->x, .dy = block->dy};
    const bool gradients = needs_gradients(block), gated = block->config->shared_gate;
    moe_shared_gate gate = {0};
    if (!is_needed(block)) return ASSAY_OK;
    TRY(alloc_shared(ctx, block, &all));
    moe_mlp_begin(mlp);
    TRY(moe_mlp_read_weights(ctx, mlp, 0));
    if (gated) TRY(moe_shared_gate_forward(ctx, &gate, block, gradients));
    if (gated) all.dy = gate.dy;
    TRY(run_pieces(ctx, block, &all, gradients));
    if (gated && gradients) TRY(moe_shared_gate_backward(ctx, &gate, block, all.y, all.dx));
    if (gated && block->need_y) moe_gather(ctx, all.y, all.y, NULL, gate.gate, block->tokens, block->emb_dim);
    if (block->need_y) join(ctx, block, block->y, all.y);
    if (block->need_dx) join(ctx, block, block->dx, all.dx);
cleanup:
    free(all.y);
    free(all.dx);
    moe_shared_gate_free(&gate);
    moe_mlp_free(mlp);
    return status;
}
