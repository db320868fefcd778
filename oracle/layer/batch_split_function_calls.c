/* The functions that rows of the table call: cuts of the layer, and what no layer has. */
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

/* --- tables of rotations --- */

static int64_t tokens_of(const bs_call *c)
{
    return c->run.sizes.shards * c->run.sizes.tokens;
}

/* mask [Dr,Dr]: x mask has the two numbers of each pair swapped, and the first of them negated. */
assay_status bs_call_initialize_yarn_mask(assay_context *ctx, bs_call *c)
{
    const int64_t dims = c->run.mla.rope.dim;
    double *mask = c->b->values[MB_OTHER_OUT];
    (void)ctx;
    memset(mask, 0, (size_t)(dims * dims) * sizeof *mask);
    for (int64_t first = 0; first < dims; first += 2) {
        mask[first * dims + first + 1] = 1;
        mask[(first + 1) * dims + first] = -1;
    }
    return ASSAY_OK;
}

/* Whole turns stay: the module multiplies positions by frequencies. */
assay_status bs_call_initialize_yarn_freqs(assay_context *ctx, bs_call *c)
{
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t half = rope->dim / 2, tokens = tokens_of(c);
    OWNED double *frequencies = NULL;
    MUST(assay_rope_check_positions(ctx, c->b->indices[MB_OTHER_IN], tokens, rope));
    MUST(assay_alloc_f64(ctx, "frequencies", half, &frequencies));
    assay_rope_frequencies(frequencies, rope);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, frequencies);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < rope->dim; i++)
            c->b->values[MB_OTHER_OUT][t * rope->dim + i] = c->b->indices[MB_OTHER_IN][t] * frequencies[i / 2];
    }
    return ASSAY_OK;
}

/* y = x cos(yarn_freqs) + (x mask) sin(yarn_freqs), which is a pairwise rotation; or its gradient. */
assay_status bs_call_yarn(assay_context *ctx, bs_call *c)
{
    const bool back = assay_function_forward(c->config.function) != NULL;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t heads = c->run.mla.heads, dim = rope->dim;
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    const assay_rope_rows rows = {.y = back ? c->d->values[MB_OTHER_IN] : c->b->values[MB_OTHER_OUT],
                                  .y_token_stride = heads * dim,
                                  .y_head_stride = dim,
                                  .x = back ? c->d->values[MB_OTHER_OUT] : c->b->values[MB_OTHER_IN],
                                  .x_token_stride = heads * dim,
                                  .x_head_stride = dim,
                                  .heads = heads};
    MUST(assay_rope_table_of_angles(ctx, &table, c->b->values[MB_ANGLES], tokens_of(c), rope));
    (back ? assay_rope_backward : assay_rope_forward)(ctx, &rows, &table, rope);
    return ASSAY_OK;
}

/* --- the batch, and all weights --- */

/* The batch is the last one's, as all that is of no microbatch; these are each one's own. */
static assay_status move_batch(bs_call *c, bs_tensor batch, bs_tensor microbatch, bool to_batch)
{
    const size_t row = (size_t)(c->run.mla.sequence * c->run.mla.emb_dim) * sizeof(double);
    for (int64_t m = 0; m < c->run.factor; m++)
        bs_move_rows(&c->run, m, c->b[c->parts - 1].values[batch], c->b[m].values[microbatch], row, to_batch);
    return ASSAY_OK;
}

assay_status bs_call_split(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    return move_batch(c, MB_OTHER_IN, MB_OTHER_OUT, false);
}

assay_status bs_call_merge(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    return move_batch(c, MB_OTHER_OUT, MB_OTHER_IN, true);
}

/* All weights, which lie alike in both. */
static void copy_bundle(bs_call *c, int from, int to)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->bundle != from) continue;
        memcpy(c->bundles[to].values[t->weight], c->bundles[from].values[t->weight],
               (size_t)assay_shape_count(&t->shape) * sizeof(double));
    }
}

/* The order of the tuple is that of the table of names; a float64 is the finest grid, so nothing is cast. */
assay_status bs_call_fetch_weights(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    copy_bundle(c, 0, 1);
    return ASSAY_OK;
}

static assay_status layer_of(assay_context *ctx, const bs_call *c, int64_t *layer)
{
    *layer = c->b->indices[MB_OTHER_IN][0];
    if (*layer >= 0 && *layer < c->config.layers) return ASSAY_OK;
    return assay_refuse(ctx, "inputs/layer_idx is %d, expected 0 to %d (base_num_decoder_layers)",
                        c->b->indices[MB_OTHER_IN][0], (int)c->config.layers - 1);
}

/* A layer's weight, of those that are stacked along an axis: [blocks,layers,rest]. */
static void move_layer(const bs_call *c, int weight, int64_t layer, double *stacked, double *whole, bool to_stacked)
{
    const assay_tensor_row row = bs_weight_row(&c->run, weight);
    int64_t blocks = 1;
    for (int axis = 0; axis < c->config.layer_axis; axis++) blocks *= row.shape.dims[axis];
    const int64_t length = assay_tensor_row_count(&row) / blocks;
    for (int64_t block = 0; block < blocks; block++) {
        double *in_stack = stacked + (block * c->config.layers + layer) * length, *own = whole + block * length;
        memcpy(to_stacked ? in_stack : own, to_stacked ? own : in_stack, (size_t)length * sizeof *own);
    }
}

/* Between the layer of stacked weights and what its shards have. */
static assay_status move_weights(assay_context *ctx, bs_call *c, const bs_weights *stacked, const bs_weights *scattered,
                                 bool to_stacked)
{
    int64_t layer;
    OWNED double *whole = NULL;
    MUST(layer_of(ctx, c, &layer));
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_tensor_row row = bs_weight_row(&c->run, weight);
        double *all = stacked->values[weight], *parts = scattered->values[weight];
        if (all == NULL) continue;
        MUST(assay_alloc_f64(ctx, row.name, assay_tensor_row_count(&row), &whole));
        if (!to_stacked) move_layer(c, weight, layer, all, whole, false);
        bs_move_parts(&c->run, weight, whole, parts, to_stacked);
        if (to_stacked) move_layer(c, weight, layer, all, whole, true);
        free(whole);
        whole = NULL;
    }
    return ASSAY_OK;
}

assay_status bs_call_extract_layer_weights(assay_context *ctx, bs_call *c)
{
    return move_weights(ctx, c, &c->bundles[0], &c->bundles[1], false);
}

assay_status bs_call_insert_layer_ws_grad(assay_context *ctx, bs_call *c)
{
    copy_bundle(c, 0, 2);
    return move_weights(ctx, c, &c->bundles[2], &c->bundles[1], true);
}

assay_status bs_call_gather_weights(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    bs_gather_weights(&c->run, &c->bundles[1], &c->bundles[0]);
    return ASSAY_OK;
}

assay_status bs_call_reduce_scatter_ws_grad(assay_context *ctx, bs_call *c)
{
    return bs_reduce_scatter_ws_grad(ctx, &c->run, &c->bundles[1], &c->bundles[0]);
}

assay_status bs_call_all_reduce_ws_grad_dcn(assay_context *ctx, bs_call *c)
{
    copy_bundle(c, 0, 1);
    return bs_all_reduce_ws_grad_dcn(ctx, &c->run, &c->bundles[1]);
}
