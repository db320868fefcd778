/* Choosing experts, on all shards: each chooses for its own tokens. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"

static double group_score(const double *values, int64_t count, assay_group_score how)
{
    double first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        if (values[i] > first) {
            second = first;
            first = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    }
    return how == ASSAY_GROUP_MAX || count == 1 ? first : first + second;
}

/* Whether fewer than `kept` groups come before this one: by a higher score, or by the same and a lower index. */
static bool group_stays(const double *scores, int64_t groups, int64_t group, int64_t kept)
{
    int64_t before = 0;
    for (int64_t g = 0; g < groups; g++)
        before += scores[g] > scores[group] || (scores[g] == scores[group] && g < group);
    return before < kept;
}

assay_status bs_expert_group_mask(assay_context *ctx, double *mask, const double *gate_logits, int64_t tokens,
                                  const assay_routing_config *config)
{
    assay_status status = ASSAY_OK;
    const bool limited = config->n_routing_groups > 0;
    const int64_t groups = limited ? config->n_routing_groups : 1, kept = limited ? config->topk_routing_group : 1;
    const int64_t size = config->num_experts / groups;
    double *scores = NULL;
    TRY(assay_alloc_f64(ctx, "scores of groups", groups, &scores));
    for (int64_t t = 0; t < tokens; t++) {
        const double *values = gate_logits + t * config->num_experts;
        for (int64_t g = 0; g < groups; g++) scores[g] = group_score(values + g * size, size, config->group_score);
        for (int64_t e = 0; e < config->num_experts; e++)
            mask[t * config->num_experts + e] = group_stays(scores, groups, e / size, kept) ? 1 : 0;
    }
cleanup:
    free(scores);
    return status;
}

assay_status bs_selection_alloc(assay_context *ctx, const bs_run *run, bs_selection *selection)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts;
    const int64_t chosen = run->routing.num_experts_per_tok;
    TRY(bs_alloc_shards(ctx, run, "logits", tokens, experts, &selection->logits));
    TRY(bs_alloc_shards(ctx, run, "scores", tokens, experts, &selection->scores));
    TRY(bs_alloc_shards_i32(ctx, run, "selected_experts", tokens, chosen, &selection->selected_experts));
    TRY(bs_alloc_shards(ctx, run, "routing weights", tokens, chosen, &selection->weights));
    TRY(bs_alloc_shards(ctx, run, "gathered scores", tokens, chosen, &selection->gathered));
    TRY(bs_alloc_shards(ctx, run, "margin", tokens, 1, &selection->margin));
    TRY(bs_alloc_shards_i32(ctx, run, "group_sizes", experts, 1, &selection->group_sizes));
cleanup:
    return status;
}

void bs_selection_free(bs_selection *selection)
{
    free(selection->logits);
    free(selection->scores);
    free(selection->selected_experts);
    free(selection->weights);
    free(selection->gathered);
    free(selection->margin);
    free(selection->group_sizes);
    *selection = (bs_selection){0};
}

/* One shard's part, as routing.h sees it. */
static assay_routing routing_of(const bs_run *run, const bs_selection *selection, int64_t shard)
{
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts;
    const int64_t choices = tokens * run->routing.num_experts_per_tok;
    return (assay_routing){.selected_experts = selection->selected_experts + shard * choices,
                           .weights = selection->weights + shard * choices,
                           .margin = selection->margin + shard * tokens,
                           .scores = selection->scores + shard * tokens * experts,
                           .gathered = selection->gathered + shard * choices,
                           .group_sizes = selection->group_sizes + shard * experts};
}

static assay_routing_inputs routing_inputs_of(const bs_run *run, const bs_selection *selection, const bs_weights *w,
                                              int64_t shard)
{
    const int64_t size = run->sizes.tokens * run->routing.num_experts;
    return (assay_routing_inputs){.logits = selection->logits + shard * size,
                                  .bias = bs_weight_of(run, w, BS_GATE_BIAS, shard)};
}

assay_status bs_expert_indices_and_weights(assay_context *ctx, const bs_run *run, bs_selection *selection,
                                           const bs_weights *w, const int32_t *given)
{
    assay_status status = ASSAY_OK;
    const int64_t choices = run->sizes.tokens * run->routing.num_experts_per_tok;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        assay_routing routing = routing_of(run, selection, shard);
        assay_routing_inputs inputs = routing_inputs_of(run, selection, w, shard);
        inputs.given_experts = given == NULL ? NULL : given + shard * choices;
        TRY(assay_routing_forward(ctx, &routing, &inputs, &run->routing));
    }
cleanup:
    return status;
}

assay_status bs_biased_scores(assay_context *ctx, const bs_run *run, double *biased, const bs_selection *selection,
                              const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->sizes.tokens, size = tokens * run->routing.num_experts;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const assay_routing_inputs inputs = routing_inputs_of(run, selection, w, shard);
        TRY(assay_routing_selecting(ctx, biased + shard * size, &inputs, 0, tokens, &run->routing));
    }
cleanup:
    return status;
}

assay_status bs_expert_indices_and_weights_bwd(assay_context *ctx, const bs_run *run, double *d_logits, double *d_bias,
                                               const double *d_weights, const bs_selection *selection,
                                               const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts;
    const int64_t choices = tokens * run->routing.num_experts_per_tok;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const assay_routing routing = routing_of(run, selection, shard);
        const assay_routing_inputs inputs = routing_inputs_of(run, selection, w, shard);
        TRY(assay_routing_backward(ctx, d_logits + shard * tokens * experts,
                                   d_bias == NULL ? NULL : d_bias + shard * experts, NULL, d_weights + shard * choices,
                                   0, &routing, &inputs, &run->routing));
    }
cleanup:
    return status;
}

assay_status bs_expert_selection(assay_context *ctx, const bs_moe_layer *at, bs_selection *selection, const double *x,
                                 const int32_t *given)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    const int64_t shards = run->sizes.shards;
    TRY(bs_selection_alloc(ctx, run, selection));
    for (int64_t shard = 0; shard < shards; shard++) {
        const assay_matmul_args args =
            assay_product_ab(selection->logits + shard * tokens * experts, x + shard * tokens * dim,
                             bs_weight_of(run, at->w, BS_GATE, shard), tokens, experts, dim);
        TRY(assay_matmul(ctx, &args));
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, shards * tokens * experts, selection->logits);
    TRY(bs_expert_indices_and_weights(ctx, run, selection, at->w, given));
cleanup:
    return status;
}

/* dx = d_logits kernel^T, d_kernel = x^T d_logits (NULL: skipped), of one shard. */
static assay_status gate_bwd(assay_context *ctx, const bs_run *run, double *dx, double *d_kernel,
                             const double *d_logits, const double *x, const double *kernel)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    const assay_matmul_args input = assay_product_abt(dx, d_logits, kernel, tokens, dim, experts);
    const assay_matmul_args weight = assay_product_atb(d_kernel, x, d_logits, dim, experts, tokens);
    TRY(assay_matmul(ctx, &input));
    if (d_kernel != NULL) TRY(assay_matmul(ctx, &weight));
cleanup:
    return status;
}

assay_status bs_expert_selection_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const double *d_weights,
                                     const double *x, const bs_selection *selection)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, size = tokens * run->mla.emb_dim;
    double *d_logits = NULL;
    TRY(bs_alloc_shards(ctx, run, "d_logits", tokens, experts, &d_logits));
    TRY(bs_expert_indices_and_weights_bwd(ctx, run, d_logits, at->g->values[BS_GATE_BIAS], d_weights, selection,
                                          at->w));
    assay_round(ctx, ASSAY_ROUND_ROUTER, run->sizes.shards * tokens * experts, d_logits);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(gate_bwd(ctx, run, dx + shard * size, bs_weight_of(run, at->g, BS_GATE, shard),
                     d_logits + shard * tokens * experts, x + shard * size, bs_weight_of(run, at->w, BS_GATE, shard)));
    }
cleanup:
    free(d_logits);
    return status;
}
