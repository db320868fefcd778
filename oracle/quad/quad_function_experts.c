/* Choosing experts, sorting rows by them and back, what they compute, and the stages of the MoE half. */
#include <string.h>

#include "oracle/quad/quad_function.h"
#include "oracle/quad/quad_internal.h"

/* --- choosing --- */

static void expert_group_mask(quad_call *c)
{
    assay_routing_config config = *c->routing;
    const int64_t experts = config.num_experts, tokens = c->s.shards * c->s.tokens;
    const int64_t groups = config.n_routing_groups > 0 ? config.n_routing_groups : 1;
    bool *allowed = quad_keep(c->t, experts, sizeof *allowed);
    int32_t *selected = quad_keep(c->t, experts, sizeof *selected);
    const quad *logits = quad_values(c->t, quad_in_all(c, "inputs/gate_logits", experts));
    quad margin, *mask;
    quad_give(c, "outputs/mask", 0, 1, quad_constant(c->t, tokens, experts, &mask));
    /* every allowed expert is chosen */
    config.num_experts_per_tok = experts / groups * (config.n_routing_groups > 0 ? config.topk_routing_group : 1);
    for (int64_t token = 0; c->t->status == ASSAY_OK && token < tokens; token++) {
        c->t->status = quad_select(c->t->ctx, &config, logits + token * experts, allowed, selected, &margin);
        for (int64_t e = 0; c->t->status == ASSAY_OK && e < experts; e++)
            mask[token * experts + e] = allowed[e] ? 1 : 0;
    }
}

/* The experts of each row by `biased` [rows,E] -> selected, and their weights from `scores`. */
static quad_node choose(quad_call *c, quad_node biased, quad_node scores, int32_t *selected)
{
    quad_tape *t = c->t;
    const assay_routing_config *config = c->routing;
    const int64_t experts = config->num_experts, k = config->num_experts_per_tok, rows = quad_rows(t, biased);
    bool *allowed = quad_keep(t, experts, sizeof *allowed);
    int64_t *index = quad_indices(t, rows * k);
    quad margin;
    for (int64_t row = 0; t->status == ASSAY_OK && row < rows; row++)
        t->status =
            quad_select(t->ctx, config, quad_values(t, biased) + row * experts, allowed, selected + row * k, &margin);
    if (t->status != ASSAY_OK) return 0;
    for (int64_t i = 0; i < rows * k; i++) index[i] = i / k * experts + selected[i];
    const quad_node gathered = quad_view(t, quad_gather(t, quad_view(t, scores, 1), index, rows * k), k);
    return quad_times(t, quad_over_sum(t, gathered, 0), config->routed_scaling_factor);
}

static void expert_indices_and_weights(quad_call *c)
{
    const int64_t experts = c->routing->num_experts;
    const quad_node biased = quad_in_all(c, "inputs/gate_logits", experts);
    quad_give(
        c, "outputs/weights", 0, 1,
        choose(c, biased, quad_in_all(c, "inputs/pre_bias_logits", experts), quad_give_indices(c, "outputs/indices")));
}

/* Of one shard's logits [T,E]. */
static quad_node select_by(quad_call *c, int64_t shard, const char *bias, quad_node logits, int32_t *selected)
{
    const quad_node scores = quad_map(c->t, logits, QUAD_SIGMOID);
    return choose(c, quad_add_row(c->t, scores, quad_in(c, bias, shard, c->routing->num_experts)), scores, selected);
}

/* sizes [groups]: how many of `ids` [count] are of each; others may be of none. */
static void count_groups(int64_t count, const int32_t *ids, int64_t groups, int32_t *sizes)
{
    for (int64_t e = 0; e < groups; e++) sizes[e] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < groups) sizes[ids[i]]++;
    }
}

/* All shards' nodes as one, of which each shard's is a part: gradients that come back to them are one tensor. */
static quad_node joined(quad_call *c, const quad_node *nodes)
{
    return quad_concatenate(c->t, nodes, c->s.shards);
}

static quad_node of_shard(quad_call *c, quad_node all, int64_t shard)
{
    const int64_t rows = quad_rows(c->t, all) / c->s.shards;
    return quad_rows_of(c->t, all, shard * rows, rows);
}

static void expert_selection(quad_call *c)
{
    const int64_t chosen = c->s.tokens * c->routing->num_experts_per_tok, experts = c->routing->num_experts;
    int32_t *selected = quad_give_indices(c, "outputs/selected_experts"),
            *sizes = quad_give_indices(c, "outputs/group_sizes");
    quad_node *own = quad_keep(c->t, c->s.shards, sizeof *own);
    for (int64_t shard = 0; own != NULL && shard < c->s.shards; shard++)
        own[shard] = quad_times_weight(c, quad_in(c, "inputs/x", shard, c->mla->emb_dim), "weights/routing_kernel",
                                       shard, experts);
    const quad_node logits = own == NULL ? 0 : joined(c, own);
    if (c->recipe->recipe != NULL)
        quad_put_gradient(c->t, "checkpoints/logits_gradient", assay_shape_of(3, c->s.shards, c->s.tokens, experts),
                          logits);
    for (int64_t shard = 0; c->t->status == ASSAY_OK && shard < c->s.shards; shard++) {
        int32_t *of = selected + shard * chosen;
        quad_give(c, "outputs/weights", shard, c->s.shards,
                  select_by(c, shard, "weights/routing_bias", of_shard(c, logits, shard), of));
        count_groups(chosen, of, experts, sizes + shard * experts);
    }
}

/* --- sorting by expert, and back --- */

/* What a shard sorts: choice i of those gathered over its expert axis, as a choice of all shards. */
static int64_t gathered(const quad_call *c, int64_t shard, int64_t i)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    return (shard / c->s.expert_shards * c->s.expert_shards + i / own) * own + i % own;
}

/* rolled [R] of a shard from all shards' own choices [M,T*K]. */
static void roll(const quad_call *c, int64_t shard, const int32_t *choices, int32_t *rolled)
{
    const int64_t experts = c->routing->num_experts, first = shard % c->s.expert_shards * c->s.local_experts;
    for (int64_t i = 0; i < c->s.copies; i++)
        rolled[i] = (int32_t)((choices[gathered(c, shard, i)] + experts - first) % experts);
}

/* The choice of all shards in each of a shard's sorted rows, over `each`: 1, or K for the tokens. */
static int64_t *sorted_choices(quad_call *c, int64_t shard, const int32_t *rolled, int64_t each)
{
    const int64_t experts = c->routing->num_experts;
    int32_t *order = quad_keep(c->t, c->s.copies + experts, sizeof *order);
    int64_t *choices = quad_indices(c->t, c->s.copies);
    if (choices == NULL) return NULL;
    quad_sort_by_expert(c->s.copies, rolled, experts, order, order + c->s.copies);
    for (int64_t j = 0; j < c->s.copies; j++) choices[j] = gathered(c, shard, order[j]) / each;
    return choices;
}

/* rows [M*T,D] from a shard's sorted rows [R,D] of each: every copy of a token on every shard, added. */
static quad_node unsort(quad_call *c, const int32_t *rolled, const quad_node *sorted)
{
    const int64_t k = c->routing->num_experts_per_tok;
    quad_node sum = 0;
    for (int64_t shard = 0; c->t->status == ASSAY_OK && shard < c->s.shards; shard++) {
        const int64_t *tokens = sorted_choices(c, shard, rolled + shard * c->s.copies, k);
        sum = quad_add(c->t, sum, quad_scatter(c->t, sorted[shard], tokens, c->s.shards * c->s.tokens));
    }
    return sum;
}

/* What route gives of all shards: x [R,D] and weights [R,1] of each, the rolled choices [M,R], and sizes [M,E/P] of the experts of each shard. */
typedef struct routed {
    quad_node *x, *weights;
    int32_t *rolled, *sizes;
} routed;

/* From rows [M*T,D], weights [M*T*K,1] and choices [M,T*K]. */
static void route_rows(quad_call *c, quad_node rows, quad_node weights, const int32_t *choices, routed *to)
{
    quad_tape *t = c->t;
    to->x = quad_keep(t, c->s.shards, sizeof *to->x);
    to->weights = quad_keep(t, c->s.shards, sizeof *to->weights);
    for (int64_t shard = 0; t->status == ASSAY_OK && shard < c->s.shards; shard++) {
        int32_t *rolled = to->rolled + shard * c->s.copies;
        roll(c, shard, choices, rolled);
        const int64_t *tokens = sorted_choices(c, shard, rolled, c->routing->num_experts_per_tok);
        to->x[shard] = quad_gather(t, rows, tokens, c->s.copies);
        to->weights[shard] = quad_gather(t, weights, sorted_choices(c, shard, rolled, 1), c->s.copies);
        count_groups(c->s.copies, rolled, c->s.local_experts, to->sizes + shard * c->s.local_experts);
    }
}

static void give_routed(quad_call *c, const routed *r)
{
    for (int64_t shard = 0; c->t->status == ASSAY_OK && shard < c->s.shards; shard++) {
        quad_give(c, "outputs/x", shard, c->s.shards, r->x[shard]);
        quad_give(c, "outputs/weights", shard, c->s.shards, r->weights[shard]);
    }
}

static routed routed_outputs(quad_call *c)
{
    return (routed){.rolled = quad_give_indices(c, "outputs/selected_experts"),
                    .sizes = quad_give_indices(c, "outputs/group_sizes")};
}

static void route(quad_call *c)
{
    routed r = routed_outputs(c);
    const int32_t *counts = quad_gives(c, "inputs/group_sizes") ? quad_in_indices(c, "inputs/group_sizes") : NULL;
    route_rows(c, quad_in_all(c, "inputs/x", c->mla->emb_dim), quad_in_all(c, "inputs/weights", 1),
               quad_in_indices(c, "inputs/selected_experts"), &r);
    give_routed(c, &r);
    /* the sizes are those that the argument has, added over the expert axis */
    for (int64_t i = 0; counts != NULL && c->t->status == ASSAY_OK && i < c->s.shards * c->s.local_experts; i++) {
        const int64_t shard = i / c->s.local_experts, place = shard % c->s.expert_shards;
        const int64_t e = place * c->s.local_experts + i % c->s.local_experts;
        r.sizes[i] = 0;
        for (int64_t p = 0; p < c->s.expert_shards; p++)
            r.sizes[i] += counts[(shard - place + p) * c->routing->num_experts + e];
    }
}

static void route_impl(quad_call *c)
{
    const int32_t *rolled = quad_in_indices(c, "inputs/selected_experts");
    for (int64_t shard = 0; c->t->status == ASSAY_OK && shard < c->s.shards; shard++) {
        const int64_t *tokens = sorted_choices(c, shard, rolled + shard * c->s.copies, c->routing->num_experts_per_tok);
        quad_give(c, "outputs/x", shard, c->s.shards,
                  quad_gather(c->t, quad_in_all(c, "inputs/x", c->mla->emb_dim), tokens, c->s.copies));
    }
}

/* The rows of each shard, of D numbers. */
static quad_node *rows_in(quad_call *c, const char *path)
{
    quad_node *all = quad_keep(c->t, c->s.shards, sizeof *all);
    for (int64_t shard = 0; all != NULL && shard < c->s.shards; shard++)
        all[shard] = quad_in(c, path, shard, c->mla->emb_dim);
    return all;
}

static void unroute(quad_call *c)
{
    quad_give(c, "outputs/x", 0, 1, unsort(c, quad_in_indices(c, "inputs/selected_experts"), rows_in(c, "inputs/x")));
}

static void unroute_ubatch_fn(quad_call *c)
{
    const int64_t dim = c->mla->emb_dim;
    const int32_t *rolled = quad_in_indices(c, "inputs/selected_experts");
    int32_t *same = quad_give_indices(c, "outputs/selected_experts");
    const quad_node sum = unsort(c, rolled, rows_in(c, "inputs/routed_expert_out"));
    const quad_node both = quad_add(c->t, sum, quad_in_all(c, "inputs/shared_expert_out", dim));
    quad_give(c, "outputs/outputs", 0, 1, quad_add(c->t, quad_in_all(c, "inputs/moe_inputs", dim), both));
    if (same != NULL) memcpy(same, rolled, (size_t)(c->s.shards * c->s.copies) * sizeof *rolled);
}

/* Of a shard's part of the tokens the sum over its expert axis, whose gradient a kernel quantises. */
static void quantized_psum_scatter(quad_call *c)
{
    const int64_t parts = c->s.expert_shards, dim = c->mla->emb_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        quad_node sum = 0;
        for (int64_t place = 0; place < parts; place++) {
            const quad_node x = quad_in(c, "inputs/x", shard / parts * parts + place, dim);
            sum = quad_add(c->t, sum, quad_rows_of(c->t, x, shard % parts * c->s.tokens, c->s.tokens));
        }
        quad_give(c, "outputs/out", shard, c->s.shards, quad_quantised_gradient(c->t, sum, c->recipe));
    }
}

/* --- experts --- */

/* The group of each of a shard's rows; -1 behind the groups. */
static const int64_t *groups_of(quad_call *c, const int32_t *sizes)
{
    int64_t *group = quad_indices(c->t, c->s.copies), row = 0;
    for (int64_t e = 0; group != NULL && e < c->s.local_experts; e++)
        for (int64_t end = row + sizes[e]; row < end; row++) group[row] = e;
    for (; group != NULL && row < c->s.copies; row++) group[row] = -1;
    return group;
}

/* y [R,n] = x [R,k] times the kernel of each row's group, [E/P,k,n]; 0 behind the groups. */
static quad_node grouped(quad_call *c, const int64_t *group, quad_node x, quad_node kernels)
{
    return quad_linear(c->t, (quad_layer){.x = x,
                                          .w = kernels,
                                          .groups = c->s.local_experts,
                                          .group = group,
                                          .recipe = c->recipe,
                                          .counts_all = true});
}

static quad_node expert_kernel(quad_call *c, const char *weight, int64_t shard)
{
    return quad_in(c, weight, shard, c->config->stack.moe.moe_mlp_dim);
}

/* silu(w0) w1, weighed: what wo is multiplied with. */
static quad_node weighed_hidden(quad_call *c, quad_node w0, quad_node w1, quad_node weights)
{
    return quad_weigh(c->t, quad_multiply(c->t, quad_map(c->t, w0, QUAD_SILU), w1), weights);
}

static const int32_t *sizes_of(quad_call *c, int64_t shard)
{
    return quad_in_indices(c, "inputs/group_sizes") + shard * c->s.local_experts;
}

static void gmm(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        quad_give(c, "outputs/output", shard, c->s.shards,
                  grouped(c, groups_of(c, sizes_of(c, shard)), quad_in(c, "inputs/inputs", shard, c->mla->emb_dim),
                          expert_kernel(c, "weights/kernel", shard)));
}

/* Merged, the two kernels are side by side, which a recipe quantises together. */
static void compute_gating(quad_call *c)
{
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int64_t *group = groups_of(c, sizes_of(c, shard));
        const quad_node x = quad_in(c, "inputs/x", shard, c->mla->emb_dim);
        quad_node w[] = {expert_kernel(c, "weights/w0", shard), expert_kernel(c, "weights/w1", shard)}, y[2];
        if (c->config->stack.merge_gating_gmm) {
            const quad_node both = grouped(c, group, x, quad_beside(c->t, w[0], w[1]));
            for (int i = 0; i < 2; i++) y[i] = quad_columns_of(c->t, both, i * width, width);
        } else {
            for (int i = 0; i < 2; i++) y[i] = grouped(c, group, x, w[i]);
        }
        quad_give(c, "outputs/layer_w0", shard, c->s.shards, y[0]);
        quad_give(c, "outputs/layer_w1", shard, c->s.shards, y[1]);
    }
}

static void compute_linear(quad_call *c)
{
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    quad_node *hidden = quad_keep(c->t, c->s.shards, sizeof *hidden);
    for (int64_t shard = 0; hidden != NULL && shard < c->s.shards; shard++) {
        hidden[shard] =
            weighed_hidden(c, quad_in(c, "inputs/layer_w0", shard, width), quad_in(c, "inputs/layer_w1", shard, width),
                           quad_in(c, "inputs/weights", shard, 1));
        quad_give(c, "outputs/layer_wo", shard, c->s.shards,
                  grouped(c, groups_of(c, sizes_of(c, shard)), hidden[shard],
                          quad_in(c, "weights/wo", shard, c->mla->emb_dim)));
    }
    if (c->recipe->recipe != NULL && hidden != NULL)
        quad_put(c->t, "checkpoints/intermediate_layer", assay_shape_of(3, c->s.shards, c->s.copies, width),
                 joined(c, hidden));
}

/* Of all shards' x [T,D], a node each; y likewise. */
static void shared_of(quad_call *c, const quad_node *x, quad_node *y)
{
    const int64_t width = c->config->stack.moe.shared_mlp_dim, shards = c->s.shards;
    const assay_shape shape = assay_shape_of(4, shards, c->s.rows, c->mla->sequence, width);
    quad_node *of_a = quad_keep(c->t, shards, sizeof *of_a), *of_b = quad_keep(c->t, shards, sizeof *of_b);
    for (int64_t shard = 0; of_b != NULL && shard < shards; shard++) {
        of_a[shard] = quad_times_weight(c, x[shard], "weights/shared_w0", shard, width);
        of_b[shard] = quad_times_weight(c, x[shard], "weights/shared_w1", shard, width);
    }
    if (of_b == NULL) return;
    const quad_node a = joined(c, of_a), b = joined(c, of_b);
    const quad_node h = quad_multiply(c->t, quad_map(c->t, a, QUAD_SILU), b);
    if (c->recipe->recipe != NULL) {
        quad_put(c->t, "checkpoints/shared_intermediate", shape, h);
        quad_put_gradient(c->t, "checkpoints/shared_mlpwi_0_gradient", shape, a);
        quad_put_gradient(c->t, "checkpoints/shared_mlpwi_1_gradient", shape, b);
    }
    for (int64_t shard = 0; shard < shards; shard++)
        y[shard] = quad_times_weight(c, of_shard(c, h, shard), "weights/shared_wo", shard, c->mla->emb_dim);
}

static void shared_expert(quad_call *c)
{
    quad_node *x = rows_in(c, "inputs/inputs"), *y = quad_keep(c->t, c->s.shards, sizeof *y);
    if (x == NULL || y == NULL) return;
    shared_of(c, x, y);
    for (int64_t shard = 0; shard < c->s.shards; shard++) quad_give(c, "outputs/y", shard, c->s.shards, y[shard]);
}

/* --- stages --- */

/* Of all shards' inputs [T,D]; *shared [M], which may be NULL: what the shared expert makes of them. */
static void route_stage(quad_call *c, const quad_node *inputs, quad_node *shared, routed *r)
{
    quad_tape *t = c->t;
    const int64_t chosen = c->s.tokens * c->routing->num_experts_per_tok, shards = c->s.shards;
    quad_node *normed = quad_keep(t, 2 * shards, sizeof *normed);
    int32_t *choices = quad_keep(t, shards * chosen, sizeof *choices);
    for (int64_t shard = 0; choices != NULL && t->status == ASSAY_OK && shard < shards; shard++) {
        normed[shard] = quad_normed(c, "weights/post_attn_scale", shard, inputs[shard]);
        const quad_node logits =
            quad_times_weight(c, normed[shard], "weights/gate_kernel", shard, c->routing->num_experts);
        const quad_node weights = select_by(c, shard, "weights/gate_bias", logits, choices + shard * chosen);
        normed[shards + shard] = quad_view(t, weights, 1);
    }
    if (t->status == ASSAY_OK && shared != NULL) shared_of(c, normed, shared);
    if (t->status != ASSAY_OK) return;
    route_rows(c, quad_concatenate(t, normed, shards), quad_concatenate(t, normed + shards, shards), choices, r);
}

static void shared_expert_and_route(quad_call *c)
{
    routed r = routed_outputs(c);
    const bool shares = quad_gives(c, "outputs/y");
    const quad_node *inputs = rows_in(c, "inputs/inputs");
    quad_node *y = quad_keep(c->t, c->s.shards, sizeof *y);
    if (inputs == NULL || y == NULL) return;
    route_stage(c, inputs, shares ? y : NULL, &r);
    give_routed(c, &r);
    for (int64_t shard = 0; shares && shard < c->s.shards; shard++)
        quad_give(c, "outputs/y", shard, c->s.shards, y[shard]);
}

/* Rows that a shard keeps of gate and up, [capacity,H], are those that were given; if there are more both are computed again. */
static quad_node kept(quad_call *c, const char *name, int64_t shard, int64_t i, const int32_t *sizes, quad_node y)
{
    const int64_t capacity = c->s.capacity;
    int64_t rows = 0;
    for (int64_t e = 0; e < c->s.local_experts; e++) rows += sizes[e];
    if (rows > capacity) return y;
    const quad_node first = quad_at_residual(c, name, shard, i, quad_rows_of(c->t, y, 0, capacity));
    const quad_node parts[] = {first, quad_rows_of(c->t, y, capacity, c->s.copies - capacity)};
    return quad_concatenate(c->t, parts, c->s.copies > capacity ? 2 : 1);
}

/* The experts' y of one shard's rows of microbatch i. */
static quad_node compute_stage(quad_call *c, const routed *r, int64_t shard, int64_t i)
{
    const int32_t *sizes = r->sizes + shard * c->s.local_experts;
    const int64_t *group = groups_of(c, sizes), piece = shard * c->factor + i, pieces = c->s.shards * c->factor;
    static const char *const weights[] = {"weights/routed_w0", "weights/routed_w1"}, *const names[] = {"mlpwi_0",
                                                                                                       "mlpwi_1"};
    static const char *const paths[] = {"outputs/mlpwi_0", "outputs/mlpwi_1"};
    quad_node w[2];
    for (int k = 0; k < 2; k++) {
        w[k] = kept(c, names[k], shard, i, sizes, grouped(c, group, r->x[shard], expert_kernel(c, weights[k], shard)));
        quad_give(c, paths[k], piece, pieces, quad_rows_of(c->t, w[k], 0, c->s.capacity));
    }
    return grouped(c, group, weighed_hidden(c, w[0], w[1], r->weights[shard]),
                   quad_in(c, "weights/routed_wo", shard, c->mla->emb_dim));
}

/* What the half leaves of microbatch i: its output, or of the last one what is deferred. */
static void leave(quad_call *c, int64_t i, const quad_node *inputs, const quad_node *shared, const quad_node *y,
                  const routed *r)
{
    const int64_t shards = c->s.shards, tokens = c->s.tokens;
    if (i == c->factor - 1) {
        int32_t *rolled = quad_give_indices(c, "outputs/selected_experts");
        for (int64_t shard = 0; shard < shards; shard++) {
            quad_give(c, "outputs/moe_inputs", shard, shards, inputs[shard]);
            quad_give(c, "outputs/shared_expert_out", shard, shards, shared[shard]);
            quad_give(c, "outputs/routed_expert_out", shard, shards, y[shard]);
        }
        if (rolled != NULL) memcpy(rolled, r->rolled, (size_t)(shards * c->s.copies) * sizeof *rolled);
        return;
    }
    const quad_node sums = unsort(c, r->rolled, y);
    for (int64_t shard = 0; shard < shards; shard++) {
        const quad_node both = quad_add(c->t, quad_rows_of(c->t, sums, shard * tokens, tokens), shared[shard]);
        quad_give(c, "outputs/xs", shard * (c->factor - 1) + i, shards * (c->factor - 1),
                  quad_add(c->t, inputs[shard], both));
    }
}

/* The microbatches' inputs are nodes [M*f]. */
static void moe_half(quad_call *c, const quad_node *xs)
{
    const int64_t shards = c->s.shards;
    quad_node *inputs = quad_keep(c->t, 3 * shards, sizeof *inputs);
    for (int64_t i = 0; inputs != NULL && xs != NULL && c->t->status == ASSAY_OK && i < c->factor; i++) {
        quad_node *shared = inputs + shards, *y = shared + shards;
        routed r = {.rolled = quad_keep(c->t, shards * c->s.copies, sizeof *r.rolled),
                    .sizes = quad_keep(c->t, shards * c->s.local_experts, sizeof *r.sizes)};
        for (int64_t shard = 0; shard < shards; shard++) inputs[shard] = xs[shard * c->factor + i];
        route_stage(c, inputs, shared, &r);
        for (int64_t shard = 0; c->t->status == ASSAY_OK && shard < shards; shard++)
            y[shard] = compute_stage(c, &r, shard, i);
        if (c->t->status == ASSAY_OK) leave(c, i, inputs, shared, y, &r);
    }
}

static void route_compute_unroute(quad_call *c)
{
    quad_node *xs = quad_keep(c->t, c->s.shards * c->factor, sizeof *xs);
    for (int64_t piece = 0; xs != NULL && piece < c->s.shards * c->factor; piece++)
        xs[piece] = quad_in_part(c, "inputs/xs", piece / c->factor, piece % c->factor, c->mla->emb_dim);
    moe_half(c, xs);
}

static void batch_split_schedule(quad_call *c)
{
    moe_half(c, quad_attention_half(c, "inputs/inputs"));
}

const quad_named_function quad_expert_functions[] = {
    {"expert_group_mask", expert_group_mask, NULL},
    {"expert_indices_and_weights", expert_indices_and_weights, NULL},
    {"expert_selection", expert_selection, NULL},
    {"route", route, NULL},
    {"route_impl", route_impl, NULL},
    {"unroute", unroute, NULL},
    {"unroute_ubatch_fn", unroute_ubatch_fn, NULL},
    {"quantized_psum_scatter", quantized_psum_scatter, NULL},
    {"shared_expert", shared_expert, NULL},
    {"gmm", gmm, NULL},
    {"compute_gating", compute_gating, NULL},
    {"compute_linear", compute_linear, NULL},
    {"shared_expert_and_route", shared_expert_and_route, NULL},
    {"shared_expert_and_route_remat", shared_expert_and_route, NULL},
    {"route_compute_unroute", route_compute_unroute, NULL},
    {"batch_split_schedule", batch_split_schedule, NULL},
    {NULL, NULL, NULL},
};
