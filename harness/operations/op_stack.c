#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_block.h"
#include "oracle/layer/batch_split.h"
#include "oracle/layer/schedule_groups.h"

static assay_status remat_policy_of(assay_context *ctx, const assay_model_config *m, assay_remat_policy *policy)
{
    const char *texts[ASSAY_REMAT_NAMES];
#define X(code, name) texts[ASSAY_REMAT_##code] = m->name.text;
    ASSAY_REMAT_TABLE(X)
#undef X
    return assay_remat_policy_make(ctx, policy, m->remat_policy.text, texts);
}

bool assay_is_stack(const assay_case *c)
{
    return strcmp(c->op, "deepseek_stack") == 0 || strcmp(c->op, "decoder_stack") == 0;
}

bool assay_layer_is_grouped(const assay_model_config *m)
{
    const char *block = m->decoder_block.text;
    return assay_block_has(block, ASSAY_BLOCK_GROUPED) && !assay_block_has(block, ASSAY_BLOCK_LATENT);
}

/* A fixture has some hundred datasets for each. */
enum { LAYERS_MAX = 1000 };

/* GPT-OSS has its window in layers 0, 2, 4 ..., whatever attention_type is; a layer alone is 0 or, of global attention, 1. */
static assay_status grouped_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config)
{
    const assay_model_config *m = &c->config;
    MUST(assay_gqa_config_of(ctx, c, &config->gqa));
    if (!assay_block_has(m->decoder_block.text, ASSAY_BLOCK_ALTERNATES)) return ASSAY_OK;
    const bool second = config->single && strcmp(m->attention_type.text, "global") == 0;
    config->gqa.window = m->sliding_window_size;
    config->windows = second != m->windows_in_odd_layers ? ASSAY_WINDOWS_ODD : ASSAY_WINDOWS_EVEN;
    return ASSAY_OK;
}

/* Of a rank with some of the experts a layer's output is no input of a layer: it lacks the sum over ranks. */
static assay_status check_local_layers(assay_context *ctx, const assay_model_config *m,
                                       const assay_stack_config *config)
{
    const int64_t dense = config->dense_layers;
    const int64_t first = dense > config->first_layer ? dense : config->first_layer; /* that may have experts */
    if (config->moe.local_num_experts == 0 || config->layers - first <= 1) return ASSAY_OK;
    return assay_refuse_key(ctx, m, ASSAY_KEY_AT_local_num_experts,
                            "0 where a layer follows one of experts: its input is a sum over ranks");
}

assay_status assay_stack_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config)
{
    const assay_model_config *m = &c->config;
    const bool single = !assay_is_stack(c);
    *config = (assay_stack_config){.layers = single ? 1 : m->base_num_decoder_layers,
                                   .dense_layers = m->first_num_dense_layers,
                                   .single = single,
                                   .epsilon = m->normalization_layer_epsilon};
    if (config->layers < 1 || config->layers > LAYERS_MAX)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_num_decoder_layers, "1 to %d", LAYERS_MAX);
    if (c->only_layer >= config->layers) {
        return assay_refuse(ctx, "only_layer is %" PRId64 ", expected 0 to %" PRId64, c->only_layer,
                            config->layers - 1);
    }
    if (c->only_layer >= 0 && m->use_batch_split_schedule)
        return assay_refuse(ctx, "only_layer has no use with use_batch_split_schedule: layers overlap");
    if (c->only_layer >= 0) {
        config->first_layer = c->only_layer;
        config->layers = c->only_layer + 1;
    }
    if (config->dense_layers > config->layers) config->dense_layers = config->layers;
    config->attention = assay_layer_is_grouped(m) ? ASSAY_LAYER_GQA : ASSAY_LAYER_MLA;
    if (config->attention == ASSAY_LAYER_GQA)
        MUST(grouped_config_of(ctx, c, config));
    else
        MUST(assay_mla_config_of(ctx, c, &config->mla));
    if (m->first_num_hash_layers > 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_first_num_hash_layers,
                                "0: op %s has no input_ids for hash routing", c->op);
    }
    if (config->dense_layers > 0) MUST(assay_mlp_config_of(ctx, c, &config->mlp));
    if (config->dense_layers < config->layers) MUST(assay_moe_config_of(ctx, c, &config->moe));
    if (m->w13_reorder_size > 1) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_w13_reorder_size, "1: op %s has fused weights of one layout",
                                c->op);
    }
    MUST(check_local_layers(ctx, m, config));
    MUST(assay_sharding_of(ctx, c, &config->sharding));
    MUST(assay_check_hidden_moe(ctx, &config->moe, &config->sharding));
    if (!m->use_batch_split_schedule) MUST(assay_check_recipe_moe(ctx, &config->moe, 1));
    if (m->use_batch_split_schedule && assay_quantises_hidden(c))
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_hidden_format, "none with use_batch_split_schedule");
    if (m->weights_on_shards && config->dense_layers == config->layers) {
        return assay_refuse(ctx, "weights_on_shards needs a layer of experts, found %" PRId64 " dense ones",
                            config->layers);
    }
    if (m->use_batch_split_schedule && config->dense_layers < config->layers) {
        config->batch_split_factor = m->batch_split_factor;
        config->kept_capacity = m->capacity_factor > 0 ? m->capacity_factor : 0;
        config->merge_gating_gmm = m->merge_gating_gmm;
        if (m->capacity_factor > 1e6) {
            return assay_refuse(ctx, "capacity_factor is %g, expected at most 1e6 with the schedule",
                                m->capacity_factor);
        }
        const char *needs = m->mlp_bias                    ? "mlp_bias=false"
                            : !m->routed_bias              ? "routed_bias=true"
                            : m->local_num_experts > 0     ? "local_num_experts=0"
                            : m->num_redundant_experts > 0 ? "num_redundant_experts=0"
                                                           : NULL;
        if (needs != NULL) return assay_refuse(ctx, "use_batch_split_schedule needs %s", needs);
    }
    MUST(assay_linear_recipe_of(ctx, c, &config->mla.recipe));
    config->gqa.recipe = config->mla.recipe;
    MUST(remat_policy_of(ctx, m, &config->policy));
    return assay_stack_check(ctx, config);
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *config)
{
    return assay_stack_config_of(ctx, c, config);
}

/* Of x, and of what a MoE block has besides. */
static int64_t axis_size(const void *of, char axis)
{
    const assay_stack_config *config = of;
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    if (axis == 'B') return sizes.batch;
    if (axis == 'S') return sizes.sequence;
    if (axis == 'D') return sizes.emb_dim;
    return assay_moe_axis_size(&config->moe, &config->sharding, axis);
}

static void describe_weights(assay_describer *d, const assay_stack_config *config, int64_t layer, const graph *g)
{
    const assay_tensor_table table = graph_weight_table(g);
    assay_describe_weights(d, &table);
    d->block = "moe/";
    if (!assay_layer_is_dense(config, layer)) assay_describe_moe_weights(d, &config->moe, &config->sharding);
    d->block = "";
}

static void describe_intermediates(assay_describer *d, const char *name, assay_dims dims)
{
    assay_describe_sized_result(d, "checkpoints", name, ASSAY_FLOAT64, dims);
    assay_described(d, 1)->requantised = true;
}

/* What the schedule's attention computes and a recipe quantises; then that of its MoE half. */
static void describe_quantised_attention(assay_describer *d, const graph *g)
{
    for (int t = 1; t < g->tensor_count; t++) {
        const assay_tensor_row *row = &g->tensors[t].row;
        if (g->tensors[t].role == GRAPH_CHECKPOINT && graph_is_requantised(g, t) &&
            strcmp(row->name, "attention_out") != 0)
            describe_intermediates(d, row->name, assay_dims_of(row->axes, &row->shape));
    }
    for (int i = 0; i < g->gradient_count; i++) {
        const assay_tensor_row *row = &g->tensors[g->gradients[i]].gradient;
        describe_intermediates(d, row->name, assay_dims_of(row->axes, &row->shape));
    }
}

static void describe_quantised_moe(assay_describer *d, const assay_stack_config *config, assay_dims rows)
{
    static const char *const shared[] = {"shared_intermediate", "shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"};
    static const char *const routed[] = {"intermediate_layer", "layer_w0_gradient", "layer_w1_gradient"};
    const assay_mla_config *mla = &config->mla;
    const bool of_gate =
        config->moe.recipe.recipe->x.scales != ASSAY_SCALES_NONE && !assay_gives_routing_weights(d->c, d->layer);
    const assay_dims of_shared = {"BSF", {mla->batch, mla->sequence, config->moe.shared_mlp_dim}};
    for (int i = 0; i < 3; i++) describe_intermediates(d, shared[i], of_shared);
    for (int i = 0; i < 3; i++) describe_intermediates(d, routed[i], rows);
    if (of_gate)
        describe_intermediates(d, "logits_gradient",
                               (assay_dims){"BSE", {mla->batch, mla->sequence, config->moe.routing.num_experts}});
}

/* What a layer under the batch-split schedule leaves (batch_split.h). */
static void describe_batch_split_results(assay_describer *d, const assay_stack_config *config, const graph *g)
{
    const assay_batch_split_sizes s = assay_batch_split_sizes_of(config);
    const int64_t factor = config->batch_split_factor;
    const assay_dims rows = {"mjrH", {s.shards, factor, s.copies, config->moe.moe_mlp_dim}};
    const bool recipe = config->moe.recipe.recipe != NULL;
    assay_describe_result(d, "checkpoints", "decoder_layer_input", ASSAY_FLOAT64, "BSD");
    if (recipe) describe_quantised_attention(d, g);
    assay_describe_checkpoint(d, &g->tensors[graph_find(g, "lse")].row);
    assay_describe_checkpoint(d, &g->tensors[graph_find(g, "attention_out")].row);
    assay_described(d, 1)->requantised = graph_is_requantised(g, graph_find(g, "attention_out"));
    assay_describe_result(d, "checkpoints", "mla_out", ASSAY_FLOAT64, "BSD");
    assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, "BSK");
    assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, "BSK");
    assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, "BS");
    assay_describe_sized_result(d, "routing", "group_sizes", ASSAY_INT32,
                                (assay_dims){"mje", {s.shards, factor, s.local_experts}});
    assay_describe_sized_result(d, "checkpoints", "moe_mlpwi_0", ASSAY_FLOAT64, rows);
    assay_describe_sized_result(d, "checkpoints", "moe_mlpwi_1", ASSAY_FLOAT64, rows);
    if (recipe) describe_quantised_moe(d, config, rows);
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
    assay_stack_config config;
    OWNED int32_t *events = NULL;
    MUST(assay_stack_config_of(ctx, c, &config));
    const assay_schedule_dims dims = schedule_dims(&config, c);
    const int64_t event_count = assay_schedule_count(&dims);
    if (strcmp(path, EVENTS) == 0) {
        MUST(assay_schedule_check(ctx, values, count / ASSAY_EVENT_FIELDS, &dims));
        return ASSAY_OK;
    }
    MUST(assay_read_all_i32(ctx, candidate, EVENTS, event_count * ASSAY_EVENT_FIELDS, &events));
    if (events == NULL) return assay_refuse(ctx, "schedule: %s is about " EVENTS ", which is not given", path);
    if (strcmp(path, GROUPS) == 0)
        MUST(assay_schedule_check_groups(ctx, events, event_count, &dims, values));
    else
        MUST(assay_schedule_check_barriers(ctx, events, event_count, &dims, values));
    return ASSAY_OK;
}

static void describe_schedule(assay_describer *d, const assay_stack_config *config)
{
    const assay_schedule_dims dims = schedule_dims(config, d->c);
    const int64_t events = assay_schedule_count(&dims), barriers = assay_schedule_barrier_count(&dims);
    assay_describe_sized(d, EVENTS, ASSAY_INT32, NULL, (assay_dims){"xn", {events, ASSAY_EVENT_FIELDS}});
    assay_describe_sized(d, GROUPS, ASSAY_INT32, NULL, (assay_dims){"x", {events}});
    assay_describe_sized(d, BARRIERS, ASSAY_INT32, NULL, (assay_dims){"xn", {barriers, ASSAY_BARRIER_FIELDS}});
}

static void describe_results(assay_describer *d, const assay_stack_config *config, int64_t layer, const graph *g)
{
    if (config->batch_split_factor > 0 && !assay_layer_is_dense(config, layer)) {
        describe_batch_split_results(d, config, g);
        return;
    }
    assay_describe_result(d, "checkpoints", "decoder_layer_input", ASSAY_FLOAT64, "BSD");
    assay_describe_graph_checkpoints(d, g, false);
    if (assay_layer_is_dense(config, layer)) return;
    assay_describe_moe_routing(d, &config->moe, &config->sharding);
    assay_describe_moe_checkpoints(d, &config->moe, &config->sharding);
}

static void describe_layer(assay_describer *d, const assay_stack_config *config, int64_t layer)
{
    char prefix[ASSAY_LAYER_PREFIX_SIZE];
    graph g;
    assay_layer_prefix(config, layer, prefix);
    d->layer = prefix;
    if (names_boundaries(d->c))
        assay_describe_result(d, "gradients/checkpoints", "decoder_layer_input", ASSAY_FLOAT64, "BSD");
    assay_layer_graph(&g, config, layer);
    describe_weights(d, config, layer, &g);
    describe_results(d, config, layer, &g);
    d->layer = "";
}

static void describe(assay_describer *d, const void *of)
{
    static const char *const report[] = {"remat/bytes_kept", "remat/bytes_offloaded", "remat/operations_recomputed"};
    const assay_stack_config *config = of;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_describe_variable(d, "inputs/x", one, "BSD");
    assay_describe_positions(d);
    assay_describe_segments(d);
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) {
        char prefix[ASSAY_LAYER_PREFIX_SIZE];
        assay_layer_prefix(config, layer, prefix);
        d->layer = prefix;
        if (!assay_layer_is_dense(config, layer)) assay_describe_moe_inputs(d, &config->moe);
        d->layer = "";
    }
    if (config->batch_split_factor > 0) describe_schedule(d, config);
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) describe_layer(d, config, layer);
    assay_describe_output(d, "y", &one, "BSD");
    for (int i = 0; has_backward(d->c) && i < 3; i++) assay_describe(d, report[i], ASSAY_FLOAT64, NULL, "");
    assay_mark_unused_tokens(d);
}

static assay_status run(assay_context *ctx, const assay_case *c, const void *config, const assay_source *in,
                        const assay_sink *out)
{
    (void)c;
    return assay_stack_run(ctx, config, in, out);
}

static double flops(const void *config, bool backward)
{
    return assay_stack_flops(config, false) + (backward ? assay_stack_flops(config, true) : 0.0);
}

static int64_t memory(const void *config)
{
    return assay_stack_memory(config);
}

/* MLA alone, and the layer that the model says, with one of the two attentions. */
enum {
    OF_DEEPSEEK = (ASSAY_USES_ALL & ~ASSAY_USES_GROUPED) | ASSAY_USES_SCHEDULE,
    OF_ANY = ASSAY_USES_ALL | ASSAY_USES_SHARING
};

#define LAYERS(called, has, says)                                                                                      \
    {                                                                                                                  \
        .name = called, .components = has, .summary = says, .config_of = config_of, .axis_size = axis_size,            \
        .describe = describe, .run = run, .lawful = lawful, .used_rows = assay_block_used_rows, .mesh = true,          \
        .second_form = {.form = quad_stack}, .operations = flops, .bytes = memory                                      \
    }

const assay_operation assay_op_deepseek_layer =
    LAYERS("deepseek_layer", OF_DEEPSEEK, "one decoder layer: MLA, then a gated MLP or a MoE block");
const assay_operation assay_op_deepseek_stack =
    LAYERS("deepseek_stack", OF_DEEPSEEK, "decoder layers one after the other, rematerialised");
const assay_operation assay_op_decoder_layer =
    LAYERS("decoder_layer", OF_ANY, "one decoder layer of DeepSeek, Mixtral, Qwen3-MoE or GPT-OSS");
const assay_operation assay_op_decoder_stack =
    LAYERS("decoder_stack", OF_ANY, "such layers one after the other, rematerialised");
