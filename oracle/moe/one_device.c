/* A block on one device: choices of all tokens at once, and the rows of one expert at a time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/moe/permute.h"
#include "oracle/ops/vector_sums.h"

static assay_status write_routing(assay_context *ctx, const moe_block *block)
{
    const assay_routing *routing = &block->router.routing;
    const int64_t slots = block->tokens * block->per_token;
    const int64_t choices = block->tokens * block->config->routing.num_experts_per_tok;
    MUST(moe_write_selecting(ctx, block, &block->router.inputs, 0, block->tokens, &block->config->routing));
    MUST(assay_write_result_i32(ctx, block->results.out, "routing/selected_experts", choices,
                                routing->selected_experts));
    MUST(moe_write(ctx, &block->results, MOE_WEIGHTS, choices, routing->weights));
    MUST(assay_write_result(ctx, block->results.out, "routing/margin", block->tokens, routing->margin));
    if (block->slot_ids != NULL)
        MUST(assay_write_result_i32(ctx, block->results.out, "routing/topk_ids", slots, block->slot_ids));
    MUST(moe_write(ctx, &block->results, MOE_SLOT_WEIGHTS, slots, block->slot_weights));
    if (block->config->local_num_experts > 0) {
        MUST(assay_write_result_i32(ctx, block->results.out, "routing/group_sizes", block->experts,
                                    routing->group_sizes));
        MUST(assay_write_result_i32(ctx, block->results.out, "routing/local_group_sizes", block->local_experts,
                                    block->group_sizes));
    } else {
        MUST(assay_write_result_i32(ctx, block->results.out, "routing/group_sizes", block->local_experts,
                                    block->group_sizes));
    }
    MUST(assay_write_result_i32(ctx, block->results.out, "routing/sorted_selected_experts", slots, block->order));
    MUST(moe_write(ctx, &block->results, MOE_LB_LOSS, 1, &routing->lb_loss));
    MUST(moe_write(ctx, &block->results, MOE_Z_LOSS, 1, &routing->z_loss));
    return moe_write(ctx, &block->results, MOE_BIAS_UPDATES, block->experts, routing->bias_updates);
}

/* Behind a token's choices: the fused shared experts. */
static assay_status add_slots(assay_context *ctx, moe_block *block)
{
    const assay_routing *routing = &block->router.routing;
    const int64_t slots = block->per_token, chosen = block->config->routing.num_experts_per_tok;
    const double shared = block->config->late_factor != 0 ? 1.0 / block->config->late_factor : 1.0;
    MUST(assay_alloc_i32(ctx, "routing/topk_ids", block->tokens * slots, &block->slot_ids));
    MUST(assay_alloc_f64(ctx, "routing/topk_weights", block->tokens * slots, &block->slot_weights));
    for (int64_t i = 0; i < block->tokens * slots; i++) {
        const int64_t slot = i % slots, choice = i / slots * chosen + slot;
        block->slot_ids[i] =
            slot < chosen ? routing->selected_experts[choice] : (int32_t)(block->experts + slot - chosen);
        block->slot_weights[i] = slot < chosen ? routing->weights[choice] : shared;
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * slots, block->slot_weights);
    return ASSAY_OK;
}

/* What the outputs of choices get of dy. */
static assay_status scale_dy(assay_context *ctx, moe_block *block)
{
    const int64_t count = block->tokens * block->emb_dim;
    if (block->config->late_factor == 0 || block->dy == NULL) return ASSAY_OK;
    const assay_status status = assay_alloc_f64(ctx, "cotangents of the experts", count, &block->scaled_dy);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++)
        block->scaled_dy[i] = block->config->late_factor * block->dy[i];
    if (status == ASSAY_OK) assay_round(ctx, ASSAY_ROUND_STORAGE, count, block->scaled_dy);
    return status;
}

static const double *routed_dy(const moe_block *block)
{
    return block->scaled_dy != NULL ? block->scaled_dy : block->dy;
}

static double weight_of(const moe_block *block, int64_t choice)
{
    return block->slot_weights != NULL ? block->slot_weights[choice] : block->router.routing.weights[choice];
}

/* The order once more, replica after replica of each expert. */
static assay_status choose_replicas(assay_context *ctx, moe_block *block, const assay_permute_dims *dims)
{
    const assay_replicas *replicas = block->placed;
    const int64_t choices = dims->tokens * dims->experts_per_token;
    const assay_permute_dims places = {dims->tokens, dims->experts_per_token, replicas->physical, dims->emb_dim};
    OWNED int32_t *physical = NULL;
    MUST(assay_alloc_i32(ctx, "physical experts", choices, &physical));
    MUST(assay_alloc_i32(ctx, "sizes of replicas", replicas->physical, &block->replica_sizes));
    assay_replicas_choose(replicas, physical, block->router.routing.selected_experts, NULL, dims);
    MUST(assay_write_result_i32(ctx, block->results.out, "routing/physical_experts", choices, physical));
    for (int64_t i = 0; i < choices; i++)
        physical[i] = physical[i] == ASSAY_NO_EXPERT ? ASSAY_NO_EXPERT : replicas->place[physical[i]];
    return assay_permute_order(ctx, block->order, block->replica_sizes, physical, &places);
}

assay_status moe_read_expert_map(assay_context *ctx, const moe_block *block, int32_t *map)
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
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s[%" PRId64 "] is %" PRId32 ", expected -1, or each number from 0 to %" PRId64 " once",
                          path, e, map[e], block->local_experts - 1);
    }
    return ASSAY_OK;
}

/* The choices by the experts that are here. */
static assay_status sort_choices(assay_context *ctx, moe_block *block)
{
    const int64_t choices = block->tokens * block->per_token;
    const assay_permute_dims dims = {block->tokens, block->per_token, block->local_experts, block->emb_dim};
    const int32_t *selected = block->slot_ids != NULL ? block->slot_ids : block->router.routing.selected_experts;
    OWNED int32_t *map = NULL, *local = NULL;
    if (block->config->local_num_experts == 0) {
        MUST(assay_permute_order(ctx, block->order, block->group_sizes, selected, &dims));
        return block->placed != NULL ? choose_replicas(ctx, block, &dims) : ASSAY_OK;
    }
    MUST(assay_alloc_i32(ctx, "expert map", block->experts, &map));
    MUST(assay_alloc_i32(ctx, "local ids", choices, &local));
    MUST(moe_read_expert_map(ctx, block, map));
    for (int64_t i = 0; i < choices; i++)
        local[i] = selected[i] == ASSAY_NO_EXPERT ? ASSAY_NO_EXPERT : map[selected[i]];
    return assay_permute_order(ctx, block->order, block->group_sizes, local, &dims);
}

static assay_status route(assay_context *ctx, moe_block *block)
{
    moe_router *router = &block->router;
    const assay_routing_config *config = &block->config->routing;
    const int64_t slots = block->tokens * block->per_token;
    MUST(assay_routing_alloc(ctx, &router->routing, config));
    MUST(assay_routing_forward(ctx, &router->routing, &router->inputs, config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * config->num_experts_per_tok, router->routing.weights);
    if (block->config->fused_shared_experts > 0) MUST(add_slots(ctx, block));
    MUST(scale_dy(ctx, block));
    MUST(assay_alloc_i32(ctx, "order of choices", slots, &block->order));
    MUST(assay_alloc_i32(ctx, "group sizes", block->local_experts, &block->group_sizes));
    MUST(assay_alloc_f64(ctx, "combine weights", slots, &block->combine));
    MUST(sort_choices(ctx, block));
    MUST(write_routing(ctx, block));
    if (block->llama4) MUST(moe_llama4_forward(ctx, block));
    return block->path->plan(ctx, block);
}

static int64_t row_count(const moe_block *block, int64_t expert, int64_t piece)
{
    const assay_replicas *replicas = block->placed;
    int64_t all = 0;
    for (int64_t e = 0; block->joined > 1 && e < block->local_experts; e++) all += block->group_sizes[e];
    if (block->joined > 1) return all;
    if (replicas == NULL) return block->path->row_count(block, expert);
    const int64_t place = replicas->first[expert] + piece;
    return place < replicas->first[expert + 1] ? block->replica_sizes[place] : 0;
}

static bool is_dense(const moe_block *block)
{
    return block->config->path == ASSAY_MOE_DENSE;
}

static assay_status alloc_rows(assay_context *ctx, moe_block *block, int64_t most)
{
    const int64_t dim = block->emb_dim, choices = block->tokens * block->per_token;
    /* One more: a row of zeros may follow the last group (dropping). */
    const int64_t kept = is_dense(block) ? block->tokens : choices + 1;
    MUST(assay_alloc_i32(ctx, "tokens of rows", most, &block->rows.tokens));
    MUST(assay_alloc_f64(ctx, "weights of rows", most, &block->rows.weights));
    MUST(assay_alloc_f64(ctx, "expert outputs", kept * dim, &block->expert_y));
    if (!is_dense(block)) MUST(assay_alloc_f64(ctx, "rows of x", most * dim, &block->rows_x));
    if (block->need_backward) MUST(assay_alloc_f64(ctx, "rows of dy", most * dim, &block->rows_dy));
    if (block->need_row_dx) MUST(assay_alloc_f64(ctx, "expert dx", kept * dim, &block->expert_dx));
    if (block->need_router_gradient) MUST(assay_alloc_zeros(ctx, "d_weights", choices, &block->d_weights));
    return ASSAY_OK;
}

static void free_rows(moe_block *block)
{
    free(block->rows.tokens);
    free(block->rows.weights);
    free(block->expert_y);
    free(block->expert_dx);
    free(block->rows_x);
    free(block->rows_dy);
    block->rows = (moe_rows){0};
    block->expert_y = block->expert_dx = block->rows_x = block->rows_dy = NULL;
}

/* Rows of the sparse path times the weights of their choices. */
static void weigh_rows(const assay_context *ctx, const moe_block *block, double *values)
{
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < block->rows.count; i++) {
        const double weight = weight_of(block, block->order[block->rows.first + i]);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++) values[d] *= weight;
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, block->rows.count * dim, values);
}

/* Of weights on x, from the gradient of x times the weight: d_weights = <x[token], it>, and dx of the copy. */
static void unweigh_rows(const assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < rows->count; i++) {
        if (!block->need_router_gradient) continue;
        block->d_weights[block->order[rows->first + i]] =
            assay_dot(ctx, dim, block->x + rows->tokens[i] * dim, rows->dx + i * dim);
    }
    weigh_rows(ctx, block, rows->dx);
}

static void gather_rows(assay_context *ctx, moe_block *block, int64_t expert, int64_t piece)
{
    moe_rows *rows = &block->rows;
    const double *x = block->llama4 ? block->scaled_x : block->x;
    rows->expert = expert;
    rows->group_sizes = block->group_sizes;
    rows->first = 0;
    for (int64_t e = 0; e < expert; e++) rows->first += block->group_sizes[e];
    for (int64_t before = 0; before < piece; before++) rows->first += row_count(block, expert, before);
    rows->size =
        block->placed != NULL || block->joined > 1 ? row_count(block, expert, piece) : block->group_sizes[expert];
    rows->count = row_count(block, expert, piece);
    rows->x = is_dense(block) ? x : block->rows_x;
    rows->dy = block->rows_dy;
    block->path->gather_rows(block);
    if (!is_dense(block)) moe_gather(ctx, block->rows_x, x, rows->tokens, NULL, rows->count, block->emb_dim);
    if (block->config->weight_on_input) weigh_rows(ctx, block, block->rows_x);
}

/* d_weights[t,k] = <output of the choice, dy[t]>. */
static void weight_gradients(const assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    const int64_t dim = block->emb_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t j = 0; j < rows->size; j++) {
        const int64_t choice = block->order[rows->first + j], token = choice / block->per_token;
        const double *y = rows->y + moe_row_of(block, j) * dim;
        block->d_weights[choice] = assay_dot(ctx, dim, y, routed_dy(block) + token * dim);
    }
}

static void give_dy(assay_context *ctx, moe_block *block)
{
    const moe_rows *rows = &block->rows;
    if (block->need_router_gradient && !block->llama4 && !block->config->weight_on_input) weight_gradients(ctx, block);
    if (!block->need_backward) return;
    moe_gather(ctx, block->rows_dy, routed_dy(block), rows->tokens, rows->weights, rows->count, block->emb_dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows->count * block->emb_dim, block->rows_dy);
}

static void combine(assay_context *ctx, moe_block *block)
{
    if (block->config->weight_on_input && block->need_row_dx) unweigh_rows(ctx, block);
    if (block->path->combine != NULL) block->path->combine(ctx, block);
}

static assay_status finish(assay_context *ctx, moe_block *block)
{
    if (block->path->finish != NULL) MUST(block->path->finish(ctx, block));
    if (block->config->late_factor != 0 && block->need_y) {
        const int64_t count = block->tokens * block->emb_dim;
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, block->y);
        for (int64_t i = 0; i < count; i++) block->y[i] *= block->config->late_factor;
    }
    if (block->llama4 && block->need_row_dx) {
        moe_llama4_unscale(ctx, block->d_weights, block->dx, block->x, block->gate, block->router.routing.weights,
                           block->tokens, block->emb_dim);
    }
    return ASSAY_OK;
}

static assay_status route_backward(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale)
{
    moe_router *router = &block->router;
    const int64_t chosen = block->config->routing.num_experts_per_tok;
    for (int64_t t = 1; chosen < block->per_token && t < block->tokens; t++)
        memmove(block->d_weights + t * chosen, block->d_weights + t * block->per_token,
                (size_t)chosen * sizeof *block->d_weights);
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * chosen, block->d_weights);
    const assay_status status =
        assay_routing_backward(ctx, router->d_logits, d_bias, d_scale, block->d_weights, router->d_lb_loss[0],
                               router->d_z_loss[0], &router->routing, &router->inputs, &block->config->routing);
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * block->experts, router->d_logits);
    return status;
}

static assay_status given_backward(assay_context *ctx, moe_block *block, double *d_weights)
{
    const int64_t choices = block->tokens * block->per_token;
    assay_round(ctx, ASSAY_ROUND_ROUTER, choices, block->d_weights);
    memcpy(d_weights, block->d_weights, (size_t)choices * sizeof *d_weights);
    return ASSAY_OK;
}

const moe_placement moe_one_device = {.route = route,
                                      .row_count = row_count,
                                      .alloc_rows = alloc_rows,
                                      .free_rows = free_rows,
                                      .gather_rows = gather_rows,
                                      .give_dy = give_dy,
                                      .combine = combine,
                                      .finish = finish,
                                      .route_backward = route_backward,
                                      .given_backward = given_backward};
