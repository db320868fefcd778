/* The gated MLP of a dense layer (oracle/ops/gated_mlp.h has the formulas) as a graph: x [B,S,D], weights in the order of
 * assay_mlp_weight, checkpoints by the rows of ASSAY_MLP_DENSE. */
#ifndef ASSAY_BLOCKS_DENSE_MLP_H
#define ASSAY_BLOCKS_DENSE_MLP_H

#include "oracle/graph/graph.h"

typedef struct assay_dense_mlp_config {
    int64_t batch, sequence;
    assay_gated_mlp_config mlp; /* of batch * sequence rows */
} assay_dense_mlp_config;

/* Input x, checkpoint and result mlpwo. */
void assay_dense_mlp_graph(graph *g, const assay_dense_mlp_config *config);
/* Its steps within another graph, whose axes are others afterwards (graph_within); gives mlpwo. */
int assay_dense_mlp_steps(graph *g, const assay_dense_mlp_config *config, int x, const int *w);

#endif
