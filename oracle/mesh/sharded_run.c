/* A run of the sparse MoE block over a mesh, from its inputs to its results. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

static void find_needs(sharded_run *run)
{
    const bool weights = sharded_wants_any_gradient(run, ASSAY_MLP_ROUTED);
    const bool shared = sharded_wants_any_gradient(run, ASSAY_MLP_SHARED);
    const bool checkpoints = sharded_wants_any_checkpoint(run, ASSAY_MLP_ROUTED);
    run->need_y = sharded_wants(run, "outputs/y");
    run->need_dx = sharded_wants(run, "gradients/inputs/x");
    run->need_router_gradient = run->need_dx || sharded_wants_gradient(run, "weights/gate/kernel") ||
                                sharded_wants_gradient(run, "weights/gate/bias") ||
                                sharded_wants_gradient(run, "weights/per_expert_scale");
    run->need_row_dx = run->need_dx || (run->llama4 && run->need_router_gradient);
    /* The weight on h has its gradient from the experts themselves. */
    run->need_backward = run->need_row_dx || weights || (run->sharding->weight_before_wo && run->need_router_gradient);
    run->need_dy = run->need_backward || run->need_router_gradient || shared;
    run->need_experts = run->need_y || run->need_router_gradient || weights || checkpoints;
}

static assay_status open_run(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = run->in;
    const assay_moe_config *config = run->config;
    const int64_t count = config->routing.batch * config->routing.sequence * config->emb_dim;
    run->sizes = assay_shard_sizes_of(config, run->sharding);
    run->routing = config->routing;
    run->routing.batch = run->sizes.batch;
    run->routing.sequence = run->sizes.sequence;
    run->permute = (assay_permute_dims){run->sizes.batch * run->sizes.sequence, config->routing.num_experts_per_tok,
                                        config->routing.num_experts, config->emb_dim};
    run->llama4 = config->routing.family == ASSAY_ROUTER_LLAMA4;
    find_needs(run);
    TRY(assay_alloc_f64(ctx, "inputs/x", count, &run->x));
    TRY(in->read(ctx, in->self, "inputs/x", 0, count, run->x));
    if (run->need_y) TRY(assay_alloc_f64(ctx, "outputs/y", count, &run->y));
    if (run->need_row_dx) TRY(assay_alloc_f64(ctx, "gradients/inputs/x", count, &run->dx));
    if (!run->need_dy) return ASSAY_OK;
    /* An output without a cotangent is not differentiated. */
    TRY(assay_alloc_f64(ctx, "cotangents/y", count, &run->dy));
    memset(run->dy, 0, (size_t)count * sizeof *run->dy);
    if (in->has(in->self, "cotangents/y")) TRY(in->read(ctx, in->self, "cotangents/y", 0, count, run->dy));
cleanup:
    return status;
}

static assay_status alloc_zeros(assay_context *ctx, const char *what, int64_t count, double **out)
{
    const assay_status status = assay_alloc_f64(ctx, what, count, out);
    if (status == ASSAY_OK) memset(*out, 0, (size_t)count * sizeof **out);
    return status;
}

static assay_status alloc_rows(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->config->emb_dim, rows = s->shards * s->buffer, copies = s->shards * s->copies;
    const bool weighs_h = run->sharding->weight_before_wo;
    TRY(assay_alloc_f64(ctx, "routed tokens", s->shards * run->permute.tokens * dim, &run->routed));
    TRY(assay_alloc_f64(ctx, "sorted copies", copies * dim, &run->sorted));
    if (s->expert_shards > 1 && !run->sharding->ring_of_experts && s->batch_sharded) {
        TRY(assay_alloc_f64(ctx, "received rows", rows * dim, &run->received));
    }
    for (int64_t c = 0; c < s->chunks; c++) {
        sharded_chunk *chunk = &run->chunks[c];
        TRY(assay_alloc_f64(ctx, "rows of x", rows * dim, &chunk->rows_x));
        TRY(alloc_zeros(ctx, "rows of y", rows * dim, &chunk->rows_y));
        if (run->need_backward) TRY(assay_alloc_f64(ctx, "rows of dy", rows * dim, &chunk->rows_dy));
        if (run->need_row_dx) TRY(alloc_zeros(ctx, "rows of dx", rows * dim, &chunk->rows_dx));
        if (weighs_h) TRY(assay_alloc_f64(ctx, "weights of rows", rows, &chunk->row_weights));
        if (!run->need_router_gradient) continue;
        if (weighs_h) TRY(alloc_zeros(ctx, "d_weights of rows", rows, &chunk->row_d_weights));
        TRY(alloc_zeros(ctx, "d_weights", copies, &chunk->d_weights));
    }
cleanup:
    return status;
}

/* What a shard's unpermute multiplies its copies by; NULL: 1. */
static const double *combine_weights(const sharded_run *run, const sharded_chunk *chunk, int64_t shard)
{
    return run->llama4 || run->sharding->weight_before_wo ? NULL : chunk->routings[shard].weights;
}

/* Where the batch is not split every shard has the same output: the first one's is taken, and has the cotangent. */
static void keep_first_shard(const sharded_run *run, double *routed)
{
    const int64_t count = run->permute.tokens * run->permute.emb_dim;
    if (run->sizes.batch_sharded) return;
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

static assay_status send_tokens(assay_context *ctx, sharded_run *run, int64_t c)
{
    assay_status status = ASSAY_OK;
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim;
    TRY(sharded_spread(ctx, run, c, dim, run->routed, run->x));
    if (run->llama4) scale_tokens(ctx, run, chunk->gates, run->routed);
    assay_sort_rows(run->sorted, run->routed, chunk->order, s->shards, &run->permute);
    TRY(sharded_dispatch(ctx, run, chunk, dim, chunk->rows_x, run->sorted));
    if (chunk->row_weights == NULL) return ASSAY_OK;
    for (int64_t i = 0; i < s->shards * s->copies; i++)
        run->sorted[i] = chunk->routings[i / s->copies].weights[chunk->order[i]];
    TRY(sharded_dispatch(ctx, run, chunk, 1, chunk->row_weights, run->sorted));
cleanup:
    return status;
}

static assay_status spread_cotangents(assay_context *ctx, sharded_run *run, int64_t c)
{
    const assay_status status = sharded_spread(ctx, run, c, run->permute.emb_dim, run->routed, run->dy);
    if (status == ASSAY_OK) keep_first_shard(run, run->routed);
    return status;
}

/* The cotangents of the experts' outputs depend on the weights alone, so they can be there before the experts are. */
static assay_status send_cotangents(assay_context *ctx, sharded_run *run, int64_t c)
{
    assay_status status = ASSAY_OK;
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    TRY(spread_cotangents(ctx, run, c));
    for (int64_t shard = 0; shard < s->shards; shard++) {
        TRY(assay_unpermute_backward(ctx, run->sorted + shard * s->copies * dim, NULL,
                                     run->routed + shard * tokens * dim, NULL, chunk->order + shard * s->copies,
                                     combine_weights(run, chunk, shard), &run->permute));
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, s->shards * s->copies * dim, run->sorted);
    TRY(sharded_combine_transpose(ctx, run, chunk, dim, chunk->rows_dy, run->sorted));
cleanup:
    return status;
}

/* d_weights[t,k] = <output of the choice, dy[t]>; run->sorted has the outputs. */
static assay_status combine_weight_gradients(assay_context *ctx, sharded_run *run, int64_t c)
{
    assay_status status = ASSAY_OK;
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    TRY(spread_cotangents(ctx, run, c));
    for (int64_t shard = 0; shard < s->shards; shard++) {
        TRY(assay_unpermute_backward(ctx, NULL, chunk->d_weights + shard * s->copies,
                                     run->routed + shard * tokens * dim, run->sorted + shard * s->copies * dim,
                                     chunk->order + shard * s->copies, NULL, &run->permute));
    }
cleanup:
    return status;
}

static assay_status return_outputs(assay_context *ctx, sharded_run *run, int64_t c)
{
    assay_status status = ASSAY_OK;
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens;
    const bool weights_here = run->need_router_gradient && !run->llama4 && !run->sharding->weight_before_wo;
    if (!run->need_y && !weights_here) return ASSAY_OK;
    TRY(sharded_combine(ctx, run, chunk, dim, run->sorted, chunk->rows_y));
    for (int64_t shard = 0; run->need_y && shard < s->shards; shard++) {
        TRY(assay_unpermute_forward(ctx, run->routed + shard * tokens * dim, run->sorted + shard * s->copies * dim,
                                    chunk->order + shard * s->copies, combine_weights(run, chunk, shard),
                                    &run->permute));
    }
    if (run->need_y) {
        keep_first_shard(run, run->routed);
        TRY(sharded_collect(ctx, run, c, dim, ASSAY_ROUND_STORAGE, run->y, run->routed));
    }
    if (weights_here) TRY(combine_weight_gradients(ctx, run, c));
cleanup:
    return status;
}

/* d_scaled [M,Tt,D] is the gradient of the scaled tokens: d_weight = <x, d_scaled> sigmoid'(weight), then dx. */
static assay_status unscale_tokens(assay_context *ctx, const sharded_run *run, int64_t c, double *d_scaled)
{
    assay_status status = ASSAY_OK;
    const sharded_chunk *chunk = &run->chunks[c];
    const int64_t dim = run->permute.emb_dim, tokens = run->permute.tokens, count = run->sizes.shards * tokens;
    double *x = NULL;
    TRY(assay_alloc_f64(ctx, "routed x", count * dim, &x));
    TRY(sharded_spread(ctx, run, c, dim, x, run->x));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < count; t++) {
        /* 1 - sigmoid(w) is sigmoid(-w), to full accuracy. */
        const double weight = chunk->routings[t / tokens].weights[t % tokens];
        const double slope = chunk->gates[t] * assay_sigmoid(-weight);
        double *d_token = d_scaled + t * dim;
        chunk->d_weights[t] = assay_dot(ctx, dim, x + t * dim, d_token) * slope;
        for (int64_t i = 0; i < dim; i++) d_token[i] *= chunk->gates[t];
    }
cleanup:
    free(x);
    return status;
}

static assay_status return_gradients(assay_context *ctx, sharded_run *run, int64_t c)
{
    assay_status status = ASSAY_OK;
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->permute.emb_dim;
    if (chunk->row_d_weights != NULL) {
        TRY(sharded_dispatch_transpose(ctx, run, chunk, 1, run->sorted, chunk->row_d_weights));
        for (int64_t i = 0; i < s->shards * s->copies; i++)
            chunk->d_weights[i / s->copies * s->copies + chunk->order[i]] = run->sorted[i];
    }
    if (!run->need_row_dx) return ASSAY_OK;
    TRY(sharded_dispatch_transpose(ctx, run, chunk, dim, run->sorted, chunk->rows_dx));
    TRY(assay_unsort_rows(ctx, run->routed, run->sorted, chunk->order, s->shards, &run->permute));
    if (run->llama4) TRY(unscale_tokens(ctx, run, c, run->routed));
    TRY(sharded_collect(ctx, run, c, dim, ASSAY_ROUND_STORAGE, run->dx, run->routed));
cleanup:
    return status;
}

static assay_status run_routed(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    if (!run->need_experts) return ASSAY_OK;
    TRY(alloc_rows(ctx, run));
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        TRY(send_tokens(ctx, run, c));
        if (run->need_backward) TRY(send_cotangents(ctx, run, c));
    }
    TRY(sharded_experts_run(ctx, run));
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        TRY(return_outputs(ctx, run, c));
        TRY(return_gradients(ctx, run, c));
    }
cleanup:
    return status;
}

assay_status assay_sharded_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                                   const assay_source *in, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    sharded_run run = {.config = config, .sharding = sharding, .in = in, .out = out};
    TRY(assay_sharded_moe_check(ctx, config, sharding));
    TRY(open_run(ctx, &run));
    TRY(sharded_route(ctx, &run));
    TRY(sharded_write_routing(ctx, &run));
    TRY(run_routed(ctx, &run));
    if (run.need_router_gradient) TRY(sharded_route_backward(ctx, &run));
    TRY(sharded_shared_run(ctx, &run));
    const int64_t count = config->routing.batch * config->routing.sequence * config->emb_dim;
    if (run.need_y) TRY(sharded_write(ctx, &run, "outputs/y", count, run.y));
    if (run.need_dx) TRY(sharded_write(ctx, &run, "gradients/inputs/x", count, run.dx));
cleanup:
    sharded_route_free(&run);
    free(run.x);
    free(run.y);
    free(run.dy);
    free(run.dx);
    free(run.routed);
    free(run.sorted);
    free(run.received);
    return status;
}
