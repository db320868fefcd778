/* Microbatches and weights as rows of the table call them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"

static int64_t row_width(const bs_call *c)
{
    return c->run.mla.sequence * c->run.mla.emb_dim;
}

assay_status bs_call_split(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    double *parts[ASSAY_MOST_MICROBATCHES];
    for (int64_t i = 0; i < c->run.factor; i++) parts[i] = bs_part(&c->out[0], i);
    bs_split(parts, c->in[0].values, &c->run, row_width(c));
    return ASSAY_OK;
}

assay_status bs_call_merge(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    const double *parts[ASSAY_MOST_MICROBATCHES];
    for (int64_t i = 0; i < c->run.factor; i++) parts[i] = bs_part(&c->in[0], i);
    bs_merge(c->out[0].values, parts, &c->run, row_width(c));
    return ASSAY_OK;
}

/* The order of the tuple is that of the table of names; a float64 is the finest grid, so nothing is cast. */
assay_status bs_call_fetch_weights(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_tensor_row row = bs_weight_row(&c->run, weight);
        if (c->bundles[0].values[weight] == NULL) continue;
        memcpy(c->bundles[1].values[weight], c->bundles[0].values[weight],
               (size_t)assay_tensor_row_count(&row) * sizeof(double));
    }
    return ASSAY_OK;
}

/* One layer of weights that are stacked along an axis, as a source and a sink of that layer's whole weights. */
typedef struct stacked {
    const bs_call *c;
    const bs_weights *values;
    int64_t layer;
} stacked;

/* Which weight the path of a layer is, and how it lies: `blocks` of `run` numbers each. */
static int find(const stacked *s, const char *path, int64_t *blocks, int64_t *length)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_tensor_row row = bs_weight_row(&s->c->run, weight);
        char own[2][ASSAY_PATH_SIZE];
        if (row.name == NULL || s->values->values[weight] == NULL) continue;
        assay_tensor_path("weights/", "", &row, own[0]);
        assay_tensor_path("gradients/weights/", "", &row, own[1]);
        if (strcmp(path, own[0]) != 0 && strcmp(path, own[1]) != 0) continue;
        *blocks = 1;
        for (int axis = 0; axis < s->c->config.layer_axis; axis++) *blocks *= row.shape.dims[axis];
        *length = assay_tensor_row_count(&row) / *blocks;
        return weight;
    }
    return -1;
}

static bool has(void *self, const char *path)
{
    int64_t blocks, length;
    return find(self, path, &blocks, &length) >= 0;
}

static assay_status read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out)
{
    const stacked *s = self;
    int64_t blocks, length;
    const int weight = find(s, path, &blocks, &length);
    (void)ctx, (void)first, (void)count;
    for (int64_t block = 0; block < blocks; block++) {
        memcpy(out + block * length, s->values->values[weight] + (block * s->c->config.layers + s->layer) * length,
               (size_t)length * sizeof *out);
    }
    return ASSAY_OK;
}

static assay_status write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const stacked *s = self;
    int64_t blocks, length;
    const int weight = find(s, path, &blocks, &length);
    (void)ctx, (void)count;
    for (int64_t block = 0; block < blocks; block++) {
        memcpy(s->values->values[weight] + (block * s->c->config.layers + s->layer) * length, values + block * length,
               (size_t)length * sizeof *values);
    }
    return ASSAY_OK;
}

static assay_status layer_of(assay_context *ctx, const bs_call *c, int64_t *layer)
{
    *layer = c->in[0].indices[0];
    if (*layer >= 0 && *layer < c->config.layers) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs/layer_idx is %d, expected 0 to %d (base_num_decoder_layers)",
                      c->in[0].indices[0], (int)c->config.layers - 1);
}

assay_status bs_call_extract_layer_weights(assay_context *ctx, bs_call *c)
{
    assay_status status;
    stacked s = {.c = c, .values = &c->bundles[0]};
    const assay_source in = {.self = &s, .has = has, .read = read};
    TRY(layer_of(ctx, c, &s.layer));
    c->stack.in = &in;
    status = bs_extract_layer_weights(ctx, &c->run, &c->bundles[1], 0);
cleanup:
    return status;
}

assay_status bs_call_insert_layer_ws_grad(assay_context *ctx, bs_call *c)
{
    assay_status status;
    stacked s = {.c = c, .values = &c->bundles[2]};
    const assay_sink out = {.self = &s, .wants = has, .write = write};
    TRY(layer_of(ctx, c, &s.layer));
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_tensor_row row = bs_weight_row(&c->run, weight);
        if (c->bundles[0].values[weight] == NULL) continue;
        memcpy(c->bundles[2].values[weight], c->bundles[0].values[weight],
               (size_t)(c->config.layers * assay_tensor_row_count(&row)) * sizeof(double));
    }
    c->stack.out = &out;
    status = bs_insert_layer_ws_grad(ctx, &c->run, &c->bundles[1], 0);
cleanup:
    return status;
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
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const int64_t count = c->run.sizes.shards * bs_weight_count(&c->run, weight, false);
        if (c->bundles[0].values[weight] != NULL)
            memcpy(c->bundles[1].values[weight], c->bundles[0].values[weight], (size_t)count * sizeof(double));
    }
    return bs_all_reduce_ws_grad_dcn(ctx, &c->run, &c->bundles[1]);
}
