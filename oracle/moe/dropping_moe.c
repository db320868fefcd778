/* The dropping path (MaxText dense_matmul with a capacity, generate_masks): an expert takes the first C choices of each
 * batch row, the rest have weight 0. Computed are the kept choices, in the order of the dispatch [E,B,C]; a checkpoint
 * holds in its free slots what an expert makes of a row of zeros. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/moe/permute.h"

/* Kept choices by expert, then those that are dropped, whose rows finish() sets to 0, then places of no choice. */
static void order_kept(moe_block *block, int32_t *sorted, const bool *kept)
{
    int64_t choices = block->tokens * block->per_token, next = 0;
    const int32_t *selected = block->router.routing.selected_experts;
    memcpy(sorted, block->order, (size_t)choices * sizeof *sorted);
    for (int64_t e = 0; e < block->experts; e++) block->group_sizes[e] = 0;
    for (int dropped = 0; dropped < 2; dropped++) {
        for (int64_t i = 0; i < choices; i++) {
            if (sorted[i] == ASSAY_NO_EXPERT || kept[sorted[i]] == (dropped == 1)) continue;
            block->order[next++] = sorted[i];
            block->group_sizes[selected[sorted[i]]] += dropped == 0;
        }
    }
    while (next < choices) block->order[next++] = ASSAY_NO_EXPERT;
}

static assay_status write_masks(assay_context *ctx, moe_block *block, const double *mask, int64_t count)
{
    const assay_sink *out = block->results.out;
    OWNED int32_t *dispatch = NULL;
    if (assay_wants(out, "routing/combine_mask")) {
        MUST(out->write(ctx, out->self, "routing/combine_mask", count, mask));
    }
    if (assay_wants(out, "routing/dispatch_mask")) {
        MUST(assay_alloc_i32(ctx, "dispatch mask", count, &dispatch));
        for (int64_t i = 0; i < count; i++) dispatch[i] = mask[i] != 0;
        MUST(out->write_i32(ctx, out->self, "routing/dispatch_mask", count, dispatch));
    }
    return ASSAY_OK;
}

static assay_status plan(assay_context *ctx, moe_block *block)
{
    const assay_routing_config *config = &block->config->routing;
    const assay_sink *out = block->results.out;
    int64_t choices = block->tokens * block->per_token, cells = 0;
    OWNED bool *kept = NULL;
    OWNED int32_t *position = NULL;
    OWNED double *mask = NULL;
    bool masks = assay_wants(out, "routing/combine_mask") || assay_wants(out, "routing/dispatch_mask");
    block->capacity = assay_expert_capacity(config, block->config->capacity_factor);
    MUST(assay_alloc(ctx, "kept choices", choices, sizeof(bool), &kept));
    MUST(assay_alloc_i32(ctx, "positions", choices, &position));
    if (masks) {
        MUST(assay_checked_count(ctx, "routing/combine_mask", 3,
                                 (int64_t[]){block->tokens, block->experts, block->capacity}, &cells));
        MUST(assay_alloc_f64(ctx, "combine mask", cells, &mask));
    }
    assay_capacity_masks(kept, position, mask, &block->router.routing, block->capacity, config);
    if (masks) MUST(write_masks(ctx, block, mask, cells));
    for (int64_t i = 0; i < choices; i++) block->combine[i] = kept[i] ? block->router.routing.weights[i] : 0.0;
    order_kept(block, position, kept);
    if (moe_wants_any(&block->results, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS) || moe_routed_given(block)) {
        MUST(assay_checked_count(ctx, "dispatched rows", 3, (int64_t[]){config->batch, block->capacity, block->emb_dim},
                                 &cells));
        block->slots.count = config->batch * block->capacity;
        MUST(assay_alloc_i32(ctx, "slots", block->slots.count, &block->slots.row));
    }
    return ASSAY_OK;
}

static int64_t row_count(const moe_block *block, int64_t expert)
{
    return block->group_sizes[expert] + (block->slots.row != NULL);
}

static void gather_rows(moe_block *block)
{
    const moe_rows *rows = &block->rows;
    moe_gather_sorted_rows(block);
    if (block->slots.row == NULL) return;
    for (int64_t b = 0, next = 0; b < block->config->routing.batch; b++) {
        for (int64_t position = 0; position < block->capacity; position++) {
            bool filled = next < rows->size && rows->tokens[next] / block->config->routing.sequence == b;
            block->slots.row[b * block->capacity + position] = (int32_t)(filled ? next++ : rows->size);
        }
    }
}

static assay_status finish(assay_context *ctx, moe_block *block)
{
    int64_t kept = 0, choices = block->tokens * block->per_token;
    for (int64_t e = 0; e < block->experts; e++) kept += block->group_sizes[e];
    size_t bytes = (size_t)((choices - kept) * block->emb_dim) * sizeof *block->expert_y;
    memset(block->expert_y + kept * block->emb_dim, 0, bytes);
    if (block->expert_dx != NULL) memset(block->expert_dx + kept * block->emb_dim, 0, bytes);
    return moe_finish_sorted(ctx, block);
}

const moe_path moe_path_dropping = {plan, row_count, gather_rows, NULL, finish};
