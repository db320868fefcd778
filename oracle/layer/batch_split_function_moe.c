/* The MoE half's functions as rows of the table call them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/layer/batch_split_steps.h"
#include "oracle/mesh/quantized_psum_scatter.h"
#include "oracle/moe/routing_rule.h"

/* --- what is given and what comes out, of each microbatch --- */

/* Those of a list follow one another; else there is one, or it is the last one's. */
static int64_t first_of(const bs_call *c, const assay_function_tensor *t)
{
    const bool lists = strchr(c->tensors.items[0].axes, 'j') != NULL;
    return lists && strpbrk(t->axes, "jo") == NULL ? c->run.factor - 1 : 0;
}

static void lend_tensors(bs_call *c)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        const bs_slot *slot = &c->in[t->place];
        if (t->tensor == MB_NONE || t->result) continue;
        const int64_t parts = assay_shape_count(&t->shape) / slot->count;
        for (int64_t m = 0; m < parts; m++) {
            bs_microbatch *b = &(t->gradient ? c->d : c->b)[first_of(c, t) + m];
            if (t->integers) bs_lend_indices(b, t->tensor, slot->indices);
            if (!t->integers) bs_lend(b, t->tensor, bs_part(slot, m));
        }
    }
}

static void give_tensors(bs_call *c)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        const bs_slot *slot = &c->out[t->place];
        if (t->tensor == MB_NONE || !t->result) continue;
        const int64_t parts = assay_shape_count(&t->shape) / slot->count;
        for (int64_t m = 0; m < parts; m++) {
            const bs_microbatch *b = &(t->gradient ? c->d : c->b)[first_of(c, t) + m];
            const size_t count = (size_t)slot->count;
            if (t->integers) memcpy(slot->indices, b->indices[t->tensor], count * sizeof(int32_t));
            if (!t->integers) memcpy(bs_part(slot, m), b->values[t->tensor], count * sizeof(double));
        }
    }
}

/* What the call gives. */
static assay_status run_steps(assay_context *ctx, bs_call *c, const bs_layer *at, bs_steps_kind kind)
{
    bs_tensor made[BS_MOST_ARGUMENTS + 1] = {MB_NONE};
    int count = 0;
    for (int i = 0; i < c->tensors.count; i++)
        if (c->tensors.items[i].result && c->tensors.items[i].tensor != MB_NONE)
            made[count++] = c->tensors.items[i].tensor;
    return assay_function_forward(c->config.function) != NULL ? bs_steps_backward(ctx, at, kind, c->b, c->d, made)
                                                              : bs_steps_forward(ctx, at, kind, c->b, made);
}

assay_status bs_call_half(assay_context *ctx, bs_call *c)
{
    const assay_batch_split_function *f = c->config.function, *forward = assay_function_forward(f);
    const bs_steps_kind kind = (forward != NULL ? forward : f)->steps;
    bs_steps steps[BS_STEPS_KINDS];
    const bs_layer at = {
        .run = &c->run, .w = &c->w, .g = &c->g, .steps = steps, .recipe = &c->config.recipe, .made = &c->made};
    bs_steps_open(steps, ctx, &c->run, at.recipe, true);
    lend_tensors(c);
    if (f->remat != NULL) MUST(f->remat(ctx, &at, c->b));
    if (kind != BS_STEPS_NONE) MUST(run_steps(ctx, c, &at, kind));
    if (kind == BS_STEPS_NONE) MUST(f->run != NULL ? f->run(ctx, &at, c->b) : f->back(ctx, &at, c->b, c->d));
    give_tensors(c);
    return ASSAY_OK;
}

/* Of all microbatches: the MoE half, or with the attention half before it. */
assay_status bs_call_layer(assay_context *ctx, bs_call *c)
{
    bs_run *run = &c->run;
    const bool back = assay_function_forward(c->config.function) != NULL, half = c->w.values[BS_PRE_NORM] == NULL;
    MUST(bs_take_angles(ctx, c));
    lend_tensors(c);
    if (half) {
        MUST(back ? bs_moe_bwd(ctx, run, 0, c->b, c->d, &c->w, &c->g) : bs_moe(ctx, run, 0, c->b, true, &c->w));
    } else {
        MUST(back ? bs_batch_split_schedule_bwd(ctx, run, 0, c->b, c->d, &c->w, &c->g)
                  : bs_batch_split_schedule(ctx, run, 0, c->b, &c->w));
    }
    give_tensors(c);
    return ASSAY_OK;
}

/* --- choosing --- */

assay_status bs_call_expert_group_mask(assay_context *ctx, bs_call *c)
{
    return assay_expert_group_mask(ctx, c->out[0].values, c->in[0].values, c->run.sizes.shards * c->run.sizes.tokens,
                                   &c->run.routing);
}

/* The order of the experts of one token: the best of those that the mask leaves, the lower index first. */
static void choose(int32_t *indices, const double *logits, const double *mask, int64_t experts, int64_t chosen)
{
    for (int64_t k = 0; k < chosen; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++) {
            bool taken = mask[e] == 0;
            for (int64_t before = 0; before < k; before++) taken |= indices[before] == e;
            if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
        }
        indices[k] = best;
    }
}

static assay_status choose_all(assay_context *ctx, const bs_call *c, int32_t *indices)
{
    const int64_t experts = c->run.routing.num_experts, chosen = c->run.routing.num_experts_per_tok;
    const int64_t tokens = c->run.sizes.shards * c->run.sizes.tokens;
    OWNED double *mask = NULL;
    for (int64_t i = 0; i < tokens * experts; i++) {
        if (isfinite(c->in[0].values[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs/gate_logits: expected finite numbers");
    }
    MUST(assay_alloc_f64(ctx, "mask", tokens * experts, &mask));
    MUST(assay_expert_group_mask(ctx, mask, c->in[0].values, tokens, &c->run.routing));
    for (int64_t t = 0; t < tokens; t++)
        choose(indices + t * chosen, c->in[0].values + t * experts, mask + t * experts, experts, chosen);
    return ASSAY_OK;
}

/* The scores of a token's choices [K], and their sum. */
static double gather_scores(const assay_context *ctx, const bs_call *c, int64_t token, const int32_t *indices,
                            double *gathered)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    double sum = 0;
    for (int64_t k = 0; k < chosen; k++) {
        gathered[k] = c->in[1].values[token * c->run.routing.num_experts + indices[k]];
        sum += gathered[k];
        if (k > 0) assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &sum);
    }
    return sum;
}

assay_status bs_call_expert_indices_and_weights(assay_context *ctx, bs_call *c)
{
    const int64_t chosen = c->run.routing.num_experts_per_tok;
    MUST(choose_all(ctx, c, c->out[0].indices));
    for (int64_t t = 0; t < c->run.sizes.shards * c->run.sizes.tokens; t++) {
        double *weights = c->out[1].values + t * chosen;
        const double sum = gather_scores(ctx, c, t, c->out[0].indices + t * chosen, weights);
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
    OWNED double *gathered = NULL;
    OWNED int32_t *indices = NULL;
    assay_routing_rule rule = assay_routing_rule_of(&c->run.routing);
    MUST(assay_alloc_f64(ctx, "scores of choices", 2 * chosen, &gathered));
    MUST(assay_alloc_i32(ctx, "choices", tokens * chosen, &indices));
    MUST(choose_all(ctx, c, indices));
    memset(c->out[0].values, 0, (size_t)c->out[0].count * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        double *d = gathered + chosen, mean = 0;
        const double *d_weights = c->in[2].values + t * chosen;
        const double sum = gather_scores(ctx, c, t, indices + t * chosen, gathered);
        for (int64_t k = 0; k < chosen; k++) {
            mean = fma(gathered[k] / sum, d_weights[k], mean);
            assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
        }
        for (int64_t k = 0; k < chosen; k++) d[k] = rule.factor * (d_weights[k] - mean) / sum;
        assay_round(ctx, ASSAY_ROUND_ROUTER, chosen, d);
        for (int64_t k = 0; k < chosen; k++) c->out[0].values[t * experts + indices[t * chosen + k]] = d[k];
    }
    return ASSAY_OK;
}

/* --- a sum over shards whose gradient is quantised --- */

assay_status bs_call_quantized_psum_scatter(assay_context *ctx, bs_call *c)
{
    const assay_psum_scatter_dims dims = {c->run.sizes.tokens, c->run.mla.emb_dim};
    double *to = c->out[0].values;
    const double *from = c->in[0].values;
    if (assay_function_forward(c->config.function) != NULL)
        return assay_quantized_psum_scatter_backward(ctx, to, from, &dims, c->run.mesh, ASSAY_AXIS_EXPERT,
                                                     &c->config.recipe);
    assay_quantized_psum_scatter_forward(ctx, to, from, &dims, c->run.mesh, ASSAY_AXIS_EXPERT);
    return ASSAY_OK;
}
