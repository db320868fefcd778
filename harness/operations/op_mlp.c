#include "harness/operations/op_block.h"
#include "oracle/blocks/mlp.h"

typedef struct mlp_config {
    assay_gated_mlp_config mlp; /* the first, since it is what the second form gets */
    int64_t batch, sequence;
} mlp_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    mlp_config *config = to;
    config->batch = c->batch;
    config->sequence = c->sequence;
    return assay_mlp_config_of(ctx, c, &config->mlp);
}

static void graph_of(const void *of, bool one_shard, graph *g)
{
    const mlp_config *config = of;
    const assay_mlp_graph_config whole = {.batch = config->batch, .sequence = config->sequence, .mlp = config->mlp};
    (void)one_shard;
    assay_mlp_graph(g, &whole);
}

const assay_operation assay_op_mlp = {.name = "mlp",
                                      .parts = ASSAY_PART_MLP,
                                      .summary = "gated MLP of a dense layer, fused or not",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .quantised = true,
                                      .second_form = {.form = quad_gated_mlp}};
