#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/routing_internal.h"

/* The largest `room` values seen so far in descending order; among equal ones the first seen first. */
typedef struct top_list {
    double *value;
    int32_t *index;
    int64_t room, count;
} top_list;

static void offer(top_list *list, double value, int32_t index)
{
    if (list->count == list->room && !(value > list->value[list->room - 1])) return;
    int64_t place = list->count < list->room ? list->count++ : list->room - 1;
    for (; place > 0 && value > list->value[place - 1]; place--) {
        list->value[place] = list->value[place - 1];
        list->index[place] = list->index[place - 1];
    }
    list->value[place] = value;
    list->index[place] = index;
}

/* Half the gap at the cut after the first `chosen`; +inf where nothing was left out. */
static double cut_margin(const top_list *list, int64_t chosen)
{
    return list->count > chosen ? 0.5 * (list->value[chosen - 1] - list->value[chosen]) : INFINITY;
}

/* How many values of a group its score is the sum of. */
static int64_t group_terms(const assay_routing_config *config)
{
    const int64_t size = config->num_experts / config->n_routing_groups;
    const int64_t terms = config->top_k_in_group > 0 ? config->top_k_in_group : 2;
    return config->group_score == ASSAY_GROUP_MAX ? 1 : terms < size ? terms : size;
}

/* The sum of the largest values, largest first. */
static double group_score(const double *values, int64_t count, int64_t terms)
{
    double sum = 0;
    int64_t last = -1;
    for (int64_t k = 0; k < terms; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++) {
            const bool before = last >= 0 && (values[i] > values[last] || (values[i] == values[last] && i <= last));
            if (!before && (best < 0 || values[i] > values[best])) best = i;
        }
        sum = k == 0 ? values[best] : sum + values[best];
        last = best;
    }
    return sum;
}

/* Marks the groups of `selecting` [E] that stay and returns the margin of that choice. */
static double keep_groups(const double *selecting, const assay_routing_scratch *scratch,
                          const assay_routing_config *config)
{
    const int64_t groups = config->n_routing_groups, size = config->num_experts / groups;
    top_list list = {scratch->top_value, scratch->top_index, config->topk_routing_group + 1, 0};
    for (int64_t g = 0; g < groups; g++) {
        scratch->group_kept[g] = 0;
        offer(&list, group_score(selecting + g * size, size, group_terms(config)), (int32_t)g);
    }
    for (int64_t i = 0; i < config->topk_routing_group; i++) scratch->group_kept[list.index[i]] = 1;
    return cut_margin(&list, config->topk_routing_group) / (double)group_terms(config);
}

assay_status assay_expert_group_mask(assay_context *ctx, double *mask, const double *biased, int64_t tokens,
                                     const assay_routing_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = config->num_experts, groups = config->n_routing_groups;
    assay_routing_scratch scratch = {0};
    for (int64_t i = 0; groups <= 0 && i < tokens * experts; i++) mask[i] = 1;
    if (groups <= 0) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "scores of groups", config->topk_routing_group + 1, &scratch.top_value));
    TRY(assay_alloc_i32(ctx, "groups by score", config->topk_routing_group + 1, &scratch.top_index));
    TRY(assay_alloc_i32(ctx, "groups that stay", groups, &scratch.group_kept));
    for (int64_t i = 0; i < tokens * experts; i++) {
        if (i % experts == 0) keep_groups(biased + i, &scratch, config);
        mask[i] = scratch.group_kept[i % experts / (experts / groups)];
    }
cleanup:
    free(scratch.top_value);
    free(scratch.top_index);
    free(scratch.group_kept);
    return status;
}

void assay_routing_select(int32_t *selected, double *margin, const assay_routing_scratch *scratch,
                          const assay_routing_config *config, const assay_routing_rule *rule)
{
    const int64_t chosen = config->num_experts_per_tok, groups = rule->groups ? config->n_routing_groups : 1;
    const int64_t size = config->num_experts / groups;
    const double of_groups = rule->groups ? keep_groups(scratch->selecting, scratch, config) : INFINITY;
    top_list list = {scratch->top_value, scratch->top_index, chosen + 1, 0};
    for (int64_t g = 0; g < groups; g++) {
        const bool masked = rule->groups && scratch->group_kept[g] == 0;
        if (masked && !(rule->masked > -INFINITY)) continue;
        for (int64_t e = g * size; e < (g + 1) * size; e++)
            offer(&list, masked ? rule->masked : scratch->selecting[e], (int32_t)e);
    }
    for (int64_t k = 0; k < chosen; k++) selected[k] = list.index[k];
    *margin = fmin(cut_margin(&list, chosen), of_groups);
}
