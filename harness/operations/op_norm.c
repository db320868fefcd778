/* The norms over the last axis. */
#include "harness/operations/op_block.h"

static const assay_tensor_form scale = {"scale", ASSAY_NORM_SCALE, "D", 0},
                               bias = {"bias", ASSAY_PROJECTION_BIAS, "D", 0};

static int weight(graph *g, const void *config, const assay_tensor_form *form)
{
    return graph_weight(g, assay_tensor_row_of(form, config, assay_norm_axis_size));
}

static void rms_norm(const void *config, graph *g)
{
    graph_begin(g, config, assay_norm_axis_size);
    const int x = graph_input(g, "inputs/x", "BSD"), w = weight(g, config, &scale);
    graph_end(g, graph_rms_norm(g, x, w, ((const assay_norm_config *)config)->epsilon), GRAPH_LEFT);
}

static void layer_norm(const void *config, graph *g)
{
    graph_begin(g, config, assay_norm_axis_size);
    const int x = graph_input(g, "inputs/x", "BSD"), w = weight(g, config, &scale), b = weight(g, config, &bias);
    graph_end(g, graph_layer_norm(g, x, w, b, ((const assay_norm_config *)config)->epsilon), GRAPH_LEFT);
}

static void l2_norm(const void *config, graph *g)
{
    graph_begin(g, config, assay_norm_axis_size);
    const int x = graph_input(g, "inputs/x", "BSD");
    graph_end(g, graph_over_root(g, x, true, false, ((const assay_norm_config *)config)->epsilon), GRAPH_LEFT);
}

const assay_operation assay_op_rms_norm = {.name = "rms_norm",
                                           .components = ASSAY_USES_NORM,
                                           .by_token = true,
                                           .summary = "RMS normalisation over the last axis",
                                           .config_of = assay_norm_config_of,
                                           .axis_size = assay_norm_axis_size,
                                           .graph = rms_norm,
                                           .second_form = {.form = quad_rms_norm},
                                           .count = {"BSD", 2, 6}};

/* Two sums forward; backward two of a row, and the gradients of scale and bias. */
const assay_operation assay_op_layer_norm = {.name = "layer_norm",
                                             .components = ASSAY_USES_NORM,
                                             .by_token = true,
                                             .summary = "layer normalisation over the last axis, with scale and bias",
                                             .config_of = assay_norm_config_of,
                                             .axis_size = assay_norm_axis_size,
                                             .graph = layer_norm,
                                             .second_form = {.form = quad_layer_norm},
                                             .count = {"BSD", 3, 9}};

const assay_operation assay_op_l2_norm = {.name = "l2_norm",
                                          .components = ASSAY_USES_NORM,
                                          .by_token = true,
                                          .summary = "rows of the last axis divided by their length",
                                          .config_of = assay_norm_config_of,
                                          .axis_size = assay_norm_axis_size,
                                          .graph = l2_norm,
                                          .second_form = {.form = quad_l2_norm},
                                          .count = {"BSD", 2, 6}};
