/* Functions that are cuts of the layer, and those of its MoE half that are none, as rows of the table call them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/layer/batch_split_steps.h"
#include "oracle/mesh/quantized_psum_scatter.h"
#include "oracle/moe/routing_rule.h"

/* --- cuts --- */

/* What the call gives. */
static assay_status run_steps(assay_context *ctx, bs_call *c, const bs_layer *at, bs_steps_kind kind, int64_t m)
{
    bs_tensor made[BS_MOST_ARGUMENTS + 1] = {MB_NONE};
    int count = 0;
    for (int i = 0; i < c->tensors.count; i++)
        if (c->tensors.items[i].result && c->tensors.items[i].tensor != MB_NONE)
            made[count++] = c->tensors.items[i].tensor;
    return assay_function_forward(c->config.function) != NULL
               ? bs_steps_backward(ctx, at, kind, &c->b[m], &c->d[m], made)
               : bs_steps_forward(ctx, at, kind, &c->b[m], made);
}

/* What begins within attention gives what is its caller's to round. */
static void leave_results(bs_steps *s, const bs_microbatch *b)
{
    if (b->values[MB_ANGLES] != NULL) return;
    for (int t = MB_MLA_INPUTS; t <= MB_ATTN_OUT; t++) graph_fused(&s->graph, s->of[t]);
    s->graph.unrounded = b->values[MB_LOW_RANK] == NULL;
}

assay_status bs_call_cut(assay_context *ctx, bs_call *c)
{
    const assay_batch_split_function *f = c->config.function;
    const bs_steps_kind kind = bs_row_of(f)->steps;
    bs_steps steps[BS_STEPS_KINDS];
    OWNED_BY(bs_gradient_sums_close) bs_gradient_sums sums = {.sums = c->g};
    bs_layer at = {.run = &c->run, .w = &c->w, .steps = steps, .recipe = &c->config.recipe, .made = &c->made};
    bs_steps_open(steps, ctx, &c->run, at.recipe, true);
    leave_results(&steps[BS_STEPS_ATTENTION], c->b);
    if (c->parts > 1) MUST(bs_gradient_sums_open(ctx, &c->run, &sums, &c->g, 0, BS_WEIGHTS));
    for (int64_t m = 0; m < c->parts; m++) {
        at.g = bs_gradients_of(&sums, m);
        if (f->remat != NULL) MUST(f->remat(ctx, &at, &c->b[m]));
        if (f->run != NULL) {
            MUST(f->run(ctx, &at, &c->b[m]));
        } else if (f->back != NULL) {
            MUST(f->back(ctx, &at, &c->b[m], &c->d[m]));
        } else {
            MUST(run_steps(ctx, c, &at, kind, m));
        }
        if (c->parts > 1) bs_add_gradients(ctx, &c->run, &sums, m);
    }
    return ASSAY_OK;
}

/* Of all microbatches: the MoE half, or with the attention half before it. */
assay_status bs_call_layer(assay_context *ctx, bs_call *c)
{
    const bool back = assay_function_forward(c->config.function) != NULL;
    return back ? bs_batch_split_schedule_bwd(ctx, &c->run, 0, c->b, c->d, &c->w, &c->g)
                : bs_batch_split_schedule(ctx, &c->run, 0, c->b, &c->w);
}

/* --- choosing --- */

assay_status bs_call_expert_group_mask(assay_context *ctx, bs_call *c)
{
    return assay_expert_group_mask(ctx, c->b->values[MB_OTHER_OUT], c->b->values[MB_OTHER_IN],
                                   c->run.sizes.shards * c->run.sizes.tokens, &c->run.routing);
}

/* By what is given in the place of biased scores. */
static assay_status choose(assay_context *ctx, const bs_call *c, int32_t *indices)
{
    assay_routing_config config = c->run.routing;
    const assay_routing_inputs inputs = {.logits = c->b->values[MB_OTHER_IN]};
    const int64_t choices = c->run.sizes.shards * c->run.sizes.tokens * config.num_experts_per_tok;
    OWNED_BY(assay_routing_free) assay_routing r = {0};
    config.batch *= c->run.sizes.shards;
    config.score_func = ASSAY_SCORE_NONE;
    MUST(assay_routing_alloc(ctx, &r, &config));
    MUST(assay_routing_forward(ctx, &r, &inputs, &config));
    memcpy(indices, r.selected_experts, (size_t)choices * sizeof *indices);
    return ASSAY_OK;
}

/* The scores of a token's choices [K], and their sum. */
static double gather_scores(const assay_context *ctx, const bs_call *c, int64_t token, const int32_t *indices,
                            double *gathered)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    double sum = 0;
    for (int64_t k = 0; k < chosen; k++) {
        gathered[k] = c->b->values[MB_OTHER_IN + 1][token * c->run.routing.num_experts + indices[k]];
        sum += gathered[k];
        if (k > 0) assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &sum);
    }
    return sum;
}

assay_status bs_call_expert_indices_and_weights(assay_context *ctx, bs_call *c)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    MUST(choose(ctx, c, c->b->indices[MB_OTHER_OUT]));
    for (int64_t t = 0; t < c->run.sizes.shards * c->run.sizes.tokens; t++) {
        double *weights = c->b->values[MB_OTHER_OUT + 1] + t * chosen;
        const double sum = gather_scores(ctx, c, t, c->b->indices[MB_OTHER_OUT] + t * chosen, weights);
        for (int64_t k = 0; k < chosen; k++) weights[k] /= sum;
        assay_round(ctx, ASSAY_ROUND_ROUTER, chosen, weights);
        for (int64_t k = 0; k < chosen; k++) weights[k] *= c->run.routing.routed_scaling_factor;
    }
    return ASSAY_OK;
}

assay_status bs_call_expert_indices_and_weights_bwd(assay_context *ctx, bs_call *c)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok, experts = c->run.routing.num_experts;
    const int64_t tokens = c->run.sizes.shards * c->run.sizes.tokens;
    double *d_scores = c->d->values[MB_OTHER_IN + 1];
    OWNED double *gathered = NULL;
    OWNED int32_t *indices = NULL;
    assay_routing_rule rule = assay_routing_rule_of(&c->run.routing);
    MUST(assay_alloc_f64(ctx, "scores of choices", 2 * chosen, &gathered));
    MUST(assay_alloc_i32(ctx, "choices", tokens * chosen, &indices));
    MUST(choose(ctx, c, indices));
    memset(d_scores, 0, (size_t)(tokens * experts) * sizeof *d_scores);
    for (int64_t t = 0; t < tokens; t++) {
        double *d = gathered + chosen, mean = 0;
        const double *d_weights = c->d->values[MB_OTHER_OUT + 1] + t * chosen;
        const double sum = gather_scores(ctx, c, t, indices + t * chosen, gathered);
        for (int64_t k = 0; k < chosen; k++) {
            mean = fma(gathered[k] / sum, d_weights[k], mean);
            assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
        }
        for (int64_t k = 0; k < chosen; k++) d[k] = rule.factor * (d_weights[k] - mean) / sum;
        assay_round(ctx, ASSAY_ROUND_ROUTER, chosen, d);
        for (int64_t k = 0; k < chosen; k++) d_scores[t * experts + indices[t * chosen + k]] = d[k];
    }
    return ASSAY_OK;
}

/* --- a sum over shards whose gradient is quantised --- */

assay_status bs_call_quantized_psum_scatter(assay_context *ctx, bs_call *c)
{
    const assay_psum_scatter_dims dims = {c->run.sizes.tokens, c->run.mla.emb_dim};
    if (assay_function_forward(c->config.function) != NULL)
        return assay_quantized_psum_scatter_backward(ctx, c->d->values[MB_OTHER_IN], c->d->values[MB_OTHER_OUT], &dims,
                                                     c->run.mesh, ASSAY_AXIS_EXPERT, &c->config.recipe);
    assay_quantized_psum_scatter_forward(ctx, c->b->values[MB_OTHER_OUT], c->b->values[MB_OTHER_IN], &dims, c->run.mesh,
                                         ASSAY_AXIS_EXPERT);
    return ASSAY_OK;
}
