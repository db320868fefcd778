/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. Joined,
 * all of them are one. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

void moe_gather(const assay_context *ctx, double *rows, const double *x, const int32_t *tokens, const double *weights,
                int64_t count, int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        int64_t token = tokens == NULL ? i : tokens[i];
        double *row = rows + i * dim;
        if (token < 0) {
            memset(row, 0, (size_t)dim * sizeof *row);
        } else if (weights == NULL) {
            memcpy(row, x + token * dim, (size_t)dim * sizeof *row);
        } else {
            for (int64_t d = 0; d < dim; d++) row[d] = weights[i] * x[token * dim + d];
        }
    }
}

static const double *routed_dy(const moe_block *block)
{
    return block->scaled_dy != NULL ? block->scaled_dy : block->dy;
}

/* Whether y of a copy is multiplied by its weight. */
static bool weighs_y(const moe_block *block)
{
    return !block->llama4 && !block->weighs_x && !block->weighs_h;
}

/* --- the rows at hand --- */

/* Those of an expert that lie at one site: of its pieces those of its first replica come first, then chunk after chunk and shard after
 * shard. False: none do. */
static bool find_rows(const moe_block *block, int64_t expert, int64_t piece, moe_rows *rows)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t site = piece % block->sites, shard = site % s->shards, chunk = site / s->shards;
    const int64_t group = moe_group_of(block, expert, piece / block->sites), local = group % s->local_experts;
    const int64_t first_group = moe_first_group(block, site);
    int64_t row = 0;
    *rows = (moe_rows){.expert = expert, .group_sizes = block->local_group_sizes + site * s->local_experts};
    if (group < 0 || group / s->local_experts != assay_mesh_index(&block->mesh, shard, ASSAY_AXIS_EXPERT)) return false;
    for (int64_t e = 0; e < local; e++) row += rows->group_sizes[e];
    for (int64_t e = 0; e < first_group; e++) row += block->group_sizes[site * block->permute.experts + e];
    for (int64_t e = local; e < local + block->joined; e++) rows->size += rows->group_sizes[e];
    rows->count = block->dense ? block->tokens : rows->size + (block->slots.row != NULL);
    rows->first = (shard * s->chunks + chunk) * s->buffer + row;
    rows->copies = block->copy_of + site * s->buffer + row;
    row = block->dense ? 0 : site * s->buffer + row;
    rows->y = block->expert_y + row * block->emb_dim;
    rows->dx = block->expert_dx == NULL ? NULL : block->expert_dx + row * block->emb_dim;
    return true;
}

/* The row of each slot of the expert; a free slot has the row of zeros, behind those of its choices. */
static void fill_slots(moe_block *block)
{
    const moe_rows *rows = &block->rows;
    for (int64_t slot = 0, next = 0; slot < block->slots.count; slot++) {
        const int64_t batch = slot / block->capacity;
        const bool filled = next < rows->size && block->rows_tokens[next] / block->routing.sequence == batch;
        block->slots.row[slot] = (int32_t)(filled ? next++ : rows->size);
    }
}

/* All but dy. Of the dense path every token is a row, with weight 0 where it has not chosen the expert; a hash table may name an expert
 * twice. */
static void gather_rows(assay_context *ctx, moe_block *block)
{
    moe_rows *rows = &block->rows;
    const int64_t slots = block->permute.experts_per_token, dim = block->emb_dim;
    const double *x = block->llama4 ? block->scaled_x : block->x;
    int32_t *tokens = block->rows_tokens;
    double *weights = block->rows_weights;
    for (int64_t i = 0; i < rows->count; i++) {
        tokens[i] = block->dense ? (int32_t)i : -1;
        weights[i] = 0;
    }
    for (int64_t i = 0; i < rows->size; i++) {
        const int32_t copy = rows->copies[i], token = block->token_of[copy / slots];
        const int64_t row = block->dense ? token : i;
        tokens[row] = token;
        weights[row] = block->llama4 ? 1.0 : block->weights[copy];
    }
    rows->tokens = tokens;
    rows->weights = weighs_y(block) || block->llama4 ? weights : NULL;
    rows->h_weights = block->weighs_h ? weights : NULL;
    rows->d_h_weights = block->weighs_h && block->need_router_gradient ? block->rows_d_weights : NULL;
    rows->x = block->dense ? x : block->rows_x;
    rows->dy = block->rows_dy;
    if (!block->dense) moe_gather(ctx, block->rows_x, x, tokens, NULL, rows->count, dim);
    if (block->weighs_x) assay_weigh_rows(ctx, block->rows_x, weights, block->rows_x, rows->count, dim);
    if (block->slots.row != NULL) fill_slots(block);
}

/* --- gradients of weights, and of rows --- */

/* Once y of the rows is there: d_weights[t,k] = <output of the choice, dy[t]>. */
static void give_dy(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const int64_t dim = block->emb_dim, slots = block->permute.experts_per_token;
#pragma omp parallel for num_threads(ctx->threads) if (block->need_router_gradient && weighs_y(block))
    for (int64_t i = 0; i < (block->need_router_gradient && weighs_y(block) ? rows->size : 0); i++) {
        const int64_t token = block->token_of[rows->copies[i] / slots], row = block->dense ? token : i;
        block->d_weights[moe_copy_of_y(block, rows->copies[i])] =
            assay_dot(ctx, dim, rows->y + row * dim, routed_dy(block) + token * dim);
    }
    if (!block->need_backward) return;
    moe_gather(ctx, block->rows_dy, routed_dy(block), rows->tokens, rows->weights, rows->count, dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * dim, block->rows_dy);
}

static void accumulate(const assay_context *ctx, double *sum, const double *rows, const double *weights, int64_t count,
                       int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads) if (sum != NULL)
    for (int64_t i = 0; i < (sum == NULL ? 0 : count); i++)
        assay_add_scaled(ctx, dim, weights == NULL ? 1 : weights[i], rows + i * dim, sum + i * dim);
}

/* After the rows are done. Weights on x have d_weights = <x[token], gradient of x times the weight>. */
static void finish_rows(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const int64_t dim = block->emb_dim;
    const bool of_x = block->weighs_x && block->need_row_dx;
#pragma omp parallel for num_threads(ctx->threads) if (block->need_router_gradient)
    for (int64_t i = 0; i < (block->need_router_gradient ? rows->size : 0); i++) {
        double *d_weight = &block->d_weights[rows->copies[i]];
        if (rows->d_h_weights != NULL) *d_weight = rows->d_h_weights[i];
        if (of_x) *d_weight = assay_dot(ctx, dim, block->x + rows->tokens[i] * dim, rows->dx + i * dim);
    }
    if (of_x) assay_weigh_rows(ctx, rows->dx, block->rows_weights, rows->dx, rows->count, dim);
    if (!block->dense) return;
    accumulate(ctx, block->y, rows->y, rows->weights, rows->count, dim);
    accumulate(ctx, block->dx, rows->dx, NULL, rows->count, dim);
}

/* --- sums over the copies of a token --- */

/* out [sites,tokens,D]: of each token the sum over its copies, ascending, of what they get of rows, or of what their rows give back. */
static void sum_copies(const assay_context *ctx, const moe_block *block, double *out, const double *rows, bool of_y)
{
    const int64_t slots = block->permute.experts_per_token, dim = block->emb_dim;
    const double *weights = of_y && weighs_y(block) ? block->weights : NULL;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t token = 0; token < block->sites * block->permute.tokens; token++) {
        double *sum = out + token * dim;
        memset(sum, 0, (size_t)dim * sizeof *sum);
        for (int64_t copy = token * slots; copy < (token + 1) * slots; copy++) {
            const int64_t row = of_y ? moe_row_of_y(block, copy) : block->row_of[copy];
            if (row >= 0) assay_add_scaled(ctx, dim, weights == NULL ? 1 : weights[copy], rows + row * dim, sum);
        }
    }
}

/* In place from dx of scaled tokens: d_weights[t] = <x[t], dx[t]> sigmoid'(weight), then dx[t] times the scale. */
static void unscale_tokens(const assay_context *ctx, const moe_block *block, double *dx)
{
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < block->sites * block->permute.tokens; i++) {
        const int32_t token = block->token_of[i];
        double *d_token = dx + i * dim;
        const double slope = assay_sigmoid_slope(ctx, block->weights[i], block->gate[token]);
        block->d_weights[i] = assay_dot(ctx, dim, block->x + token * dim, d_token) * slope;
        for (int64_t d = 0; d < dim; d++) d_token[d] *= block->gate[token];
    }
}

static assay_status sum_rows(assay_context *ctx, moe_block *block)
{
    const int64_t dim = block->emb_dim, count = block->tokens * dim;
    OWNED double *unpacked = NULL;
    if (block->sites > 1)
        MUST(assay_alloc_f64(ctx, "tokens of sites", block->sites * block->permute.tokens * dim, &unpacked));
    if (block->need_y && !block->dense) {
        double *y = unpacked != NULL ? unpacked : block->y;
        sum_copies(ctx, block, y, block->expert_y, true);
        moe_collect(ctx, block, dim, ASSAY_ROUND_STORAGE, block->y, y);
    }
    if (block->config->late_factor != 0 && block->need_y) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, block->y);
        for (int64_t i = 0; i < count; i++) block->y[i] *= block->config->late_factor;
    }
    if (!block->need_row_dx) return ASSAY_OK;
    double *dx = unpacked != NULL ? unpacked : block->dx;
    if (!block->dense) sum_copies(ctx, block, dx, block->expert_dx, false);
    if (block->llama4) unscale_tokens(ctx, block, dx);
    moe_collect(ctx, block, dim, ASSAY_ROUND_STORAGE, block->dx, dx);
    return ASSAY_OK;
}

/* --- all of them --- */

static int64_t expert_count(const moe_block *block)
{
    return block->local_experts / block->joined;
}

static assay_status alloc_rows(assay_context *ctx, moe_block *block, int64_t most)
{
    const int64_t dim = block->emb_dim;
    /* One more: a row of zeros may follow the last group (dropping). */
    const int64_t kept = block->dense ? block->tokens : block->sites * block->sizes.buffer + 1;
    MUST(assay_alloc_i32(ctx, "tokens of rows", most, &block->rows_tokens));
    MUST(assay_alloc_f64(ctx, "weights of rows", most, &block->rows_weights));
    MUST(assay_alloc_f64(ctx, "expert outputs", kept * dim, &block->expert_y));
    if (!block->dense) MUST(assay_alloc_f64(ctx, "rows of x", most * dim, &block->rows_x));
    if (block->need_backward) MUST(assay_alloc_f64(ctx, "rows of dy", most * dim, &block->rows_dy));
    if (block->need_row_dx) MUST(assay_alloc_f64(ctx, "expert dx", kept * dim, &block->expert_dx));
    if (!block->need_router_gradient) return ASSAY_OK;
    if (block->weighs_h) MUST(assay_alloc_f64(ctx, "d_weights of rows", most, &block->rows_d_weights));
    return assay_alloc_zeros(ctx, "d_weights", block->sites * block->sizes.copies, &block->d_weights);
}

static void free_rows(moe_block *block)
{
    void *const memory[] = {block->rows_tokens,    block->rows_weights, block->rows_x,   block->rows_dy,
                            block->rows_d_weights, block->expert_y,     block->expert_dx};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

static assay_status alloc_expert(assay_context *ctx, moe_block *block)
{
    int64_t most = 1;
    moe_rows rows;
    for (int64_t i = 0; i < expert_count(block) * block->pieces; i++)
        if (find_rows(block, i / block->pieces, i % block->pieces, &rows) && rows.count > most) most = rows.count;
    block->expert =
        (moe_mlp){.config = {.mlp = assay_moe_expert_config(block->config, most), .place = ASSAY_MLP_ROUTED},
                  .pieces = block->pieces};
    if (block->joined > 1) block->expert.config.mlp.groups = block->joined;
    MUST(alloc_rows(ctx, block, most));
    return moe_mlp_alloc(ctx, &block->expert, block);
}

/* Of an expert whose weights are there. */
static assay_status run_piece(assay_context *ctx, moe_block *block)
{
    moe_rows *rows = &block->rows;
    MUST(moe_mlp_forward(ctx, &block->expert, rows, true));
    /* The row of zeros is there for the checkpoints alone. */
    if (block->slots.row != NULL) rows->count = rows->size;
    if (rows->count == 0) return ASSAY_OK;
    give_dy(ctx, block);
    if (block->need_backward) MUST(moe_mlp_backward(ctx, &block->expert, rows));
    finish_rows(ctx, block);
    return ASSAY_OK;
}

static assay_status run_expert(assay_context *ctx, moe_block *block, int64_t expert)
{
    moe_mlp *mlp = &block->expert;
    bool read = false;
    moe_mlp_begin(mlp);
    for (int64_t i = 0; i < block->pieces; i++) {
        if (!find_rows(block, expert, i, &block->rows) || block->rows.count == 0) continue;
        gather_rows(ctx, block);
        if (!read) MUST(moe_mlp_read_weights(ctx, mlp, expert));
        read = true;
        MUST(run_piece(ctx, block));
    }
    return moe_mlp_write(ctx, mlp, &block->results);
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    if (!block->need_forward) return ASSAY_OK;
    TRY(alloc_expert(ctx, block));
    for (int64_t expert = 0; expert < expert_count(block); expert++) TRY(run_expert(ctx, block, expert));
    TRY(moe_checkpoints_finish(ctx, &block->expert.checkpoints));
    TRY(sum_rows(ctx, block));
cleanup:
    free_rows(block);
    moe_mlp_free(&block->expert);
    return status;
}
