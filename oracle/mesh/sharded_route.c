/* Every shard routes its tokens: choices, and the order of their copies by expert. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"
#include "oracle/moe/balance.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

assay_routing_inputs sharded_routing_inputs(const sharded_run *run, const sharded_chunk *chunk, int64_t shard)
{
    const moe_router *router = &run->block->router;
    const int64_t tokens = run->permute.tokens, per_token = run->permute.experts_per_token;
    return (assay_routing_inputs){
        .logits = chunk->logits == NULL ? NULL : chunk->logits + shard * tokens * run->routing.num_experts,
        .bias = router->bias,
        .per_expert_scale = router->per_expert_scale,
        .tid2eid = router->tid2eid,
        .input_ids = chunk->input_ids == NULL ? NULL : chunk->input_ids + shard * tokens,
        .given_experts = chunk->given_experts == NULL ? NULL : chunk->given_experts + shard * tokens * per_token,
        .choice_is_input = router->inputs.choice_is_input,
        .given_weights = chunk->given_weights == NULL ? NULL : chunk->given_weights + shard * tokens * per_token,
    };
}

static assay_status gather_inputs(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const moe_router *router = &run->block->router;
    const int64_t routed = run->sizes.shards * run->permute.tokens, experts = run->routing.num_experts;
    const int64_t per_token = run->permute.experts_per_token;
    if (router->logits != NULL) {
        MUST(assay_alloc_f64(ctx, "logits of shards", routed * experts, &chunk->logits));
        sharded_spread(run, c, (size_t)experts * sizeof(double), chunk->logits, router->logits);
    }
    if (router->given_weights != NULL) {
        MUST(assay_alloc_f64(ctx, "routing_weights of shards", routed * per_token, &chunk->given_weights));
        sharded_spread(run, c, (size_t)per_token * sizeof(double), chunk->given_weights, router->given_weights);
    }
    if (router->input_ids != NULL) {
        MUST(assay_alloc_i32(ctx, "input_ids of shards", routed, &chunk->input_ids));
        sharded_spread(run, c, sizeof(int32_t), chunk->input_ids, router->input_ids);
    }
    if (router->given_experts != NULL) {
        MUST(assay_alloc_i32(ctx, "selected_experts of shards", routed * per_token, &chunk->given_experts));
        sharded_spread(run, c, (size_t)per_token * sizeof(int32_t), chunk->given_experts, router->given_experts);
    }
    return ASSAY_OK;
}

/* The number of each token in the whole batch, of a chunk of all shards. */
static assay_status number_tokens(assay_context *ctx, const sharded_run *run, int64_t c, int32_t *numbers)
{
    const int64_t tokens = run->block->tokens;
    int32_t *whole = NULL;
    MUST(assay_alloc_i32(ctx, "numbers of tokens", tokens, &whole));
    for (int64_t token = 0; token < tokens; token++) whole[token] = (int32_t)token;
    sharded_spread(run, c, sizeof *numbers, numbers, whole);
    free(whole);
    return ASSAY_OK;
}

/* Replicas take turns by the token's number, as on one device. */
static assay_status choose_replicas(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    OWNED int32_t *numbers = NULL;
    MUST(assay_alloc_i32(ctx, "numbers of tokens", run->sizes.shards * run->permute.tokens, &numbers));
    MUST(number_tokens(ctx, run, c, numbers));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++)
        assay_replicas_choose(run->replicas, chunk->placed + shard * run->sizes.copies,
                              chunk->routings[shard].selected_experts, numbers + shard * run->permute.tokens,
                              &run->permute);
    return ASSAY_OK;
}

/* Of a rank with some of the experts. */
static assay_status number_locally(assay_context *ctx, sharded_run *run, sharded_chunk *chunk)
{
    const int64_t copies = run->sizes.copies;
    OWNED int32_t *map = NULL;
    MUST(assay_alloc_i32(ctx, "expert map", run->routing.num_experts, &map));
    MUST(moe_read_expert_map(ctx, run->block, map));
    for (int64_t i = 0; i < run->sizes.shards * copies; i++) {
        const int32_t expert = chunk->routings[i / copies].selected_experts[i % copies];
        chunk->placed[i] = expert == ASSAY_NO_EXPERT ? ASSAY_NO_EXPERT : map[expert];
    }
    return ASSAY_OK;
}

static assay_status place_choices(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const int64_t shards = run->sizes.shards, experts = run->routing.num_experts;
    const bool local = run->block->config->local_num_experts > 0;
    if (run->replicas == NULL && !local) return ASSAY_OK;
    MUST(assay_alloc_i32(ctx, "groups of copies", shards * run->sizes.copies, &chunk->placed));
    MUST(assay_alloc_i32(ctx, "choices of experts", shards * experts, &chunk->choice_sizes));
    for (int64_t shard = 0; shard < shards; shard++)
        memcpy(chunk->choice_sizes + shard * experts, chunk->routings[shard].group_sizes,
               (size_t)experts * sizeof *chunk->choice_sizes);
    return local ? number_locally(ctx, run, chunk) : choose_replicas(ctx, run, c);
}

/* Order of the copies by expert; with the ring ids are rolled so that the shard's own experts come first. */
static assay_status sort_copies(assay_context *ctx, sharded_run *run, sharded_chunk *chunk, int64_t shard)
{
    const assay_shard_sizes *s = &run->sizes;
    const int64_t experts = run->permute.experts;
    const int64_t index = assay_mesh_index(&run->mesh, shard, ASSAY_AXIS_EXPERT);
    const int64_t first = run->sharding->ring_of_experts ? index * s->local_experts : 0;
    OWNED int32_t *rolled = NULL;
    MUST(assay_alloc_i32(ctx, "rolled ids of experts", s->copies, &rolled));
    assay_roll_experts(rolled, sharded_groups(run, chunk, shard), s->copies, first, experts);
    MUST(assay_permute_order(ctx, chunk->order + shard * s->copies, chunk->group_sizes + shard * experts, rolled,
                             &run->permute));
    memcpy(chunk->local_group_sizes + shard * s->local_experts,
           chunk->group_sizes + shard * experts + sharded_first_group(run, shard),
           (size_t)s->local_experts * sizeof *chunk->local_group_sizes);
    return ASSAY_OK;
}

static assay_status route_shards(assay_context *ctx, sharded_run *run, int64_t c)
{
    sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    MUST(assay_alloc(ctx, "routing of shards", s->shards, sizeof *chunk->routings, &chunk->routings));
    memset(chunk->routings, 0, (size_t)s->shards * sizeof *chunk->routings);
    MUST(assay_alloc_i32(ctx, "order of copies", s->shards * s->copies, &chunk->order));
    MUST(assay_alloc_i32(ctx, "group sizes", s->shards * run->permute.experts, &chunk->group_sizes));
    MUST(assay_alloc_i32(ctx, "local group sizes", s->shards * s->local_experts, &chunk->local_group_sizes));
    for (int64_t shard = 0; shard < s->shards; shard++) {
        const assay_routing_inputs inputs = sharded_routing_inputs(run, chunk, shard);
        assay_routing *routing = &chunk->routings[shard];
        MUST(assay_routing_alloc(ctx, routing, &run->routing));
        MUST(assay_routing_forward(ctx, routing, &inputs, &run->routing));
        assay_round(ctx, ASSAY_ROUND_ROUTER, s->copies, routing->weights);
    }
    MUST(place_choices(ctx, run, c));
    for (int64_t shard = 0; shard < s->shards; shard++) MUST(sort_copies(ctx, run, chunk, shard));
    return ASSAY_OK;
}

/* All shards and chunks go by the mean of their densities: they have equally many tokens, each as often as any other. */
static assay_status share_density(assay_context *ctx, sharded_run *run)
{
    const int64_t experts = run->routing.num_experts, shards = run->sizes.shards, parts = run->sizes.chunks * shards;
    OWNED double *mean = NULL;
    MUST(assay_alloc_zeros(ctx, "density of all shards", experts, &mean));
    for (int64_t i = 0; i < parts; i++) {
        const double *density = run->chunks[i / shards].routings[i % shards].density;
        for (int64_t e = 0; density != NULL && e < experts; e++) {
            const double share = density[e] / (double)parts;
            assay_add_scaled(ctx, 1, 1, &share, &mean[e]);
        }
    }
    for (int64_t i = 0; i < parts; i++) {
        assay_routing *routing = &run->chunks[i / shards].routings[i % shards];
        if (routing->density == NULL) continue;
        memcpy(routing->density, mean, (size_t)experts * sizeof *mean);
        MUST(assay_balance_loss(ctx, &routing->lb_loss, routing->probabilities, mean, &run->routing));
    }
    return ASSAY_OK;
}

static assay_status scale_tokens(assay_context *ctx, sharded_run *run, sharded_chunk *chunk)
{
    const int64_t tokens = run->permute.tokens;
    MUST(assay_alloc_f64(ctx, "token scales", run->sizes.shards * tokens, &chunk->gates));
    for (int64_t i = 0; i < run->sizes.shards * tokens; i++)
        chunk->gates[i] = assay_sigmoid(chunk->routings[i / tokens].weights[i % tokens]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, run->sizes.shards * tokens, chunk->gates);
    return ASSAY_OK;
}

assay_status sharded_route(assay_context *ctx, sharded_run *run)
{
    MUST(assay_alloc(ctx, "chunks of tokens", run->sizes.chunks, sizeof *run->chunks, &run->chunks));
    memset(run->chunks, 0, (size_t)run->sizes.chunks * sizeof *run->chunks);
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        sharded_chunk *chunk = &run->chunks[c];
        MUST(gather_inputs(ctx, run, c));
        MUST(route_shards(ctx, run, c));
        if (run->block->llama4) MUST(scale_tokens(ctx, run, chunk));
        if (run->sizes.exchanges) MUST(sharded_plan_traffic(ctx, run, chunk));
    }
    if (run->routing.balance_scope == ASSAY_BALANCE_GLOBAL) MUST(share_density(ctx, run));
    return ASSAY_OK;
}

static void free_chunk(sharded_chunk *chunk, int64_t shards)
{
    for (int64_t shard = 0; chunk->routings != NULL && shard < shards; shard++)
        assay_routing_free(&chunk->routings[shard]);
    void *const memory[] = {chunk->logits,
                            chunk->input_ids,
                            chunk->given_experts,
                            chunk->given_weights,
                            chunk->routings,
                            chunk->placed,
                            chunk->choice_sizes,
                            chunk->gates,
                            chunk->order,
                            chunk->group_sizes,
                            chunk->local_group_sizes,
                            chunk->local_sorted_indices,
                            chunk->reshaped_group_sizes,
                            chunk->all_shards_group_sizes,
                            chunk->d_weights};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    assay_ragged_params_free(&chunk->dispatch);
    assay_ragged_params_free(&chunk->combine);
}

void sharded_route_free(sharded_run *run)
{
    for (int64_t c = 0; run->chunks != NULL && c < run->sizes.chunks; c++)
        free_chunk(&run->chunks[c], run->sizes.shards);
    free(run->chunks);
}
