/* The sparse path (MaxText sparse_matmul): copies of tokens sorted by expert, a gated MLP for each group, and a
 * weighted sum over a token's K outputs in the order of its choices, which all experts must have been there for. */
#include "oracle/moe/moe_block.h"
#include "oracle/moe/permute.h"

static assay_permute_dims dims_of(const moe_block *block)
{
    return (assay_permute_dims){block->tokens, block->per_token, block->local_experts, block->emb_dim};
}

static assay_status plan(assay_context *ctx, moe_block *block)
{
    (void)ctx;
    const bool ones = block->llama4 || block->config->weight_on_input;
    const double *weights = block->slot_weights != NULL ? block->slot_weights : block->router.routing.weights;
    for (int64_t i = 0; i < block->tokens * block->per_token; i++) block->combine[i] = ones ? 1.0 : weights[i];
    return ASSAY_OK;
}

static int64_t row_count(const moe_block *block, int64_t expert)
{
    return block->group_sizes[expert];
}

void moe_gather_sorted_rows(moe_block *block)
{
    moe_rows *rows = &block->rows;
    for (int64_t i = 0; i < rows->count; i++) {
        bool zeros = i >= rows->size;
        int32_t choice = zeros ? 0 : block->order[rows->first + i];
        rows->tokens[i] = zeros ? -1 : (int32_t)(choice / block->per_token);
        rows->weights[i] = zeros ? 0 : block->combine[choice];
    }
    rows->y = block->expert_y + rows->first * block->emb_dim;
    rows->dx = block->expert_dx == NULL ? NULL : block->expert_dx + rows->first * block->emb_dim;
}

assay_status moe_finish_sorted(assay_context *ctx, moe_block *block)
{
    assay_permute_dims dims = dims_of(block);
    if (block->need_y) {
        MUST(assay_unpermute_forward(ctx, block->y, block->expert_y, block->order, block->combine, &dims));
    }
    if (block->need_row_dx) MUST(assay_permute_backward(ctx, block->dx, block->expert_dx, block->order, &dims));
    return ASSAY_OK;
}

const moe_path moe_path_sparse = {plan, row_count, moe_gather_sorted_rows, NULL, moe_finish_sorted};
