/* A gated MLP (oracle/ops/gated_mlp.h has the formulas) as a graph: of a dense layer, of one routed expert, or the shared one,
 * whose weights, in the order of assay_mlp_weight, and checkpoints are called by its place. */
#pragma once

#include "oracle/graph/graph.h"

typedef struct assay_mlp_graph_config {
    assay_gated_mlp_config mlp;
    assay_mlp_place place;
    int64_t batch, sequence; /* dense: x is [B,S,D], of batch * sequence rows; else [rows,D] */
    int64_t slices, chunks;  /* of the sums over D, without a recipe: graph_partition; 0 is 1 */
    int64_t owners;          /* of the graph */
    bool weighs_h;           /* h is multiplied by ASSAY_MLP_ROW_WEIGHTS [rows] before wo */
    bool stored; /* the result and the gradient of x are rounded as what is stored, and not the caller's to round */
} assay_mlp_graph_config;

#define ASSAY_MLP_ROW_WEIGHTS "weights of rows"

/* Input x; the result is the checkpoint mlpwo. */
void assay_mlp_graph(graph *g, const assay_mlp_graph_config *config);
/* Its steps within another graph, whose axes are others afterwards (graph_within); gives mlpwo. */
int assay_mlp_steps(graph *g, const assay_mlp_graph_config *config, int x, const int *w);
