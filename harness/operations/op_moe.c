#include <inttypes.h>

#include "harness/operations/op_support.h"
#include "oracle/propagate/propagate_moe.h"

/* A MoE block, and how it is spread over a mesh. */
static assay_status configs_of(assay_context *ctx, const assay_case *c, spec_moe_config *config)
{
    assay_status status;
    TRY(assay_moe_config_of(ctx, c, &config->moe));
    TRY(assay_sharding_of(ctx, c, &config->sharding));
    if (assay_is_sharded(&config->moe, &config->sharding)) {
        if (config->moe.physical_experts > 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "num_redundant_experts is %" PRId64 ", expected 0: replicas are those of one device",
                              c->config.num_redundant_experts);
        }
        TRY(assay_sharded_moe_check(ctx, &config->moe, &config->sharding));
    }
cleanup:
    return status;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    spec_moe_config config;
    return configs_of(ctx, c, &config);
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    spec_moe_config config;
    const assay_status status = configs_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_moe(ctx, &config, in, out) : status;
}

static assay_status second_checkpoints(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    spec_moe_config config;
    const assay_status status = configs_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_moe_checkpoints(ctx, &config, in, out) : status;
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

static assay_status describe_experts(const assay_describer *d, const assay_moe_config *config)
{
    assay_status status;
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0),
                                 shared = assay_moe_shared_config(config, 0);
    const assay_tensor_table routed_table = assay_mlp_weight_table(&expert, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared_table = assay_mlp_weight_table(&shared, ASSAY_MLP_SHARED);
    TRY(assay_describe_weights(d, &routed_table, (assay_dims){"E", {config->routing.num_experts}}));
    TRY(assay_describe_weights(d, &shared_table, (assay_dims){"", {0}}));
cleanup:
    return status;
}

assay_status assay_describe_moe_weights(const assay_describer *d, const assay_moe_config *config)
{
    assay_status status = describe_router(d, config);
    return status == ASSAY_OK ? describe_experts(d, config) : status;
}

/* Rows of routed intermediates: sorted copies, every expert on every token, or the places of the capacity buffer. */
static assay_dims routed_rows(const assay_moe_config *config)
{
    const assay_routing_config *r = &config->routing;
    if (config->path == ASSAY_MOE_DENSE) return (assay_dims){"BSE", {r->batch, r->sequence, r->num_experts}};
    if (config->path == ASSAY_MOE_DROPPING) {
        return (assay_dims){"EBC", {r->num_experts, r->batch, assay_expert_capacity(r, config->capacity_factor)}};
    }
    return (assay_dims){"r", {r->batch * r->sequence * r->num_experts_per_tok}};
}

assay_status assay_describe_moe_checkpoints(const assay_describer *d, const assay_moe_config *config,
                                            const assay_sharding *sharding)
{
    assay_status status;
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0),
                                 shared = assay_moe_shared_config(config, 0);
    const assay_dims tokens = {"BS", {config->routing.batch, config->routing.sequence}};
    if (config->physical_experts == 0) {
        TRY(assay_describe_mlp_checkpoints(d, &expert, ASSAY_MLP_ROUTED,
                                           assay_is_sharded(config, sharding) ? assay_sharded_rows(config, sharding)
                                                                              : routed_rows(config)));
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
    assay_dims copies = {"r", {r->batch * r->sequence * r->num_experts_per_tok}};
    TRY(assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, chosen));
    TRY(assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, chosen));
    TRY(assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, (assay_dims){"BS", {r->batch, r->sequence}}));
    TRY(assay_describe_result(d, "routing", "group_sizes", ASSAY_INT32, (assay_dims){"E", {r->num_experts}}));
    TRY(assay_describe_balance(d, config, sharding));
    /* each engine has an order of its own for rows of physical experts */
    if (config->physical_experts > 0) {
        TRY(assay_describe_result(d, "routing", "physical_experts", ASSAY_INT32, chosen));
    } else {
        TRY(assay_describe_result(d, "routing", "sorted_selected_experts", ASSAY_INT32, copies));
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

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    spec_moe_config both;
    TRY(configs_of(ctx, c, &both));
    const assay_moe_config config = both.moe;
    const assay_dims x = {"BSD", {c->batch, c->sequence, config.emb_dim}};
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
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
    TRY(assay_describe_moe_weights(&d, &config));
    TRY(assay_describe_moe_routing(&d, &config, &both.sharding));
    TRY(assay_describe_moe_checkpoints(&d, &config, &both.sharding));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    spec_moe_config config;
    assay_status status = configs_of(ctx, c, &config);
    if (status != ASSAY_OK) return status;
    if (config.moe.physical_experts > 0) return assay_moe_run(ctx, &config.moe, in, out, NULL);
    return assay_is_sharded(&config.moe, &config.sharding)
               ? assay_sharded_moe_run(ctx, &config.moe, &config.sharding, in, out)
               : assay_propagate_moe(ctx, &config.moe, in, out, precisions, precision_count);
}

assay_status assay_moe_run_weight_before_wo(assay_context *ctx, const assay_case *c, const assay_source *in,
                                            const assay_sink *out)
{
    spec_moe_config config;
    assay_status status;
    TRY(configs_of(ctx, c, &config));
    config.sharding.weight_before_wo = true;
    TRY(assay_sharded_moe_check(ctx, &config.moe, &config.sharding));
    TRY(assay_sharded_moe_run(ctx, &config.moe, &config.sharding, in, out));
cleanup:
    return status;
}

/* Over a mesh the block gives no error scales of its own, nor with replicas. */
static bool ensemble(const assay_case *c)
{
    assay_context ctx = {0};
    spec_moe_config config;
    if (configs_of(&ctx, c, &config) != ASSAY_OK) return false;
    return config.moe.physical_experts > 0 || assay_is_sharded(&config.moe, &config.sharding);
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
    assay_context ctx = {0};
    spec_moe_config config;
    if (configs_of(&ctx, c, &config) != ASSAY_OK) return 0;
    return assay_is_sharded(&config.moe, &config.sharding) ? assay_sharded_moe_memory(&config.moe, &config.sharding)
                                                           : assay_moe_memory(&config.moe);
}

const assay_operation assay_op_moe = {.name = "moe",
                                      .parts = ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS,
                                      .summary = "mixture of experts: dense, dropping, sparse or fused path",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble = ensemble,
                                      .mesh = true,
                                      .second_form = {.evaluate = second_form, .checkpoints = second_checkpoints},
                                      .flops = flops,
                                      .memory = memory};
