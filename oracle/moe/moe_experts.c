/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

static bool is_dense(const moe_block *block)
{
    return block->config->path == ASSAY_MOE_DENSE;
}

static assay_status alloc_rows(assay_context *ctx, moe_block *block, int64_t most)
{
    assay_status status = ASSAY_OK;
    moe_rows *rows = &block->rows;
    int64_t dim = block->emb_dim;
    /* One more: a row of zeros may follow the last group (dropping). */
    int64_t kept = is_dense(block) ? block->tokens : block->tokens * block->per_token + 1;
    TRY(assay_alloc_i32(ctx, "tokens of rows", most, &rows->tokens));
    TRY(assay_alloc_f64(ctx, "weights of rows", most, &rows->weights));
    TRY(assay_alloc_f64(ctx, "expert outputs", kept * dim, &block->expert_y));
    if (!is_dense(block)) TRY(assay_alloc_f64(ctx, "rows of x", most * dim, &block->rows_x));
    if (block->need_backward) TRY(assay_alloc_f64(ctx, "rows of dy", most * dim, &rows->dy));
    if (block->need_row_dx) TRY(assay_alloc_f64(ctx, "expert dx", kept * dim, &block->expert_dx));
cleanup:
    return status;
}

static void free_rows(moe_block *block)
{
    free(block->rows.tokens);
    free(block->rows.weights);
    free(block->rows.dy);
    free(block->expert_y);
    free(block->expert_dx);
    free(block->rows_x);
    memset(&block->rows, 0, sizeof block->rows);
    block->expert_y = block->expert_dx = block->rows_x = NULL;
}

static assay_status alloc_expert(assay_context *ctx, moe_block *block)
{
    const assay_moe_config *config = block->config;
    const moe_results *r = &block->results;
    assay_status status = ASSAY_OK;
    int64_t most = 1;
    for (int64_t e = 0; e < block->experts; e++) {
        int64_t count = block->path->row_count(block, e);
        if (count > most) most = count;
    }
    block->expert = (moe_mlp){
        .config = assay_moe_expert_config(config, most),
        .place = ASSAY_MLP_ROUTED,
        .first_result = MOE_ROUTED,
    };
    TRY(alloc_rows(ctx, block, most));
    TRY(moe_mlp_alloc(ctx, &block->expert, r, block->in, block->observer != NULL && block->need_router_gradient));
    TRY(moe_checkpoints_alloc(ctx, &block->checkpoints, block, &block->expert, r));
cleanup:
    return status;
}

/* d_weights[t,k] = <output of the choice, dy[t]>. */
static void weight_gradients(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        int64_t choice = block->order[rows->first + j], token = choice / block->per_token;
        const double *y = rows->y + moe_row_of(block, j) * dim;
        block->d_weights[choice] = assay_dot(ctx, dim, y, block->dy + token * dim);
    }
}

static assay_status backward_expert(assay_context *ctx, moe_block *block)
{
    moe_rows *rows = &block->rows;
    if (block->need_router_gradient && !block->llama4) weight_gradients(ctx, block);
    if (!block->need_backward) return ASSAY_OK;
    moe_gather(ctx, rows->dy, block->dy, rows->tokens, rows->weights, rows->count, block->emb_dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * block->emb_dim, rows->dy);
    return moe_mlp_backward(ctx, &block->expert, &block->results, rows);
}

static assay_status run_expert(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_rows *rows = &block->rows;
    const double *x = block->llama4 ? block->scaled_x : block->x;
    block->path->take_rows(block);
    TRY(moe_mlp_read(ctx, &block->expert, block->in, rows->expert));
    if (!is_dense(block)) moe_gather(ctx, block->rows_x, x, rows->tokens, NULL, rows->count, block->emb_dim);
    rows->x = is_dense(block) ? x : block->rows_x;
    TRY(moe_mlp_forward(ctx, &block->expert, block, rows, true));
    const moe_checkpoint_values values = {block->expert.residuals.a, block->expert.residuals.b, rows->y};
    TRY(moe_checkpoints_put(ctx, &block->checkpoints, block, &block->expert, &block->results, rows, &values));
    /* The row of zeros is there for the checkpoints alone. */
    if (block->slots.row != NULL) rows->count = rows->size;
    if (rows->count == 0) {
        TRY(moe_mlp_write_zeros(ctx, &block->expert, &block->results));
        goto cleanup;
    }
    TRY(backward_expert(ctx, block));
    if (block->path->combine != NULL) block->path->combine(ctx, block);
cleanup:
    return status;
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    int64_t first = 0;
    TRY(block->path->plan(ctx, block));
    if (!block->need_forward) return ASSAY_OK;
    TRY(alloc_expert(ctx, block));
    for (int64_t e = 0; e < block->experts; e++) {
        block->rows.expert = e;
        block->rows.first = first;
        block->rows.size = block->group_sizes[e];
        block->rows.count = block->path->row_count(block, e);
        first += block->group_sizes[e];
        if (block->rows.count == 0) {
            TRY(moe_mlp_write_zeros(ctx, &block->expert, &block->results));
        } else {
            TRY(run_expert(ctx, block));
        }
        if (block->observer != NULL)
            TRY(block->observer->rows(ctx, block->observer->self, block, &block->expert, &block->rows));
    }
    TRY(block->path->finish(ctx, block));
    if (block->observer != NULL) TRY(block->observer->experts(ctx, block->observer->self, block));
    if (block->llama4) moe_llama4_backward(ctx, block);
cleanup:
    free_rows(block);
    moe_checkpoints_free(&block->checkpoints);
    moe_mlp_free(&block->expert);
    return status;
}
