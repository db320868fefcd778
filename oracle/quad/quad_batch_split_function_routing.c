/* Choosing experts, sorting rows by them, and back. */
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

/* --- choosing --- */

static assay_status expert_group_mask(quad_call *c)
{
    assay_status status = ASSAY_OK;
    assay_routing_config config = *c->routing;
    const int64_t experts = config.num_experts, tokens = c->s.shards * c->s.tokens;
    const int64_t groups = config.n_routing_groups > 0 ? config.n_routing_groups : 1;
    bool *allowed = malloc((size_t)experts * sizeof *allowed);
    int32_t *selected = malloc((size_t)experts * sizeof *selected);
    quad margin, *mask = quad_tensors_find(&c->out, "outputs/mask")->values;
    /* every allowed expert is chosen */
    config.num_experts_per_tok = experts / groups * (config.n_routing_groups > 0 ? config.topk_routing_group : 1);
    if (allowed == NULL || selected == NULL) status = assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for a mask");
    for (int64_t t = 0; status == ASSAY_OK && t < tokens; t++) {
        status =
            quad_select(c->ctx, &config, quad_given(c, "inputs/gate_logits") + t * experts, allowed, selected, &margin);
        for (int64_t e = 0; status == ASSAY_OK && e < experts; e++) mask[t * experts + e] = allowed[e] ? 1 : 0;
    }
    free(allowed);
    free(selected);
    return status;
}

/* The experts of each token by `biased` [T,E], and their weights from `scores`. */
static assay_status choose(quad_call *c, int64_t tokens, const quad *biased, const quad *scores,
                           int32_t *selected, quad *weights)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *config = c->routing;
    const int64_t experts = config->num_experts, chosen = config->num_experts_per_tok;
    quad margin;
    bool *allowed = malloc((size_t)experts * sizeof *allowed);
    if (allowed == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for a choice");
    for (int64_t t = 0; t < tokens; t++) {
        quad sum = 0;
        TRY(quad_select(c->ctx, config, biased + t * experts, allowed, selected + t * chosen, &margin));
        for (int64_t k = 0; k < chosen; k++) sum += scores[t * experts + selected[t * chosen + k]];
        for (int64_t k = 0; k < chosen; k++)
            weights[t * chosen + k] =
                config->routed_scaling_factor * (scores[t * experts + selected[t * chosen + k]] / sum);
    }
cleanup:
    free(allowed);
    return status;
}

static assay_status expert_indices_and_weights(quad_call *c)
{
    return choose(c, c->s.shards * c->s.tokens, quad_given(c, "inputs/gate_logits"),
                  quad_given(c, "inputs/pre_bias_logits"), quad_out_indices(c, "outputs/indices", 0),
                  quad_out_shard(c, "outputs/weights", 0));
}

assay_status quad_select_by_logits(quad_call *c, int64_t shard, const char *bias, const quad *logits,
                                   int32_t *selected, quad *weights)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = c->routing->num_experts, tokens = c->s.tokens;
    quad *scores = NULL;
    TRY(quad_alloc(c->ctx, 2 * tokens * experts, &scores));
    for (int64_t i = 0; i < tokens * experts; i++) {
        scores[i] = quad_sigmoid(logits[i]);
        scores[tokens * experts + i] = scores[i] + quad_in_shard(c, bias, shard)[i % experts];
    }
    TRY(choose(c, tokens, scores + tokens * experts, scores, selected, weights));
cleanup:
    free(scores);
    return status;
}

assay_status quad_select_rows(quad_call *c, int64_t shard, const char *kernel, const char *bias, const quad *x,
                              int32_t *selected, quad *weights)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = c->routing->num_experts, dim = c->mla->emb_dim, tokens = c->s.tokens;
    quad *logits = NULL;
    TRY(quad_alloc(c->ctx, tokens * experts, &logits));
    for (int64_t t = 0; t < tokens; t++)
        quad_vector_matrix(dim, experts, x + t * dim, quad_in_shard(c, kernel, shard), experts, logits + t * experts);
    TRY(quad_select_by_logits(c, shard, bias, logits, selected, weights));
cleanup:
    free(logits);
    return status;
}

void quad_count_groups(int64_t count, const int32_t *ids, int64_t groups, int32_t *sizes)
{
    for (int64_t e = 0; e < groups; e++) sizes[e] = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < groups) sizes[ids[i]]++;
    }
}

static assay_status expert_selection(quad_call *c)
{
    assay_status status = ASSAY_OK;
    const int64_t chosen = c->s.tokens * c->routing->num_experts_per_tok, experts = c->routing->num_experts;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        int32_t *selected = quad_out_indices(c, "outputs/selected_experts", shard);
        int32_t *sizes = quad_out_indices(c, "outputs/group_sizes", shard);
        TRY(quad_select_rows(c, shard, "weights/routing_kernel", "weights/routing_bias",
                             quad_in_shard(c, "inputs/x", shard), selected,
                             quad_out_shard(c, "outputs/weights", shard)));
        quad_count_groups(chosen, selected, experts, sizes);
    }
cleanup:
    return status;
}

/* --- sorting by expert, and back --- */

/* What a shard sorts: of choice i of those gathered over its expert axis, the shard whose it is and its place there. */
static void owner(const quad_call *c, int64_t shard, int64_t i, int64_t *of, int64_t *place)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    *of = shard / c->s.expert_shards * c->s.expert_shards + i / own;
    *place = i % own;
}

/* rolled [R] of a shard from all shards' own choices [M,T*K]. */
static void roll(const quad_call *c, int64_t shard, const int32_t *choices, int32_t *rolled)
{
    const int64_t own = c->s.copies / c->s.expert_shards, experts = c->routing->num_experts;
    const int64_t first = shard % c->s.expert_shards * c->s.local_experts;
    for (int64_t i = 0; i < c->s.copies; i++) {
        int64_t of, place;
        owner(c, shard, i, &of, &place);
        rolled[i] = (int32_t)((choices[of * own + place] + experts - first) % experts);
    }
}

/* order [R] of a shard's rolled ids, which the caller frees. */
static assay_status sort(const quad_call *c, const int32_t *rolled, int32_t **order)
{
    const int64_t experts = c->routing->num_experts;
    const assay_status status = assay_alloc_i32(c->ctx, "an order", c->s.copies + experts, order);
    if (status == ASSAY_OK) quad_sort_by_expert(c->s.copies, rolled, experts, *order, *order + c->s.copies);
    return status;
}

/* sorted [R,D] of one shard from all shards' rows [M,T,D]. */
static assay_status sort_rows(quad_call *c, int64_t shard, const int32_t *rolled, const quad *rows, int64_t width,
                              int64_t each, quad *sorted)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    int32_t *order = NULL;
    const assay_status status = sort(c, rolled, &order);
    if (status != ASSAY_OK) return status;
    for (int64_t j = 0; j < c->s.copies; j++) {
        int64_t of, place;
        owner(c, shard, order[j], &of, &place);
        memcpy(sorted + j * width, rows + (of * (own / each) + place / each) * width, (size_t)width * sizeof *rows);
    }
    free(order);
    return ASSAY_OK;
}

assay_status quad_unsort_rows(quad_call *c, const int32_t *rolled, const quad *sorted, quad *rows)
{
    const int64_t width = c->mla->emb_dim, chosen = c->routing->num_experts_per_tok;
    memset(rows, 0, (size_t)(c->s.shards * c->s.tokens * width) * sizeof *rows);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        int32_t *order = NULL;
        const assay_status status = sort(c, rolled + shard * c->s.copies, &order);
        if (status != ASSAY_OK) return status;
        for (int64_t j = 0; j < c->s.copies; j++) {
            int64_t of, place;
            owner(c, shard, order[j], &of, &place);
            quad *to = rows + (of * c->s.tokens + place / chosen) * width;
            for (int64_t d = 0; d < width; d++) to[d] += sorted[(shard * c->s.copies + j) * width + d];
        }
        free(order);
    }
    return ASSAY_OK;
}

assay_status quad_route_rows(quad_call *c, const quad *rows, const int32_t *choices, const quad *weights,
                             const quad_routed *to)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = c->mla->emb_dim, chosen = c->routing->num_experts_per_tok, copies = c->s.copies;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        int32_t *rolled = to->rolled + shard * copies, *sizes = to->sizes + shard * c->s.local_experts;
        roll(c, shard, choices, rolled);
        TRY(sort_rows(c, shard, rolled, rows, dim, chosen, to->x + shard * copies * dim));
        TRY(sort_rows(c, shard, rolled, weights, 1, 1, to->weights + shard * copies));
        quad_count_groups(copies, rolled, c->s.local_experts, sizes);
    }
cleanup:
    return status;
}

quad_routed quad_routed_outputs(const quad_call *c)
{
    return (quad_routed){quad_out_shard(c, "outputs/x", 0), quad_out_shard(c, "outputs/weights", 0),
                         quad_out_indices(c, "outputs/selected_experts", 0),
                         quad_out_indices(c, "outputs/group_sizes", 0)};
}

static assay_status route(quad_call *c)
{
    const quad_routed to = quad_routed_outputs(c);
    const assay_status status =
        quad_route_rows(c, quad_given(c, "inputs/x"), quad_given_indices(c, "inputs/selected_experts"),
                        quad_given(c, "inputs/weights"), &to);
    if (status != ASSAY_OK || quad_tensors_find(&c->in, "inputs/group_sizes") == NULL) return status;
    /* the sizes are those that the argument has, added over the expert axis */
    const int32_t *counts = quad_given_indices(c, "inputs/group_sizes");
    for (int64_t i = 0; i < c->s.shards * c->s.local_experts; i++) {
        const int64_t shard = i / c->s.local_experts, place = shard % c->s.expert_shards;
        const int64_t e = place * c->s.local_experts + i % c->s.local_experts;
        to.sizes[i] = 0;
        for (int64_t p = 0; p < c->s.expert_shards; p++)
            to.sizes[i] += counts[(shard - place + p) * c->routing->num_experts + e];
    }
    return ASSAY_OK;
}

static assay_status route_impl(quad_call *c)
{
    assay_status status = ASSAY_OK;
    const int32_t *rolled = quad_given_indices(c, "inputs/selected_experts");
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(sort_rows(c, shard, rolled + shard * c->s.copies, quad_given(c, "inputs/x"), c->mla->emb_dim,
                      c->routing->num_experts_per_tok, quad_out_shard(c, "outputs/x", shard)));
    }
cleanup:
    return status;
}

static assay_status unroute(quad_call *c)
{
    return quad_unsort_rows(c, quad_given_indices(c, "inputs/selected_experts"), quad_given(c, "inputs/x"),
                            quad_out_shard(c, "outputs/x", 0));
}

static assay_status unroute_ubatch_fn(quad_call *c)
{
    quad *out = quad_out_shard(c, "outputs/outputs", 0);
    const int32_t *rolled = quad_given_indices(c, "inputs/selected_experts");
    assay_status status = quad_unsort_rows(c, rolled, quad_given(c, "inputs/routed_expert_out"), out);
    if (status != ASSAY_OK) return status;
    for (int64_t i = 0; i < c->s.shards * c->s.tokens * c->mla->emb_dim; i++)
        out[i] = quad_given(c, "inputs/moe_inputs")[i] + (out[i] + quad_given(c, "inputs/shared_expert_out")[i]);
    memcpy(quad_out_indices(c, "outputs/selected_experts", 0), rolled,
           (size_t)(c->s.shards * c->s.copies) * sizeof *rolled);
    return ASSAY_OK;
}

const quad_named_function quad_routing_functions[] = {
    {"expert_group_mask", expert_group_mask},
    {"expert_indices_and_weights", expert_indices_and_weights},
    {"expert_selection", expert_selection},
    {"route", route},
    {"route_impl", route_impl},
    {"unroute", unroute},
    {"unroute_ubatch_fn", unroute_ubatch_fn},
    {NULL, NULL},
};
