/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory. They
 * may be of several ranks, of which the first joins what comes of them in the order of experts. Joined, all of them are one. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static int64_t expert_count(const moe_block *block)
{
    return block->local_experts / block->joined;
}

static assay_status alloc_expert(assay_context *ctx, moe_block *block)
{
    const int64_t pieces = block->split.pieces;
    int64_t most = 1;
    for (int64_t i = 0; i < expert_count(block) * pieces; i++) {
        const int64_t count = block->placement->row_count(block, i / pieces, i % pieces);
        if (count > most) most = count;
    }
    block->expert = (moe_mlp){
        .config = {.mlp = assay_moe_expert_config(block->config, most), .place = ASSAY_MLP_ROUTED}, .pieces = pieces};
    if (block->joined > 1) block->expert.config.mlp.groups = block->joined;
    MUST(block->placement->alloc_rows(ctx, block, most));
    return moe_mlp_alloc(ctx, &block->expert, block);
}

/* Of an expert whose weights are there. */
static assay_status run_piece(assay_context *ctx, moe_block *block)
{
    moe_rows *rows = &block->rows;
    const moe_placement *placement = block->placement;
    MUST(moe_mlp_forward(ctx, &block->expert, rows, true));
    /* The row of zeros is there for the checkpoints alone. */
    if (block->slots.row != NULL) rows->count = rows->size;
    if (rows->count == 0) return ASSAY_OK;
    if (placement->give_dy != NULL) placement->give_dy(ctx, block);
    if (block->need_backward) MUST(moe_mlp_backward(ctx, &block->expert, rows));
    if (placement->combine != NULL) placement->combine(ctx, block);
    return ASSAY_OK;
}

/* The rows' y and dx are there, and d_weights of their choices. */
static assay_status join(assay_context *ctx, moe_block *block)
{
    const assay_moe_observer *observer = block->observer;
    block->placement->join(ctx, block);
    if (observer == NULL || observer->take == NULL) return ASSAY_OK;
    return observer->take(ctx, observer->self, block, &block->rows, ASSAY_MOE_JOINED, NULL, 0);
}

static bool puts_y(const moe_block *block)
{
    return block->need_y || block->observer != NULL;
}

/* y, dx and d_weights of an expert's rows, between the block and one buffer: the first rank may do an expert of its own
 * between two puts, and dense experts have their rows in one place. */
static void move_rows(moe_block *block, double *buffer, bool in)
{
    const moe_rows *rows = &block->rows;
    const int64_t count = rows->count * block->emb_dim;
    double *const places[] = {puts_y(block) ? rows->y : NULL, block->need_row_dx ? rows->dx : NULL};
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

/* Numbers of so many rows, of which some are choices. */
static int64_t put_count(const moe_block *block, int64_t rows, int64_t choices)
{
    const int64_t parts = (puts_y(block) ? 1 : 0) + (block->need_row_dx ? 1 : 0);
    return parts * rows * block->emb_dim + (block->need_router_gradient ? choices : 0);
}

static assay_status put_rows(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const int64_t count = put_count(block, rows->count, rows->size);
    OWNED double *buffer = NULL;
    if (block->piece->ranks == NULL) return join(ctx, block);
    MUST(assay_alloc_f64(ctx, "rows for the first rank", count, &buffer));
    move_rows(block, buffer, false);
    return assay_piece_put(ctx, block->piece, MOE_PUT_ROWS, buffer, count * (int64_t)sizeof *buffer);
}

static assay_status take_expert(assay_context *ctx, void *self, int64_t expert, int what, const void *data,
                                int64_t bytes)
{
    moe_block *block = self;
    const assay_moe_observer *observer = block->observer;
    if (block->placed_rows != expert) block->placement->place_rows(block, expert);
    block->placed_rows = expert;
    if (what >= MOE_PUTS && observer != NULL && observer->take != NULL)
        return observer->take(ctx, observer->self, block, &block->rows, what - MOE_PUTS, data, bytes);
    if (what != MOE_PUT_ROWS ||
        bytes != put_count(block, block->rows.count, block->rows.size) * (int64_t)sizeof(double))
        return assay_fail(ctx, ASSAY_INTERNAL, "a rank has computed other rows of an expert than it was given");
    move_rows(block, (double *)data, true);
    return join(ctx, block);
}

static assay_status run_expert(assay_context *ctx, void *self, const assay_piece *piece)
{
    moe_block *block = self;
    moe_mlp *mlp = &block->expert;
    const int64_t expert = piece->number;
    bool read = false;
    block->piece = piece;
    moe_mlp_begin(mlp);
    for (int64_t i = 0; i < block->split.pieces; i++) {
        block->placement->take_rows(ctx, block, expert, i);
        block->placed_rows = expert;
        if (block->rows.count == 0) continue;
        if (!read) MUST(moe_mlp_read_weights(ctx, mlp, expert));
        read = true;
        MUST(run_piece(ctx, block));
        if (block->placement->join != NULL) MUST(put_rows(ctx, block));
    }
    MUST(moe_mlp_write(ctx, mlp, &block->results));
    if (block->observer != NULL) MUST(block->observer->rows(ctx, block->observer->self, block, mlp, &block->rows));
    return ASSAY_OK;
}

/* Checkpoints that are kept whole, replicas and joined experts are of one process. */
static bool is_everywhere(const moe_block *block)
{
    const bool kept = block->kept_rows > 0 && moe_wants_any(&block->results, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS);
    return kept || block->joined > 1 || block->split.pieces > 1 || block->placement->place_rows == NULL;
}

typedef struct shared_sum {
    double *values;
    int64_t count;
} shared_sum;

enum { SUMS = 3 };

/* What every rank is given when all experts are done; a count of 0: nobody needs it. */
static void list_sums(const moe_block *block, shared_sum sums[SUMS])
{
    const int64_t count = block->tokens * block->emb_dim;
    sums[0] = (shared_sum){block->y, block->need_y ? count : 0};
    sums[1] = (shared_sum){block->dx, block->need_row_dx ? count : 0};
    sums[2] = (shared_sum){block->d_weights, block->need_router_gradient ? block->tokens * block->per_token : 0};
}

/* What the rest of the block needs of the experts; its results are the first rank's to write. */
static assay_status share_sums(assay_context *ctx, moe_block *block)
{
    shared_sum sums[SUMS];
    list_sums(block, sums);
    for (int i = 0; i < SUMS; i++) {
        if (sums[i].count == 0) continue;
        MUST(assay_ranks_broadcast(ctx, sums[i].values, sums[i].count * (int64_t)sizeof *sums[i].values));
    }
    return ASSAY_OK;
}

/* Numbers of the gradients and checkpoints that the experts write. */
static double written_of(const moe_block *block, const moe_results *r, double rows)
{
    const assay_gated_mlp_config mlp = assay_moe_expert_config(block->config, 1);
    double count = 0;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        const assay_tensor_row row = assay_mlp_checkpoint_row(&mlp, ASSAY_MLP_ROUTED, i);
        if (moe_wants(r, MOE_ROUTED + i)) count += rows * (double)assay_tensor_row_count(&row);
    }
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        const assay_tensor_row row = assay_mlp_weight_row(&mlp, ASSAY_MLP_ROUTED, i);
        if (!moe_wants(r, MOE_ROUTED + MLP_GRADIENT + i)) continue;
        count += (double)block->local_experts * (double)assay_tensor_row_count(&row);
    }
    return count;
}

/* Of a gated MLP, that need not be computed: their checkpoints are given. */
static int given_products(const moe_block *block, int first)
{
    static const int of_checkpoint[ASSAY_MLP_CHECKPOINTS] = {
        [ASSAY_MLPWI] = 2, [ASSAY_MLPWI_0] = 1, [ASSAY_MLPWI_1] = 1, [ASSAY_MLPWO] = 1};
    const bool routed = first == MOE_ROUTED;
    const assay_gated_mlp_config mlp =
        routed ? assay_moe_expert_config(block->config, 0) : assay_moe_shared_config(block->config, 0);
    int products = 0;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        char path[ASSAY_PATH_SIZE];
        if (assay_mlp_checkpoint_path(&mlp, routed ? ASSAY_MLP_ROUTED : ASSAY_MLP_SHARED, i, path) > 0 &&
            block->in->has(block->in->self, path))
            products += of_checkpoint[i];
    }
    return products;
}

/* Products of a gated MLP: gate and up, down, but what is given; back from down to both of them, and on to dx; the gradients
 * of its weights. */
static int products_of(const moe_block *block, int first, bool dx)
{
    static const int of_weight[ASSAY_MLP_WEIGHTS] = {
        [ASSAY_MLP_WI] = 2, [ASSAY_MLP_WI_0] = 1, [ASSAY_MLP_WI_1] = 1, [ASSAY_MLP_WO] = 1};
    int gradients = 0;
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++)
        if (moe_wants(&block->results, first + MLP_GRADIENT + i)) gradients += of_weight[i];
    const bool back = gradients > 0 || (first == MOE_ROUTED && block->need_backward);
    return 3 - given_products(block, first) + gradients + (dx ? 3 : back ? 1 : 0);
}

/* Of the router and the shared expert. */
static double rest_of(const moe_block *block)
{
    const double tokens = 2 * (double)block->tokens * (double)block->emb_dim;
    const bool dx = block->need_dx, kernel = moe_wants(&block->results, MOE_DKERNEL);
    const double router = tokens * (double)block->experts * (1 + (dx ? 1 : 0) + (kernel ? 1 : 0));
    if (block->config->shared_mlp_dim == 0) return router;
    return router + tokens * (double)block->config->shared_mlp_dim * products_of(block, MOE_SHARED, dx);
}

/* The loop of the experts' values, as it is planned: rows are those of a choice that nobody knows yet. */
static assay_ranks_loop plan_loop(const moe_block *block, const moe_results *r, int64_t rows, int64_t choices)
{
    const double size = sizeof(double);
    const assay_gated_mlp_config mlp = assay_moe_expert_config(block->config, 1);
    const assay_tensor_table table = assay_mlp_weight_table(&mlp, ASSAY_MLP_ROUTED);
    assay_ranks_loop loop = {.pieces = block->local_experts, .times = 1};
    for (int i = 0; i < table.count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (table.rows[i].name == NULL) continue;
        assay_tensor_path("weights/", "", &table.rows[i], path);
        if (block->in->has(block->in->self, path))
            loop.drawn += size * (double)block->local_experts * (double)assay_tensor_row_count(&table.rows[i]);
    }
    loop.operations = 2 * (double)rows * (double)block->emb_dim * (double)block->config->moe_mlp_dim *
                      products_of(block, MOE_ROUTED, block->need_row_dx);
    loop.put = size * (double)put_count(block, rows, choices) + size * written_of(block, r, (double)choices);
    return loop;
}

static int64_t planned_choices(const moe_block *block)
{
    return block->tokens * block->per_token * block->local_experts / assay_moe_experts(block->config);
}

static int64_t planned_rows(const moe_block *block)
{
    return block->config->path == ASSAY_MOE_DENSE ? block->tokens * block->experts : planned_choices(block);
}

/* Whether it is worth to send what the experts give: a number that is drawn is as much work as so many operations. */
static bool pays(const moe_block *block, const moe_results *r, double least)
{
    const double of_drawn = 64, numbers = 1 / (double)sizeof(double);
    const assay_ranks_loop loop = plan_loop(block, r, planned_rows(block), planned_choices(block));
    return assay_ranks_pays(least, loop.pieces, loop.operations + of_drawn * loop.drawn * numbers, loop.put * numbers);
}

void moe_experts_shares(assay_run_shares *shares, double least, moe_block *block, const assay_sink *out,
                        const assay_sink *scales, int count)
{
    moe_results r;
    const double size = sizeof(double);
    const int64_t choices = planned_choices(block), rows = planned_rows(block);
    shared_sum sums[SUMS];
    block->placement = &moe_one_device;
    if (!block->need_forward) return;
    moe_results_open(&r, block->config, block->in, out);
    assay_ranks_loop experts = plan_loop(block, &r, rows, choices);
    shares->operations += experts.operations + rest_of(block);
    if (is_everywhere(block) || !pays(block, &block->results, least)) return;
    for (int i = 0; i < count; i++) {
        moe_results_open(&r, block->config, block->in, &scales[i]);
        const bool router = moe_wants_any(&r, MOE_DX, MOE_ROUTED - MOE_DX);
        const bool dx = moe_wants(&r, MOE_DX) || (router && block->llama4);
        const double parts = (moe_wants(&r, MOE_Y) ? 1 : 0) + (dx ? 1 : 0);
        experts.put += size * parts * (double)rows * (double)block->emb_dim;
        if (router && !block->llama4) experts.put += size * (double)choices;
        experts.put += size * written_of(block, &r, (double)choices);
    }
    list_sums(block, sums);
    for (int i = 0; i < SUMS; i++) experts.broadcast += size * (double)sums[i].count;
    assay_ranks_loop_add(&shares->loops[ASSAY_SHARE_EXPERTS], &experts);
}

assay_status moe_experts_run(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const bool alone = ctx->ranks != NULL && !pays(block, &block->results, ctx->ranks->least);
    const assay_pieces experts = {.self = block,
                                  .count = expert_count(block),
                                  .everywhere = alone || is_everywhere(block),
                                  .work = run_expert,
                                  .take = take_expert};
    if (!block->need_forward) return ASSAY_OK;
    block->placed_rows = -1;
    TRY(alloc_expert(ctx, block));
    TRY(assay_pieces_run(ctx, &experts));
    if (experts.everywhere || assay_ranks_is_first(ctx)) {
        TRY(moe_checkpoints_finish(ctx, &block->expert.checkpoints));
        TRY(block->placement->finish(ctx, block));
    } else {
        block->observer = NULL; /* it has seen some of the experts */
    }
    if (!experts.everywhere) TRY(share_sums(ctx, block));
cleanup:
    block->placement->free_rows(block);
    moe_mlp_free(&block->expert);
    return status;
}
