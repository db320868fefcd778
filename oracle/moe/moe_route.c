/* Every site routes its tokens: choices, and the order of their copies by expert; and the way back to the logits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/balance.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

/* --- what sites route --- */

static const double *at(const double *values, int64_t first)
{
    return values == NULL ? NULL : values + first;
}

static const int32_t *ids_at(const int32_t *ids, int64_t first)
{
    return ids == NULL ? NULL : ids + first;
}

static assay_status set_inputs(assay_context *ctx, moe_block *block)
{
    const moe_router *router = &block->router;
    const int64_t experts = block->experts, chosen = block->chosen, tokens = block->permute.tokens;
    const void *logits, *weights, *ids, *choice;
    MUST(moe_give_sites(ctx, block, "logits of sites", (size_t)experts * sizeof(double), router->logits,
                        (void **)&block->of_sites[0], &logits));
    MUST(moe_give_sites(ctx, block, "routing_weights of sites", (size_t)chosen * sizeof(double), router->given_weights,
                        (void **)&block->of_sites[1], &weights));
    MUST(moe_give_sites(ctx, block, "input_ids of sites", sizeof(int32_t), router->input_ids,
                        (void **)&block->site_ids[0], &ids));
    MUST(moe_give_sites(ctx, block, "selected_experts of sites", (size_t)chosen * sizeof(int32_t),
                        router->given_experts, (void **)&block->site_ids[1], &choice));
    for (int64_t site = 0; site < block->sites; site++) {
        const int64_t first = site * tokens;
        block->site[site].inputs = (assay_routing_inputs){.logits = at(logits, first * experts),
                                                          .bias = router->bias,
                                                          .per_expert_scale = router->per_expert_scale,
                                                          .tid2eid = router->tid2eid,
                                                          .input_ids = ids_at(ids, first),
                                                          .given_experts = ids_at(choice, first * chosen),
                                                          .choice_is_input = router->choice_is_input,
                                                          .given_weights = at(weights, first * chosen)};
    }
    return ASSAY_OK;
}

static assay_status choose(assay_context *ctx, moe_block *block)
{
    const int64_t slots = block->permute.experts_per_token, chosen = block->chosen, tokens = block->permute.tokens;
    const double shared = block->config->late_factor != 0 ? 1.0 / block->config->late_factor : 1.0;
    const int64_t copies = block->sites * block->sizes.copies;
    MUST(assay_alloc_f64(ctx, "weights of copies", copies, &block->weights));
    if (slots > chosen) MUST(assay_alloc_i32(ctx, "routing/topk_ids", copies, &block->slot_ids));
    for (int64_t site = 0; site < block->sites; site++) {
        assay_routing *routing = &block->site[site].routing;
        MUST(assay_routing_alloc(ctx, routing, &block->routing));
        MUST(assay_routing_forward(ctx, routing, &block->site[site].inputs, &block->routing));
        assay_round(ctx, ASSAY_ROUND_ROUTER, tokens * chosen, routing->weights);
        for (int64_t i = 0; i < tokens * slots; i++) {
            const int64_t slot = i % slots, choice = i / slots * chosen + slot, copy = site * tokens * slots + i;
            const bool routed = slot < chosen;
            block->weights[copy] = routed ? routing->weights[choice] : shared;
            if (slots == chosen) continue;
            block->slot_ids[copy] =
                routed ? routing->selected_experts[choice] : (int32_t)(block->experts + slot - chosen);
        }
    }
    if (slots > chosen) assay_round(ctx, ASSAY_ROUND_ROUTER, copies, block->weights);
    return ASSAY_OK;
}

/* --- what copies are sorted by --- */

/* map [E]: the number of each expert here, -1 where it is elsewhere. */
static assay_status read_expert_map(assay_context *ctx, const moe_block *block, int32_t *map)
{
    static const char path[] = "inputs/expert_map";
    const assay_source *in = block->in;
    bool *taken = NULL;
    OWNED void *memory = NULL;
    for (int64_t e = 0; e < block->experts; e++) {
        const int64_t local = e - block->config->local_expert_offset;
        map[e] = local >= 0 && local < block->local_experts ? (int32_t)local : ASSAY_NO_EXPERT;
    }
    if (!in->has(in->self, path)) return ASSAY_OK;
    MUST(in->read_i32(ctx, in->self, path, 0, block->experts, map));
    MUST(assay_alloc(ctx, path, block->local_experts, sizeof *taken, &memory));
    taken = memset(memory, 0, (size_t)block->local_experts * sizeof *taken);
    for (int64_t e = 0; e < block->experts; e++) {
        const bool here = map[e] >= 0 && map[e] < block->local_experts;
        if (map[e] == ASSAY_NO_EXPERT || (here && !taken[map[e]])) {
            if (here) taken[map[e]] = true;
            continue;
        }
        return assay_refuse(ctx,
                            "%s[%" PRId64 "] is %" PRId32 ", expected -1, or each number from 0 to %" PRId64 " once",
                            path, e, map[e], block->local_experts - 1);
    }
    return ASSAY_OK;
}

/* By an expert's number among a rank's own, or by replicas, which take turns by the token's number. */
static assay_status place_choices(assay_context *ctx, moe_block *block)
{
    const int64_t copies = block->sizes.copies;
    const bool local = block->config->local_num_experts > 0;
    OWNED int32_t *map = NULL;
    if (block->replicas.first == NULL && !local) return ASSAY_OK;
    MUST(assay_alloc_i32(ctx, "groups of copies", block->sites * copies, &block->placed));
    if (local) MUST(assay_alloc_i32(ctx, "expert map", block->experts, &map));
    if (local) MUST(read_expert_map(ctx, block, map));
    for (int64_t site = 0; site < block->sites; site++) {
        const int32_t *selected = block->site[site].routing.selected_experts;
        int32_t *placed = block->placed + site * copies;
        if (!local)
            assay_replicas_choose(&block->replicas, placed, selected, block->token_of + site * block->permute.tokens,
                                  &block->permute);
        for (int64_t i = 0; local && i < copies; i++)
            placed[i] = selected[i] == ASSAY_NO_EXPERT ? ASSAY_NO_EXPERT : map[selected[i]];
        for (int64_t i = 0; !local && !block->sharded && i < copies; i++)
            placed[i] = placed[i] == ASSAY_NO_EXPERT ? ASSAY_NO_EXPERT : block->replicas.place[placed[i]];
    }
    return ASSAY_OK;
}

/* With the ring ids are rolled so that a shard's own experts come first. */
static assay_status sort_copies(assay_context *ctx, moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t groups = block->permute.experts;
    OWNED int32_t *ids = NULL;
    MUST(assay_alloc_i32(ctx, "order of copies", block->sites * s->copies, &block->order));
    MUST(assay_alloc_i32(ctx, "group sizes", block->sites * groups, &block->group_sizes));
    MUST(assay_alloc_i32(ctx, "groups of copies", s->copies, &ids));
    for (int64_t site = 0; site < block->sites; site++) {
        const int64_t index = assay_mesh_index(&block->mesh, site % s->shards, ASSAY_AXIS_EXPERT);
        const int64_t first = block->sharding->ring_of_experts ? index * s->local_experts : 0;
        for (int64_t i = 0; i < s->copies; i++) ids[i] = moe_group_of_copy(block, site * s->copies + i);
        assay_roll_experts(ids, s->copies, first, groups);
        MUST(assay_permute_order(ctx, block->order + site * s->copies, block->group_sizes + site * groups, ids,
                                 &block->permute));
    }
    return ASSAY_OK;
}

/* --- losses and scales of tokens --- */

/* All sites go by the mean of their densities: they have equally many tokens, each as often as any other. */
static assay_status share_density(assay_context *ctx, moe_block *block)
{
    const int64_t experts = block->experts;
    OWNED double *mean = NULL;
    MUST(assay_alloc_zeros(ctx, "density of all shards", experts, &mean));
    for (int64_t i = 0; i < block->sites; i++) {
        const double *density = block->site[i].routing.density;
        for (int64_t e = 0; density != NULL && e < experts; e++) {
            const double share = density[e] / (double)block->sites;
            assay_add_scaled(ctx, 1, 1, &share, &mean[e]);
        }
    }
    for (int64_t i = 0; i < block->sites; i++) {
        assay_routing *routing = &block->site[i].routing;
        if (routing->density == NULL) continue;
        memcpy(routing->density, mean, (size_t)experts * sizeof *mean);
        MUST(assay_balance_loss(ctx, &routing->lb_loss, routing->probabilities, mean, &block->routing));
    }
    return ASSAY_OK;
}

/* llama4 scales a token by the sigmoid of its one choice's weight before the experts, and combines with weight 1. */
static assay_status scale_tokens(assay_context *ctx, moe_block *block)
{
    const int64_t tokens = block->tokens, dim = block->emb_dim;
    MUST(assay_alloc_f64(ctx, "token scale", tokens, &block->gate));
    MUST(assay_alloc_f64(ctx, "scaled x", tokens * dim, &block->scaled_x));
    for (int64_t t = 0; t < tokens; t++)
        block->gate[t] = assay_sigmoid(block->weights[block->places[t * block->routers]]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, tokens, block->gate);
    moe_gather(ctx, block->scaled_x, block->x, NULL, block->gate, tokens, dim);
    if (block->sharded) assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * dim, block->scaled_x);
    return ASSAY_OK;
}

assay_status moe_route(assay_context *ctx, moe_block *block)
{
    void *memory = NULL;
    MUST(assay_alloc(ctx, "sites", block->sites, sizeof *block->site, &memory));
    block->site = memset(memory, 0, (size_t)block->sites * sizeof *block->site);
    MUST(moe_list_tokens(ctx, block));
    MUST(set_inputs(ctx, block));
    MUST(choose(ctx, block));
    MUST(place_choices(ctx, block));
    MUST(sort_copies(ctx, block));
    MUST(moe_list_rows(ctx, block));
    if (block->sharded && block->routing.balance_scope == ASSAY_BALANCE_GLOBAL) MUST(share_density(ctx, block));
    if (block->llama4) MUST(scale_tokens(ctx, block));
    return moe_write_routing(ctx, block);
}

void moe_route_free(moe_block *block)
{
    for (int64_t i = 0; block->site != NULL && i < block->sites; i++) assay_routing_free(&block->site[i].routing);
    void *const memory[] = {block->of_sites[0],
                            block->of_sites[1],
                            block->site_ids[0],
                            block->site_ids[1],
                            block->site,
                            block->token_of,
                            block->places,
                            block->slot_ids,
                            block->placed,
                            block->order,
                            block->group_sizes,
                            block->local_group_sizes,
                            block->copy_of,
                            block->row_of,
                            block->local_sorted_indices,
                            block->reshaped_group_sizes,
                            block->all_shards_group_sizes,
                            block->weights,
                            block->d_weights,
                            block->slots.row,
                            block->gate,
                            block->scaled_x};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* --- backward --- */

/* Of choices alone [sites,tokens,chosen], in place: fused shared experts have no weights of their own. */
static void leave_out_slots(moe_block *block)
{
    const int64_t slots = block->permute.experts_per_token, chosen = block->chosen;
    for (int64_t t = 1; chosen < slots && t < block->sites * block->permute.tokens; t++)
        memmove(block->d_weights + t * chosen, block->d_weights + t * slots, (size_t)chosen * sizeof *block->d_weights);
}

assay_status moe_given_backward(assay_context *ctx, moe_block *block, double *d_weights)
{
    leave_out_slots(block);
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->sites * block->permute.tokens * block->chosen, block->d_weights);
    moe_collect(ctx, block, block->chosen, ASSAY_ROUND_ROUTER, d_weights, block->d_weights);
    return ASSAY_OK;
}

/* The gradient of a tensor [E] is the sum of the sites'. */
static void join(const assay_context *ctx, double *sum, double *term, int64_t count)
{
    if (sum != NULL && sum != term) graph_join(ctx, count, sum, term);
}

assay_status moe_route_backward(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale)
{
    const moe_router *router = &block->router;
    const int64_t tokens = block->permute.tokens, experts = block->experts, losses = block->losses;
    const double parts = (double)(block->sites / losses); /* of a loss */
    double *d_sites = router->d_logits;
    OWNED double *d_of_sites = NULL, *terms = NULL;
    if (block->sites > 1) {
        MUST(assay_alloc_f64(ctx, "d_logits of sites", block->sites * tokens * experts, &d_of_sites));
        MUST(assay_alloc_f64(ctx, "gradients of the gate", 2 * experts, &terms));
        d_sites = d_of_sites;
    }
    leave_out_slots(block);
    for (int64_t site = 0; site < block->sites; site++) {
        double *d_weights = block->d_weights + site * tokens * block->chosen;
        double *d_logits = d_sites + site * tokens * experts;
        double *bias = d_bias == NULL || site == 0 ? d_bias : terms;
        double *scale = d_scale == NULL || site == 0 ? d_scale : terms + experts;
        const int64_t loss = site % block->sizes.shards % losses;
        assay_round(ctx, ASSAY_ROUND_ROUTER, tokens * block->chosen, d_weights);
        MUST(assay_routing_backward(ctx, d_logits, bias, scale, d_weights, router->d_lb_loss[loss] / parts,
                                    router->d_z_loss[loss] / parts, &block->site[site].routing,
                                    &block->site[site].inputs, &block->routing));
        assay_round(ctx, ASSAY_ROUND_ROUTER, tokens * experts, d_logits);
        join(ctx, d_bias, bias, experts);
        join(ctx, d_scale, scale, experts);
    }
    moe_collect(ctx, block, experts, ASSAY_ROUND_ROUTER, router->d_logits, d_sites);
    return ASSAY_OK;
}
