/* Choosing experts: each shard chooses for its own tokens, and all do by the same rule, so they are routed as one batch.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/moe/permute.h"

/* Of the microbatch on all shards. */
static assay_routing_config config_of(const bs_run *run)
{
    assay_routing_config config = run->routing;
    config.batch *= run->sizes.shards;
    return config;
}

static assay_routing_inputs inputs_of(const bs_layer *at, const bs_microbatch *b)
{
    return (assay_routing_inputs){.logits = b->values[MB_LOGITS],
                                  .bias = bs_weight_of(at->run, at->w, BS_GATE_BIAS, 0),
                                  .given_experts = b->indices[MB_GIVEN],
                                  .choice_is_input = b->choice_is_input,
                                  .given_weights = b->values[MB_GIVEN_WEIGHTS]};
}

assay_status bs_count_choices(assay_context *ctx, const bs_run *run, bs_microbatch *b)
{
    const int64_t own = run->sizes.tokens * run->routing.num_experts_per_tok, experts = run->routing.num_experts;
    MUST(bs_make(ctx, run, b, MB_COUNTS));
    memset(b->indices[MB_COUNTS], 0, (size_t)(run->sizes.shards * experts) * sizeof(int32_t));
    for (int64_t i = 0; i < run->sizes.shards * own; i++) {
        const int32_t expert = b->indices[MB_CHOICES][i];
        if (expert != ASSAY_NO_EXPERT) b->indices[MB_COUNTS][i / own * experts + expert]++;
    }
    return ASSAY_OK;
}

/* Everything else from the logits; the sigmoid and the bias are in it. */
static assay_status choose(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const assay_routing_config config = config_of(run);
    const assay_routing_inputs inputs = inputs_of(at, b);
    MUST(assay_routing_alloc(ctx, &b->routing, &config));
    MUST(assay_routing_forward(ctx, &b->routing, &inputs, &config));
    bs_lend_indices(b, MB_CHOICES, b->routing.selected_experts);
    bs_lend(b, MB_CHOICE_WEIGHTS, b->routing.weights);
    bs_lend(b, MB_MARGIN, b->routing.margin);
    return bs_count_choices(ctx, run, b);
}

assay_status bs_biased_scores(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const assay_routing_inputs inputs = inputs_of(at, b);
    MUST(bs_make(ctx, run, b, MB_BIASED));
    return assay_routing_selecting(ctx, b->values[MB_BIASED], &inputs, 0, run->sizes.shards * run->sizes.tokens,
                                   &run->routing);
}

/* A recipe that quantises backward alone leaves the router as it is (arXiv 2412.19437, 3.3). */
static bool quantises_gate(const bs_layer *at)
{
    return bs_quantises(at) && at->recipe->recipe->x.scales != ASSAY_SCALES_NONE;
}

/* What the products of a shard with the gate's kernel take: by a recipe they are a linear layer. d_logits NULL: of forward
 * alone. */
static assay_status gate_operands(assay_context *ctx, const bs_layer *at, int64_t shard, const double *x,
                                  const double *d_logits, const double *spread, assay_quant_recipe_operands *o)
{
    static const assay_quant_recipe_config none = {0};
    const bs_run *run = at->run;
    const int32_t all = (int32_t)run->sizes.tokens;
    const assay_gmm_dims dims = {run->sizes.tokens, run->mla.emb_dim, run->routing.num_experts, 1};
    const int64_t logits = shard * dims.m * dims.n;
    const assay_quant_recipe_given given = {.x = x + shard * dims.m * dims.k,
                                            .w = bs_weight_of(run, at->w, BS_GATE, shard),
                                            .dy = d_logits == NULL ? NULL : d_logits + logits,
                                            .dy_spread = spread == NULL ? NULL : spread + logits,
                                            .group_sizes = &all};
    return assay_quant_recipe_quantise(ctx, o, &given, &dims, quantises_gate(at) ? at->recipe : &none);
}

static assay_status make_logits(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    MUST(bs_make(ctx, run, b, MB_LOGITS));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        MUST(gate_operands(ctx, at, shard, b->values[MB_X_NORM], NULL, NULL, &o));
        const assay_matmul_args args =
            assay_product_ab(b->values[MB_LOGITS] + shard * tokens * experts, o.x, o.w, tokens, experts, dim);
        MUST(assay_matmul(ctx, &args));
        assay_quant_recipe_operands_free(&o);
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(run, MB_LOGITS), b->values[MB_LOGITS]);
    return ASSAY_OK;
}

assay_status bs_expert_selection(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const assay_status status = b->values[MB_GIVEN_WEIGHTS] != NULL ? ASSAY_OK : make_logits(ctx, at, b);
    return status != ASSAY_OK ? status : choose(ctx, at, b);
}

assay_status bs_expert_selection_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, experts = run->routing.num_experts, dim = run->mla.emb_dim;
    const int64_t count = bs_count(run, MB_LOGITS);
    const assay_routing_config config = config_of(run);
    const assay_routing_inputs inputs = inputs_of(at, b);
    OWNED double *spread = NULL;
    double *d_bias = at->g->values[BS_GATE_BIAS];
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    if (b->values[MB_GIVEN_WEIGHTS] != NULL) return ASSAY_OK; /* the weights' gradient is their own */
    MUST(bs_make(ctx, run, d, MB_LOGITS));
    MUST(bs_make(ctx, run, d, MB_X_NORM));
    double *d_logits = d->values[MB_LOGITS];
    MUST(assay_routing_backward(ctx, d_logits, d_bias, NULL, d->values[MB_CHOICE_WEIGHTS], 0, 0, &b->routing, &inputs,
                                &config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, count, d_logits);
    if (quantises_gate(at))
        MUST(bs_intermediates_show(ctx, at->made, "logits_gradient", b->number, count, d_logits, &spread));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        double *d_kernel = bs_weight_of(run, at->g, BS_GATE, shard);
        const int64_t row = shard * tokens * dim;
        MUST(gate_operands(ctx, at, shard, b->values[MB_X_NORM], d_logits, spread, &o));
        const assay_matmul_args input =
            assay_product_abt(d->values[MB_X_NORM] + row, o.dx_dy, o.dx_w, tokens, dim, experts);
        const assay_matmul_args weight = assay_product_atb(d_kernel, o.dw_x, o.dw_dy, dim, experts, tokens);
        MUST(assay_matmul(ctx, &input));
        if (d_kernel != NULL) MUST(assay_matmul(ctx, &weight));
        if (d_bias != NULL && shard > 0) memcpy(d_bias + shard * experts, d_bias, (size_t)experts * sizeof *d_bias);
        assay_quant_recipe_operands_free(&o);
    }
    return ASSAY_OK;
}
