/* Who goes to which expert, with which weight, and the losses of it. The choice is made, or given; everything else is differentiated at that
 * choice. */
#include <math.h>
#include <string.h>

#include "oracle/quad/quad_blocks.h"
#include "oracle/quad/quad_internal.h"

/* --- scores --- */

static quad_node scores_of(quad_tape *t, assay_score_func f, quad_node logits)
{
    switch (f) {
    case ASSAY_SCORE_SOFTMAX:
        return quad_softmax(t, logits, NULL);
    case ASSAY_SCORE_SIGMOID:
        return quad_map(t, logits, QUAD_SIGMOID);
    case ASSAY_SCORE_SQRTSOFTPLUS:
        return quad_map(t, logits, QUAD_SQRTSOFTPLUS);
    case ASSAY_SCORE_NONE:
        break;
    }
    return logits;
}

/* A fused router scores the logits with their bias, and takes no score function for the softmax. */
static void make_scores(quad_tape *t, const assay_routing_config *config, quad_node bias, quad_router *r)
{
    const bool fused = config->family == ASSAY_ROUTER_FUSED;
    /* the logits of a gate with a bias have it; one that selects alone comes behind the scores */
    const bool linear = config->score_func == ASSAY_SCORE_NONE && config->family != ASSAY_ROUTER_DEEPSEEK3;
    const quad_node with_bias = quad_add_row(t, r->logits, bias);
    r->of_z_loss = linear ? with_bias : r->logits;
    r->scored = fused ? with_bias : r->logits;
    r->scores = scores_of(t, fused && config->score_func == ASSAY_SCORE_NONE ? ASSAY_SCORE_SOFTMAX : config->score_func,
                          r->scored);
    r->biased = fused ? r->scores : quad_add_row(t, r->scores, bias);
    r->probabilities = quad_softmax(t, config->balance_pre_bias ? r->scores : r->biased, NULL);
}

/* --- the choice --- */

static void check_choice(quad_tape *t, const assay_routing_config *config, const int32_t *selected, bool given)
{
    const int64_t k = config->num_experts_per_tok;
    for (int64_t i = 0; i < quad_tokens(config) * k; i++) {
        if (selected[i] >= (given ? -1 : 0) && selected[i] < config->num_experts) continue;
        quad_refuse(t, "expert id %d of token %lld is outside %d to %lld", (int)selected[i], (long long)(i / k),
                    given ? -1 : 0, (long long)config->num_experts - 1);
    }
}

/* By the hash table. */
static void look_up(quad_tape *t, const assay_routing_config *config, int32_t *selected)
{
    const int64_t k = config->num_experts_per_tok;
    const int32_t *table = quad_input_indices(t, "weights/tid2eid", config->hash_rows * k);
    const int32_t *ids = quad_input_indices(t, "inputs/input_ids", quad_tokens(config));
    for (int64_t i = 0; ids != NULL && table != NULL && i < quad_tokens(config); i++) {
        if (ids[i] < 0 || ids[i] >= config->hash_rows) {
            quad_refuse(t, "token id %d is outside the hash table of %lld rows", (int)ids[i],
                        (long long)config->hash_rows);
            return;
        }
        memcpy(selected + i * k, table + ids[i] * k, (size_t)k * sizeof *selected);
    }
}

/* What the scores choose, and each token's margin: infinite where nothing is chosen by them. */
static void choose(quad_tape *t, const assay_routing_config *config, const quad_router *r, const int32_t *input,
                   int32_t *selected, quad *margin)
{
    const int64_t tokens = quad_tokens(config), k = config->num_experts_per_tok, experts = config->num_experts;
    const quad *by = quad_values(t, config->select_by_logits ? r->scored : r->biased);
    bool *allowed = quad_keep(t, experts, sizeof *allowed);
    for (int64_t i = 0; t->status == ASSAY_OK && i < tokens; i++) margin[i] = INFINITY;
    if (config->hash_rows > 0) {
        look_up(t, config, selected);
    } else if (input != NULL && t->status == ASSAY_OK) {
        memcpy(selected, input, (size_t)(tokens * k) * sizeof *selected);
    } else if (by == NULL) {
        quad_refuse(t, "there is nothing to choose experts by");
    } else {
        for (int64_t i = 0; t->status == ASSAY_OK && i < tokens; i++)
            t->status = quad_select(t->ctx, config, by + i * experts, allowed, selected + i * k, &margin[i]);
    }
}

/* --- weights --- */

/* Of a choice [T,K]: a slot of -1 has weight 0, and the others are weighed as if the token had no more. */
static quad_node weights_of(quad_tape *t, const assay_routing_config *config, const quad_router *r,
                            const int32_t *selected)
{
    const int64_t k = config->num_experts_per_tok, copies = quad_tokens(config) * k, experts = config->num_experts;
    const bool unbounded = config->score_func == ASSAY_SCORE_SIGMOID || config->score_func == ASSAY_SCORE_SQRTSOFTPLUS;
    const assay_router_family family = config->family;
    const quad_node from = config->use_random_routing                                         ? r->biased
                           : family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_FUSED ? r->scores
                           : family == ASSAY_ROUTER_GEMMA4                                    ? r->probabilities
                                                                                              : r->biased;
    quad added = config->norm_topk_epsilon;
    int64_t *index = quad_indices(t, copies), *expert = quad_indices(t, copies);
    for (int64_t i = 0; expert != NULL && i < copies; i++) {
        expert[i] = selected[i];
        index[i] = selected[i] < 0 ? -1 : i / k * experts + selected[i];
    }
    quad_node weights = quad_view(t, quad_gather(t, quad_view(t, from, 1), index, copies), k);
    if (config->use_random_routing || family == ASSAY_ROUTER_LLAMA4) return weights;
    if (config->family == ASSAY_ROUTER_DEEPSEEK3 || config->family == ASSAY_ROUTER_DEEPSEEK2) {
        if (added == 0 && !config->renormalize_exactly) added = 1 / (quad)1e20;
        if (unbounded && !config->undivided) weights = quad_over_sum(t, weights, added);
        return quad_times(t, weights, config->routed_scaling_factor);
    }
    if (family == ASSAY_ROUTER_DEFAULT) weights = quad_softmax(t, weights, selected);
    if (config->norm_topk_prob) weights = quad_over_sum(t, weights, added);
    const quad_node scale = quad_input_optional(t, "weights/per_expert_scale", experts, 1);
    return scale == 0 ? weights : quad_multiply(t, weights, quad_view(t, quad_gather(t, scale, expert, copies), k));
}

/* --- losses --- */

/* E^2 / (B E) times the weight, times the sum over b and e of how often a token has e times the mean of P: of each sequence, or of all. */
static quad_node balance_loss(quad_tape *t, const assay_routing_config *config, const quad_router *r,
                              const int32_t *selected)
{
    const int64_t tokens = quad_tokens(config), experts = config->num_experts, k = config->num_experts_per_tok;
    const bool whole = config->balance_scope != ASSAY_BALANCE_SEQUENCE;
    const int64_t among = whole ? tokens : config->sequence; /* tokens that share a density */
    int64_t *chosen = quad_indices(t, tokens / among * experts);
    quad *factors;
    const quad_node by = quad_constant(t, tokens * experts, 1, &factors);
    if (factors == NULL || chosen == NULL) return 0;
    for (int64_t i = 0; i < tokens / among * experts; i++) chosen[i] = 0;
    for (int64_t i = 0; i < tokens * k; i++)
        if (selected[i] >= 0) chosen[i / (among * k) * experts + selected[i]]++;
    for (int64_t i = 0; i < tokens * experts; i++)
        factors[i] = (quad)chosen[i / (among * experts) * experts + i % experts] / among / tokens * experts *
                     config->load_balance_loss_weight;
    return quad_linear(t, (quad_layer){.x = quad_view(t, r->probabilities, tokens * experts), .w = by});
}

/* The mean of the squares of log sum exp, times the weight. */
static quad_node z_loss(quad_tape *t, const assay_routing_config *config, const quad_router *r)
{
    const quad_node lse = quad_log_sum_exp(t, r->of_z_loss), squares = quad_multiply(t, lse, lse);
    return quad_row_sums(t, quad_view(t, squares, quad_tokens(config)),
                         config->z_loss_weight / (quad)quad_tokens(config));
}

/* Of the average load's sign; updates [E]. */
static void update_biases(const assay_routing_config *config, const int32_t *selected, quad *updates)
{
    const int64_t copies = quad_tokens(config) * config->num_experts_per_tok, experts = config->num_experts;
    int64_t counted = 0;
    for (int64_t i = 0; i < copies; i++) counted += selected[i] >= 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t own = 0;
        for (int64_t i = 0; i < copies; i++) own += selected[i] == e;
        const int64_t excess = counted - own * experts; /* of the average load, times E */
        updates[e] = (excess > 0 ? 1 : excess < 0 ? -1 : 0) * (quad)config->routed_bias_update_rate;
    }
}

quad_losses quad_losses_of(quad_tape *t, const assay_routing_config *config, const quad_router *r,
                           const int32_t *selected)
{
    quad_losses losses = {0};
    quad *updates = NULL;
    if (config->hash_rows > 0 || config->family == ASSAY_ROUTER_FUSED || t->status != ASSAY_OK) return losses;
    if (config->load_balance_loss_weight > 0) losses.lb_loss = balance_loss(t, config, r, selected);
    if (config->z_loss_weight > 0) losses.z_loss = z_loss(t, config, r);
    if (config->routed_bias_update_rate > 0) losses.bias_updates = quad_constant(t, 1, config->num_experts, &updates);
    if (updates != NULL) update_biases(config, selected, updates);
    return losses;
}

void quad_put_losses(quad_tape *t, const assay_routing_config *config, const quad_losses *losses)
{
    quad_put(t, "outputs/lb_loss", assay_shape_of(0), losses->lb_loss);
    quad_put(t, "outputs/z_loss", assay_shape_of(0), losses->z_loss);
    quad_put(t, "outputs/bias_updates", assay_shape_of(1, config->num_experts), losses->bias_updates);
}

/* --- all of it --- */

static void check_config(quad_tape *t, const assay_routing_config *config)
{
    if (config->batch < 1 || config->sequence < 1 || config->num_experts < 1 || config->num_experts_per_tok < 1)
        quad_refuse(t, "routing needs at least one token, one expert and one choice");
    if (config->family == ASSAY_ROUTER_LLAMA4 && config->num_experts_per_tok != 1)
        quad_refuse(t, "llama4 chooses %lld experts a token, expected 1", (long long)config->num_experts_per_tok);
}

static quad_node make_logits(quad_tape *t, const assay_routing_config *config, quad_node x)
{
    const quad_node given = quad_input_optional(t, "inputs/logits", quad_tokens(config), config->num_experts);
    if (given != 0) return given;
    if (x == 0) x = quad_input_rows(t, "inputs/x");
    return quad_linear(
        t, (quad_layer){.x = x, .w = quad_input(t, "weights/gate/kernel", quad_columns(t, x), config->num_experts)});
}

quad_router quad_route(quad_tape *t, const assay_routing_config *config, quad_node x)
{
    const bool gives_weights =
        quad_input_optional(t, "inputs/routing_weights", quad_tokens(config), config->num_experts_per_tok) != 0;
    return quad_route_by(t, config, gives_weights ? 0 : make_logits(t, config, x));
}

quad_router quad_route_by(quad_tape *t, const assay_routing_config *config, quad_node logits)
{
    const int64_t b = config->batch, s = config->sequence, k = config->num_experts_per_tok, copies = b * s * k;
    const assay_shape choices = assay_shape_of(3, b, s, k);
    quad_router r = {0};
    quad *margin;
    check_config(t, config);
    const quad_node given_weights = quad_input_optional(t, "inputs/routing_weights", b * s, k);
    const int32_t *input = quad_input_indices_optional(t, "inputs/selected_experts", copies);
    const int32_t *held = quad_input_indices_optional(t, "routing/selected_experts", copies);
    if (given_weights == 0) {
        r.logits = logits;
        make_scores(t, config, quad_input_optional(t, "weights/gate/bias", 1, config->num_experts), &r);
    }
    int32_t *own = quad_put_indices(t, "own/selected_experts", choices);
    const quad_node of_margin = quad_constant(t, b * s, 1, &margin);
    if (t->status != ASSAY_OK) return r;
    choose(t, config, &r, input, own, margin);
    if (t->status == ASSAY_OK) check_choice(t, config, held != NULL ? held : own, held != NULL || input != NULL);
    int32_t *selected = quad_put_indices(t, "routing/selected_experts", choices);
    if (t->status != ASSAY_OK) return r;
    memcpy(selected, held != NULL ? held : own, (size_t)copies * sizeof *selected);
    r.selected = selected;
    if (given_weights != 0) {
        int64_t *there = quad_indices(t, copies);
        for (int64_t i = 0; there != NULL && i < copies; i++) there[i] = selected[i] < 0 ? -1 : i;
        r.weights = quad_view(t, quad_gather(t, quad_view(t, given_weights, 1), there, copies), k);
    } else {
        r.weights = weights_of(t, config, &r, selected);
    }
    const bool same = memcmp(own, selected, (size_t)copies * sizeof *own) == 0;
    quad_put(t, "own/weights", choices, same ? r.weights : weights_of(t, config, &r, own));
    quad_put(t, "routing/weights", choices, r.weights);
    quad_put(t, "own/margin", assay_shape_of(2, b, s), of_margin);
    quad_put(t, "routing/margin", assay_shape_of(2, b, s), of_margin);
    return r;
}

void quad_routing(quad_tape *t, const void *self)
{
    const assay_routing_config *config = self;
    const int64_t copies = quad_tokens(config) * config->num_experts_per_tok;
    const quad_router r = quad_route(t, config, 0);
    const quad_losses losses = quad_losses_of(t, config, &r, r.selected);
    int32_t *order = quad_put_indices(t, "routing/sorted_selected_experts", assay_shape_of(1, copies));
    int32_t *sizes = quad_put_indices(t, "routing/group_sizes", assay_shape_of(1, config->num_experts));
    quad_put_losses(t, config, &losses);
    quad_put(t, "outputs/weights", assay_shape_of(3, config->batch, config->sequence, config->num_experts_per_tok),
             r.weights);
    if (t->status == ASSAY_OK) quad_sort_by_expert(copies, r.selected, config->num_experts, order, sizes);
}
