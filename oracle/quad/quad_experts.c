/* What experts make of rows, and the shared expert of all tokens. */
#include "oracle/quad/quad_blocks.h"

assay_status quad_rows_alloc(quad_tape *t, int64_t count, quad_expert_rows *rows)
{
    int64_t **const lists[] = {&rows->expert, &rows->token, &rows->choice, &rows->to};
    rows->count = count;
    for (int i = 0; i < 4; i++) {
        *lists[i] = quad_indices(t, count);
        for (int64_t row = 0; *lists[i] != NULL && row < count; row++) (*lists[i])[row] = -1;
    }
    return t->status;
}

void quad_experts_of(quad_tape *t, const quad_moe_config *both, quad_mlp *m)
{
    const assay_moe_config *c = &both->moe;
    const int64_t all = c->routing.num_experts + c->fused_shared_experts;
    *m = (quad_mlp){.w13_shards = both->w13_shards,
                    .config = {.emb_dim = c->emb_dim,
                               .mlp_dim = c->moe_mlp_dim,
                               .activation = {c->activation, ASSAY_LINEAR},
                               .glu = c->glu,
                               .limit = c->limit,
                               .fused = c->fused_weights,
                               .hidden = c->hidden,
                               .recipe = c->recipe}};
    quad_mlp_weights(t, m, ASSAY_MLP_ROUTED, c->local_num_experts > 0 ? c->local_num_experts : all);
    quad_gather_kernels(t, both, m);
}

/* The replica of each choice: of those of its expert, by ascending id, the one at the token modulo their count. */
const int32_t *quad_put_replicas(quad_tape *t, const assay_moe_config *c, const int32_t *selected)
{
    const int64_t k = c->routing.num_experts_per_tok;
    const int32_t *map = quad_input_indices(t, "inputs/physical_to_logical_map", c->physical_experts);
    int32_t *physical =
        quad_put_indices(t, "routing/physical_experts", assay_shape_of(3, c->routing.batch, c->routing.sequence, k));
    for (int64_t i = 0; t->status == ASSAY_OK && i < quad_tokens(&c->routing) * k; i++) {
        int64_t replicas = 0, passed = 0;
        physical[i] = -1; /* a slot of none */
        for (int64_t p = 0; p < c->physical_experts; p++) replicas += map[p] == selected[i];
        for (int32_t p = 0; p < c->physical_experts; p++) {
            if (map[p] == selected[i] && passed++ == i / k % replicas) physical[i] = p;
        }
    }
    return physical;
}

/* The choices by the numbers that experts have here, -1 elsewhere. */
const int32_t *quad_local_experts(quad_tape *t, const assay_moe_config *c, const int32_t *selected)
{
    const int64_t choices = quad_tokens(&c->routing) * c->routing.num_experts_per_tok, here = c->local_num_experts;
    const int32_t *map = quad_input_indices_optional(t, "inputs/expert_map", c->routing.num_experts);
    int32_t *local = quad_keep(t, choices, sizeof *local);
    for (int64_t i = 0; local != NULL && i < choices; i++) {
        const int64_t expert = selected[i], own = expert - c->local_expert_offset;
        local[i] = (int32_t)(expert < 0 ? -1 : map != NULL ? map[expert] : own >= 0 && own < here ? own : -1);
    }
    return local;
}

/* Of each row the weight of its choice, or 1 in its place; `rest` of a row without one. */
static quad_node weights_of_rows(quad_tape *t, const quad_router *r, const quad_expert_rows *rows, bool of_choices,
                                 quad rest)
{
    quad *constants;
    const quad_node parts[] = {quad_view(t, r->weights, 1), quad_constant(t, 2, 1, &constants)};
    const int64_t choices = quad_rows(t, parts[0]);
    int64_t *index = quad_indices(t, rows->count);
    if (index == NULL || constants == NULL) return 0;
    constants[0] = 1;
    constants[1] = rest;
    for (int64_t row = 0; row < rows->count; row++)
        index[row] = rows->choice[row] < 0 ? choices + 1 : of_choices ? rows->choice[row] : choices;
    return quad_gather(t, quad_concatenate(t, parts, 2), index, rows->count);
}

quad_node quad_expert_sum(quad_tape *t, const quad_moe_config *both, quad_node x, const quad_router *r,
                          const quad_expert_rows *rows, quad_mlp *m)
{
    const assay_moe_config *c = &both->moe;
    const bool scales_x = c->routing.family == ASSAY_ROUTER_LLAMA4, early = both->sharding.weight_before_wo;
    const bool weighed = scales_x || early || c->weight_on_input;
    const quad late = c->late_factor != 0 ? c->late_factor : 1; /* of what is routed alone */
    quad_node in = quad_gather(t, x, rows->token, rows->count);
    if (scales_x) { /* whose one choice is the token's */
        const quad_node factors = quad_map(t, quad_view(t, r->weights, 1), QUAD_SIGMOID);
        in = quad_weigh(t, in, quad_gather(t, factors, rows->token, rows->count));
    }
    if (c->weight_on_input) in = quad_weigh(t, in, weights_of_rows(t, r, rows, true, 1));
    m->group = rows->expert;
    quad_mlp_run(t, m, in);
    if (early) m->y = quad_weigh(t, m->y, weights_of_rows(t, r, rows, true, 1));
    const quad_node out = quad_weigh(t, m->y, weights_of_rows(t, r, rows, !weighed, 1 / late));
    const quad_node y = quad_scatter(t, out, rows->to, quad_tokens(&c->routing));
    return c->late_factor != 0 ? quad_times(t, y, late) : y;
}

quad_node quad_shared_of(quad_tape *t, const assay_moe_config *c, quad_node x)
{
    quad_mlp m = {.config = {.emb_dim = c->emb_dim,
                             .mlp_dim = c->shared_mlp_dim,
                             .activation = {c->activation, ASSAY_LINEAR},
                             .hidden = c->hidden,
                             .recipe = c->recipe}};
    const quad_mlp_layout layout = {.rows = assay_shape_of(2, c->routing.batch, c->routing.sequence)};
    if (c->shared_mlp_dim == 0) return 0;
    quad_mlp_weights(t, &m, ASSAY_MLP_SHARED, 1);
    quad_mlp_run(t, &m, x);
    quad_put_mlp(t, &m, ASSAY_MLP_SHARED, &layout);
    if (!c->shared_gate) return m.y;
    const quad_node gate = quad_input(t, "weights/shared_expert_gate/kernel", c->emb_dim, 1);
    return quad_weigh(t, m.y, quad_map(t, quad_linear(t, (quad_layer){.x = x, .w = gate}), QUAD_SIGMOID));
}
