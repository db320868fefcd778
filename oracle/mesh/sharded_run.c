/* The sparse MoE block over a mesh: what its tokens, outputs and gradients have to travel. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/ops/vector_sums.h"

/* What a shard's unpermute multiplies its copies by; NULL: 1. */
static const double *combine_weights(const sharded_run *run, const sharded_chunk *chunk, int64_t shard)
{
    const bool elsewhere = run->block->llama4 || run->sharding->weight_before_wo || run->block->config->weight_on_input;
    return elsewhere ? NULL : chunk->routings[shard].weights;
}

/* Where the batch is not split every shard has the same output: the first one's is taken, and has the cotangent. */
static void keep_first_shard(const sharded_run *run, double *routed)
{
    const int64_t count = run->permute.tokens * run->permute.emb_dim;
    if (run->sizes.batch_sharded || !run->sizes.exchanges) return;
    memset(routed + count, 0, (size_t)((run->sizes.shards - 1) * count) * sizeof *routed);
}

static void scale_tokens(const assay_context *ctx, const sharded_run *run, const double *gates, double *routed)
{
    const int64_t dim = run->permute.emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < run->sizes.shards * run->permute.tokens; t++) {
        for (int64_t i = t * dim; i < (t + 1) * dim; i++) routed[i] *= gates[t];
        assay_round(ctx, ASSAY_ROUND_STORAGE, dim, routed + t * dim);
    }
}

/* Row `i` of all shards' sorted ones; a slot of no expert has weight 0. */
static double weight_of_row(const sharded_chunk *chunk, int64_t copies, int64_t i)
{
    const int32_t choice = chunk->order[i];
    return choice == ASSAY_NO_EXPERT ? 0.0 : chunk->routings[i / copies].weights[choice];
}

/* Sorted rows times the weights of their choices. */
static void weigh_sorted(const assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk)
{
    const int64_t dim = run->permute.emb_dim, copies = run->sizes.copies;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < run->sizes.shards * copies; i++) {
        const double weight = weight_of_row(chunk, copies, i);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++) run->sorted[d] *= weight;
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * copies * dim, run->sorted);
}

/* Of weights on x, in place of the gradient of x times the weight that of x; d_weights = <x[token], it>. */
static assay_status unweigh_sorted(assay_context *ctx, const sharded_run *run, sharded_chunk *chunk, int64_t c)
{
    const int64_t dim = run->permute.emb_dim, copies = run->sizes.copies, tokens = run->permute.tokens;
    OWNED double *x = NULL;
    MUST(assay_alloc_f64(ctx, "routed x", run->sizes.shards * tokens * dim, &x));
    sharded_spread(run, c, (size_t)dim * sizeof *x, x, run->block->x);
    for (int64_t i = 0; chunk->d_weights != NULL && i < run->sizes.shards * copies; i++) {
        const int64_t shard = i / copies, choice = chunk->order[i];
        if (choice == ASSAY_NO_EXPERT) continue;
        const int64_t token = shard * tokens + choice / run->permute.experts_per_token;
        chunk->d_weights[shard * copies + choice] = assay_dot(ctx, dim, x + token * dim, run->sorted + i * dim);
    }
    weigh_sorted(ctx, run, chunk);
    return ASSAY_OK;
}

static assay_status send_tokens(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim;
    sharded_spread(run, c, (size_t)dim * sizeof *run->routed, run->routed, run->block->x);
    if (run->block->llama4) scale_tokens(ctx, run, chunk->gates, run->routed);
    assay_sort_rows(run->sorted, run->routed, chunk->order, s->shards, &run->permute);
    if (run->block->config->weight_on_input) weigh_sorted(ctx, run, chunk);
    MUST(sharded_dispatch(ctx, run, chunk, dim, chunk->rows_x, run->sorted));
    if (chunk->row_weights == NULL) return ASSAY_OK;
    for (int64_t i = 0; i < s->shards * s->copies; i++) run->sorted[i] = weight_of_row(chunk, s->copies, i);
    return sharded_dispatch(ctx, run, chunk, 1, chunk->row_weights, run->sorted);
}

static void scatter_cotangents(sharded_run *run, int64_t c)
{
    sharded_spread(run, c, (size_t)run->permute.emb_dim * sizeof *run->routed, run->routed, run->block->dy);
    keep_first_shard(run, run->routed);
}

/* The cotangents of the experts' outputs depend on the weights alone, so they can be there before the experts are. */
static assay_status send_cotangents(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    scatter_cotangents(run, c);
    for (int64_t shard = 0; shard < s->shards; shard++) {
        MUST(assay_unpermute_backward(ctx, run->sorted + shard * s->copies * dim, NULL,
                                      run->routed + shard * tokens * dim, NULL, chunk->order + shard * s->copies,
                                      combine_weights(run, chunk, shard), &run->permute));
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, s->shards * s->copies * dim, run->sorted);
    return sharded_combine_transpose(ctx, run, chunk, dim, chunk->rows_dy, run->sorted);
}

/* d_weights[t,k] = <output of the choice, dy[t]>; run->sorted has the outputs. */
static assay_status combine_weight_gradients(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    scatter_cotangents(run, c);
    for (int64_t shard = 0; shard < s->shards; shard++) {
        MUST(assay_unpermute_backward(ctx, NULL, chunk->d_weights + shard * s->copies,
                                      run->routed + shard * tokens * dim, run->sorted + shard * s->copies * dim,
                                      chunk->order + shard * s->copies, NULL, &run->permute));
    }
    return ASSAY_OK;
}

static assay_status return_outputs(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    const bool elsewhere = run->block->llama4 || run->sharding->weight_before_wo || run->block->config->weight_on_input;
    const bool weights_here = run->block->need_router_gradient && !elsewhere;
    if (!run->block->need_y && !weights_here) return ASSAY_OK;
    MUST(sharded_combine(ctx, run, chunk, dim, run->sorted, chunk->rows_y));
    for (int64_t shard = 0; run->block->need_y && shard < s->shards; shard++) {
        MUST(assay_unpermute_forward(ctx, run->routed + shard * tokens * dim, run->sorted + shard * s->copies * dim,
                                     chunk->order + shard * s->copies, combine_weights(run, chunk, shard),
                                     &run->permute));
    }
    if (run->block->need_y) {
        keep_first_shard(run, run->routed);
        MUST(sharded_collect(ctx, run, c, dim, ASSAY_ROUND_STORAGE, run->block->y, run->routed));
    }
    if (weights_here) MUST(combine_weight_gradients(ctx, run, c));
    return ASSAY_OK;
}

/* d_scaled [M,Tt,D] is the gradient of the scaled tokens. */
static assay_status unscale_tokens(assay_context *ctx, const sharded_run *run, int64_t c, double *d_scaled)
{
    const sharded_chunk *chunk = &run->chunks[c];
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    OWNED double *x = NULL;
    MUST(assay_alloc_f64(ctx, "routed x", run->sizes.shards * tokens * dim, &x));
    sharded_spread(run, c, (size_t)dim * sizeof *x, x, run->block->x);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t at = shard * tokens;
        moe_llama4_unscale(ctx, chunk->d_weights + at, d_scaled + at * dim, x + at * dim, chunk->gates + at,
                           chunk->routings[shard].weights, tokens, dim);
    }
    return ASSAY_OK;
}

static assay_status return_gradients(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim;
    if (chunk->row_d_weights != NULL) {
        MUST(sharded_dispatch_transpose(ctx, run, chunk, 1, run->sorted, chunk->row_d_weights));
        for (int64_t i = 0; i < s->shards * s->copies; i++) {
            if (chunk->order[i] == ASSAY_NO_EXPERT) continue;
            chunk->d_weights[i / s->copies * s->copies + chunk->order[i]] = run->sorted[i];
        }
    }
    if (!run->block->need_row_dx) return ASSAY_OK;
    MUST(sharded_dispatch_transpose(ctx, run, chunk, dim, run->sorted, chunk->rows_dx));
    if (run->block->config->weight_on_input) MUST(unweigh_sorted(ctx, run, chunk, c));
    MUST(assay_unsort_rows(ctx, run->routed, run->sorted, chunk->order, s->shards, &run->permute));
    if (run->block->llama4) MUST(unscale_tokens(ctx, run, c, run->routed));
    return sharded_collect(ctx, run, c, dim, ASSAY_ROUND_STORAGE, run->block->dx, run->routed);
}

static assay_status route(assay_context *ctx, moe_block *block)
{
    const assay_status status = sharded_route(ctx, block->placed);
    return status != ASSAY_OK ? status : sharded_write_routing(ctx, block->placed);
}

static assay_status alloc_rows(assay_context *ctx, moe_block *block, int64_t most)
{
    sharded_run *run = block->placed;
    (void)most;
    MUST(sharded_alloc_rows(ctx, run));
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        MUST(send_tokens(ctx, run, c));
        if (block->need_backward) MUST(send_cotangents(ctx, run, c));
    }
    return ASSAY_OK;
}

static assay_status finish(assay_context *ctx, moe_block *block)
{
    sharded_run *run = block->placed;
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        MUST(return_outputs(ctx, run, c));
        MUST(return_gradients(ctx, run, c));
    }
    return ASSAY_OK;
}

static const moe_placement mesh_placement = {.route = route,
                                             .row_count = sharded_row_count,
                                             .alloc_rows = alloc_rows,
                                             .free_rows = sharded_free_rows,
                                             .gather_rows = sharded_gather_rows,
                                             .finish = finish,
                                             .route_backward = sharded_route_backward,
                                             .given_backward = sharded_given_backward};

assay_status sharded_run_whole(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                               const assay_source *in, const assay_sink *out)
{
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    const assay_routing_config *routing = &config->routing;
    const bool global = routing->balance_scope == ASSAY_BALANCE_GLOBAL;
    assay_replicas replicas = {0};
    sharded_run run = {.sharding = sharding, .mesh = sharding->mesh, .sizes = s, .routing = *routing};
    moe_block block = {.config = config,
                       .in = in,
                       .placement = &mesh_placement,
                       .placed = &run,
                       .split = {.shards = s.shards,
                                 .losses = global ? 1 : s.shards,
                                 .loss_copies = global ? 1 : s.hidden_shards,
                                 .owners = s.owners,
                                 .pieces = s.shards * s.chunks,
                                 .expert_shards = s.expert_shards,
                                 .tensor_shards = sharding->tensor_shards,
                                 .hidden_shards = s.hidden_shards,
                                 .emb_chunks = sharding->emb_chunks > 0 ? sharding->emb_chunks : 1,
                                 .weighs_h = sharding->weight_before_wo},
                       .kept_rows = s.shards * s.chunks * s.buffer};
    run.block = &block;
    run.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 1;
    run.routing.batch = s.batch;
    run.routing.sequence = s.sequence;
    run.permute = (assay_permute_dims){s.batch * s.sequence, routing->num_experts_per_tok,
                                       s.expert_shards * s.local_experts, config->emb_dim};
    if (config->physical_experts > 0) {
        MUST(moe_read_replicas(ctx, config, in, &replicas));
        run.replicas = &replicas;
        block.split.pieces *= replicas.most;
    }
    const assay_status status = moe_block_run(ctx, &block, out);
    sharded_route_free(&run);
    assay_replicas_free(&replicas);
    return status;
}
