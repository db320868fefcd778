#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_support.h"
#include "oracle/moe/prefused.h"
#include "oracle/moe/sharded_weights.h"

static assay_moe_path path_of(const assay_model_config *m)
{
    if (m->fused_moe_func) return ASSAY_MOE_FUSED;
    if (m->sparse_matmul) return ASSAY_MOE_SPARSE;
    return m->capacity_factor > 0.0 ? ASSAY_MOE_DROPPING : ASSAY_MOE_DENSE;
}

assay_status assay_moe_config_of(assay_context *ctx, const assay_case *c, assay_moe_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_moe_config){.emb_dim = m->base_emb_dim,
                                 .moe_mlp_dim = m->base_moe_mlp_dim,
                                 .path = path_of(m),
                                 .fused_shared_experts = m->num_fused_shared_experts,
                                 .weight_on_input = m->apply_router_weight_on_input,
                                 .capacity_factor = m->capacity_factor,
                                 .limit = m->mlp_activations_limit,
                                 .local_num_experts = m->local_num_experts,
                                 .local_expert_offset = m->local_expert_offset,
                                 .fused_weights = m->prefuse_moe_weights || m->fused_moe_mlp || m->fused_moe_func};
    const char *fused_key = m->prefuse_moe_weights ? "prefuse_moe_weights" : "fused_moe_mlp";
    if ((m->prefuse_moe_weights || m->fused_moe_mlp) && !m->sparse_matmul)
        return assay_refuse(ctx, "%s needs sparse_matmul=true, found sparse_matmul=false", fused_key);
    MUST(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    MUST(assay_require_positive(ctx, "base_moe_mlp_dim", m->base_moe_mlp_dim));
    MUST(assay_activation_of(ctx, m, 0, &config->activation));
    MUST(assay_glu_of(ctx, m, false, &config->glu));
    MUST(assay_hidden_config_of(ctx, c, config->moe_mlp_dim, &config->hidden));
    MUST(assay_quant_recipe_config_of(ctx, c, &config->recipe));
    MUST(assay_routing_config_of(ctx, c, &config->routing));
    if (m->num_fused_shared_experts > 0 && (m->num_fused_shared_experts != m->shared_experts ||
                                            assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED) ||
                                            strcmp(m->decoder_block.text, "gemma4") == 0)) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_num_fused_shared_experts,
                                "0 or shared_experts, which is %" PRId64
                                ", of a block whose shared experts are as wide as the routed ones and have no gate",
                                m->shared_experts);
    }
    if ((m->apply_router_weight_on_input || m->num_fused_shared_experts > 0) && m->mlp_bias) {
        return assay_refuse(ctx, "%s needs mlp_bias=false, found true",
                            m->num_fused_shared_experts > 0 ? "num_fused_shared_experts"
                                                            : "apply_router_weight_on_input");
    }
    if (!m->apply_routed_scaling_factor_on_output) {
        config->late_factor = config->routing.routed_scaling_factor;
        config->routing.routed_scaling_factor = 1;
    }
    if (m->num_fused_shared_experts == 0 && m->shared_experts > 0) {
        /* gemma4's shared expert has the width of a dense layer */
        bool gemma4 = strcmp(m->decoder_block.text, "gemma4") == 0;
        if (gemma4) MUST(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
        config->shared_gate = assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED);
        config->shared_mlp_dim = gemma4 ? m->base_mlp_dim : m->shared_experts * m->base_moe_mlp_dim;
        MUST(assay_refuse_cutting_off(ctx, "the shared expert", &config->recipe));
    }
    if (m->num_redundant_experts > 0) config->physical_experts = m->num_experts + m->num_redundant_experts;
    return assay_moe_check(ctx, config);
}

assay_status assay_check_hidden_moe(assay_context *ctx, const assay_moe_config *moe, const assay_sharding *sharding)
{
    const char *with = NULL;
    if (moe->hidden.format == NULL) return ASSAY_OK;
    if (moe->physical_experts > 0) with = "with num_redundant_experts";
    if (moe->path == ASSAY_MOE_DROPPING) with = "with capacity_factor";
    if (assay_is_sharded(moe, sharding)) with = "on a mesh";
    if (with == NULL) return ASSAY_OK;
    return assay_refuse(ctx, "quant_hidden_format is %s, expected none %s", moe->hidden.format->name, with);
}

/* Sparse experts, whose rows are those of the recipe's groups. */
assay_status assay_check_recipe_moe(assay_context *ctx, const assay_moe_config *moe, int64_t w13_shards)
{
    const assay_quant_recipe *recipe = moe->recipe.recipe;
    if (recipe == NULL) return ASSAY_OK;
    const char *beside = moe->path != ASSAY_MOE_SPARSE                ? "sparse_matmul=false or fused_moe_func"
                         : moe->routing.family == ASSAY_ROUTER_LLAMA4 ? "llama4"
                         : moe->weight_on_input                       ? "apply_router_weight_on_input"
                         : moe->fused_shared_experts > 0              ? "num_fused_shared_experts"
                         : moe->local_num_experts > 0                 ? "local_num_experts"
                         : moe->physical_experts > 0                  ? "num_redundant_experts"
                         : moe->late_factor != 0                      ? "apply_routed_scaling_factor_on_output=false"
                         : moe->shared_gate                           ? "a gate of the shared expert"
                         : w13_shards > 1                             ? "w13_reorder_size"
                                                                      : NULL;
    if (beside == NULL) return ASSAY_OK;
    return assay_refuse(ctx, "quant_recipe is %s, expected \"\" with %s", recipe->name, beside);
}

static assay_status check_layout(assay_context *ctx, const assay_model_config *m, const quad_moe_config *both)
{
    const assay_moe_config *config = &both->moe;
    const int64_t shards = both->w13_shards, parts = assay_mesh_size(&both->sharding.mesh, ASSAY_AXIS_MLP_TENSOR);
    if (shards > 1 && shards % parts != 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_w13_reorder_size,
                                "1 or a multiple of mesh.mlp_tensor, which is %" PRId64, parts);
    }
    if (shards > 1 && !config->fused_weights) {
        return assay_refuse(ctx, "w13_reorder_size is %" PRId64 ", which needs prefuse_moe_weights=true, found false",
                            shards);
    }
    if (shards <= config->moe_mlp_dim && config->moe_mlp_dim % shards == 0) return ASSAY_OK;
    return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_moe_mlp_dim, "a multiple of w13_reorder_size, which is %" PRId64,
                            shards);
}

/* A MoE block, and how it is spread over a mesh. */
static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_moe_config *config = to;
    config->w13_shards = c->config.w13_reorder_size;
    MUST(assay_moe_config_of(ctx, c, &config->moe));
    MUST(assay_sharding_of(ctx, c, &config->sharding));
    MUST(assay_check_hidden_moe(ctx, &config->moe, &config->sharding));
    if (config->moe.local_num_experts > 0 && config->moe.shared_mlp_dim > 0) {
        return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_shared_experts,
                                "0 with local_num_experts: a sum over ranks would have it several times");
    }
    MUST(assay_sharded_moe_check(ctx, &config->moe, &config->sharding));
    MUST(check_layout(ctx, &c->config, config));
    return assay_check_recipe_moe(ctx, &config->moe, c->config.w13_reorder_size);
}

static bool has_fused_shared(const assay_moe_config *config)
{
    return config->fused_shared_experts > 0;
}

/* Those of all experts: one after the other, or kernels as they lie on the shards. */
static void place_experts(assay_tensor_table *table, const assay_moe_config *config, const assay_sharding *sharding)
{
    const char *all = config->local_num_experts > 0 ? "e" : has_fused_shared(config) ? "O" : "E";
    const int64_t experts = config->local_num_experts > 0 ? config->local_num_experts : assay_moe_experts(config);
    for (int weight = 0; weight < table->count; weight++) {
        assay_tensor_row *row = &table->rows[weight];
        if (row->name == NULL) continue;
        if (!sharding->weights_on_shards || row->kind != ASSAY_KERNEL) {
            *row = assay_tensor_row_below(all, &experts, *row);
            continue;
        }
        const assay_kernel_layout layout = assay_kernel_layout_of(config, sharding, weight);
        row->shape = assay_shape_of(2, layout.rows, layout.columns);
        row->inputs = 0; /* parts of a kernel are no operand by themselves */
        *row = assay_tensor_row_below("me", (int64_t[]){layout.shards, layout.experts}, *row);
    }
}

void assay_describe_moe_weights(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0),
                                 shared = assay_moe_shared_config(config, 0);
    assay_tensor_table routed_table = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared_table = assay_mlp_weight_table(&shared, ASSAY_MLP_SHARED);
    if (!assay_gives_routing_weights(d->c, d->layer)) assay_describe_router(d, config);
    place_experts(&routed_table, config, sharding);
    assay_describe_weights(d, &routed_table);
    assay_describe_weights(d, &shared_table);
    if (config->shared_gate)
        assay_describe_weight(d, "shared_expert_gate/kernel", assay_fill_fan_in(config->emb_dim), "D1");
}

void assay_describe_moe_checkpoints(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding)
{
    /* The parts of y are added once the weights have them: no shard has a row of moe_mlpwo. */
    const bool rows_of_wi =
        config->path == ASSAY_MOE_FUSED && assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR) > 1;
    for (int i = 0; i < 2 * ASSAY_MLP_CHECKPOINTS; i++) {
        const int checkpoint = i % ASSAY_MLP_CHECKPOINTS;
        const bool routed = i < ASSAY_MLP_CHECKPOINTS;
        const assay_tensor_row row =
            assay_moe_checkpoint_row(config, sharding, routed ? ASSAY_MLP_ROUTED : ASSAY_MLP_SHARED, checkpoint);
        if (row.name == NULL || (routed && config->physical_experts > 0)) continue;
        if (routed && rows_of_wi && checkpoint != ASSAY_MLPWI) continue;
        assay_describe_checkpoint(d, &row);
        /* by a recipe h is, but where it has codes, and gradients are */
        const bool hidden = checkpoint == ASSAY_MLP_INTERMEDIATE && config->hidden.format == NULL;
        assay_described(d, 1)->requantised =
            config->recipe.recipe != NULL && (hidden || checkpoint >= ASSAY_MLPWI_GRADIENT);
    }
}

void assay_describe_moe_routing(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding)
{
    assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, "BSK");
    assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, "BSK");
    assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, "BS");
    if (assay_is_sharded(config, sharding)) {
        assay_describe_sharded_routing(d, config, sharding);
        return;
    }
    if (has_fused_shared(config)) {
        assay_describe_result(d, "routing", "topk_ids", ASSAY_INT32, "BSt");
        assay_describe_result(d, "routing", "topk_weights", ASSAY_FLOAT64, "BSt");
    }
    assay_describe_result(d, "routing", "group_sizes", ASSAY_INT32, has_fused_shared(config) ? "O" : "E");
    assay_describe_balance(d, &config->routing, false);
    if (config->local_num_experts > 0) assay_describe_result(d, "routing", "local_group_sizes", ASSAY_INT32, "e");
    /* each engine has an order of its own for rows of physical experts */
    if (config->physical_experts > 0) {
        assay_describe_result(d, "routing", "physical_experts", ASSAY_INT32, "BSK");
    } else {
        assay_describe_result(d, "routing", "sorted_selected_experts", ASSAY_INT32,
                              has_fused_shared(config) ? "s" : "r");
    }
    if (config->path == ASSAY_MOE_DROPPING) {
        assay_describe_result(d, "routing", "combine_mask", ASSAY_FLOAT64, "BSEC");
        assay_describe_result(d, "routing", "dispatch_mask", ASSAY_INT32, "BSEC");
    }
}

/* inputs/LAYER expert_map, where the case says how to fill it. */
static void describe_map(assay_describer *d, const assay_moe_config *config)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%.60sexpert_map", d->layer);
    const assay_case_input *rule = assay_case_input_of(d->c, path);
    if (rule == NULL || d->status != ASSAY_OK) return;
    if (config->local_num_experts == 0 || config->local_expert_offset != 0) {
        d->status = assay_refuse(d->ctx,
                                 "inputs.%s is given, expected local_num_experts above 0 and local_expert_offset "
                                 "0, found %" PRId64 " and %" PRId64,
                                 rule->path, config->local_num_experts, config->local_expert_offset);
    }
    assay_describe(d, path, ASSAY_INT32, &rule->fill, "E");
    assay_described(d, 1)->least = -1;
    assay_described(d, 1)->most = (int32_t)(config->local_num_experts - 1);
}

void assay_describe_moe_inputs(assay_describer *d, const assay_moe_config *config)
{
    const assay_fill zero = {.distribution = ASSAY_CONSTANT};
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%.60sphysical_to_logical_map", d->layer);
    if (config->physical_experts > 0) {
        assay_require_all_values(d, path, config->physical_experts);
        assay_describe(d, path, ASSAY_INT32, &zero, "p");
    }
    assay_describe_choice_input(d, &config->routing);
    describe_map(d, config);
}

static void describe(assay_describer *d, const void *of)
{
    const quad_moe_config *both = of;
    const assay_moe_config *config = &both->moe;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_describe_variable(d, "inputs/x", one, "BSD");
    assay_described(d, 2)->operand = (assay_operand_axes){0, 2, false};
    assay_describe_input_ids(d, &config->routing);
    assay_describe_moe_inputs(d, config);
    assay_describe_moe_weights(d, config, &both->sharding);
    assay_describe_moe_routing(d, config, &both->sharding);
    assay_describe_moe_checkpoints(d, config, &both->sharding);
    assay_describe_output(d, "y", &one, "BSD");
    assay_described(d, 1)->operand = (assay_operand_axes){0, 2, false};
}

/* Fused weights of tensor shards, as the block sees them. */
typedef struct layout {
    assay_prefused prefused;
    assay_source in;
    assay_sink out;
} layout;

/* *in and *out become the block's. */
static void layout_open(layout *l, const quad_moe_config *config, const assay_source **in, const assay_sink **out)
{
    l->prefused = (assay_prefused){{*in, *out},
                                   config->moe.moe_mlp_dim,
                                   config->w13_shards,
                                   assay_mesh_size(&config->sharding.mesh, ASSAY_AXIS_MLP_TENSOR)};
    l->in = assay_prefused_source(&l->prefused);
    l->out = assay_prefused_sink(&l->prefused);
    *in = &l->in;
    *out = &l->out;
}

static assay_status run(assay_context *ctx, const assay_case *c, const void *of, const assay_source *in,
                        const assay_sink *out)
{
    const quad_moe_config *config = of;
    layout laid_out;
    (void)c;
    if (config->w13_shards > 1) layout_open(&laid_out, config, &in, &out);
    return assay_moe_run(ctx, &config->moe, &config->sharding, in, out);
}

static double flops(const void *of, bool backward)
{
    const assay_moe_config *config = &((const quad_moe_config *)of)->moe;
    return assay_moe_flops(config, false) + (backward ? assay_moe_flops(config, true) : 0.0);
}

static int64_t memory(const void *of)
{
    const quad_moe_config *config = of;
    return assay_moe_memory(&config->moe, &config->sharding);
}

const assay_operation assay_op_moe = {.name = "moe",
                                      .components = ASSAY_USES_ROUTER | ASSAY_USES_EXPERTS,
                                      .by_token = true,
                                      .summary = "mixture of experts: dense, dropping, sparse or fused path",
                                      .config_of = config_of,
                                      .axis_size = assay_block_axis_size,
                                      .describe = describe,
                                      .run = run,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = quad_moe, .streams = quad_moe_streams},
                                      .operations = flops,
                                      .bytes = memory};
