/* The MoE block: y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]), plus the shared expert's gated MLP of x[t]. */
#include <string.h>

#include "oracle/quad/quad_blocks.h"
#include "oracle/quad/quad_internal.h"

static int64_t slots_of(const assay_moe_config *config)
{
    return config->routing.num_experts_per_tok + config->fused_shared_experts;
}

/* --- rows of each path --- */

/* Places of an expert in a batch row. */
static int64_t capacity_of(const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t choices = routing->sequence * routing->num_experts_per_tok;
    int64_t average = (choices + routing->num_experts - 1) / routing->num_experts;
    /* In float64, as Python does it: the product of 10 and 0.7 is 7. */
    double factor = config->capacity_factor, room = (double)average * factor;
    return (int64_t)(room > factor ? room : factor);
}

/* The place of a choice: its rank in (s,k) order among the choices of its expert in its batch row. */
static int64_t position_of(const assay_moe_config *config, const int32_t *selected, int64_t choice)
{
    const int64_t in_row = config->routing.sequence * config->routing.num_experts_per_tok;
    int64_t rank = 0;
    for (int64_t i = choice / in_row * in_row; i < choice; i++) rank += selected[i] == selected[choice];
    return rank;
}

/* Places that no choice has taken hold what an expert makes of a row of zeros. */
static void list_dropping(quad_tape *t, const assay_moe_config *c, const int32_t *selected, quad_expert_rows *rows)
{
    const assay_routing_config *r = &c->routing;
    const int64_t room = capacity_of(c), k = r->num_experts_per_tok, in_row = r->sequence * k;
    if (quad_rows_alloc(t, r->num_experts * r->batch * room, rows) != ASSAY_OK) return;
    for (int64_t row = 0; row < rows->count; row++) rows->expert[row] = row / (r->batch * room);
    for (int64_t choice = 0; choice < r->batch * in_row; choice++) {
        const int64_t e = selected[choice], position = position_of(c, selected, choice);
        if (position >= room || e < 0) continue;
        const int64_t row = (e * r->batch + choice / in_row) * room + position;
        rows->token[row] = rows->to[row] = choice / k;
        rows->choice[row] = choice;
    }
}

/* Every expert on every token, of which those that are chosen count. */
static void list_dense(quad_tape *t, const assay_moe_config *c, const int32_t *selected, quad_expert_rows *rows)
{
    const int64_t experts = c->routing.num_experts, k = c->routing.num_experts_per_tok;
    if (quad_rows_alloc(t, quad_tokens(&c->routing) * experts, rows) != ASSAY_OK) return;
    for (int64_t row = 0; row < rows->count; row++) {
        rows->expert[row] = row % experts;
        rows->token[row] = row / experts;
    }
    for (int64_t i = 0; i < quad_tokens(&c->routing) * k; i++) {
        if (selected[i] < 0) continue;
        rows->to[i / k * experts + selected[i]] = i / k;
        rows->choice[i / k * experts + selected[i]] = i;
    }
}

/* Copies of tokens by their experts; behind the choices of a token come the experts that all have. */
static void list_sorted(quad_tape *t, const assay_moe_config *c, const int32_t *selected, const int32_t *order,
                        quad_expert_rows *rows)
{
    const int64_t k = c->routing.num_experts_per_tok, slots = slots_of(c);
    if (quad_rows_alloc(t, quad_tokens(&c->routing) * slots, rows) != ASSAY_OK) return;
    for (int64_t row = 0; row < rows->count; row++) {
        if (order[row] < 0) continue;
        const int64_t token = order[row] / slots, slot = order[row] % slots;
        rows->token[row] = rows->to[row] = token;
        rows->choice[row] = slot < k ? token * k + slot : -1;
        rows->expert[row] = slot < k ? selected[token * k + slot] : c->routing.num_experts + slot - k;
    }
}

/* dense [B,S,E], dropping [E,B,C], sorted [T*K] otherwise */
static assay_shape shape_of_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return assay_shape_of(3, r->batch, r->sequence, r->num_experts);
    if (config->path == ASSAY_MOE_DROPPING) return assay_shape_of(3, r->num_experts, r->batch, capacity_of(config));
    return assay_shape_of(1, quad_tokens(&config->routing) * slots_of(config));
}

/* --- what routing lists --- */

/* combine_mask [B,S,E,C] holds the weight of a choice at its expert and position; dispatch_mask where it is not 0. */
static void put_masks(quad_tape *t, const assay_moe_config *c, const quad_router *r)
{
    const assay_routing_config *routing = &c->routing;
    const int64_t experts = routing->num_experts, k = routing->num_experts_per_tok, room = capacity_of(c);
    const assay_shape shape = assay_shape_of(4, routing->batch, routing->sequence, experts, room);
    const int64_t count = assay_shape_count(&shape);
    quad *combine;
    int32_t *dispatch = quad_put_indices(t, "routing/dispatch_mask", shape);
    quad_put(t, "routing/combine_mask", shape, quad_constant(t, quad_tokens(&c->routing), experts * room, &combine));
    if (t->status != ASSAY_OK) return;
    for (int64_t i = 0; i < count; i++) combine[i] = 0;
    for (int64_t choice = 0; choice < quad_tokens(&c->routing) * k; choice++) {
        const int64_t position = position_of(c, r->selected, choice);
        if (position >= room || r->selected[choice] < 0) continue;
        combine[(choice / k * experts + r->selected[choice]) * room + position] = quad_values(t, r->weights)[choice];
    }
    for (int64_t i = 0; i < count; i++) dispatch[i] = combine[i] != 0;
}

/* The ids of all slots, [T,K+n]: the choices, and behind them the experts that all have; put with their weights where there are such. */
static const int32_t *slots_ids(quad_tape *t, const assay_moe_config *c, const quad_router *r)
{
    const int64_t k = c->routing.num_experts_per_tok, slots = slots_of(c), count = quad_tokens(&c->routing) * slots;
    const assay_shape shape = assay_shape_of(3, c->routing.batch, c->routing.sequence, slots);
    quad *weights;
    if (slots == k) return r->selected;
    int32_t *ids = quad_put_indices(t, "routing/topk_ids", shape);
    quad_put(t, "routing/topk_weights", shape, quad_constant(t, quad_tokens(&c->routing), slots, &weights));
    for (int64_t i = 0; t->status == ASSAY_OK && i < count; i++) {
        const int64_t slot = i % slots, choice = i / slots * k + slot;
        const quad rest = c->late_factor != 0 ? 1 / (quad)c->late_factor : 1;
        ids[i] = slot < k ? r->selected[choice] : (int32_t)(c->routing.num_experts + slot - k);
        weights[i] = slot < k ? quad_values(t, r->weights)[choice] : rest;
    }
    return ids;
}

/* The order of the copies, and how many each expert has. With local experts the order is of those that are here. */
static const int32_t *put_order(quad_tape *t, const assay_moe_config *c, const int32_t *ids, const int32_t *local)
{
    const int64_t copies = quad_tokens(&c->routing) * slots_of(c),
                  experts = c->routing.num_experts + c->fused_shared_experts;
    int32_t *order = quad_put_indices(t, "routing/sorted_selected_experts", assay_shape_of(1, copies));
    int32_t *sizes = quad_put_indices(t, "routing/group_sizes", assay_shape_of(1, experts));
    if (t->status == ASSAY_OK) quad_sort_by_expert(copies, ids, experts, order, sizes);
    if (local == NULL) return order;
    sizes = quad_put_indices(t, "routing/local_group_sizes", assay_shape_of(1, c->local_num_experts));
    if (t->status == ASSAY_OK) quad_sort_by_expert(copies, local, c->local_num_experts, order, sizes);
    return order;
}

/* --- the block --- */

static quad_node one_device(quad_tape *t, const quad_moe_config *both, quad_node x)
{
    const assay_moe_config *c = &both->moe;
    const quad_router r = quad_route(t, &c->routing, x);
    const quad_losses losses = quad_losses_of(t, &c->routing, &r, r.selected);
    quad_put_losses(t, &c->routing, &losses);
    if (t->status != ASSAY_OK) return 0;
    const int32_t *local = c->local_num_experts > 0 ? quad_local_experts(t, c, r.selected) : NULL;
    const int32_t *ids = slots_ids(t, c, &r), *selected = local != NULL ? local : r.selected;
    const int32_t *order = put_order(t, c, ids, local);
    quad_expert_rows rows = {0};
    quad_mlp m;
    quad_experts_of(t, both, &m);
    if (t->status != ASSAY_OK) return 0;
    if (c->path == ASSAY_MOE_DROPPING) {
        list_dropping(t, c, selected, &rows);
        put_masks(t, c, &r);
    } else if (c->path == ASSAY_MOE_DENSE) {
        list_dense(t, c, selected, &rows);
    } else {
        list_sorted(t, c, selected, order, &rows);
    }
    if (c->physical_experts > 0) quad_put_replicas(t, c, r.selected);
    if (t->status != ASSAY_OK) return 0;
    const quad_node y = quad_expert_sum(t, both, x, &r, &rows, &m);
    const quad_mlp_layout layout = {.rows = shape_of_rows(c)};
    quad_put_mlp(t, &m, ASSAY_MLP_ROUTED, &layout);
    return y;
}

quad_node quad_moe_of(quad_tape *t, const quad_moe_config *config, quad_node x)
{
    const quad_node routed = (quad_is_sharded(config) ? quad_sharded_experts : one_device)(t, config, x);
    return quad_add(t, routed, quad_shared_of(t, &config->moe, x));
}

void quad_moe(quad_tape *t, const void *config)
{
    const assay_moe_config *c = &((const quad_moe_config *)config)->moe;
    const quad_node x = quad_input(t, "inputs/x", quad_tokens(&c->routing), c->emb_dim);
    quad_put(t, "outputs/y", quad_shape_of(t, "inputs/x"), quad_moe_of(t, config, x));
}

bool quad_moe_streams(const void *of, const char *path)
{
    const quad_moe_config *config = of;
    const bool streams = !quad_is_sharded(config) && config->moe.recipe.recipe == NULL;
    const assay_gated_mlp_config expert = {
        .emb_dim = config->moe.emb_dim, .mlp_dim = config->moe.moe_mlp_dim, .fused = config->moe.fused_weights};
    const assay_tensor_table weights = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    for (int i = 0; i < weights.count && streams; i++) {
        char own[ASSAY_PATH_SIZE];
        if (weights.rows[i].name == NULL || weights.rows[i].kind == ASSAY_BIAS) continue;
        assay_tensor_path("weights/", "", &weights.rows[i], own);
        if (strcmp(own, path) == 0) return true;
    }
    return false;
}
