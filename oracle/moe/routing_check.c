#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/routing_internal.h"

/* What MaxText adds to the sum before it divides. */
static const double SUM_EPSILON = 1e-20;

static const char *const FAMILY_NAMES[] = {
    [ASSAY_ROUTER_DEEPSEEK3] = "deepseek3", [ASSAY_ROUTER_DEEPSEEK2] = "deepseek2", [ASSAY_ROUTER_DEFAULT] = "default",
    [ASSAY_ROUTER_LLAMA4] = "llama4",       [ASSAY_ROUTER_GEMMA4] = "gemma4",       [ASSAY_ROUTER_FUSED] = "fused",
};
static const char *const SCORE_NAMES[] = {
    [ASSAY_SCORE_NONE] = "",
    [ASSAY_SCORE_SIGMOID] = "sigmoid",
    [ASSAY_SCORE_SOFTMAX] = "softmax",
    [ASSAY_SCORE_SQRTSOFTPLUS] = "sqrtsoftplus",
};

static assay_routing_rule rule_of_family(const assay_routing_config *config)
{
    const assay_router_family family = config->family;
    const bool deepseek = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_DEEPSEEK2;
    const bool fused = family == ASSAY_ROUTER_FUSED;
    const bool gemma4 = family == ASSAY_ROUTER_GEMMA4;
    const bool hash = config->hash_rows > 0;
    assay_routing_rule rule = {
        .score_func = config->score_func,
        .selects = fused    ? ASSAY_SELECTS_SCORES
                   : gemma4 ? ASSAY_SELECTS_ARGUMENT
                            : ASSAY_SELECTS_BIASED,
        .bias_inside = fused || gemma4,
        .bias_linear = fused || gemma4 || (family != ASSAY_ROUTER_DEEPSEEK3 && config->score_func == ASSAY_SCORE_NONE),
        .weighs_scores = fused || gemma4 || family == ASSAY_ROUTER_DEEPSEEK3,
        .softmax_chosen = family == ASSAY_ROUTER_DEFAULT,
        .divide = config->norm_topk_prob,
        .epsilon = 0.0,
        .through_sum = assay_center,
        .factor = deepseek ? config->routed_scaling_factor : 1.0,
        .expert_scale = family == ASSAY_ROUTER_DEFAULT || gemma4,
        .groups = deepseek && config->n_routing_groups > 0,
        .masked = -INFINITY,
        .hash = hash,
        .balance = config->load_balance_loss_weight > 0.0 && !hash && !fused,
        .balance_pre_bias = config->balance_pre_bias,
        .bias_updates = config->routed_bias_update_rate > 0.0 && !hash && !fused,
    };
    if (config->use_random_routing) {
        rule.bias_inside = rule.weighs_scores = rule.softmax_chosen = rule.divide = rule.expert_scale = rule.groups =
            false;
        rule.selects = ASSAY_SELECTS_BIASED;
        rule.factor = 1.0;
        return rule;
    }
    if (deepseek) {
        /* MaxText goes by the score function alone, whatever the model's name */
        if (config->select_by_logits) rule.selects = ASSAY_SELECTS_ARGUMENT;
        rule.divide = !config->undivided &&
                      (rule.score_func == ASSAY_SCORE_SIGMOID || rule.score_func == ASSAY_SCORE_SQRTSOFTPLUS);
        rule.epsilon = rule.divide && !config->renormalize_exactly ? SUM_EPSILON : 0.0;
    }
    if (config->norm_topk_epsilon > 0.0) rule.epsilon = config->norm_topk_epsilon;
    if ((fused && rule.score_func == ASSAY_SCORE_NONE) || gemma4) rule.score_func = ASSAY_SCORE_SOFTMAX;
    return rule;
}

assay_routing_rule assay_routing_rule_of(const assay_routing_config *config)
{
    assay_routing_rule rule = rule_of_family(config);
    if (config->other_rule != NULL) config->other_rule(&rule);
    return rule;
}

bool assay_routing_has_naive_form(const assay_routing_rule *rule)
{
    return rule->softmax_chosen && rule->score_func == ASSAY_SCORE_NONE && rule->through_sum == assay_center &&
           rule->epsilon == 0.0;
}

bool assay_routing_divides(const assay_routing_config *config)
{
    return assay_routing_rule_of(config).divide;
}

static assay_status check_sizes(assay_context *ctx, const assay_routing_config *c)
{
    int64_t count = 0;
    if (c->batch < 1 || c->sequence < 1) {
        return assay_refuse(ctx, "routing: batch=%" PRId64 " and sequence=%" PRId64 ", expected 1 or more of each",
                            c->batch, c->sequence);
    }
    if (c->num_experts < 1 || c->num_experts > INT32_MAX)
        return assay_refuse(ctx, "routing: num_experts=%" PRId64 ", expected 1 to 2147483647", c->num_experts);
    if (c->num_experts_per_tok < 1 || c->num_experts_per_tok > c->num_experts) {
        return assay_refuse(ctx, "routing: num_experts_per_tok=%" PRId64 ", expected 1 to num_experts=%" PRId64,
                            c->num_experts_per_tok, c->num_experts);
    }
    assay_status status = assay_checked_count(ctx, "routing: logits [batch,sequence,num_experts]", 3,
                                              (int64_t[]){c->batch, c->sequence, c->num_experts}, &count);
    if (status == ASSAY_OK && c->batch * c->sequence > INT32_MAX / c->num_experts_per_tok) {
        return assay_refuse(ctx,
                            "routing: batch=%" PRId64 " * sequence=%" PRId64 " * num_experts_per_tok=%" PRId64
                            " choices, expected at most 2147483647 (positions are int32)",
                            c->batch, c->sequence, c->num_experts_per_tok);
    }
    return status;
}

static assay_status check_groups(assay_context *ctx, const assay_routing_config *c)
{
    const int64_t groups = c->n_routing_groups, kept = c->topk_routing_group, summed = c->top_k_in_group;
    const bool sums = groups != -1 && c->group_score == ASSAY_GROUP_TOP2_SUM;
    if (summed != 0 && summed != 2 && !sums) {
        return assay_refuse(
            ctx, "routing: top_k_in_group=%" PRId64 ", expected 2: there are no groups with a sum of scores", summed);
    }
    if (groups == -1) return ASSAY_OK;
    if (groups < 1 || c->num_experts % groups != 0) {
        return assay_refuse(
            ctx, "routing: n_routing_groups=%" PRId64 ", expected -1 (no groups) or a divisor of num_experts=%" PRId64,
            groups, c->num_experts);
    }
    if (summed < 0 || (summed > 2 && summed > c->num_experts / groups)) {
        return assay_refuse(ctx,
                            "routing: top_k_in_group=%" PRId64 ", expected 1 to the %" PRId64 " experts of a group",
                            summed, c->num_experts / groups);
    }
    if (kept < 1 || kept > groups) {
        return assay_refuse(ctx, "routing: topk_routing_group=%" PRId64 ", expected 1 to n_routing_groups=%" PRId64,
                            kept, groups);
    }
    if (kept * (c->num_experts / groups) < c->num_experts_per_tok) {
        return assay_refuse(ctx,
                            "routing: topk_routing_group=%" PRId64 " of n_routing_groups=%" PRId64 " leaves %" PRId64
                            " of num_experts=%" PRId64 ", fewer than num_experts_per_tok=%" PRId64,
                            kept, groups, kept * (c->num_experts / groups), c->num_experts, c->num_experts_per_tok);
    }
    return ASSAY_OK;
}

static assay_status check_numbers(assay_context *ctx, const assay_routing_config *c, bool scaled)
{
    const struct {
        const char *key;
        double value;
        bool signed_value;
    } numbers[] = {
        {"routed_scaling_factor", scaled ? c->routed_scaling_factor : 1.0, true},
        {"norm_topk_epsilon", c->norm_topk_epsilon, false},
        {"load_balance_loss_weight", c->load_balance_loss_weight, false},
        {"router_z_loss_weight", c->z_loss_weight, false},
        {"routed_bias_update_rate", c->routed_bias_update_rate, false},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!isfinite(numbers[i].value) || !(numbers[i].signed_value || numbers[i].value >= 0.0)) {
            return assay_refuse(ctx, "routing: %s=%g, expected a finite number%s", numbers[i].key, numbers[i].value,
                                numbers[i].signed_value ? "" : " of 0 or more");
        }
    }
    if (c->hash_rows < 0)
        return assay_refuse(ctx, "routing: %" PRId64 " rows of tid2eid, expected 0 or more", c->hash_rows);
    return ASSAY_OK;
}

assay_status assay_routing_check(assay_context *ctx, const assay_routing_config *c)
{
    MUST(check_sizes(ctx, c));
    const assay_router_family family = c->family;
    const bool deepseek = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_DEEPSEEK2;
    MUST(check_numbers(ctx, c, deepseek));
    if (family == ASSAY_ROUTER_LLAMA4 && (c->num_experts_per_tok != 1 || c->norm_topk_prob)) {
        return assay_refuse(
            ctx, "routing: llama4 with num_experts_per_tok=%" PRId64 " and norm_topk_prob=%s, expected 1 and false",
            c->num_experts_per_tok, c->norm_topk_prob ? "true" : "false");
    }
    if (c->norm_topk_epsilon > 0.0 && !assay_routing_divides(c)) {
        return assay_refuse(ctx, "routing: norm_topk_epsilon=%g, expected 0: weights are not divided by their sum",
                            c->norm_topk_epsilon);
    }
    if (family == ASSAY_ROUTER_GEMMA4 && c->score_func != ASSAY_SCORE_NONE) {
        return assay_refuse(
            ctx, "routing: gemma4 with routed_score_func=\"%s\", expected \"\" (its softmax takes the logits)",
            SCORE_NAMES[c->score_func]);
    }
    if (c->select_by_logits && c->load_balance_loss_weight > 0.0) {
        return assay_refuse(ctx, "routing: a choice by the logits with load_balance_loss_weight=%g, expected 0",
                            c->load_balance_loss_weight);
    }
    if (c->balance_pre_bias && family != ASSAY_ROUTER_DEEPSEEK3) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "routing: load_balance_loss_pre_bias is true, expected false: only the routers of DeepSeek-V3 "
            "and V4 have scores without the bias that selects");
    }
    if (family == ASSAY_ROUTER_FUSED && c->use_random_routing) {
        return assay_refuse(
            ctx, "routing: fused_moe_func with use_random_routing, expected false: it has a rule of its own");
    }
    if (family == ASSAY_ROUTER_FUSED && c->hash_rows > 0) {
        return assay_refuse(ctx,
                            "routing: fused_moe_func with hash routing (%" PRId64
                            " rows of tid2eid), expected a routing by scores",
                            c->hash_rows);
    }
    if (c->z_loss_weight > 0.0 && (family == ASSAY_ROUTER_FUSED || c->hash_rows > 0)) {
        return assay_refuse(ctx, "routing: router_z_loss_weight=%g, expected 0: %s has no losses", c->z_loss_weight,
                            c->hash_rows > 0 ? "hash routing" : "fused_moe_func");
    }
    return deepseek ? check_groups(ctx, c) : ASSAY_OK;
}

static assay_status check_finite(assay_context *ctx, const assay_routing_inputs *in, int64_t tokens, int64_t experts)
{
    for (int64_t e = 0; in->bias != NULL && e < experts; e++) {
        if (!isfinite(in->bias[e])) {
            return assay_refuse(ctx, "routing: gate/bias of expert %" PRId64 " is %g, expected a finite number", e,
                                in->bias[e]);
        }
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t e = 0; e < experts; e++) {
            const double logit = in->logits[t * experts + e], bias = in->bias != NULL ? in->bias[e] : 0.0;
            if (!isfinite(logit + bias)) {
                return assay_refuse(ctx,
                                    "routing: the logit of token %" PRId64 ", expert %" PRId64
                                    " is %g (bias %g), expected finite numbers",
                                    t, e, logit, bias);
            }
        }
    }
    return ASSAY_OK;
}

/* What a token's K experts may be. */
typedef struct chosen_rule {
    int64_t count, experts;
    bool may_be_none, may_repeat;
} chosen_rule;

/* One token's row of experts: `what` and `row` say where it stands. */
static assay_status check_row(assay_context *ctx, const char *what, int64_t row, const int32_t *chosen,
                              const chosen_rule *rule)
{
    for (int64_t k = 0; k < rule->count; k++) {
        if (rule->may_be_none && chosen[k] == ASSAY_NO_EXPERT) continue;
        if (chosen[k] < 0 || chosen[k] >= rule->experts) {
            return assay_refuse(
                ctx, "routing: %s row %" PRId64 " names expert %" PRId32 ", expected %d to num_experts-1=%" PRId64,
                what, row, chosen[k], rule->may_be_none ? ASSAY_NO_EXPERT : 0, rule->experts - 1);
        }
        for (int64_t j = 0; j < k && !rule->may_repeat; j++) {
            if (chosen[j] == chosen[k]) {
                return assay_refuse(
                    ctx, "routing: %s row %" PRId64 " names expert %" PRId32 " twice, expected distinct experts", what,
                    row, chosen[k]);
            }
        }
    }
    return ASSAY_OK;
}

static assay_status check_hash(assay_context *ctx, const assay_routing_inputs *in, const assay_routing_config *c)
{
    const int64_t tokens = c->batch * c->sequence, count = c->num_experts_per_tok;
    if (in->tid2eid == NULL || in->input_ids == NULL)
        return assay_refuse(ctx, "routing: hash routing without %s", in->tid2eid == NULL ? "tid2eid" : "input_ids");
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t id = in->input_ids[t];
        if (id < 0 || id >= c->hash_rows) {
            return assay_refuse(ctx,
                                "routing: input_ids of token %" PRId64 " is %" PRId64 ", expected 0 to %" PRId64
                                " (rows of tid2eid)",
                                t, id, c->hash_rows - 1);
        }
        const chosen_rule rule = {.count = count, .experts = c->num_experts};
        MUST(check_row(ctx, "tid2eid", id, in->tid2eid + id * count, &rule));
    }
    return ASSAY_OK;
}

/* The choice that is given, and its weights. */
static assay_status check_given(assay_context *ctx, const assay_routing_inputs *in, const assay_routing_config *c)
{
    const int64_t count = c->num_experts_per_tok;
    const chosen_rule rule = {
        .count = count, .experts = c->num_experts, .may_be_none = true, .may_repeat = c->use_random_routing};
    for (int64_t t = 0; t < c->batch * c->sequence; t++) {
        MUST(check_row(ctx, "selected_experts", t, in->given_experts + t * count, &rule));
        for (int64_t i = t * count; in->given_weights != NULL && i < (t + 1) * count; i++) {
            if (in->given_experts[i] == ASSAY_NO_EXPERT || isfinite(in->given_weights[i])) continue;
            return assay_refuse(
                ctx, "routing: routing_weights[%" PRId64 "] is %g beside expert %" PRId32 ", expected a finite number",
                i, in->given_weights[i], in->given_experts[i]);
        }
    }
    return ASSAY_OK;
}

assay_status assay_routing_check_inputs(assay_context *ctx, const assay_routing_inputs *in,
                                        const assay_routing_config *config)
{
    if (in->given_weights != NULL) return check_given(ctx, in, config);
    MUST(check_finite(ctx, in, config->batch * config->sequence, config->num_experts));
    if (in->per_expert_scale != NULL && !assay_routing_rule_of(config).expert_scale) {
        return assay_refuse(ctx, "routing: per_expert_scale given to the %s family, only default and gemma4 have one",
                            FAMILY_NAMES[config->family]);
    }
    if (in->given_experts != NULL) return check_given(ctx, in, config);
    if (config->use_random_routing) return assay_refuse(ctx, "routing: use_random_routing without a given choice");
    return config->hash_rows > 0 ? check_hash(ctx, in, config) : ASSAY_OK;
}

assay_status assay_routing_alloc(assay_context *ctx, assay_routing *r, const assay_routing_config *config)
{
    memset(r, 0, sizeof *r);
    assay_status status = assay_routing_check(ctx, config);
    if (status != ASSAY_OK) return status;
    const assay_routing_rule rule = assay_routing_rule_of(config);
    const int64_t experts = config->num_experts, tokens = config->batch * config->sequence;
    const int64_t choices = tokens * config->num_experts_per_tok;
    TRY(assay_alloc_i32(ctx, "routing: selected_experts", choices, &r->selected_experts));
    TRY(assay_alloc_f64(ctx, "routing: weights", choices, &r->weights));
    TRY(assay_alloc_f64(ctx, "routing: margin", tokens, &r->margin));
    TRY(assay_alloc_f64(ctx, "routing: scores", tokens * experts, &r->scores));
    TRY(assay_alloc_f64(ctx, "routing: gathered", choices, &r->gathered));
    TRY(assay_alloc_i32(ctx, "routing: group_sizes", experts, &r->group_sizes));
    if (rule.balance) {
        TRY(assay_alloc_f64(ctx, "routing: probabilities", tokens * experts, &r->probabilities));
        TRY(assay_alloc_f64(ctx, "routing: density", config->batch * experts, &r->density));
    }
    if (config->z_loss_weight > 0.0) TRY(assay_alloc_f64(ctx, "routing: log_sums", tokens, &r->log_sums));
    if (rule.bias_updates) TRY(assay_alloc_f64(ctx, "routing: bias_updates", experts, &r->bias_updates));
cleanup:
    if (status != ASSAY_OK) assay_routing_free(r);
    return status;
}

void assay_routing_free(assay_routing *r)
{
    free(r->selected_experts);
    free(r->weights);
    free(r->margin);
    free(r->scores);
    free(r->gathered);
    free(r->probabilities);
    free(r->density);
    free(r->log_sums);
    free(r->bias_updates);
    free(r->group_sizes);
    memset(r, 0, sizeof *r);
}
