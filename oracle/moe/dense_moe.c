/* The dense path (MaxText dense_matmul without a capacity): every expert on every token, combined with the [T,E]
 * weights, which are 0 for experts that a token did not choose. Sums run over experts; nothing is skipped. */
#include <string.h>

#include "oracle/moe/moe_block.h"

static assay_status plan(assay_context *ctx, moe_block *block)
{
    (void)ctx;
    size_t bytes = (size_t)(block->tokens * block->emb_dim) * sizeof *block->y;
    for (int64_t i = 0; i < block->tokens * block->per_token; i++)
        block->combine[i] = block->llama4 ? 1.0 : block->router.routing.weights[i];
    if (block->y != NULL) memset(block->y, 0, bytes);
    if (block->dx != NULL) memset(block->dx, 0, bytes);
    return ASSAY_OK;
}

static int64_t row_count(const moe_block *block, int64_t expert)
{
    (void)expert;
    return block->tokens;
}

/* One column of the [T,E] weights. A hash table may name an expert twice: its weights add up, as they do when sparse.
 */
static void gather_rows(moe_block *block)
{
    moe_rows *rows = &block->rows;
    for (int64_t t = 0; t < rows->count; t++) {
        rows->tokens[t] = (int32_t)t;
        rows->weights[t] = 0;
    }
    for (int64_t j = rows->first; j < rows->first + rows->size; j++)
        rows->weights[block->order[j] / block->per_token] = block->combine[block->order[j]];
    rows->y = block->expert_y;
    rows->dx = block->expert_dx;
}

static void combine(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    if (block->need_y) moe_accumulate(ctx, block->y, rows->y, rows->weights, rows->count, block->emb_dim);
    if (block->need_row_dx) moe_accumulate(ctx, block->dx, rows->dx, NULL, rows->count, block->emb_dim);
}

const moe_path moe_path_dense = {plan, row_count, gather_rows, combine, NULL};
