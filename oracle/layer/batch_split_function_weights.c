/* Microbatches and weights as rows of the table call them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"

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
    return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs/layer_idx is %d, expected 0 to %d (base_num_decoder_layers)",
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
    bs_gather_weights(ctx, &c->run, &c->bundles[1], &c->bundles[0]);
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
