#include "harness/operations/op_block.h"

static void graph_of(const void *config, bool one_shard, graph *g)
{
    static const assay_tensor_form scale = {"scale", ASSAY_NORM_SCALE, "D", 0},
                                   bias = {"bias", ASSAY_PROJECTION_BIAS, "D", 0};
    (void)one_shard;
    graph_begin(g, config, assay_norm_axis_size);
    const int x = graph_input(g, "inputs/x", "BSD");
    const int w = graph_weight(g, assay_tensor_row_of(&scale, config, assay_norm_axis_size));
    const int b = graph_weight(g, assay_tensor_row_of(&bias, config, assay_norm_axis_size));
    graph_end(g, graph_layer_norm(g, x, w, b, ((const assay_norm_config *)config)->epsilon));
}

/* Two sums forward; backward two of a row, and the gradients of scale and bias. */
const assay_operation assay_op_layer_norm = {.name = "layer_norm",
                                             .parts = ASSAY_PART_NORM,
                                             .summary = "layer normalisation over the last axis, with scale and bias",
                                             .config_of = assay_norm_config_of,
                                             .axis_size = assay_norm_axis_size,
                                             .graph = graph_of,
                                             .second_form = {.form = quad_layer_norm},
                                             .count = {"BSD", 3, 9}};
