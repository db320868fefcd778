/* The shared expert (MaxText RoutedAndSharedMoE): a gated MLP of every token, added to the routed output. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static assay_status gauge(assay_context *ctx, moe_block *block, const moe_rows *rows, int precision)
{
    const moe_results *r = &block->results;
    const moe_scale *scale = &block->gauge.scales[precision];
    int64_t count = block->tokens * block->emb_dim;
    const assay_precision *unit = &r->precisions[precision];
    bool any = moe_wants(r, precision, MOE_Y) || moe_wants(r, precision, MOE_DX);
    for (int result = MOE_SHARED; result < MOE_SHARED + MLP_RESULTS; result++) any |= moe_wants(r, precision, result);
    if (!any) return ASSAY_OK;
    assay_status status = ASSAY_OK;
    const moe_row_variances exact = {0};
    moe_mlp_needs needs = {.y = moe_wants(r, precision, MOE_Y), .dx = moe_wants(r, precision, MOE_DX)};
    TRY(moe_mlp_gauge(ctx, &block->shared, r, precision, rows, &exact, &needs));
    if (needs.y) moe_gauge_join(ctx, unit, count, block->y, rows->y, scale->y, block->shared.variance_y);
    if (needs.dx) moe_gauge_join(ctx, unit, count, block->dx, rows->dx, scale->dx, block->shared.variance_dx);
    TRY(moe_checkpoints_put(ctx, &block->checkpoints, &block->shared, r, precision, rows));
cleanup:
    return status;
}

static assay_status alloc_shared(assay_context *ctx, moe_block *block, moe_rows *rows)
{
    const moe_results *r = &block->results;
    assay_status status = ASSAY_OK;
    block->shared = (moe_mlp){
        .config = assay_moe_shared_config(block->config, block->tokens),
        .place = ASSAY_MLP_SHARED,
        .first_result = MOE_SHARED,
    };
    moe_mlp_needs needs = {.y = moe_wants_any_scale(r, MOE_Y), .dx = moe_wants_any_scale(r, MOE_DX)};
    TRY(moe_mlp_alloc(ctx, &block->shared, r, block->in, &needs));
    TRY(moe_checkpoints_alloc(ctx, &block->checkpoints, &block->shared, r));
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
    bool gradients = block->need_dx || moe_uses_any(r, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS);
    bool any = block->need_y || gradients || moe_uses_any(r, MOE_SHARED, ASSAY_MLP_CHECKPOINTS);
    if (block->config->shared_mlp_dim == 0 || !any) return ASSAY_OK;
    TRY(alloc_shared(ctx, block, &rows));
    TRY(moe_mlp_read(ctx, &block->shared, block->in, 0));
    TRY(moe_mlp_forward(ctx, &block->shared, block, &rows, block->need_y || moe_uses(r, MOE_SHARED + ASSAY_MLPWO)));
    TRY(moe_checkpoints_put(ctx, &block->checkpoints, &block->shared, r, -1, &rows));
    if (gradients) TRY(moe_mlp_backward(ctx, &block->shared, r, &rows));
    for (int precision = 0; precision < r->precision_count; precision++) TRY(gauge(ctx, block, &rows, precision));
    if (block->need_y) assay_round(ctx, ASSAY_ROUND_STORAGE, block->tokens * block->emb_dim, block->y);
    if (block->need_dx) assay_round(ctx, ASSAY_ROUND_STORAGE, block->tokens * block->emb_dim, block->dx);
    if (block->need_y) moe_accumulate(ctx, block->y, rows.y, NULL, block->tokens, block->emb_dim);
    if (block->need_dx) moe_accumulate(ctx, block->dx, rows.dx, NULL, block->tokens, block->emb_dim);
cleanup:
    free(rows.y);
    free(rows.dx);
    moe_checkpoints_free(&block->checkpoints, r);
    moe_mlp_free(&block->shared);
    return status;
}
