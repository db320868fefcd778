#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/layer/batch_split.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_stack_config config;
    return assay_stack_config_of(ctx, c, &config);
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_stack_config config;
    const assay_status status = assay_stack_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_stack(ctx, &config, in, out) : status;
}

static assay_status second_checkpoints(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_stack_config config;
    const assay_status status = assay_stack_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_stack_checkpoints(ctx, &config, in, out) : status;
}

/* "layers/3/", or "" of a single layer. */
typedef struct layer_prefix {
    char text[32];
} layer_prefix;

static layer_prefix prefix_of(const assay_stack_config *config, int64_t layer)
{
    layer_prefix prefix = {""};
    if (!config->single) snprintf(prefix.text, sizeof prefix.text, "layers/%" PRId64 "/", layer);
    return prefix;
}

static bool is_dense(const assay_stack_config *config, int64_t layer)
{
    return layer < config->dense_layers;
}

static assay_status describe_weights(assay_describer d, const assay_stack_config *config, int64_t layer)
{
    assay_status status;
    const assay_fill scale = assay_fill_normal(0.1, 1.0);
    const assay_dims dim = {"D", {config->mla.emb_dim}};
    const assay_tensor_table mla = assay_mla_weight_table(&config->mla);
    d.block = "";
    TRY(assay_describe_weight(&d, "pre_self_attention_layer_norm/scale", scale, dim));
    d.block = "self_attention/";
    TRY(assay_describe_weights(&d, &mla, (assay_dims){"", {0}}));
    d.block = "";
    TRY(assay_describe_weight(&d, "post_self_attention_layer_norm/scale", scale, dim));
    d.block = is_dense(config, layer) ? "mlp/" : "moe/";
    if (is_dense(config, layer)) {
        const assay_tensor_table mlp = assay_mlp_weight_table(&config->mlp, ASSAY_MLP_DENSE);
        TRY(assay_describe_weights(&d, &mlp, (assay_dims){"", {0}}));
    } else {
        TRY(assay_describe_moe_weights(&d, &config->moe));
    }
cleanup:
    return status;
}

/* What a layer under the batch-split schedule leaves (batch_split.h). */
static assay_status describe_batch_split_results(const assay_describer *d, const assay_stack_config *config)
{
    assay_status status;
    const assay_mla_config *mla = &config->mla;
    const assay_routing_config *r = &config->moe.routing;
    const assay_batch_split_sizes s = assay_batch_split_sizes_of(config);
    const int64_t batch = mla->batch, sequence = mla->sequence, factor = config->batch_split_factor;
    const assay_dims x = {"BSD", {batch, sequence, mla->emb_dim}},
                     chosen = {"BSK", {batch, sequence, r->num_experts_per_tok}};
    const assay_dims rows = {"mjrH", {s.shards, factor, s.copies, config->moe.moe_mlp_dim}};
    const assay_tensor_row attention_out = assay_mla_tensor_row(mla, ASSAY_MLA_ATTENTION_OUT);
    const assay_tensor_row lse = assay_mla_tensor_row(mla, ASSAY_MLA_LSE);
    const assay_dims sizes = {"mje", {s.shards, factor, s.local_experts}};
    TRY(assay_describe_result(d, "checkpoints", "decoder_layer_input", ASSAY_FLOAT64, x));
    TRY(assay_describe_checkpoint(d, &lse));
    TRY(assay_describe_checkpoint(d, &attention_out));
    TRY(assay_describe_result(d, "checkpoints", "mla_out", ASSAY_FLOAT64, x));
    TRY(assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, chosen));
    TRY(assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, chosen));
    TRY(assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, (assay_dims){"BS", {batch, sequence}}));
    TRY(assay_describe_result(d, "routing", "group_sizes", ASSAY_INT32, sizes));
    TRY(assay_describe_result(d, "checkpoints", "moe_mlpwi_0", ASSAY_FLOAT64, rows));
    TRY(assay_describe_result(d, "checkpoints", "moe_mlpwi_1", ASSAY_FLOAT64, rows));
cleanup:
    return status;
}

static assay_status describe_schedule(const assay_describer *d, const assay_stack_config *config, bool backward)
{
    const assay_schedule_dims dims = {.first_layer = config->dense_layers,
                                      .layers = config->layers - config->dense_layers,
                                      .factor = config->batch_split_factor,
                                      .backward = backward};
    const assay_dims events = {"xn", {assay_schedule_count(&dims), ASSAY_EVENT_FIELDS}};
    return assay_describe(d->ctx, d->list, "schedule/events", ASSAY_INT32, NULL, events);
}

static assay_status describe_results(const assay_describer *d, const assay_stack_config *config, int64_t layer)
{
    assay_status status;
    if (config->batch_split_factor > 0 && !is_dense(config, layer)) return describe_batch_split_results(d, config);
    const assay_dims x = {"BSD", {config->mla.batch, config->mla.sequence, config->mla.emb_dim}};
    const assay_dims tokens = {"BS", {config->mla.batch, config->mla.sequence}};
    TRY(assay_describe_result(d, "checkpoints", "decoder_layer_input", ASSAY_FLOAT64, x));
    TRY(assay_describe_mla_checkpoints(d, &config->mla));
    if (is_dense(config, layer)) {
        TRY(assay_describe_mlp_checkpoints(d, &config->mlp, ASSAY_MLP_DENSE, tokens));
    } else {
        TRY(assay_describe_moe_routing(d, &config->moe, &config->sharding));
        TRY(assay_describe_moe_checkpoints(d, &config->moe, &config->sharding));
    }
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    static const char *const report[] = {"remat/bytes_kept", "remat/bytes_offloaded", "remat/operations_recomputed"};
    assay_status status;
    assay_stack_config config;
    assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_stack_config_of(ctx, c, &config));
    const assay_dims x = {"BSD", {c->batch, c->sequence, config.mla.emb_dim}};
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_segments(ctx, list, c));
    /* without backward nothing is kept */
    const bool backward = c->gradients.count > 0 && strcmp(c->gradients.items[0], "none") != 0;
    if (config.batch_split_factor > 0) TRY(describe_schedule(&d, &config, backward));
    for (int64_t layer = 0; layer < config.layers; layer++) {
        const layer_prefix prefix = prefix_of(&config, layer);
        d.layer = prefix.text;
        TRY(describe_weights(d, &config, layer));
        TRY(describe_results(&d, &config, layer));
    }
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    for (int i = 0; backward && i < 3; i++)
        TRY(assay_describe(ctx, list, report[i], ASSAY_FLOAT64, NULL, (assay_dims){"", {0}}));
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_stack_config config;
    (void)precisions;
    (void)precision_count;
    assay_status status = assay_stack_config_of(ctx, c, &config);
    return status == ASSAY_OK ? assay_stack_run(ctx, &config, in, out) : status;
}

static double flops(const assay_case *c, bool backward)
{
    assay_context ctx = {0};
    assay_stack_config config;
    if (assay_stack_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    return assay_stack_flops(&config, false) + (backward ? assay_stack_flops(&config, true) : 0.0);
}

static int64_t memory(const assay_case *c)
{
    assay_context ctx = {0};
    assay_stack_config config;
    return assay_stack_config_of(&ctx, c, &config) == ASSAY_OK ? assay_stack_memory(&config) : 0;
}

const assay_operation assay_op_deepseek_layer = {
    .name = "deepseek_layer",
    .parts = ASSAY_PART_ALL & ~ASSAY_PART_GROUPED,
    .summary = "one decoder layer: MLA, then a gated MLP or a MoE block",
    .check = check,
    .describe = describe,
    .run = run,
    .ensemble = assay_every_case,
    .mesh = true,
    .second_form = {.evaluate = second_form, .checkpoints = second_checkpoints},
    .flops = flops,
    .memory = memory};

const assay_operation assay_op_deepseek_stack = {
    .name = "deepseek_stack",
    .parts = ASSAY_PART_ALL & ~ASSAY_PART_GROUPED,
    .summary = "decoder layers one after the other, rematerialised",
    .check = check,
    .describe = describe,
    .run = run,
    .ensemble = assay_every_case,
    .mesh = true,
    .second_form = {.evaluate = second_form, .checkpoints = second_checkpoints},
    .flops = flops,
    .memory = memory};
