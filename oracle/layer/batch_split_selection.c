/* Choosing experts: each shard chooses for its own tokens, and all do by the same rule, so they are routed as one batch.
 */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_steps.h"
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
                                  .bias = at->w->values[BS_GATE_BIAS],
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

static assay_status make_logits(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const bs_tensor logits[] = {MB_LOGITS, MB_NONE};
    MUST(bs_steps_forward(ctx, at, BS_STEPS_GATE, b, logits));
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(at->run, MB_LOGITS), b->values[MB_LOGITS]);
    return ASSAY_OK;
}

assay_status bs_expert_selection(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const assay_status status = b->values[MB_GIVEN_WEIGHTS] != NULL ? ASSAY_OK : make_logits(ctx, at, b);
    return status != ASSAY_OK ? status : choose(ctx, at, b);
}

assay_status bs_expert_selection_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    static const bs_tensor x_norm[] = {MB_X_NORM, MB_NONE};
    const bs_run *run = at->run;
    const int64_t experts = run->routing.num_experts;
    const assay_routing_config config = config_of(run);
    const assay_routing_inputs inputs = inputs_of(at, b);
    double *d_bias = at->g->values[BS_GATE_BIAS];
    if (b->values[MB_GIVEN_WEIGHTS] != NULL) return ASSAY_OK; /* the weights' gradient is their own */
    MUST(bs_make(ctx, run, d, MB_LOGITS));
    MUST(assay_routing_backward(ctx, d->values[MB_LOGITS], d_bias, NULL, d->values[MB_CHOICE_WEIGHTS], 0, 0,
                                &b->routing, &inputs, &config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(run, MB_LOGITS), d->values[MB_LOGITS]);
    for (int64_t shard = 1; d_bias != NULL && shard < run->sizes.shards; shard++)
        memcpy(d_bias + shard * experts, d_bias, (size_t)experts * sizeof *d_bias);
    return bs_steps_backward(ctx, at, BS_STEPS_GATE, b, d, x_norm);
}
