#include <math.h>
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"

/* What a routing reads, and its scratch: one token at a time. */
typedef struct route {
    const assay_routing_config *config;
    const quad *logits, *bias, *per_expert_scale;
    quad *made; /* the logits, where they are made here */
    const int32_t *given, *table, *input_ids;
    const quad *given_weights;
    bool fixed;     /* the choice is an input */
    int64_t *place; /* [K]: of the experts that are there among the token's slots */
    int32_t *there; /* [K] */
    quad *token_logits, *scores, *biased, *probabilities; /* [E] */
    quad *mean_probability;                               /* [B,E] */
    quad sum_of_squares;                                  /* of the logs of the sums of exp(logits) */
    bool *allowed;                                             /* [E] */
} route;

static assay_status make_logits(assay_context *ctx, const quad_tensors *in, route *r)
{
    assay_status status;
    const int64_t tokens = r->config->batch * r->config->sequence, experts = r->config->num_experts;
    const quad_tensor *found = NULL;
    const quad *x = NULL, *kernel = NULL;
    int64_t rows = 0, dim = 0;
    TRY(quad_read_rows(ctx, in, "inputs/x", &found, &rows, &dim));
    TRY(quad_read(ctx, in, "inputs/x", tokens * dim, &x));
    TRY(quad_read(ctx, in, "weights/gate/kernel", dim * experts, &kernel));
    TRY(quad_alloc(ctx, tokens * experts, &r->made));
    const quad_product product = quad_product_xw(r->made, x, kernel, tokens, experts, dim);
    TRY(quad_multiply(ctx, &product));
cleanup:
    return status;
}

static assay_status read_inputs(assay_context *ctx, const quad_tensors *in, route *r)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *config = r->config;
    int64_t tokens = config->batch * config->sequence, experts = config->num_experts, k = config->num_experts_per_tok;
    r->fixed = quad_tensors_find(in, "inputs/selected_experts") != NULL;
    TRY(quad_read_optional_indices(ctx, in, "routing/selected_experts", tokens * k, &r->given));
    if (r->given == NULL) {
        TRY(quad_read_optional_indices(ctx, in, "inputs/selected_experts", tokens * k, &r->given));
    }
    TRY(quad_read_optional(ctx, in, "inputs/routing_weights", tokens * k, &r->given_weights));
    if (r->given_weights != NULL) return ASSAY_OK;
    TRY(quad_read_optional(ctx, in, "inputs/logits", tokens * experts, &r->logits));
    if (r->logits == NULL) {
        TRY(make_logits(ctx, in, r));
        r->logits = r->made;
    }
    TRY(quad_read_optional(ctx, in, "weights/gate/bias", experts, &r->bias));
    TRY(quad_read_optional(ctx, in, "weights/per_expert_scale", experts, &r->per_expert_scale));
    if (config->hash_rows > 0) {
        TRY(quad_read_indices(ctx, in, "weights/tid2eid", config->hash_rows * k, &r->table));
        TRY(quad_read_indices(ctx, in, "inputs/input_ids", tokens, &r->input_ids));
    }
cleanup:
    return status;
}

static void token_scores(route *r, int64_t t)
{
    const assay_routing_config *config = r->config;
    int64_t experts = config->num_experts;
    memcpy(r->token_logits, r->logits + t * experts, (size_t)experts * sizeof *r->token_logits);
    if (config->z_loss_weight > 0) {
        quad sum = 0;
        /* the logits of a gate with a bias have it; one that selects alone comes behind the scores */
        const bool linear = config->score_func == ASSAY_SCORE_NONE && config->family != ASSAY_ROUTER_DEEPSEEK3;
        for (int64_t e = 0; e < experts; e++)
            sum += expq(r->token_logits[e] + (linear && r->bias != NULL ? r->bias[e] : 0));
        r->sum_of_squares += logq(sum) * logq(sum);
    }
    bool bias_first = config->family == ASSAY_ROUTER_FUSED;
    for (int64_t e = 0; bias_first && r->bias != NULL && e < experts; e++) r->token_logits[e] += r->bias[e];
    /* fused_moe_func takes no score function for the softmax */
    assay_score_func f =
        bias_first && config->score_func == ASSAY_SCORE_NONE ? ASSAY_SCORE_SOFTMAX : config->score_func;
    quad_scores(f, experts, r->token_logits, r->scores);
    for (int64_t e = 0; e < experts; e++) {
        r->biased[e] = r->scores[e] + (bias_first || r->bias == NULL ? 0 : r->bias[e]);
    }
    quad_softmax(experts, config->balance_pre_bias ? r->scores : r->biased, r->probabilities);
}

static assay_status choose(assay_context *ctx, const route *r, int64_t t, int32_t *selected, quad *margin)
{
    const assay_routing_config *config = r->config;
    int64_t k = config->num_experts_per_tok;
    *margin = INFINITY;
    if (config->hash_rows > 0) {
        int32_t id = r->input_ids[t];
        if (id < 0 || id >= config->hash_rows) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "token id %d is outside the hash table of %lld rows", (int)id,
                              (long long)config->hash_rows);
        }
        memcpy(selected, r->table + id * k, (size_t)k * sizeof *selected);
    } else if (!r->fixed) {
        assay_status status = quad_select(ctx, config, config->select_by_logits ? r->token_logits : r->biased,
                                          r->allowed, selected, margin);
        if (status != ASSAY_OK) return status;
    }
    if (r->given != NULL) memcpy(selected, r->given + t * k, (size_t)k * sizeof *selected);
    for (int64_t i = 0; i < k; i++) {
        if (selected[i] < (r->given != NULL ? -1 : 0) || selected[i] >= config->num_experts) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "expert id %d of token %lld is outside %d to %lld",
                              (int)selected[i], (long long)t, r->given != NULL ? -1 : 0,
                              (long long)config->num_experts - 1);
        }
    }
    return ASSAY_OK;
}

static void divide_by_sum(int64_t k, quad *weights, quad extra)
{
    quad sum = 0;
    for (int64_t i = 0; i < k; i++) sum += weights[i];
    for (int64_t i = 0; i < k; i++) weights[i] /= sum + extra;
}

/* Of k experts, all of which are there. */
static void weigh(const route *r, int64_t k, const int32_t *selected, quad *weights)
{
    const assay_routing_config *config = r->config;
    assay_router_family family = config->family;
    bool unbounded = config->score_func == ASSAY_SCORE_SIGMOID || config->score_func == ASSAY_SCORE_SQRTSOFTPLUS;
    const quad *from = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_FUSED ? r->scores
                            : family == ASSAY_ROUTER_GEMMA4                                  ? r->probabilities
                                                                                             : r->biased;
    for (int64_t i = 0; i < k; i++) weights[i] = from[selected[i]];
    if (config->use_random_routing) {
        for (int64_t i = 0; i < k; i++) weights[i] = r->biased[selected[i]];
        return;
    }
    if (family == ASSAY_ROUTER_LLAMA4) return;
    const bool deepseek = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_DEEPSEEK2;
    if (deepseek && unbounded && !config->undivided) {
        divide_by_sum(k, weights, config->renormalize_exactly ? 0 : 1 / (quad)1e20);
    }
    if (deepseek) {
        for (int64_t i = 0; i < k; i++) weights[i] *= config->routed_scaling_factor;
        return;
    }
    if (family == ASSAY_ROUTER_DEFAULT) quad_softmax(k, weights, weights);
    if (config->norm_topk_prob) divide_by_sum(k, weights, 0);
    for (int64_t i = 0; r->per_expert_scale != NULL && i < k; i++) weights[i] *= r->per_expert_scale[selected[i]];
}

/* E^2 times the weight times the mean over e of how often a token of all has e times the mean of its P. */
static quad whole_loss(const route *r, const int32_t *selected)
{
    const assay_routing_config *config = r->config;
    int64_t experts = config->num_experts, tokens = config->batch * config->sequence;
    quad sum = 0;
    for (int64_t e = 0; e < experts; e++) {
        quad chosen = 0, probability = 0;
        for (int64_t i = 0; i < tokens * config->num_experts_per_tok; i++) chosen += selected[i] == e;
        for (int64_t b = 0; b < config->batch; b++) probability += r->mean_probability[b * experts + e];
        sum += chosen / tokens * probability / config->batch;
    }
    return sum * experts * config->load_balance_loss_weight;
}

/* A slot of -1 has weight 0; the others are weighed as if the token had no more. */
static void weigh_slots(const route *r, int64_t t, const int32_t *selected, quad *weights)
{
    const int64_t k = r->config->num_experts_per_tok;
    int64_t count = 0;
    quad *own = weights; /* packed first, then at their places from the back */
    for (int64_t i = 0; i < k; i++) {
        if (selected[i] < 0) continue;
        r->place[count] = i;
        r->there[count++] = selected[i];
    }
    if (r->given_weights == NULL && count > 0) weigh(r, count, r->there, own);
    for (int64_t i = k - 1; i >= 0; i--) {
        const bool is_there = count > 0 && r->place[count - 1] == i;
        if (is_there) count--;
        weights[i] = !is_there ? 0 : r->given_weights != NULL ? r->given_weights[t * k + i] : own[count];
    }
}

/* mean over (b,e) of density * mean over S of P, times E^2 and the weight. */
static quad balance_loss(const route *r, const int32_t *selected)
{
    const assay_routing_config *config = r->config;
    int64_t experts = config->num_experts, copies = config->sequence * config->num_experts_per_tok;
    quad sum = 0;
    if (config->balance_scope != ASSAY_BALANCE_SEQUENCE) return whole_loss(r, selected);
    for (int64_t b = 0; b < config->batch; b++) {
        for (int64_t e = 0; e < experts; e++) {
            int64_t chosen = 0;
            for (int64_t i = 0; i < copies; i++) chosen += selected[b * copies + i] == e;
            sum += (quad)chosen / config->sequence * r->mean_probability[b * experts + e];
        }
    }
    return sum / (config->batch * experts) * (experts * experts) * config->load_balance_loss_weight;
}

static assay_status add_losses(assay_context *ctx, const route *r, const int32_t *selected, const int32_t *sizes,
                               quad_tensors *out)
{
    const assay_routing_config *config = r->config;
    if (config->hash_rows > 0 || config->family == ASSAY_ROUTER_FUSED) return ASSAY_OK;
    assay_status status = ASSAY_OK;
    quad *z_loss = NULL;
    int64_t experts = config->num_experts;
    int64_t copies = config->batch * config->sequence * config->num_experts_per_tok, counted = 0;
    assay_shape scalar = assay_shape_of(0), list = assay_shape_of(1, experts);
    quad *loss = NULL, *updates = NULL;
    if (config->load_balance_loss_weight > 0) {
        TRY(quad_tensors_add(ctx, out, "outputs/lb_loss", &scalar, &loss));
        *loss = balance_loss(r, selected);
    }
    if (config->z_loss_weight > 0) {
        TRY(quad_tensors_add(ctx, out, "outputs/z_loss", &scalar, &z_loss));
        *z_loss = r->sum_of_squares / (config->batch * config->sequence) * config->z_loss_weight;
    }
    for (int64_t i = 0; i < copies; i++) counted += selected[i] >= 0;
    if (config->routed_bias_update_rate > 0) {
        TRY(quad_tensors_add(ctx, out, "outputs/bias_updates", &list, &updates));
        for (int64_t e = 0; e < experts; e++) {
            int64_t excess = counted - sizes[e] * experts; /* of the average load, times E */
            updates[e] = (excess > 0 ? 1 : excess < 0 ? -1 : 0) * (quad)config->routed_bias_update_rate;
        }
    }
cleanup:
    return status;
}

static assay_status alloc_scratch(assay_context *ctx, route *r)
{
    assay_status status = ASSAY_OK;
    int64_t experts = r->config->num_experts;
    TRY(quad_alloc(ctx, experts, &r->token_logits));
    TRY(quad_alloc(ctx, experts, &r->scores));
    TRY(quad_alloc(ctx, experts, &r->biased));
    TRY(quad_alloc(ctx, experts, &r->probabilities));
    TRY(quad_alloc(ctx, r->config->batch * experts, &r->mean_probability));
    void *allowed = NULL;
    TRY(assay_alloc(ctx, "allowed experts", experts, sizeof *r->allowed, &allowed));
    r->allowed = allowed;
    TRY(assay_alloc(ctx, "slots", r->config->num_experts_per_tok, sizeof *r->place, &allowed));
    r->place = allowed;
    TRY(assay_alloc_i32(ctx, "experts of slots", r->config->num_experts_per_tok, &r->there));
    for (int64_t i = 0; i < r->config->batch * experts; i++) r->mean_probability[i] = 0;
cleanup:
    return status;
}

static assay_status check_config(assay_context *ctx, const assay_routing_config *config)
{
    if (config->batch < 1 || config->sequence < 1 || config->num_experts < 1 || config->num_experts_per_tok < 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "routing needs at least one token, one expert and one choice");
    }
    if (config->family == ASSAY_ROUTER_LLAMA4 && config->num_experts_per_tok != 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "llama4 chooses %lld experts a token, expected 1",
                          (long long)config->num_experts_per_tok);
    }
    return ASSAY_OK;
}

assay_status quad_route(assay_context *ctx, const assay_routing_config *config, const quad_tensors *in,
                        quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    route r = {.config = config};
    int64_t tokens = config->batch * config->sequence, experts = config->num_experts, k = config->num_experts_per_tok;
    assay_shape choices = assay_shape_of(3, config->batch, config->sequence, k);
    assay_shape tokens_shape = assay_shape_of(2, config->batch, config->sequence);
    assay_shape experts_shape = assay_shape_of(1, experts), copies_shape = assay_shape_of(1, tokens * k);
    quad *weights = NULL, *margin = NULL;
    int32_t *selected = NULL, *sizes = NULL, *order = NULL;
    TRY(check_config(ctx, config));
    TRY(read_inputs(ctx, in, &r));
    TRY(alloc_scratch(ctx, &r));
    TRY(quad_tensors_add_indices(ctx, out, "routing/selected_experts", &choices, &selected));
    TRY(quad_tensors_add(ctx, out, "routing/weights", &choices, &weights));
    TRY(quad_tensors_add(ctx, out, "routing/margin", &tokens_shape, &margin));
    TRY(quad_tensors_add_indices(ctx, out, "routing/group_sizes", &experts_shape, &sizes));
    TRY(quad_tensors_add_indices(ctx, out, "routing/sorted_selected_experts", &copies_shape, &order));
    for (int64_t t = 0; t < tokens; t++) {
        if (r.given_weights == NULL) token_scores(&r, t);
        TRY(choose(ctx, &r, t, selected + t * k, &margin[t]));
        weigh_slots(&r, t, selected + t * k, weights + t * k);
        for (int64_t e = 0; r.given_weights == NULL && e < experts; e++) {
            r.mean_probability[t / config->sequence * experts + e] += r.probabilities[e] / config->sequence;
        }
    }
    quad_sort_by_expert(tokens * k, selected, experts, order, sizes);
    TRY(add_losses(ctx, &r, selected, sizes, out));
cleanup:
    free(r.made);
    free(r.token_logits);
    free(r.scores);
    free(r.biased);
    free(r.probabilities);
    free(r.mean_probability);
    free(r.allowed);
    free(r.place);
    free(r.there);
    return status;
}

assay_status quad_routing(assay_context *ctx, const assay_routing_config *config, const quad_tensors *in,
                          quad_tensors *out)
{
    assay_status status = quad_route(ctx, config, in, out);
    if (status != ASSAY_OK) return status;
    assay_shape shape = assay_shape_of(3, config->batch, config->sequence, config->num_experts_per_tok);
    quad *weights = NULL;
    status = quad_tensors_add(ctx, out, "outputs/weights", &shape, &weights);
    if (status != ASSAY_OK) return status;
    const quad_tensor *routed = quad_tensors_find(out, "routing/weights");
    memcpy(weights, routed->values, (size_t)assay_shape_count(&shape) * sizeof *weights);
    return ASSAY_OK;
}
