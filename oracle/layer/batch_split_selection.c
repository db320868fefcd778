/* Choosing experts: each shard chooses for its own tokens, and all do by the same rule, so they are routed as one batch.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"

/* Of the microbatch on all shards. */
static assay_routing_config config_of(const bs_run *run)
{
    assay_routing_config config = run->routing;
    config.batch *= run->sizes.shards;
    return config;
}

assay_status bs_selection_alloc(assay_context *ctx, const bs_run *run, bs_selection *selection)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config config = config_of(run);
    TRY(bs_alloc_shards(ctx, run, "logits", run->sizes.tokens, config.num_experts, &selection->logits));
    TRY(bs_alloc_shards_i32(ctx, run, "group_sizes", config.num_experts, 1, &selection->group_sizes));
    TRY(assay_routing_alloc(ctx, &selection->routing, &config));
cleanup:
    return status;
}

void bs_selection_free(bs_selection *selection)
{
    free(selection->logits);
    free(selection->group_sizes);
    assay_routing_free(&selection->routing);
    *selection = (bs_selection){0};
}

static assay_routing_inputs inputs_of(const bs_run *run, const bs_selection *selection, const bs_weights *w)
{
    return (assay_routing_inputs){.logits = selection->logits, .bias = bs_weight_of(run, w, BS_GATE_BIAS, 0)};
}

assay_status bs_expert_indices_and_weights(assay_context *ctx, const bs_run *run, bs_selection *selection,
                                           const bs_weights *w, const int32_t *given)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = run->routing.num_experts, own = run->sizes.tokens * run->routing.num_experts_per_tok;
    const assay_routing_config config = config_of(run);
    assay_routing_inputs inputs = inputs_of(run, selection, w);
    inputs.given_experts = given;
    TRY(assay_routing_forward(ctx, &selection->routing, &inputs, &config));
    memset(selection->group_sizes, 0, (size_t)(run->sizes.shards * experts) * sizeof *selection->group_sizes);
    for (int64_t i = 0; i < run->sizes.shards * own; i++)
        selection->group_sizes[i / own * experts + selection->routing.selected_experts[i]]++;
cleanup:
    return status;
}

assay_status bs_biased_scores(assay_context *ctx, const bs_run *run, double *biased, const bs_selection *selection,
                              const bs_weights *w)
{
    const assay_routing_inputs inputs = inputs_of(run, selection, w);
    return assay_routing_selecting(ctx, biased, &inputs, 0, run->sizes.shards * run->sizes.tokens, &run->routing);
}

assay_status bs_expert_indices_and_weights_bwd(assay_context *ctx, const bs_run *run, double *d_logits, double *d_bias,
                                               const double *d_weights, const bs_selection *selection,
                                               const bs_weights *w)
{
    const assay_routing_config config = config_of(run);
    const assay_routing_inputs inputs = inputs_of(run, selection, w);
    return assay_routing_backward(ctx, d_logits, d_bias, NULL, d_weights, 0, 0, &selection->routing, &inputs, &config);
}

/* What the products of a shard with the gate's kernel take: by a recipe they are a linear layer. d_logits NULL: of forward
 * alone. */
static assay_status gate_operands(assay_context *ctx, const bs_moe_layer *at, int64_t shard, const double *x,
                                  const double *d_logits, const double *spread, assay_recipe_operands *o)
{
    static const assay_recipe_config none = {0};
    const bs_run *run = at->run;
    const int32_t all = (int32_t)run->sizes.tokens;
    const assay_gmm_dims dims = {run->sizes.tokens, run->mla.emb_dim, run->routing.num_experts, 1};
    const int64_t logits = shard * dims.m * dims.n;
    const assay_recipe_given given = {.x = x + shard * dims.m * dims.k,
                                      .w = bs_weight_of(run, at->w, BS_GATE, shard),
                                      .dy = d_logits == NULL ? NULL : d_logits + logits,
                                      .dy_spread = spread == NULL ? NULL : spread + logits,
                                      .group_sizes = &all};
    return assay_recipe_quantise(ctx, o, &given, &dims, at->recipe != NULL ? at->recipe : &none);
}

assay_status bs_expert_selection(assay_context *ctx, const bs_moe_layer *at, bs_selection *selection, const double *x,
                                 const int32_t *given)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    assay_recipe_operands o = {0};
    TRY(bs_selection_alloc(ctx, run, selection));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(gate_operands(ctx, at, shard, x, NULL, NULL, &o));
        const assay_matmul_args args =
            assay_product_ab(selection->logits + shard * tokens * experts, o.x, o.w, tokens, experts, dim);
        TRY(assay_matmul(ctx, &args));
        assay_recipe_operands_free(&o);
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, run->sizes.shards * tokens * experts, selection->logits);
    TRY(bs_expert_indices_and_weights(ctx, run, selection, at->w, given));
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

assay_status bs_expert_selection_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const double *d_weights,
                                     const double *x, const bs_selection *selection)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    const int64_t count = run->sizes.shards * tokens * experts;
    double *d_logits = NULL, *spread = NULL, *d_bias = at->g->values[BS_GATE_BIAS];
    assay_recipe_operands o = {0};
    TRY(bs_alloc_shards(ctx, run, "d_logits", tokens, experts, &d_logits));
    TRY(bs_expert_indices_and_weights_bwd(ctx, run, d_logits, d_bias, d_weights, selection, at->w));
    assay_round(ctx, ASSAY_ROUND_ROUTER, count, d_logits);
    if (at->recipe != NULL && at->recipe->recipe != NULL)
        TRY(bs_made_show(ctx, at->made, "logits_gradient", false, 0, count, d_logits, &spread));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        double *d_kernel = bs_weight_of(run, at->g, BS_GATE, shard);
        const int64_t row = shard * tokens * dim;
        TRY(gate_operands(ctx, at, shard, x, d_logits, spread, &o));
        const assay_matmul_args input = assay_product_abt(dx + row, o.dx_dy, o.dx_w, tokens, dim, experts);
        const assay_matmul_args weight = assay_product_atb(d_kernel, o.dw_x, o.dw_dy, dim, experts, tokens);
        TRY(assay_matmul(ctx, &input));
        if (d_kernel != NULL) TRY(assay_matmul(ctx, &weight));
        if (d_bias != NULL && shard > 0) memcpy(d_bias + shard * experts, d_bias, (size_t)experts * sizeof *d_bias);
        assay_recipe_operands_free(&o);
    }
cleanup:
    assay_recipe_operands_free(&o);
    free(spread);
    free(d_logits);
    return status;
}
