/* The functions of the batch-split module by themselves: which one says the key `function`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/base/nearest.h"
#include "oracle/layer/batch_split_function.h"

static assay_status unknown_function(assay_context *ctx, const char *name)
{
    char hint[256];
    assay_nearest nearest = {.word = name, .most = ASSAY_NEAREST_MOST};
    for (int i = 0; assay_batch_split_function_at(i) != NULL; i++)
        assay_nearest_offer(&nearest, assay_function_name(assay_batch_split_function_at(i)));
    for (int i = 0; assay_batch_split_alias(i) != NULL; i++) assay_nearest_offer(&nearest, assay_batch_split_alias(i));
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_refuse(ctx,
                        "function is \"%s\", expected one of the batch-split module's (docs/operations.md has them)%s",
                        name, hint);
}

/* The layer in which the function would run. */
static assay_status of_layer(assay_context *ctx, const assay_case *c, assay_function_config *config)
{
    const assay_model_config *m = &c->config;
    assay_case layer = *c;
    *config = (assay_function_config){.function = assay_batch_split_function_of(m->function.text),
                                      .layers = m->base_num_decoder_layers,
                                      .layer_axis = m->layer_axis};
    if (config->function == NULL) return unknown_function(ctx, m->function.text);
    snprintf(layer.op, sizeof layer.op, "deepseek_layer");
    layer.config.use_batch_split_schedule = true;
    layer.config.first_num_dense_layers = 0;
    layer.config.quant_recipe.text[0] = '\0'; /* the function's */
    /* what cuts and joins microbatches has no part of the layer, and so no query */
    if (m->q_lora_rank == 0 && assay_any_word("split merge", m->function.text, assay_is_word))
        layer.config.q_lora_rank = c->mesh_fsdp;
    MUST(assay_quant_recipe_config_of(ctx, c, &config->recipe));
    MUST(assay_require_positive(ctx, "base_num_decoder_layers", config->layers));
    MUST(assay_model_check(ctx, &layer, ASSAY_USES_ALL));
    MUST(assay_stack_config_of(ctx, &layer, &config->stack));
    return assay_function_check(ctx, config);
}

/* The source quantises this gradient always, and by its largest magnitude. */
static assay_status check_psum_scatter(assay_context *ctx, const assay_case *c, const assay_function_config *config)
{
    const char *name = assay_function_name(config->function);
    if (strncmp(name, "quantized_", 10) != 0) return ASSAY_OK;
    if (config->recipe.recipe == NULL)
        return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_quant_recipe, "fp8_full: %s has it always", name);
    return assay_require_absmax(ctx, &c->config, name, "has no other");
}

/* deepseek_batchsplit.py finds the scale of a fixed range itself (quantizations.py, manual_quantize), its sibling _fp8 by qwix,
 * which rounds the range first and has another least scale: only where they are one is there one right result. */
static assay_status check_fixed_weights(assay_context *ctx, const assay_case *c, const assay_function_config *config)
{
    enum { LARGEST = 448 };
    const double fixed = config->recipe.w.fixed;
    const bool small = c->dtype == ASSAY_FLOAT16 && fixed < LARGEST * 0x1p-7;
    if (config->recipe.recipe == NULL || fixed <= 0) return ASSAY_OK;
    const double range = assay_dtype_round(c->dtype, fixed, false);
    const double once = assay_dtype_round(c->dtype, fixed / LARGEST, false);
    if (!small && once == assay_dtype_round(c->dtype, range / LARGEST, false)) return ASSAY_OK;
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "weight_quantization_calibration_method is %s, expected a range of which MaxText's manual_quantize and "
        "qwix make the same scale in %s",
        c->config.weight_quantization_calibration_method.text, assay_dtype_name(c->dtype));
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *config)
{
    MUST(of_layer(ctx, c, config));
    MUST(check_psum_scatter(ctx, c, config));
    return check_fixed_weights(ctx, c, config);
}

static void second_form(quad_tape *t, const void *config)
{
    assay_function_view *view = quad_keep(t, 1, sizeof *view);
    if (view == NULL) return;
    assay_function_view_of(config, view);
    quad_function(t, view);
}

static assay_fill fill_of(const assay_function_config *config, const assay_case *c, const assay_function_tensor *tensor)
{
    const assay_mla_config *mla = &config->stack.mla;
    const double experts = (double)(config->stack.moe.routing.num_experts - 1);
    if (tensor->holds == ASSAY_HOLDS_QUERY) return assay_fill_fan_in(mla->qk_nope_head_dim + mla->rope.dim);
    if (tensor->holds == ASSAY_HOLDS_WEIGHTS) return assay_fill_range(ASSAY_UNIFORM, 0.125, 1.0);
    if (tensor->holds == ASSAY_HOLDS_CHOICES) return assay_fill_range(ASSAY_EXPERTS, 0.0, experts);
    if (tensor->holds == ASSAY_HOLDS_POSITIONS)
        return (assay_fill){
            .distribution = ASSAY_RAMP, .mean = (double)c->position_start, .scale = (double)c->position_step};
    if (tensor->holds == ASSAY_HOLDS_LAYER)
        return (assay_fill){.distribution = ASSAY_CONSTANT, .scale = 1.0, .mean = (double)(config->layers / 2)};
    if (tensor->holds == ASSAY_HOLDS_KERNEL) return assay_fill_fan_in(tensor->fan_in);
    if (tensor->holds == ASSAY_HOLDS_SCALE) return assay_fill_normal(0.1, 1.0);
    if (tensor->holds == ASSAY_HOLDS_BIAS) return assay_fill_normal(0.1, 0.0);
    if (tensor->holds == ASSAY_HOLDS_ANGLES) return assay_fill_range(ASSAY_UNIFORM, -M_PI, M_PI);
    return assay_fill_normal(1.0, 0.0);
}

/* Whole numbers that are given: what is outside is refused where it is read. */
static void set_limits(const assay_function_config *config, const assay_function_tensor *tensor,
                       assay_tensor_entry *entry)
{
    const int32_t experts = (int32_t)config->stack.moe.routing.num_experts;
    if (tensor->holds == ASSAY_HOLDS_CHOICES || tensor->holds == ASSAY_HOLDS_ROLLED) entry->most = experts - 1;
    if (tensor->holds == ASSAY_HOLDS_POSITIONS)
        entry->most = (int32_t)config->stack.mla.rope.max_position_embeddings - 1;
    if (tensor->holds == ASSAY_HOLDS_LAYER) entry->most = (int32_t)config->layers - 1;
    if (tensor->holds == ASSAY_HOLDS_COUNTS || tensor->holds == ASSAY_HOLDS_OWN_COUNTS) entry->most = INT32_MAX;
}

static void describe_given(assay_describer *d, const assay_function_config *config, const assay_function_tensor *tensor)
{
    const assay_fill fill = fill_of(config, d->c, tensor);
    /* what forward leaves is no input of the case's: it is as it was computed */
    const assay_dtype type = tensor->integers                        ? ASSAY_INT32
                             : tensor->holds == ASSAY_HOLDS_RESIDUAL ? ASSAY_FLOAT64
                                                                     : d->c->dtype;
    if (tensor->differentiated) {
        assay_describe_sized_variable(d, tensor->path, fill, assay_dims_of(tensor->axes, &tensor->shape));
        return;
    }
    assay_describe_sized(d, tensor->path, type, &fill, assay_dims_of(tensor->axes, &tensor->shape));
    assay_described(d, 1)->derived = tensor->holds >= ASSAY_HOLDS_COUNTS;
    set_limits(config, tensor, assay_described(d, 1));
}

static void describe_intermediates(assay_describer *d, const assay_function_config *config)
{
    assay_function_tensors made;
    assay_function_intermediates_of(config, &made);
    for (int i = 0; i < made.count; i++) {
        assay_describe_sized(d, made.items[i].path, ASSAY_FLOAT64, NULL,
                             assay_dims_of(made.items[i].axes, &made.items[i].shape));
        assay_described(d, 1)->requantised = true;
    }
}

static void describe(assay_describer *d, const void *config)
{
    assay_function_tensors tensors;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    bool before = true; /* of the outputs */
    assay_function_tensors_of(config, &tensors);
    for (int i = 0; i < tensors.count; i++) {
        const assay_function_tensor *tensor = &tensors.items[i];
        const bool output = assay_role_of(tensor->path) == ASSAY_ROLE_OUTPUT;
        if (output && before && i > 0) describe_intermediates(d, config);
        before = !output;
        if (!output) {
            describe_given(d, config, tensor);
        } else if (tensor->integers) {
            assay_describe_sized(d, tensor->path, ASSAY_INT32, NULL, assay_dims_of(tensor->axes, &tensor->shape));
        } else {
            assay_describe_sized_output(d, strchr(tensor->path, '/') + 1, tensor->differentiated ? &one : NULL,
                                        assay_dims_of(tensor->axes, &tensor->shape));
        }
    }
}

static const assay_function_tensor *tensor_of(const assay_function_tensors *tensors, const char *path)
{
    int i = 0;
    while (strcmp(tensors->items[i].path, path) != 0) i++;
    return &tensors->items[i];
}

/* Each shard's choices for its own tokens: those of the case where it has them, else drawn. */
static assay_status draw_choices(assay_context *ctx, const assay_case *c, const assay_function_config *config,
                                 const assay_source *in, bool given, int32_t **choices)
{
    static const char path[] = "inputs/selected_experts";
    const assay_routing_config *r = &config->stack.moe.routing;
    const int64_t tokens = c->batch / config->stack.batch_split_factor * c->sequence;
    const assay_shape shape = assay_shape_of(2, tokens, r->num_experts_per_tok);
    const assay_fill fill = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(r->num_experts - 1));
    MUST(assay_alloc_i32(ctx, path, assay_shape_count(&shape), choices));
    return given ? in->read_i32(ctx, in->self, path, 0, assay_shape_count(&shape), *choices)
                 : assay_random_fill_i32(ctx, &fill, c->seed, path, &shape, *choices);
}

static assay_status derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices)
{
    assay_function_config config;
    assay_function_tensors tensors;
    OWNED int32_t *choices = NULL;
    const assay_shape *shape = &entry->spec.shape;
    MUST(of_layer(ctx, c, &config));
    assay_function_tensors_of(&config, &tensors);
    const assay_function_tensor *tensor = tensor_of(&tensors, entry->spec.path);
    if (indices != NULL) MUST(draw_choices(ctx, c, &config, in, tensor->holds == ASSAY_HOLDS_COUNTS, &choices));
    if (values != NULL && tensor->holds != ASSAY_HOLDS_RESIDUAL) {
        MUST(assay_random_fill(ctx, &entry->fill, c->seed, entry->spec.path, shape, entry->spec.type, 0,
                               assay_shape_count(shape), values));
    }
    return assay_function_derive(ctx, &config, tensor, in, choices, values, indices);
}

static assay_status run(assay_context *ctx, const assay_case *c, const void *config, const assay_source *in,
                        const assay_sink *out)
{
    (void)c;
    return assay_function_run(ctx, config, in, out);
}

static double flops(const void *of, bool backward)
{
    const assay_function_config *config = of;
    const bool gradient = backward && assay_function_backward(config->function) != NULL;
    return (gradient ? 3 : 1) * assay_function_flops(config);
}

static int64_t memory(const void *config)
{
    return assay_function_memory(config);
}

_Static_assert(sizeof(assay_function_config) <= sizeof(assay_operation_config), "the largest of all");

const assay_operation assay_op_batch_split = {.name = "batch_split",
                                              .components = ASSAY_USES_NORM | ASSAY_USES_EXPERTS | ASSAY_USES_ROPE |
                                                            ASSAY_USES_GROUPS | ASSAY_USES_SCHEDULE,
                                              .summary = "one function of MaxText's batch-split module by itself",
                                              .config_of = config_of,
                                              .describe = describe,
                                              .derive = derive,
                                              .run = run,
                                              .mesh = true,
                                              .second_form = {.form = second_form},
                                              .operations = flops,
                                              .bytes = memory};
