#include "oracle/blocks/dense_mlp.h"

static int64_t axis_size(const void *self, char axis)
{
    const assay_dense_mlp_config *config = self;
    const assay_gated_mlp_config *mlp = &config->mlp;
    switch (axis) {
    case 'B':
        return config->batch;
    case 'S':
        return config->sequence;
    case 'D':
        return mlp->emb_dim;
    case '3':
        return mlp->hidden.format == NULL ? 0 : assay_block_count(mlp->mlp_dim, mlp->hidden.format->columns);
    default: /* 'F', and 'f' of gate and up together */
        return axis == 'F' ? mlp->mlp_dim : 2 * mlp->mlp_dim;
    }
}

int assay_dense_mlp_steps(graph *g, const assay_dense_mlp_config *config, int x, const int *w)
{
    const assay_gated_mlp_config *mlp = &config->mlp;
    const assay_recipe_config *recipe = &mlp->recipe;
    const int biases[2] = {w[ASSAY_MLP_WI_0_BIAS], w[ASSAY_MLP_WI_1_BIAS]};
    int gate, up = 0;
    graph_within(g, config, axis_size);
    if (mlp->fused) {
        gate = graph_named(g, "mlpwi", graph_linear_pair(g, "BSf", x, w[ASSAY_MLP_WI], biases, recipe));
        graph_quantised(g, "mlpwi_gradient", "BSf", gate);
    } else {
        gate = graph_named(g, "mlpwi_0", graph_linear(g, "BSF", x, w[ASSAY_MLP_WI_0], biases[0], recipe));
        up = graph_named(g, "mlpwi_1", graph_linear(g, "BSF", x, w[ASSAY_MLP_WI_1], biases[1], recipe));
        graph_quantised(g, "mlpwi_0_gradient", "BSF", gate);
        graph_quantised(g, "mlpwi_1_gradient", "BSF", up);
    }
    int h = graph_named(g, "mlp_intermediate", graph_glu(g, "BSF", gate, up, mlp));
    if (mlp->hidden.format != NULL) h = graph_quantise_hidden(g, "mlp_hidden_codes", "mlp_hidden_codes_scale", h, mlp);
    return graph_named(g, "mlpwo", graph_linear(g, "BSD", h, w[ASSAY_MLP_WO], w[ASSAY_MLP_WO_BIAS], recipe));
}

void assay_dense_mlp_graph(graph *g, const assay_dense_mlp_config *config)
{
    int w[ASSAY_MLP_WEIGHTS];
    graph_begin(g, config, axis_size);
    const int x = graph_input(g, "inputs/x", "BSD");
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++)
        w[i] = graph_weight(g, assay_mlp_weight_row(&config->mlp, ASSAY_MLP_DENSE, i));
    graph_end(g, assay_dense_mlp_steps(g, config, x, w));
}
