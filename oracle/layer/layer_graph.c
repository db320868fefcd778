/* A layer as a graph. */
#include "oracle/blocks/mlp.h"
#include "oracle/layer/layer_internal.h"

bool assay_layer_is_dense(const assay_stack_config *config, int64_t layer)
{
    return layer < config->dense_layers;
}

assay_stack_sizes assay_stack_sizes_of(const assay_stack_config *config)
{
    const assay_mla_config *mla = &config->mla;
    const assay_gqa_config *gqa = &config->gqa;
    return config->attention == ASSAY_LAYER_MLA ? (assay_stack_sizes){mla->batch, mla->sequence, mla->emb_dim}
                                                : (assay_stack_sizes){gqa->batch, gqa->sequence, gqa->emb_dim};
}

assay_tensor_row layer_norm_row(const assay_stack_config *config, int norm)
{
    return (assay_tensor_row){.name = norm == LAYER_PRE_NORM ? "pre_self_attention_layer_norm/scale"
                                                             : "post_self_attention_layer_norm/scale",
                              .kind = ASSAY_NORM_SCALE,
                              .axes = "D",
                              .shape = assay_shape_of(1, assay_stack_sizes_of(config).emb_dim)};
}

static int64_t axis_size(const void *self, char axis)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(self);
    return axis == 'B' ? sizes.batch : axis == 'S' ? sizes.sequence : sizes.emb_dim;
}

static assay_tensor_row row_within(assay_tensor_row row, const char *folder)
{
    row.folder = folder;
    return row;
}

/* The attention of a layer; GPT-OSS has its window in every other one. */
static int attention_steps(graph *g, const assay_stack_config *config, int64_t layer,
                           const assay_attention_operands *in, const int *w)
{
    const bool odd = layer % 2 == 1;
    assay_gqa_config gqa = config->gqa;
    if (config->attention == ASSAY_LAYER_MLA) return assay_mla_steps(g, &config->mla, in, w);
    if (config->windows == (odd ? ASSAY_WINDOWS_EVEN : ASSAY_WINDOWS_ODD)) gqa.window = 0;
    return assay_gqa_steps(g, &gqa, in, w);
}

/* The block of experts, with what of it a policy may keep. */
static int expert_steps(graph *g, const assay_stack_config *config, int x)
{
    static const int kept[] = {ASSAY_MLPWI, ASSAY_MLPWI_0, ASSAY_MLPWI_1, ASSAY_MLPWO};
    const int y = graph_block(g, &assay_kind_experts, x, config);
    for (int i = 0; i < 8; i++) {
        const assay_tensor_row row = assay_moe_checkpoint_row(&config->moe, &config->sharding,
                                                              i < 4 ? ASSAY_MLP_SHARED : ASSAY_MLP_ROUTED, kept[i % 4]);
        if (assay_tensor_row_count(&row) > 0) graph_aside(g, y, row);
    }
    return y;
}

void assay_layer_graph(graph *g, const assay_stack_config *config, int64_t layer)
{
    const bool latent = config->attention == ASSAY_LAYER_MLA, dense = assay_layer_is_dense(config, layer);
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const assay_mlp_graph_config mlp = {.mlp = config->mlp, .batch = sizes.batch, .sequence = sizes.sequence};
    int of_attention[ASSAY_GQA_WEIGHTS], of_mlp[ASSAY_MLP_WEIGHTS];
    graph_begin(g, config, axis_size);
    assay_attention_operands in = assay_attention_inputs_of(g);
    const int x = in.x, pre_norm = graph_weight(g, layer_norm_row(config, LAYER_PRE_NORM));
    for (int i = 0; i < (latent ? (int)ASSAY_MLA_WEIGHTS : (int)ASSAY_GQA_WEIGHTS); i++) {
        const assay_tensor_row row =
            latent ? assay_mla_weight_row(&config->mla, i) : assay_gqa_weight_row(&config->gqa, i);
        of_attention[i] = graph_weight(g, row_within(row, "self_attention/"));
    }
    const int post_norm = graph_weight(g, layer_norm_row(config, LAYER_POST_NORM));
    for (int i = 0; dense && i < ASSAY_MLP_WEIGHTS; i++) {
        const assay_tensor_row row = assay_mlp_weight_row(&config->mlp, ASSAY_MLP_DENSE, i);
        of_mlp[i] = graph_weight(g, row_within(row, "mlp/"));
    }

    in.x = graph_rms_norm(g, x, pre_norm, config->epsilon);
    const int attended = graph_stored(g, attention_steps(g, config, layer, &in, of_attention));
    const int h = graph_called(g, LAYER_H, graph_add(g, x, attended));
    const int h_norm = graph_rms_norm(g, h, post_norm, config->epsilon);
    const bool half = !dense && config->batch_split_factor > 0;
    const int y = dense  ? graph_stored(g, assay_mlp_steps(g, &mlp, h_norm, of_mlp))
                  : half ? 0
                         : expert_steps(g, config, h_norm);
    graph_end(g, half ? h_norm : graph_called(g, LAYER_SUM, graph_add(g, h, y)), GRAPH_STORED);
}

int layer_tensor(const graph *g, int slot)
{
    if (slot == ASSAY_REMAT_DECODER_LAYER_INPUT) return graph_find(g, "inputs/x");
    return graph_find(g, slot == ASSAY_REMAT_LSE ? "lse" : assay_remat_names[slot]);
}

int layer_slot(const graph *g, int tensor)
{
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++)
        if (layer_tensor(g, slot) == tensor) return slot;
    return -1;
}

bool layer_recomputes(const graph *g, int slot)
{
    const bool needed = slot <= ATTENTION_LAST || (slot >= ASSAY_REMAT_MLPWI && slot <= ASSAY_REMAT_MLPWI_1);
    return needed && g->tensors[layer_tensor(g, slot)].role == GRAPH_CHECKPOINT;
}

double layer_recomputed(const assay_stack_config *config, const graph *g, const bool kept[ASSAY_REMAT_SLOTS])
{
    double sum = graph_find(g, assay_kind_experts.name) == 0 ? 0 : layer_moe_recomputed(config, kept);
    for (int slot = 0; slot < ASSAY_REMAT_SLOTS; slot++)
        if (layer_recomputes(g, slot) && !kept[slot]) sum += graph_operations(g, layer_tensor(g, slot));
    return sum;
}
