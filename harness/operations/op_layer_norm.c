#include "harness/operations/op_block.h"

static void second_form(quad_tape *t, const void *c)
{
    quad_layer_norm(t, &((const assay_case *)c)->config.normalization_layer_epsilon);
}

static int64_t axis_size(const void *self, char axis)
{
    const assay_case *c = self;
    return axis == 'B' ? c->batch : axis == 'S' ? c->sequence : c->config.base_emb_dim;
}

static assay_status graph_of(assay_context *ctx, const assay_case *c, bool one_shard, graph *g)
{
    static const assay_tensor_form scale = {"scale", ASSAY_NORM_SCALE, "D", 0},
                                   bias = {"bias", ASSAY_PROJECTION_BIAS, "D", 0};
    (void)ctx, (void)one_shard;
    graph_begin(g, c, axis_size);
    const int x = graph_input(g, "inputs/x", "BSD");
    const int w = graph_weight(g, assay_tensor_row_of(&scale, c, axis_size));
    const int b = graph_weight(g, assay_tensor_row_of(&bias, c, axis_size));
    graph_end(g, graph_layer_norm(g, x, w, b, c->config.normalization_layer_epsilon));
    return ASSAY_OK;
}

/* Two sums forward; backward two of a row, and the gradients of scale and bias. */
static double flops(const assay_case *c, bool backward)
{
    const double size = (double)c->batch * (double)c->sequence * (double)c->config.base_emb_dim;
    return (backward ? 9.0 : 3.0) * size;
}

const assay_operation assay_op_layer_norm = {.name = "layer_norm",
                                             .parts = ASSAY_PART_NORM,
                                             .summary = "layer normalisation over the last axis, with scale and bias",
                                             .check = assay_check_norm,
                                             .graph = graph_of,
                                             .describe = assay_block_describe,
                                             .run = assay_block_run,
                                             .ensemble = assay_every_case,
                                             .second_form = {.form = second_form},
                                             .flops = flops,
                                             .memory = assay_block_memory};
