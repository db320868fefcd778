/* The shared expert (MaxText RoutedAndSharedMoE): a gated MLP of every token, those of each owner
 * together, added to the routed output. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static assay_status alloc_shared(assay_context *ctx, moe_block *block, moe_rows *all)
{
    assay_status status = ASSAY_OK;
    const int64_t owners = block->split.owners, count = block->tokens * block->emb_dim;
    block->shared = (moe_mlp){
        .config = assay_moe_shared_config(block->config, block->tokens / owners),
        .place = ASSAY_MLP_SHARED,
        .first_result = MOE_SHARED,
        .pieces = owners,
    };
    TRY(moe_mlp_alloc(ctx, &block->shared, block));
    TRY(assay_alloc_f64(ctx, "shared y", count, &all->y));
    if (block->need_dx) TRY(assay_alloc_f64(ctx, "shared dx", count, &all->dx));
cleanup:
    return status;
}

/* The tokens of each owner. */
static assay_status run_owners(assay_context *ctx, moe_block *block, const moe_rows *all, bool gradients)
{
    const moe_results *r = &block->results;
    assay_status status = ASSAY_OK;
    const int64_t tokens = block->tokens / block->split.owners;
    const bool gate = gradients && block->config->shared_gate;
    const bool down = block->need_y || gate || moe_wants(r, MOE_SHARED + ASSAY_MLPWO);
    for (int64_t owner = 0; owner < block->split.owners; owner++) {
        const int64_t at = owner * tokens * block->emb_dim;
        const moe_rows rows = {.first = owner * tokens,
                               .count = tokens,
                               .x = all->x + at,
                               .y = all->y + at,
                               .dy = gradients ? all->dy + at : NULL,
                               .dx = all->dx == NULL ? NULL : all->dx + at};
        TRY(moe_mlp_forward(ctx, &block->shared, block, &rows, &block->checkpoints, down));
        if (gradients) TRY(moe_mlp_backward(ctx, &block->shared, &rows));
    }
    if (gradients) TRY(moe_mlp_write(ctx, &block->shared, r));
cleanup:
    return status;
}

/* Its rows are stored already; a mesh stores them once more. */
static void join(const assay_context *ctx, const moe_block *block, double *total, double *term)
{
    const int64_t count = block->tokens * block->emb_dim;
    if (block->placement != &moe_one_device) assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, total);
    moe_accumulate(ctx, total, term, NULL, block->tokens, block->emb_dim);
}

assay_status moe_shared_run(assay_context *ctx, moe_block *block)
{
    const moe_results *r = &block->results;
    moe_mlp *mlp = &block->shared;
    assay_status status = ASSAY_OK;
    moe_rows all = {.count = block->tokens, .x = block->x, .dy = block->dy};
    const bool gradients = block->need_dx || moe_wants(r, MOE_DSHARED_GATE) ||
                           moe_wants_any(r, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS);
    const bool gated = block->config->shared_gate;
    moe_shared_gate gate = {0};
    const bool any = block->need_y || gradients || moe_wants_any(r, MOE_SHARED, ASSAY_MLP_CHECKPOINTS);
    if (block->config->shared_mlp_dim == 0 || !any) return ASSAY_OK;
    TRY(alloc_shared(ctx, block, &all));
    TRY(assay_weights_read(ctx, block->in, "", &mlp->table, 0, mlp->weights));
    if (gated) TRY(moe_shared_gate_forward(ctx, &gate, block, gradients));
    if (gated) all.dy = gate.dy;
    TRY(run_owners(ctx, block, &all, gradients));
    if (gated && gradients) TRY(moe_shared_gate_backward(ctx, &gate, block, all.y, all.dx));
    if (block->observer != NULL) TRY(block->observer->rows(ctx, block->observer->self, block, mlp, &all));
    if (gated && block->need_y) moe_shared_gate_weigh(ctx, &gate, block, all.y);
    if (block->need_y) join(ctx, block, block->y, all.y);
    if (block->need_dx) join(ctx, block, block->dx, all.dx);
cleanup:
    free(all.y);
    free(all.dx);
    moe_shared_gate_free(&gate);
    moe_mlp_free(mlp);
    return status;
}
