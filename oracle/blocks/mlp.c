#include "oracle/blocks/mlp.h"
#include "oracle/graph/graph_kind.h"

static int64_t axis_size(const void *self, char axis)
{
    const assay_mlp_graph_config *config = self;
    const assay_gated_mlp_config *mlp = &config->mlp;
    if (axis == 'B') return config->batch;
    if (axis == 'S') return config->sequence;
    if (axis == 'T') return mlp->rows;
    if (axis == 'D') return mlp->emb_dim;
    return axis == 'F' ? mlp->mlp_dim : 2 * mlp->mlp_dim; /* 'F', and 'f' of gate and up together */
}

/* Axes of rows, which only a dense layer's have names for. */
typedef struct row_axes {
    const char *emb, *hidden, *both;
} row_axes;

static row_axes axes_of(const assay_mlp_graph_config *config)
{
    return config->place == ASSAY_MLP_DENSE ? (row_axes){"BSD", "BSF", "BSf"} : (row_axes){"TD", "TF", "Tf"};
}

static const char *name_of(const assay_mlp_graph_config *config, int checkpoint)
{
    return assay_mlp_checkpoint_row(&config->mlp, config->place, checkpoint).name;
}

static int named(graph *g, const assay_mlp_graph_config *config, int checkpoint, int tensor)
{
    return graph_named(g, name_of(config, checkpoint), tensor);
}

/* Gate and up, which a fused product has in one tensor: then up is 0. */
static void up_steps(graph *g, const assay_mlp_graph_config *config, int x, const int *w, int out[2])
{
    const row_axes axes = axes_of(config);
    const assay_gated_mlp_config *mlp = &config->mlp;
    const graph_partition partition = {.groups = mlp->groups,
                                       .slices = config->slices,
                                       .chunks = config->chunks,
                                       .shards = mlp->hidden_shards,
                                       .apart = config->place == ASSAY_MLP_ROUTED};
    const int wi[2] = {w[ASSAY_MLP_WI_0], w[ASSAY_MLP_WI_1]};
    const int biases[2] = {w[ASSAY_MLP_WI_0_BIAS], w[ASSAY_MLP_WI_1_BIAS]};
    out[0] = out[1] = 0;
    if (mlp->fused) {
        out[0] = graph_linear_pair(g, axes.both, x, w[ASSAY_MLP_WI], biases, &mlp->recipe);
        named(g, config, ASSAY_MLPWI, out[0]);
        graph_quantised(g, name_of(config, ASSAY_MLPWI_GRADIENT), axes.both, out[0]);
        graph_partition_product(g, out[0], &partition);
        return;
    }
    /* of each shard of H the gradient of x is one sum */
    const bool two = mlp->hidden_shards > 1 && mlp->recipe.recipe == NULL;
    if (two) graph_linear_two(g, axes.hidden, x, wi, biases, NULL, out);
    for (int i = 0; i < 2; i++) {
        if (!two) out[i] = graph_linear(g, axes.hidden, x, wi[i], biases[i], &mlp->recipe);
        named(g, config, ASSAY_MLPWI_0 + i, out[i]);
        graph_quantised(g, name_of(config, ASSAY_MLPWI_0_GRADIENT + i), axes.hidden, out[i]);
        graph_partition_product(g, out[i], &partition);
    }
}

static int quantised(graph *g, const assay_mlp_graph_config *config, int h)
{
    assay_quantize_config rules = config->mlp.hidden;
    rules.rows = config->mlp.rows;
    rules.columns = config->mlp.mlp_dim;
    return graph_quantise_hidden(g, name_of(config, ASSAY_MLP_CODES), name_of(config, ASSAY_MLP_SCALE), h, &rules);
}

int assay_mlp_steps(graph *g, const assay_mlp_graph_config *config, int x, const int *w)
{
    const row_axes axes = axes_of(config);
    const assay_gated_mlp_config *mlp = &config->mlp;
    const graph_partition partition = {
        .groups = mlp->groups, .slices = mlp->hidden_shards, .apart = config->place == ASSAY_MLP_ROUTED};
    int up[2];
    graph_within(g, config, axis_size);
    up_steps(g, config, x, w, up);
    int h = named(g, config, ASSAY_MLP_INTERMEDIATE, graph_glu(g, axes.hidden, up[0], up[1], mlp));
    if (mlp->hidden.format != NULL) h = quantised(g, config, h);
    const int y = graph_linear(g, axes.emb, h, w[ASSAY_MLP_WO], w[ASSAY_MLP_WO_BIAS], &mlp->recipe);
    graph_quantised(g, name_of(config, ASSAY_MLPWO_GRADIENT), axes.emb, y);
    graph_partition_product(g, y, &partition);
    if (config->weighs_h) graph_maker(g, y)->in[GRAPH_ROW_WEIGHTS] = graph_input(g, ASSAY_MLP_ROW_WEIGHTS, "T");
    return named(g, config, ASSAY_MLPWO, y);
}

void assay_mlp_graph(graph *g, const assay_mlp_graph_config *config)
{
    const assay_gated_mlp_config *mlp = &config->mlp;
    int w[ASSAY_MLP_WEIGHTS];
    graph_begin(g, config, axis_size);
    const int x = graph_input(g, "inputs/x", axes_of(config).emb);
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        assay_tensor_row row = assay_mlp_weight_row(mlp, config->place, i);
        if (mlp->groups > 0 && row.name != NULL) row = assay_tensor_row_below("E", &mlp->groups, row);
        w[i] = graph_weight(g, row);
    }
    const int y = assay_mlp_steps(g, config, x, w);
    g->tensors[x].kept = config->stored ? GRAPH_STORED : GRAPH_LEFT;
    graph_end(g, y, g->tensors[x].kept);
    g->owners = config->owners;
    g->adds_up = config->place != ASSAY_MLP_DENSE;
}
