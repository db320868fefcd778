#include "oracle/moe/routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/balance.h"
#include "oracle/moe/routing_internal.h"
#include "oracle/ops/activation.h"

/* Of the gathered values of one token: their sum in order, plus epsilon; 1 without a division. */
static double divisor_of(const double *gathered, int64_t count, const assay_routing_rule *rule)
{
    double sum = 0.0;
    if (!rule->divide) return 1.0;
    for (int64_t k = 0; k < count; k++) sum += gathered[k];
    return sum + rule->epsilon;
}

/* Emulated: weights share the error of the sum that they are divided by, a softmax's too. */
static double rounded_divisor(const assay_context *ctx, double divisor, int64_t count, int64_t experts,
                              const assay_routing_rule *rule)
{
    const bool softmax = rule->score_func == ASSAY_SCORE_SOFTMAX;
    const int64_t terms = rule->divide || rule->softmax_chosen ? count : softmax ? experts : 1;
    assay_round_sums(ctx, ceil((double)(terms - 1) / 3), 1, &divisor); /* as of attention; a single term has none */
    return divisor;
}

/* Emulated runs take the naive form, whose weights have all errors of the other's. `p` [E] is scratch. */
static bool weighs_naively(const assay_context *ctx, double *gathered, double *p, const double *selecting,
                           const int32_t *selected, const assay_routing_config *config, const assay_routing_rule *rule)
{
    return assay_rounds_at_random(ctx) && assay_routing_has_naive_form(rule) &&
           assay_routing_naive_forward(ctx, gathered, p, selecting, selected, config);
}

static void weigh(assay_context *ctx, assay_routing *r, int64_t t, const assay_routing_scratch *scratch,
                  const assay_routing_inputs *in, const assay_routing_config *config, const assay_routing_rule *rule)
{
    const int64_t count = config->num_experts_per_tok, experts = config->num_experts;
    const int32_t *selected = r->selected_experts + t * count;
    const double *selecting = scratch->selecting;
    const double *weighed = rule->weighs_scores ? r->scores + t * experts : selecting;
    double *gathered = r->gathered + t * count;
    const double none = rule->softmax_chosen ? -INFINITY : 0.0; /* a slot of no expert has no part in the sums */
    bool any = false;
    for (int64_t k = 0; k < count; k++) {
        any |= selected[k] != ASSAY_NO_EXPERT;
        gathered[k] = selected[k] == ASSAY_NO_EXPERT ? none : weighed[selected[k]];
    }
    if (rule->softmax_chosen && any &&
        !weighs_naively(ctx, gathered, scratch->probability, selecting, selected, config, rule)) {
        assay_softmax_row(ctx, gathered, gathered, count);
    }
    const double divisor = rounded_divisor(ctx, divisor_of(gathered, count, rule), count, experts, rule);
    for (int64_t k = 0; k < count; k++) {
        if (selected[k] == ASSAY_NO_EXPERT) gathered[k] = 0.0;
        r->weights[t * count + k] =
            selected[k] == ASSAY_NO_EXPERT
                ? 0.0
                : gathered[k] / divisor * assay_routing_scale(rule, in->per_expert_scale, selected[k]);
    }
}

/* The case gives the weights: there are no scores. */
static void take_token(assay_routing *r, int64_t t, const assay_routing_inputs *in, const assay_routing_config *config)
{
    const int64_t count = config->num_experts_per_tok;
    r->margin[t] = INFINITY;
    for (int64_t i = t * count; i < (t + 1) * count; i++) {
        r->selected_experts[i] = in->given_experts[i];
        r->weights[i] = in->given_experts[i] == ASSAY_NO_EXPERT ? 0.0 : in->given_weights[i];
    }
}

static void route_token(assay_context *ctx, assay_routing *r, int64_t t, const assay_routing_scratch *scratch,
                        const assay_routing_inputs *in, const assay_routing_config *config,
                        const assay_routing_rule *rule)
{
    const int64_t count = config->num_experts_per_tok, experts = config->num_experts;
    int32_t *selected = r->selected_experts + t * count;
    if (in->given_weights != NULL) {
        take_token(r, t, in, config);
        return;
    }
    assay_routing_scores(ctx, r->scores + t * experts, scratch->selecting, in->logits + t * experts, in->bias, experts,
                         rule);
    if (rule->hash || in->choice_is_input) {
        r->margin[t] = INFINITY;
    } else {
        assay_routing_select(selected, &r->margin[t], scratch, config, rule);
    }
    const int32_t *fixed = in->given_experts != NULL ? in->given_experts + t * count
                           : rule->hash              ? in->tid2eid + in->input_ids[t] * count
                                                     : NULL;
    for (int64_t k = 0; fixed != NULL && k < count; k++) selected[k] = fixed[k];
    if (in->bias != NULL)
        assay_round(ctx, ASSAY_ROUND_ROUTER, experts, scratch->selecting); /* a large bias, a large sum */
    weigh(ctx, r, t, scratch, in, config, rule);
    if (!rule->balance) return;
    assay_softmax_row(ctx, r->probabilities + t * experts,
                      rule->balance_pre_bias ? r->scores + t * experts : scratch->selecting, experts);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, experts, r->probabilities + t * experts);
}

static assay_status route_tokens(assay_context *ctx, assay_routing *r, const assay_routing_inputs *in,
                                 const assay_routing_config *config, const assay_routing_rule *rule)
{
    const int64_t tokens = config->batch * config->sequence, experts = config->num_experts;
    const int64_t groups = rule->groups ? config->n_routing_groups : 0;
    const int64_t kept = rule->groups ? config->topk_routing_group : 0;
    const int64_t tops = (kept > config->num_experts_per_tok ? kept : config->num_experts_per_tok) + 1;
    const int64_t values_each = 2 * experts + groups + tops, indices_each = tops + groups;
    OWNED double *values = NULL;
    OWNED int32_t *indices = NULL;
    MUST(assay_alloc_f64(ctx, "routing: scratch values", values_each * ctx->threads, &values));
    MUST(assay_alloc_i32(ctx, "routing: scratch indices", indices_each * ctx->threads, &indices));
#pragma omp parallel for num_threads(ctx->threads)
    for (int part = 0; part < ctx->threads; part++) {
        double *own = values + part * values_each;
        int32_t *own_indices = indices + part * indices_each;
        const assay_routing_scratch scratch = {own,         own + experts,      own + experts + groups,
                                               own_indices, own_indices + tops, own + values_each - experts};
        const int64_t end = assay_token_range_begin(ctx, tokens, part + 1);
        for (int64_t t = assay_token_range_begin(ctx, tokens, part); t < end; t++) {
            route_token(ctx, r, t, &scratch, in, config, rule);
        }
    }
    return ASSAY_OK;
}

assay_status assay_routing_forward(assay_context *ctx, assay_routing *r, const assay_routing_inputs *in,
                                   const assay_routing_config *config)
{
    MUST(assay_routing_check(ctx, config));
    MUST(assay_routing_check_inputs(ctx, in, config));
    const assay_routing_rule rule = assay_routing_rule_of(config);
    const int64_t choices = config->batch * config->sequence * config->num_experts_per_tok;
    MUST(route_tokens(ctx, r, in, config, &rule));
    for (int64_t e = 0; e < config->num_experts; e++) r->group_sizes[e] = 0;
    for (int64_t i = 0; i < choices; i++) {
        if (r->selected_experts[i] != ASSAY_NO_EXPERT) r->group_sizes[r->selected_experts[i]]++;
    }
    if (rule.bias_updates) assay_balance_bias_updates(r->bias_updates, r->group_sizes, config);
    r->lb_loss = 0.0;
    r->z_loss = r->log_sums == NULL
                    ? 0.0
                    : assay_z_loss(ctx, r->log_sums, in->logits, rule.bias_linear ? in->bias : NULL, config);
    if (rule.balance) {
        assay_balance_density(r->density, r->selected_experts, config);
        MUST(assay_balance_loss(ctx, &r->lb_loss, r->probabilities, r->density, config));
    }
    return ASSAY_OK;
}

assay_status assay_routing_selecting(assay_context *ctx, double *selecting, const assay_routing_inputs *in,
                                     int64_t first, int64_t count, const assay_routing_config *config)
{
    const int64_t experts = config->num_experts;
    const assay_routing_rule rule = assay_routing_rule_of(config);
    OWNED double *scores = NULL;
    MUST(assay_alloc_f64(ctx, "routing: scores", experts, &scores));
    for (int64_t t = 0; t < count; t++) {
        assay_routing_scores(ctx, scores, selecting + t * experts, in->logits + (first + t) * experts, in->bias,
                             experts, &rule);
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, count * experts, selecting);
    return ASSAY_OK;
}

/* d_values [K]: gradient of what was gathered, before the softmax over the chosen, from d_weights [K]. */
static void gathered_backward(double *d_values, const double *d_weights, const double *gathered,
                              const int32_t *selected, const double *per_expert_scale, int64_t count,
                              const assay_routing_rule *rule)
{
    for (int64_t k = 0; k < count; k++) {
        d_values[k] = d_weights[k] * assay_routing_scale(rule, per_expert_scale, selected[k]);
    }
    if (rule->divide) {
        const double divisor = divisor_of(gathered, count, rule);
        rule->through_sum(d_values, gathered, rule->epsilon / divisor, count);
        for (int64_t k = 0; k < count; k++) d_values[k] /= divisor;
    }
    if (rule->softmax_chosen) {
        assay_center(d_values, gathered, 0.0, count);
        for (int64_t k = 0; k < count; k++) d_values[k] *= gathered[k];
    }
    for (int64_t k = 0; k < count; k++) {
        if (selected[k] == ASSAY_NO_EXPERT) d_values[k] = 0.0;
    }
}

/* One gradient: what its token-wise steps need. */
typedef struct backward_pass {
    const assay_context *ctx;
    double *d_logits;
    double *scratch; /* [threads,K + 2 E] */
    const double *d_weights;
    double d_lb_loss;
    const assay_routing *r;
    const assay_routing_inputs *in;
    const assay_routing_config *config;
    assay_routing_rule rule;
} backward_pass;

/* What a router's arithmetic makes of the mean that assay_center takes off: it rounds the terms and partial sums of p[i] d[i] over
 * `count` places i (NULL: the first ones), and does not divide by the sum of the p [all], which their roundings keep from 1.
 * Where the whole cancels this is all that is left. */
static double mean_error(const assay_context *ctx, int64_t all, const double *p, const double *d, int64_t count,
                         const int32_t *places)
{
    double weights = 0.0, exact = 0.0, rounded = 0.0;
    if (ctx->arithmetic->round == NULL) return 0.0;
    for (int64_t i = 0; i < all; i++) weights += p[i];
    for (int64_t k = 0; k < count; k++) {
        const int64_t at = places == NULL ? k : places[k];
        if (at == ASSAY_NO_EXPERT) continue;
        double term = p[at] * d[at];
        exact += term;
        assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &term);
        rounded += term;
        assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &rounded);
    }
    return weights == 0.0 ? 0.0 : rounded - exact / weights;
}

/* The load-balance part d [E]: the gradient of what selects or of the scores, as its probabilities are of these (of gemma4 they
 * are the scores). */
static void balance_part(const backward_pass *pass, int64_t t, double *d)
{
    const assay_context *ctx = pass->ctx;
    const assay_routing_config *c = pass->config;
    const int64_t experts = c->num_experts;
    const double *density = pass->r->density + t / assay_balance_sequences(pass->config).sequence * experts;
    const double *probabilities = pass->r->probabilities + t * experts;
    /* the derivative of the loss by probabilities[b,s,e] is this times density[b,e], for every s */
    const double coefficient =
        pass->d_lb_loss * (c->load_balance_loss_weight * (double)experts / (double)(c->batch * c->sequence));
    for (int64_t e = 0; e < experts; e++) d[e] = coefficient * density[e];
    assay_round(ctx, ASSAY_ROUND_ROUTER, experts, d);
    if (pass->rule.bias_inside) return;
    const double error = mean_error(ctx, experts, probabilities, d, experts, NULL);
    assay_center(d, probabilities, 0.0, experts);
    for (int64_t e = 0; e < experts; e++) d[e] = (d[e] - error) * probabilities[e];
    assay_round(ctx, ASSAY_ROUND_ROUTER, experts, d);
}

/* Of weights over their sum, as a framework goes back through the quotient: d / sum, less the sum over k of d_k g_k / sum / sum,
 * of which each step is rounded. d_values get the errors of the first, and that of the second is common to all. */
static void round_quotient(const backward_pass *pass, const double *d, const double *gathered, double divisor,
                           double *d_values)
{
    const assay_context *ctx = pass->ctx;
    const int64_t count = pass->config->num_experts_per_tok;
    double exact = 0.0, sum = 0.0;
    for (int64_t k = 0; k < count; k++) {
        const double of_d = d[k] * pass->rule.factor;
        exact += of_d * (gathered[k] / divisor / divisor);
        sum = routing_rounded(
            ctx, sum + routing_rounded(
                           ctx, of_d * routing_rounded(ctx, routing_rounded(ctx, gathered[k] / divisor) / divisor)));
        d_values[k] += routing_rounded(ctx, of_d / divisor) - of_d / divisor;
    }
    for (int64_t k = 0; k < count; k++) d_values[k] -= sum - exact;
}

/* Emulated: the errors of the gradient of the weighed values. The mean's is common to all of them. */
static void round_gathered_backward(const backward_pass *pass, int64_t t, double *d_values)
{
    const assay_context *ctx = pass->ctx;
    const assay_routing_rule *rule = &pass->rule;
    const int64_t count = pass->config->num_experts_per_tok;
    const double *gathered = pass->r->gathered + t * count, *d = pass->d_weights + t * count;
    if (ctx->arithmetic->round == NULL || !(rule->divide || rule->softmax_chosen)) return;
    if (rule->divide && !rule->softmax_chosen) {
        round_quotient(pass, d, gathered, divisor_of(gathered, count, rule), d_values);
    } else {
        const double divisor = rule->divide ? divisor_of(gathered, count, rule) : 1.0;
        const double error = mean_error(ctx, count, gathered, d, count, NULL) * rule->factor / divisor;
        for (int64_t k = 0; k < count; k++) d_values[k] -= error * (rule->softmax_chosen ? gathered[k] : 1.0 / divisor);
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, count, d_values);
}

/* The weights' part in the naive form: it reaches all experts, but those that are not chosen by its rounding alone. False: the
 * run does not take that form. */
static bool add_weights_naively(const backward_pass *pass, int64_t t, double *scratch)
{
    const assay_context *ctx = pass->ctx;
    const int64_t count = pass->config->num_experts_per_tok, experts = pass->config->num_experts;
    const int32_t *selected = pass->r->selected_experts + t * count;
    const assay_routing_inputs *in = pass->in;
    double *d_normalized = scratch, *p = scratch + count, *selecting = p + experts;
    if (!assay_rounds_at_random(ctx) || !assay_routing_has_naive_form(&pass->rule)) return false;
    assay_routing_scores(ctx, p, selecting, in->logits + t * experts, in->bias, experts, &pass->rule);
    if (in->bias != NULL) assay_round(ctx, ASSAY_ROUND_ROUTER, experts, selecting);
    for (int64_t k = 0; k < count; k++) {
        d_normalized[k] =
            pass->d_weights[t * count + k] * assay_routing_scale(&pass->rule, in->per_expert_scale, selected[k]);
    }
    return assay_routing_naive_backward(ctx, pass->d_logits + t * experts, p, selecting, d_normalized,
                                        pass->r->gathered + t * count, selected, pass->config);
}

/* The weights' part, added at the chosen experts. Of a run in the naive form the errors of the other form come on top: each has
 * places where the other's cancel. */
static void add_weights(const backward_pass *pass, int64_t t, double *d_values)
{
    const int64_t count = pass->config->num_experts_per_tok;
    const int32_t *selected = pass->r->selected_experts + t * count;
    double *d = pass->d_logits + t * pass->config->num_experts;
    if (pass->d_weights == NULL) return;
    const bool naive = add_weights_naively(pass, t, d_values);
    gathered_backward(d_values, pass->d_weights + t * count, pass->r->gathered + t * count, selected,
                      pass->in->per_expert_scale, count, &pass->rule);
    for (int64_t k = 0; naive && k < count; k++) {
        if (selected[k] != ASSAY_NO_EXPERT) d[selected[k]] -= d_values[k];
    }
    round_gathered_backward(pass, t, d_values);
    for (int64_t k = 0; k < count; k++) {
        if (selected[k] != ASSAY_NO_EXPERT) d[selected[k]] += d_values[k];
    }
}

/* The slope of an elementwise score function; emulated that of a sigmoid comes from the score as it is kept. */
static double slope_of(const backward_pass *pass, int64_t t, int64_t e)
{
    const assay_context *ctx = pass->ctx;
    const int64_t at = t * pass->config->num_experts + e;
    const bool inside = pass->rule.bias_inside && pass->in->bias != NULL;
    const bool sigmoid = pass->rule.score_func == ASSAY_SCORE_SIGMOID;
    const double x = pass->in->logits[at] + (inside ? pass->in->bias[e] : 0.0);
    double slope = assay_score_derivative(pass->rule.score_func, x);
    if (sigmoid && ctx->arithmetic->round != NULL) slope = assay_sigmoid_slope(ctx, x, pass->r->scores[at]);
    assay_round(ctx, sigmoid ? ASSAY_ROUND_ROUTER : ASSAY_ROUND_ELEMENTARY, 1, &slope);
    return slope;
}

/* From the gradient of the scores to that of their argument, in place. */
static void through_scores(const backward_pass *pass, int64_t t)
{
    const int64_t experts = pass->config->num_experts, count = pass->config->num_experts_per_tok;
    const assay_score_func score_func = pass->rule.score_func;
    double *d = pass->d_logits + t * experts;
    if (score_func == ASSAY_SCORE_NONE) return;
    if (score_func == ASSAY_SCORE_SOFTMAX) {
        const double *scores = pass->r->scores + t * experts;
        const int32_t *selected = pass->r->selected_experts + t * count;
        const double error = mean_error(pass->ctx, experts, scores, d, pass->rule.balance ? experts : count,
                                        pass->rule.balance ? NULL : selected);
        assay_center(d, scores, 0.0, experts);
        for (int64_t e = 0; e < experts; e++) d[e] = (d[e] - error) * scores[e];
    } else if (pass->rule.balance || pass->config->use_random_routing) { /* a token may have an expert twice */
        for (int64_t e = 0; e < experts; e++) d[e] *= slope_of(pass, t, e);
    } else { /* the others are 0 as they stand */
        for (int64_t k = 0; k < count; k++) {
            const int32_t e = pass->r->selected_experts[t * count + k];
            if (e != ASSAY_NO_EXPERT) d[e] *= slope_of(pass, t, e);
        }
    }
}

static int64_t scratch_size(const assay_routing_config *config)
{
    return config->num_experts_per_tok + 2 * config->num_experts;
}

static void walk_tokens(const backward_pass *pass, void (*step)(const backward_pass *pass, int64_t t, double *scratch))
{
    const assay_context *ctx = pass->ctx;
    const int64_t tokens = pass->config->batch * pass->config->sequence;
#pragma omp parallel for num_threads(ctx->threads)
    for (int part = 0; part < ctx->threads; part++) {
        const int64_t end = assay_token_range_begin(ctx, tokens, part + 1);
        for (int64_t t = assay_token_range_begin(ctx, tokens, part); t < end; t++) {
            step(pass, t, pass->scratch + part * scratch_size(pass->config));
        }
    }
}

/* First step: d_logits holds what reaches a bias that is added to the scores. */
static void step_to_bias(const backward_pass *pass, int64_t t, double *scratch)
{
    const int64_t experts = pass->config->num_experts;
    double *d = pass->d_logits + t * experts;
    for (int64_t e = 0; e < experts; e++) d[e] = 0.0;
    if (pass->rule.balance && !pass->rule.balance_pre_bias) balance_part(pass, t, d);
    if (!pass->rule.weighs_scores) add_weights(pass, t, scratch);
}

static void step_to_logits(const backward_pass *pass, int64_t t, double *scratch)
{
    const int64_t experts = pass->config->num_experts;
    double *d = pass->d_logits + t * experts;
    if (pass->rule.balance && pass->rule.balance_pre_bias) {
        balance_part(pass, t, scratch);
        for (int64_t e = 0; e < experts; e++) d[e] += scratch[e];
    }
    if (pass->rule.weighs_scores) add_weights(pass, t, scratch);
    through_scores(pass, t);
}

static void bias_backward(double *d_bias, const backward_pass *pass)
{
    const int64_t tokens = pass->config->batch * pass->config->sequence, experts = pass->config->num_experts;
    assay_column_sums(pass->ctx, d_bias, tokens, experts, experts, pass->d_logits);
}

static void expert_scale_backward(double *d_scale, const backward_pass *pass)
{
    const int64_t count = pass->config->num_experts_per_tok;
    for (int64_t e = 0; e < pass->config->num_experts; e++) d_scale[e] = 0.0;
    if (pass->d_weights == NULL) return;
    for (int64_t t = 0; t < pass->config->batch * pass->config->sequence; t++) {
        const double *gathered = pass->r->gathered + t * count;
        const double divisor = divisor_of(gathered, count, &pass->rule);
        for (int64_t k = 0; k < count; k++) {
            const int32_t e = pass->r->selected_experts[t * count + k];
            if (e == ASSAY_NO_EXPERT) continue;
            const double weight = gathered[k] / divisor * pass->rule.factor;
            assay_add_scaled(pass->ctx, 1, pass->d_weights[t * count + k], &weight, &d_scale[e]);
        }
    }
}

assay_status assay_routing_backward(assay_context *ctx, double *d_logits, double *d_bias, double *d_per_expert_scale,
                                    const double *d_weights, double d_lb_loss, double d_z_loss, const assay_routing *r,
                                    const assay_routing_inputs *in, const assay_routing_config *config)
{
    assay_status status = ASSAY_OK;
    backward_pass pass = {ctx, d_logits, NULL, d_weights, d_lb_loss, r, in, config, assay_routing_rule_of(config)};
    const bool linear = pass.rule.bias_linear;
    TRY(assay_alloc_f64(ctx, "routing: scratch gradients", scratch_size(config) * ctx->threads, &pass.scratch));
    walk_tokens(&pass, step_to_bias);
    if (d_bias != NULL && !linear) bias_backward(d_bias, &pass);
    walk_tokens(&pass, step_to_logits);
    assay_z_loss_backward(ctx, d_logits, d_z_loss, r->log_sums, in->logits, linear ? in->bias : NULL, config);
    if (d_bias != NULL && linear) bias_backward(d_bias, &pass);
    if (d_per_expert_scale != NULL) expert_scale_backward(d_per_expert_scale, &pass);
    if (pass.rule.behind != NULL) pass.rule.behind(d_logits, config->batch * config->sequence * config->num_experts);
cleanup:
    free(pass.scratch);
    return status;
}
