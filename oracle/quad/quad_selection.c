/* Who is chosen: by rank, the number of values that come before one. Equal values: the lower index comes first. */
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"

/* How many of the `allowed` values (NULL: of all) come before number `i`. */
static int64_t rank_of(int64_t count, const quad *values, const bool *allowed, int64_t i)
{
    int64_t rank = 0;
    for (int64_t j = 0; j < count; j++) {
        if ((allowed == NULL || allowed[j]) && (values[j] > values[i] || (values[j] == values[i] && j < i))) rank++;
    }
    return rank;
}

/* Half the gap between the allowed values of ranks keep - 1 and keep; infinite where nothing is left out. */
static quad half_gap(int64_t count, const quad *values, const bool *allowed, int64_t keep)
{
    quad last_in = 0, first_out = 0;
    bool left_out = false;
    for (int64_t i = 0; i < count; i++) {
        if (allowed != NULL && !allowed[i]) continue;
        int64_t rank = rank_of(count, values, allowed, i);
        if (rank == keep - 1) last_in = values[i];
        if (rank == keep) {
            first_out = values[i];
            left_out = true;
        }
    }
    return left_out ? (last_in - first_out) / 2 : (quad)INFINITY;
}

/* A group's score: the sum of its `terms` largest values. */
static quad group_score(int64_t size, const quad *values, int64_t terms)
{
    quad sum = 0;
    for (int64_t i = 0; i < size; i++) {
        if (rank_of(size, values, NULL, i) < terms) sum += values[i];
    }
    return sum;
}

/* Allows the experts of the best groups only, and gives the margin of that cut. */
static assay_status cut_groups(assay_context *ctx, const assay_routing_config *config, const quad *biased,
                               bool *allowed, quad *margin)
{
    int64_t groups = config->n_routing_groups, kept = config->topk_routing_group, experts = config->num_experts;
    if (experts % groups != 0 || kept < 1 || kept > groups) {
        return assay_refuse(ctx, "%lld of %lld groups of %lld experts cannot be chosen", (long long)kept,
                            (long long)groups, (long long)experts);
    }
    int64_t size = experts / groups;
    int64_t most = config->top_k_in_group > 0 ? config->top_k_in_group : 2;
    int64_t terms = config->group_score == ASSAY_GROUP_MAX ? 1 : most < size ? most : size;
    quad *scores = NULL;
    MUST(quad_alloc(ctx, groups, &scores));
    for (int64_t g = 0; g < groups; g++) scores[g] = group_score(size, biased + g * size, terms);
    *margin = half_gap(groups, scores, NULL, kept) / terms;
    for (int64_t e = 0; e < experts; e++) allowed[e] = rank_of(groups, scores, NULL, e / size) < kept;
    free(scores);
    return ASSAY_OK;
}

assay_status quad_select(assay_context *ctx, const assay_routing_config *config, const quad *biased, bool *allowed,
                         int32_t *selected, quad *margin)
{
    int64_t experts = config->num_experts, k = config->num_experts_per_tok, chosen = 0;
    quad group_margin = INFINITY;
    for (int64_t e = 0; e < experts; e++) allowed[e] = true;
    bool deepseek = config->family == ASSAY_ROUTER_DEEPSEEK3 || config->family == ASSAY_ROUTER_DEEPSEEK2;
    if (deepseek && config->n_routing_groups > 0) {
        assay_status status = cut_groups(ctx, config, biased, allowed, &group_margin);
        if (status != ASSAY_OK) return status;
    }
    for (int64_t e = 0; e < experts; e++) {
        if (isnanq(biased[e])) return assay_refuse(ctx, "the score of expert %lld is NaN", (long long)e);
        int64_t rank = allowed[e] ? rank_of(experts, biased, allowed, e) : k;
        if (rank >= k) continue;
        selected[rank] = (int32_t)e;
        chosen++;
    }
    if (chosen < k) {
        return assay_refuse(ctx, "%lld experts are allowed, expected at least %lld", (long long)chosen, (long long)k);
    }
    *margin = half_gap(experts, biased, allowed, k);
    if (group_margin < *margin) *margin = group_margin;
    return ASSAY_OK;
}
