#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_block.h"
#include "oracle/layer/batch_split.h"
#include "oracle/layer/schedule_groups.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_stack_config config;
    return assay_stack_config_of(ctx, c, &config);
}

static void second_form(quad_tape *t, const void *c)
{
    assay_stack_config config;
    if (quad_try(t, assay_stack_config_of(quad_context(t), c, &config))) quad_stack(t, &config);
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

static assay_status describe_weights(assay_describer d, const assay_stack_config *config, int64_t layer, const graph *g)
{
    assay_status status;
    const assay_tensor_table table = graph_weight_table(g);
    TRY(assay_describe_weights(&d, &table, (assay_dims){"", {0}}));
    d.block = "moe/";
    if (!is_dense(config, layer)) TRY(assay_describe_moe_weights(&d, &config->moe, &config->sharding));
cleanup:
    return status;
}

/* What a layer under the batch-split schedule leaves (batch_split.h). */
static assay_status describe_batch_split_results(const assay_describer *d, const assay_stack_config *config,
                                                 const graph *g)
{
    assay_status status;
    const assay_mla_config *mla = &config->mla;
    const assay_routing_config *r = &config->moe.routing;
    const assay_batch_split_sizes s = assay_batch_split_sizes_of(config);
    const int64_t batch = mla->batch, sequence = mla->sequence, factor = config->batch_split_factor;
    const assay_dims x = {"BSD", {batch, sequence, mla->emb_dim}},
                     chosen = {"BSK", {batch, sequence, r->num_experts_per_tok}};
    const assay_dims rows = {"mjrH", {s.shards, factor, s.copies, config->moe.moe_mlp_dim}};
    const assay_tensor_row attention_out = g->tensors[graph_find(g, "attention_out")].row,
                           lse = g->tensors[graph_find(g, "lse")].row;
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

/* The gradients of layers' inputs are there for those who name them. */
static bool names_boundaries(const assay_case *c)
{
    static const char folder[] = "checkpoints/";
    bool named = false;
    for (int i = 0; i < c->gradients.count; i++)
        named |= strncmp(c->gradients.items[i], folder, sizeof folder - 1) == 0;
    return named && assay_is_stack(c) && !c->config.use_batch_split_schedule;
}

/* Without backward nothing is kept. */
static bool has_backward(const assay_case *c)
{
    return c->gradients.count > 0 && strcmp(c->gradients.items[0], "none") != 0;
}

static assay_schedule_dims schedule_dims(const assay_stack_config *config, const assay_case *c)
{
    return (assay_schedule_dims){.first_layer = config->dense_layers,
                                 .layers = config->layers - config->dense_layers,
                                 .factor = config->batch_split_factor,
                                 .backward = has_backward(c)};
}

#define EVENTS "schedule/events"
#define GROUPS "schedule/groups"
#define BARRIERS "schedule/barriers"

/* Groups and barriers are those of the candidate's own events, in its order. */
static assay_status lawful(assay_context *ctx, const assay_case *c, const char *path, const int32_t *values,
                           int64_t count, const assay_source *candidate)
{
    assay_status status;
    assay_stack_config config;
    int32_t *events = NULL;
    TRY(assay_stack_config_of(ctx, c, &config));
    const assay_schedule_dims dims = schedule_dims(&config, c);
    const int64_t event_count = assay_schedule_count(&dims);
    if (strcmp(path, EVENTS) == 0) {
        TRY(assay_schedule_check(ctx, values, count / ASSAY_EVENT_FIELDS, &dims));
        goto cleanup;
    }
    TRY(assay_read_whole_i32(ctx, candidate, EVENTS, event_count * ASSAY_EVENT_FIELDS, &events));
    if (events == NULL) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "schedule: %s is about " EVENTS ", which is not given", path);
        goto cleanup;
    }
    if (strcmp(path, GROUPS) == 0) {
        TRY(assay_schedule_check_groups(ctx, events, event_count, &dims, values));
    } else {
        TRY(assay_schedule_check_barriers(ctx, events, event_count, &dims, values));
    }
cleanup:
    free(events);
    return status;
}

static assay_status describe_schedule(const assay_describer *d, const assay_stack_config *config)
{
    assay_status status;
    const assay_schedule_dims dims = schedule_dims(config, d->c);
    const int64_t events = assay_schedule_count(&dims), barriers = assay_schedule_barrier_count(&dims);
    TRY(assay_describe(d->ctx, d->list, EVENTS, ASSAY_INT32, NULL, (assay_dims){"xn", {events, ASSAY_EVENT_FIELDS}}));
    TRY(assay_describe(d->ctx, d->list, GROUPS, ASSAY_INT32, NULL, (assay_dims){"x", {events}}));
    TRY(assay_describe(d->ctx, d->list, BARRIERS, ASSAY_INT32, NULL,
                       (assay_dims){"xn", {barriers, ASSAY_BARRIER_FIELDS}}));
cleanup:
    return status;
}

static assay_status describe_results(const assay_describer *d, const assay_stack_config *config, int64_t layer,
                                     const graph *g)
{
    assay_status status;
    if (config->batch_split_factor > 0 && !is_dense(config, layer)) return describe_batch_split_results(d, config, g);
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const assay_dims x = {"BSD", {sizes.batch, sizes.sequence, sizes.emb_dim}};
    TRY(assay_describe_result(d, "checkpoints", "decoder_layer_input", ASSAY_FLOAT64, x));
    TRY(assay_describe_graph_checkpoints(d, g, NULL));
    if (is_dense(config, layer)) return ASSAY_OK;
    TRY(assay_describe_moe_routing(d, &config->moe, &config->sharding));
    TRY(assay_describe_moe_checkpoints(d, &config->moe, &config->sharding));
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    static const char *const report[] = {"remat/bytes_kept", "remat/bytes_offloaded", "remat/operations_recomputed"};
    assay_status status;
    assay_stack_config config;
    graph g;
    assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const bool boundaries = names_boundaries(c);
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_stack_config_of(ctx, c, &config));
    const assay_dims x = {"BSD", {c->batch, c->sequence, assay_stack_sizes_of(&config).emb_dim}};
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_segments(ctx, list, c));
    for (int64_t layer = config.first_layer; layer < config.layers; layer++) {
        if (is_dense(&config, layer)) continue;
        const layer_prefix prefix = prefix_of(&config, layer);
        d.layer = prefix.text;
        TRY(assay_describe_given_choice(&d, &config.moe.routing));
    }
    d.layer = "";
    if (config.batch_split_factor > 0) TRY(describe_schedule(&d, &config));
    for (int64_t layer = config.first_layer; layer < config.layers; layer++) {
        const layer_prefix prefix = prefix_of(&config, layer);
        d.layer = prefix.text;
        if (boundaries)
            TRY(assay_describe_result(&d, "gradients/checkpoints", "decoder_layer_input", ASSAY_FLOAT64, x));
        assay_layer_graph(&g, &config, layer);
        TRY(describe_weights(d, &config, layer, &g));
        TRY(describe_results(&d, &config, layer, &g));
    }
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    for (int i = 0; has_backward(c) && i < 3; i++)
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
    const assay_status status = assay_stack_config_of(ctx, c, &config);
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

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    assay_stack_config config;
    (void)scales, (void)count;
    if (assay_stack_config_of(&ctx, c, &config) == ASSAY_OK)
        assay_stack_shares_of(&ctx, shares, least, &config, in, out);
}

const assay_operation assay_op_deepseek_layer = {.name = "deepseek_layer",
                                                 .parts = ASSAY_PART_ALL & ~ASSAY_PART_GROUPED,
                                                 .summary = "one decoder layer: MLA, then a gated MLP or a MoE block",
                                                 .check = check,
                                                 .describe = describe,
                                                 .run = run,
                                                 .lawful = lawful,
                                                 .ensemble = assay_every_case,
                                                 .mesh = true,
                                                 .second_form = {.form = second_form},
                                                 .flops = flops,
                                                 .memory = memory,
                                                 .shares = shares_of};

const assay_operation assay_op_deepseek_stack = {.name = "deepseek_stack",
                                                 .parts = ASSAY_PART_ALL & ~ASSAY_PART_GROUPED,
                                                 .summary = "decoder layers one after the other, rematerialised",
                                                 .check = check,
                                                 .describe = describe,
                                                 .run = run,
                                                 .lawful = lawful,
                                                 .ensemble = assay_every_case,
                                                 .mesh = true,
                                                 .second_form = {.form = second_form},
                                                 .flops = flops,
                                                 .memory = memory,
                                                 .shares = shares_of};

/* The layer that the model says, with one of the two attentions. */
const assay_operation assay_op_decoder_layer = {.name = "decoder_layer",
                                                .parts = ASSAY_PART_ALL | ASSAY_PART_SHARING,
                                                .summary =
                                                    "one decoder layer of DeepSeek, Mixtral, Qwen3-MoE or GPT-OSS",
                                                .check = check,
                                                .describe = describe,
                                                .run = run,
                                                .lawful = lawful,
                                                .ensemble = assay_every_case,
                                                .mesh = true,
                                                .second_form = {.form = second_form},
                                                .flops = flops,
                                                .memory = memory,
                                                .shares = shares_of};

const assay_operation assay_op_decoder_stack = {.name = "decoder_stack",
                                                .parts = ASSAY_PART_ALL | ASSAY_PART_SHARING,
                                                .summary = "such layers one after the other, rematerialised",
                                                .check = check,
                                                .describe = describe,
                                                .run = run,
                                                .lawful = lawful,
                                                .ensemble = assay_every_case,
                                                .mesh = true,
                                                .second_form = {.form = second_form},
                                                .flops = flops,
                                                .memory = memory,
                                                .shares = shares_of};
