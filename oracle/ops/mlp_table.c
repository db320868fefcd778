/* The tensors of a gated MLP: names, axes and sizes. */
#include <stddef.h>

#include "oracle/ops/gated_mlp.h"

typedef struct entry {
    const char *names[ASSAY_MLP_PLACES]; /* dense, routed, shared; NULL: there is none */
    const char *axes, *routed_axes;      /* the width of routed experts has a letter of its own */
    assay_tensor_kind kind;
    enum { ALWAYS, FUSED, SPLIT, QUANTISED } when;
    bool of_recipe; /* there is none without */
} entry;

static const entry weights[ASSAY_MLP_WEIGHTS] = {
    [ASSAY_MLP_WI] = {{"wi/kernel", "wi", NULL}, "Df", "Dh", ASSAY_KERNEL, FUSED, false},
    [ASSAY_MLP_WI_0] = {{"wi_0/kernel", "wi_0", "shared_experts/wi_0/kernel"}, "DF", "DH", ASSAY_KERNEL, SPLIT, false},
    [ASSAY_MLP_WI_1] = {{"wi_1/kernel", "wi_1", "shared_experts/wi_1/kernel"}, "DF", "DH", ASSAY_KERNEL, SPLIT, false},
    [ASSAY_MLP_WI_0_BIAS] = {{"wi_0/bias", "wi_0_bias", NULL}, "F", "H", ASSAY_BIAS, ALWAYS, false},
    [ASSAY_MLP_WI_1_BIAS] = {{"wi_1/bias", "wi_1_bias", NULL}, "F", "H", ASSAY_BIAS, ALWAYS, false},
    [ASSAY_MLP_WO] = {{"wo/kernel", "wo", "shared_experts/wo/kernel"}, "FD", "HD", ASSAY_KERNEL, ALWAYS, false},
    [ASSAY_MLP_WO_BIAS] = {{"wo/bias", "wo_bias", NULL}, "D", "D", ASSAY_BIAS, ALWAYS, false},
};

static const entry checkpoints[ASSAY_MLP_CHECKPOINTS] = {
    [ASSAY_MLPWI] = {{"mlpwi", "moe_mlpwi", NULL}, "f", "h", ASSAY_CHECKPOINT, FUSED, false},
    [ASSAY_MLPWI_0] = {{"mlpwi_0", "moe_mlpwi_0", "mlpwi_0"}, "F", "H", ASSAY_CHECKPOINT, SPLIT, false},
    [ASSAY_MLPWI_1] = {{"mlpwi_1", "moe_mlpwi_1", "mlpwi_1"}, "F", "H", ASSAY_CHECKPOINT, SPLIT, false},
    [ASSAY_MLP_INTERMEDIATE] =
        {{"mlp_intermediate", "moe_intermediate", "mlp_intermediate"}, "F", "H", ASSAY_CHECKPOINT, ALWAYS, false},
    [ASSAY_MLP_CODES] =
        {{"mlp_hidden_codes", "moe_hidden_codes", "mlp_hidden_codes"}, "F", "H", ASSAY_CHECKPOINT, QUANTISED, false},
    [ASSAY_MLP_SCALE] = {{"mlp_hidden_codes_scale", "moe_hidden_codes_scale", "mlp_hidden_codes_scale"},
                         "3",
                         "3",
                         ASSAY_CHECKPOINT,
                         QUANTISED,
                         false},
    [ASSAY_MLPWO] = {{"mlpwo", "moe_mlpwo", "mlpwo"}, "D", "D", ASSAY_CHECKPOINT, ALWAYS, false},
    [ASSAY_MLPWI_GRADIENT] = {{"mlpwi_gradient", "moe_mlpwi_gradient", NULL}, "f", "h", ASSAY_CHECKPOINT, FUSED, true},
    [ASSAY_MLPWI_0_GRADIENT] =
        {{"mlpwi_0_gradient", "moe_mlpwi_0_gradient", "mlpwi_0_gradient"}, "F", "H", ASSAY_CHECKPOINT, SPLIT, true},
    [ASSAY_MLPWI_1_GRADIENT] =
        {{"mlpwi_1_gradient", "moe_mlpwi_1_gradient", "mlpwi_1_gradient"}, "F", "H", ASSAY_CHECKPOINT, SPLIT, true},
    [ASSAY_MLPWO_GRADIENT] = {{NULL, "moe_mlpwo_gradient", NULL}, "D", "D", ASSAY_CHECKPOINT, ALWAYS, true},
};

static int64_t blocks_of(const assay_gated_mlp_config *config)
{
    return config->hidden.format == NULL ? 0 : assay_block_count(config->mlp_dim, config->hidden.format->columns);
}

static int64_t axis_size(const void *self, char axis)
{
    const assay_gated_mlp_config *config = self;
    if (axis == 'D') return config->emb_dim;
    if (axis == '3') return blocks_of(config);
    return axis == 'f' || axis == 'h' ? 2 * config->mlp_dim : config->mlp_dim;
}

static assay_tensor_row row_of(const entry *e, const assay_gated_mlp_config *config, assay_mlp_place place)
{
    const assay_tensor_form form = {.name = e->names[place],
                                    .kind = e->kind,
                                    .axes = place == ASSAY_MLP_ROUTED ? e->routed_axes : e->axes,
                                    .inputs = e->kind == ASSAY_KERNEL};
    const bool quantised = e->when == QUANTISED && config->hidden.format != NULL;
    const bool there = e->when == ALWAYS || quantised || (e->when != QUANTISED && (e->when == FUSED) == config->fused);
    const bool made = (!e->of_recipe || config->recipe.recipe != NULL) && e->names[place] != NULL;
    return there && made && config->mlp_dim > 0 ? assay_tensor_row_of(&form, config, axis_size) : (assay_tensor_row){0};
}

assay_tensor_row assay_mlp_weight_row(const assay_gated_mlp_config *config, assay_mlp_place place, int weight)
{
    return row_of(&weights[weight], config, place);
}

assay_tensor_row assay_mlp_checkpoint_row(const assay_gated_mlp_config *config, assay_mlp_place place, int checkpoint)
{
    return row_of(&checkpoints[checkpoint], config, place);
}

int64_t assay_mlp_checkpoint_path(const assay_gated_mlp_config *config, assay_mlp_place place, int checkpoint,
                                  char path[ASSAY_PATH_SIZE])
{
    const assay_tensor_row row = assay_mlp_checkpoint_row(config, place, checkpoint);
    if (row.name != NULL) assay_tensor_path("checkpoints/", "", &row, path);
    return assay_tensor_row_count(&row);
}

assay_tensor_table assay_mlp_weight_table(const assay_gated_mlp_config *config, assay_mlp_place place)
{
    assay_tensor_table table = {.count = ASSAY_MLP_WEIGHTS};
    for (int weight = 0; weight < table.count; weight++)
        table.rows[weight] = assay_mlp_weight_row(config, place, weight);
    return table;
}
