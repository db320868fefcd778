#include <inttypes.h>

#include "harness/operations/op_support.h"
#include "oracle/mesh/sharded_weights.h"
#include "oracle/moe/prefused.h"
#include "oracle/propagate/propagate_moe.h"

static assay_status check_layout(assay_context *ctx, const quad_moe_config *both)
{
    const assay_moe_config *config = &both->moe;
    const int64_t shards = both->w13_shards, parts = assay_mesh_size(&both->sharding.mesh, ASSAY_AXIS_MLP_TENSOR);
    if (shards > 1 && shards % parts != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "w13_reorder_size is %" PRId64
                          ", expected 1 or a multiple of mesh.mlp_tensor, which is %" PRId64,
                          shards, parts);
    }
    if (shards > 1 && !config->fused_weights) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "w13_reorder_size is %" PRId64 ", which needs prefuse_moe_weights=true, found false", shards);
    }
    if (shards <= config->moe_mlp_dim && config->moe_mlp_dim % shards == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "base_moe_mlp_dim is %" PRId64 ", expected a multiple of w13_reorder_size, which is %" PRId64,
                      config->moe_mlp_dim, shards);
}

/* A MoE block, and how it is spread over a mesh. */
static assay_status configs_of(assay_context *ctx, const assay_case *c, quad_moe_config *config)
{
    assay_status status;
    config->w13_shards = c->config.w13_reorder_size;
    TRY(assay_moe_config_of(ctx, c, &config->moe));
    TRY(assay_sharding_of(ctx, c, &config->sharding));
    TRY(assay_check_hidden_moe(ctx, &config->moe, &config->sharding));
    if (config->moe.local_num_experts > 0 && assay_is_sharded(&config->moe, &config->sharding)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "local_num_experts is %" PRId64 ", expected 0 on a mesh",
                          config->moe.local_num_experts);
    }
    if (assay_is_sharded(&config->moe, &config->sharding)) {
        if (config->moe.physical_experts > 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "num_redundant_experts is %" PRId64 ", expected 0: replicas are those of one device",
                              c->config.num_redundant_experts);
        }
        TRY(assay_sharded_moe_check(ctx, &config->moe, &config->sharding));
    }
    TRY(check_layout(ctx, config));
    TRY(assay_check_recipe_moe(ctx, &config->moe, &config->sharding, c->config.w13_reorder_size));
cleanup:
    return status;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    quad_moe_config config;
    return configs_of(ctx, c, &config);
}

static bool has_recipe(const void *c)
{
    return ((const assay_case *)c)->config.quant_recipe.text[0] != '\0';
}

static void second_form(quad_tape *t, const void *c)
{
    quad_moe_config config;
    if (quad_try(t, configs_of(quad_context(t), c, &config))) quad_moe(t, &config);
}

static bool second_streams(const void *c, const char *path)
{
    assay_context ctx = {0}; /* for the message of a case that was checked */
    quad_moe_config config;
    return configs_of(&ctx, c, &config) == ASSAY_OK && !has_recipe(c) && quad_moe_streams(&config, path);
}

static assay_status describe_router(const assay_describer *d, const assay_moe_config *config)
{
    assay_status status;
    int64_t experts = config->routing.num_experts, rows = config->routing.hash_rows;
    int64_t per_token = config->routing.num_experts_per_tok;
    assay_dims e = {"E", {experts}};
    TRY(assay_describe_weight(d, "gate/kernel", assay_fill_fan_in(config->emb_dim),
                              (assay_dims){"DE", {config->emb_dim, experts}}));
    if (d->c->config.routed_bias) TRY(assay_describe_weight(d, "gate/bias", assay_fill_normal(0.1, 0.0), e));
    if (assay_has_per_expert_scale(d->c)) {
        TRY(assay_describe_weight(d, "per_expert_scale", assay_fill_normal(0.25, 1.0), e));
    }
    if (rows > 0) {
        assay_fill experts_fill = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(experts - 1));
        TRY(assay_describe_integers(d, "tid2eid", experts_fill, (assay_dims){"VK", {rows, per_token}}));
    }
cleanup:
    return status;
}

static assay_dims all_experts(const assay_moe_config *config)
{
    return (assay_dims){config->fused_shared_experts > 0 ? "O" : "E", {assay_moe_experts(config)}};
}

static assay_dims sorted_copies(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    return (assay_dims){config->fused_shared_experts > 0 ? "s" : "r",
                        {r->batch * r->sequence * assay_moe_slots(config)}};
}

/* Those of all experts: one after the other, or kernels as they lie on the shards. */
static void place_experts(assay_tensor_table *table, const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_dims all =
        config->local_num_experts > 0 ? (assay_dims){"e", {config->local_num_experts}} : all_experts(config);
    for (int weight = 0; weight < table->count; weight++) {
        assay_tensor_row *row = &table->rows[weight];
        if (row->name == NULL) continue;
        if (!sharding->weights_on_shards || row->kind != ASSAY_KERNEL) {
            *row = assay_tensor_row_below(all.labels, all.dims, *row);
            continue;
        }
        const assay_kernel_layout layout = assay_kernel_layout_of(config, sharding, weight);
        row->shape = assay_shape_of(2, layout.rows, layout.columns);
        row->inputs = 0; /* parts of a kernel are no operand by themselves */
        *row = assay_tensor_row_below("me", (int64_t[]){layout.shards, layout.experts}, *row);
    }
}

static assay_status describe_experts(const assay_describer *d, const assay_moe_config *config,
                                     const assay_sharding *sharding)
{
    assay_status status;
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0),
                                 shared = assay_moe_shared_config(config, 0);
    assay_tensor_table routed_table = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared_table = assay_mlp_weight_table(&shared, ASSAY_MLP_SHARED);
    place_experts(&routed_table, config, sharding);
    TRY(assay_describe_weights(d, &routed_table, (assay_dims){"", {0}}));
    TRY(assay_describe_weights(d, &shared_table, (assay_dims){"", {0}}));
    if (config->shared_gate) {
        TRY(assay_describe_weight(d, "shared_expert_gate/kernel", assay_fill_fan_in(config->emb_dim),
                                  (assay_dims){"D1", {config->emb_dim, 1}}));
    }
cleanup:
    return status;
}

assay_status assay_describe_moe_weights(const assay_describer *d, const assay_moe_config *config,
                                        const assay_sharding *sharding)
{
    assay_status status = ASSAY_OK;
    if (!assay_gives_routing_weights(d->c, d->layer)) TRY(describe_router(d, config));
    TRY(describe_experts(d, config, sharding));
cleanup:
    return status;
}

/* Rows of routed intermediates: sorted copies, every expert on every token, or the places of the capacity buffer. */
static assay_dims routed_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return (assay_dims){"BSE", {r->batch, r->sequence, r->num_experts}};
    if (config->path == ASSAY_MOE_DROPPING) {
        return (assay_dims){"EBC", {r->num_experts, r->batch, assay_expert_capacity(r, config->capacity_factor)}};
    }
    return sorted_copies(config);
}

assay_status assay_describe_moe_checkpoints(const assay_describer *d, const assay_moe_config *config,
                                            const assay_sharding *sharding)
{
    assay_status status;
    const bool sharded = assay_is_sharded(config, sharding);
    const int64_t parts = sharded ? assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR) : 1;
    const assay_gated_mlp_config shared = assay_moe_shared_config(config, 0);
    assay_gated_mlp_config expert = assay_moe_expert_config(config, 0);
    expert.mlp_dim /= parts; /* a shard's columns */
    expert.emb_dim /= parts;
    const assay_dims tokens = {"BS", {config->routing.batch, config->routing.sequence}};
    const assay_dims rows = sharded ? assay_sharded_rows(config, sharding) : routed_rows(config);
    if (config->path == ASSAY_MOE_FUSED && parts > 1) {
        /* The parts of y are added once the weights have them: no shard has a row of moe_mlpwo. */
        const assay_tensor_row own = assay_mlp_checkpoint_row(&expert, ASSAY_MLP_ROUTED, ASSAY_MLPWI);
        const assay_tensor_row row = assay_tensor_row_below(rows.labels, rows.dims, own);
        TRY(assay_describe_checkpoint(d, &row));
    } else if (config->physical_experts == 0) {
        TRY(assay_describe_mlp_checkpoints(d, &expert, ASSAY_MLP_ROUTED, rows));
    }
    TRY(assay_describe_mlp_checkpoints(d, &shared, ASSAY_MLP_SHARED, tokens));
cleanup:
    return status;
}

assay_status assay_describe_moe_routing(const assay_describer *d, const assay_moe_config *config,
                                        const assay_sharding *sharding)
{
    assay_status status;
    if (assay_is_sharded(config, sharding)) return assay_describe_sharded_routing(d, config, sharding);
    const assay_routing_config *r = &config->routing;
    assay_dims chosen = {"BSK", {r->batch, r->sequence, r->num_experts_per_tok}};
    const assay_dims slots = {"BSt", {r->batch, r->sequence, assay_moe_slots(config)}};
    TRY(assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, chosen));
    TRY(assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, chosen));
    TRY(assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, (assay_dims){"BS", {r->batch, r->sequence}}));
    if (config->fused_shared_experts > 0) {
        TRY(assay_describe_result(d, "routing", "topk_ids", ASSAY_INT32, slots));
        TRY(assay_describe_result(d, "routing", "topk_weights", ASSAY_FLOAT64, slots));
    }
    TRY(assay_describe_result(d, "routing", "group_sizes", ASSAY_INT32, all_experts(config)));
    TRY(assay_describe_balance(d, config, sharding));
    if (config->local_num_experts > 0) {
        const assay_dims local = {"e", {config->local_num_experts}};
        TRY(assay_describe_result(d, "routing", "local_group_sizes", ASSAY_INT32, local));
    }
    /* each engine has an order of its own for rows of physical experts */
    if (config->physical_experts > 0) {
        TRY(assay_describe_result(d, "routing", "physical_experts", ASSAY_INT32, chosen));
    } else {
        TRY(assay_describe_result(d, "routing", "sorted_selected_experts", ASSAY_INT32, sorted_copies(config)));
    }
    if (config->path == ASSAY_MOE_DROPPING) {
        int64_t capacity = assay_expert_capacity(r, config->capacity_factor);
        assay_dims mask = {"BSEC", {r->batch, r->sequence, r->num_experts, capacity}};
        TRY(assay_describe_result(d, "routing", "combine_mask", ASSAY_FLOAT64, mask));
        TRY(assay_describe_result(d, "routing", "dispatch_mask", ASSAY_INT32, mask));
    }
cleanup:
    return status;
}

/* inputs/expert_map, where the case says how to fill it. */
static assay_status describe_map(const assay_describer *d, const assay_moe_config *config)
{
    static const char path[] = "inputs/expert_map";
    const assay_case_input *given = assay_case_input_of(d->c, path);
    assay_status status;
    if (given == NULL) return ASSAY_OK;
    if (config->local_num_experts == 0 || config->local_expert_offset != 0) {
        return assay_fail(d->ctx, ASSAY_BAD_INPUT,
                          "inputs.expert_map is given, expected local_num_experts above 0 and local_expert_offset 0, "
                          "found %" PRId64 " and %" PRId64,
                          config->local_num_experts, config->local_expert_offset);
    }
    TRY(assay_describe(d->ctx, d->list, path, ASSAY_INT32, &given->fill,
                       (assay_dims){"E", {config->routing.num_experts}}));
    d->list->entries[d->list->count - 1].least = -1;
    d->list->entries[d->list->count - 1].most = (int32_t)(config->local_num_experts - 1);
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    quad_moe_config both;
    TRY(configs_of(ctx, c, &both));
    const assay_moe_config config = both.moe;
    const assay_dims x = {"BSD", {c->batch, c->sequence, config.emb_dim}};
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    assay_mark_operand(list, 2, (assay_operand_axes){0, 2, false});
    if (config.routing.hash_rows > 0) {
        assay_fill ids = assay_fill_range(ASSAY_INTEGERS, 0.0, (double)(config.routing.hash_rows - 1));
        TRY(assay_describe(ctx, list, "inputs/input_ids", ASSAY_INT32, &ids,
                           (assay_dims){"BS", {c->batch, c->sequence}}));
    }
    if (config.physical_experts > 0) {
        const assay_fill zero = {.distribution = ASSAY_CONSTANT};
        TRY(assay_require_all_values(ctx, c, "inputs/physical_to_logical_map", config.physical_experts));
        TRY(assay_describe(ctx, list, "inputs/physical_to_logical_map", ASSAY_INT32, &zero,
                           (assay_dims){"p", {config.physical_experts}}));
    }
    TRY(assay_describe_given_choice(&d, &config.routing));
    TRY(describe_map(&d, &config));
    TRY(assay_describe_moe_weights(&d, &config, &both.sharding));
    TRY(assay_describe_moe_routing(&d, &config, &both.sharding));
    TRY(assay_describe_moe_checkpoints(&d, &config, &both.sharding));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    assay_mark_operand(list, 1, (assay_operand_axes){0, 2, false});
cleanup:
    return status;
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
    l->prefused = (assay_prefused){*in, *out, config->moe.moe_mlp_dim, config->w13_shards,
                                   assay_mesh_size(&config->sharding.mesh, ASSAY_AXIS_MLP_TENSOR)};
    l->in = assay_prefused_source(&l->prefused);
    l->out = assay_prefused_sink(&l->prefused);
    *in = &l->in;
    *out = &l->out;
}

/* Not over a mesh, not with replicas, and not of the forms that have no rule in oracle/propagate. */
static bool has_own_scales(const quad_moe_config *config)
{
    const assay_moe_config *moe = &config->moe;
    const bool engine = moe->fused_shared_experts > 0 || moe->late_factor != 0 || moe->weight_on_input;
    return !assay_is_sharded(moe, &config->sharding) && moe->hidden.format == NULL && moe->recipe.recipe == NULL &&
           !moe->shared_gate && !engine && moe->physical_experts == 0 && assay_routing_propagates(&config->moe.routing);
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    quad_moe_config config;
    assay_status status = configs_of(ctx, c, &config);
    if (status != ASSAY_OK) return status;
    layout laid_out;
    if (config.w13_shards > 1) layout_open(&laid_out, &config, &in, &out);
    if (assay_is_sharded(&config.moe, &config.sharding)) {
        return assay_sharded_moe_run(ctx, &config.moe, &config.sharding, in, out);
    }
    return has_own_scales(&config) ? assay_propagate_moe(ctx, &config.moe, in, out, precisions, precision_count)
                                   : assay_moe_run(ctx, &config.moe, in, out, NULL);
}

assay_status assay_moe_run_weight_before_wo(assay_context *ctx, const assay_case *c, const assay_source *in,
                                            const assay_sink *out)
{
    quad_moe_config config;
    layout laid_out;
    assay_status status;
    TRY(configs_of(ctx, c, &config));
    if (config.w13_shards > 1) layout_open(&laid_out, &config, &in, &out);
    config.sharding.weight_before_wo = true;
    TRY(assay_sharded_moe_check(ctx, &config.moe, &config.sharding));
    TRY(assay_sharded_moe_run(ctx, &config.moe, &config.sharding, in, out));
cleanup:
    return status;
}

/* Nor at a choice with slots of no expert or of one twice. */
static bool ensemble(const assay_case *c)
{
    assay_context ctx = {0};
    quad_moe_config config;
    return assay_gives_choice(c) || c->config.local_num_experts > 0 ||
           (configs_of(&ctx, c, &config) == ASSAY_OK && !has_own_scales(&config));
}

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    quad_moe_config config;
    if (configs_of(&ctx, c, &config) != ASSAY_OK || assay_is_sharded(&config.moe, &config.sharding)) return;
    assay_moe_shares_of(shares, least, &config.moe, in, out, scales, has_own_scales(&config) ? count : 0);
}

static double flops(const assay_case *c, bool backward)
{
    assay_context ctx = {0};
    assay_moe_config config;
    if (assay_moe_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    return assay_moe_flops(&config, false) + (backward ? assay_moe_flops(&config, true) : 0.0);
}

static int64_t memory(const assay_case *c)
{
    enum { PRECISIONS = 8 }; /* a case seldom has more profiles */
    assay_context ctx = {0};
    quad_moe_config config;
    if (configs_of(&ctx, c, &config) != ASSAY_OK) return 0;
    return assay_is_sharded(&config.moe, &config.sharding) ? assay_sharded_moe_memory(&config.moe, &config.sharding)
                                                           : assay_moe_memory(&config.moe, PRECISIONS);
}

const assay_operation assay_op_moe = {.name = "moe",
                                      .parts = ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS,
                                      .summary = "mixture of experts: dense, dropping, sparse or fused path",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble = ensemble,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = second_form, .streams = second_streams},
                                      .flops = flops,
                                      .memory = memory,
                                      .shares = shares_of};
