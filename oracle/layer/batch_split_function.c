/* What a call of a function of the batch-split module refuses, and what it costs. */
#include "oracle/layer/batch_split_function.h"

#include <inttypes.h>
#include <string.h>

#include "oracle/layer/batch_split_function_internal.h"

bool assay_function_quantises(const assay_batch_split_function *f)
{
    return bs_row_of(f)->quantises;
}

/* dot of deepseek_batchsplit_fp8.py, qwix's dot_general_qt: over the rows of all shards at once, but within the shard_map of its
 * route_compute_unroute, and what a calibration cuts off has no gradient. */
static assay_status check_dot(assay_context *ctx, const assay_function_config *config)
{
    const assay_quant_recipe_config *r = &config->recipe;
    const char *name = config->function->name;
    const int64_t shards = assay_mesh_shards(&config->stack.sharding.mesh);
    const bool whole = strncmp(name, "get_key_value", 13) == 0; /* no shard_map */
    const bool dot = whole || strncmp(name, "shared_expert", 13) == 0 || strncmp(name, "expert_selection", 16) == 0;
    if (!dot) return ASSAY_OK;
    if (shards > 1 && whole)
        return assay_refuse(ctx,
                            "the mesh has %" PRId64
                            " shards, expected one: by %s the weight gradient of %s has scales of the "
                            "rows of all",
                            shards, r->recipe->name, name);
    if (r->x.fixed <= 0 && r->w.fixed <= 0 && r->x.factor >= 1 && r->w.factor >= 1) return ASSAY_OK;
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "act_ or weight_quantization_calibration_method cuts something off, expected absmax: what is cut off "
        "has no gradient by qwix's dot, and %s has not that",
        name);
}

static assay_status check_recipe(assay_context *ctx, const assay_function_config *config)
{
    const assay_quant_recipe *r = config->recipe.recipe;
    if (r == NULL) return ASSAY_OK;
    if (!assay_function_quantises(config->function)) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "quant_recipe is %s, expected \"\": %s would quantise nothing, or what it computed itself, which "
            "is here for compute_linear, shared_expert and expert_selection alone",
            r->name, config->function->name);
    }
    if (r->dx_dy.scales != ASSAY_SCALES_BLOCKS) return check_dot(ctx, config);
    return assay_refuse(ctx, "quant_recipe is %s, expected fp8_full: %s has no other", r->name, config->function->name);
}

assay_status assay_function_check(assay_context *ctx, const assay_function_config *config)
{
    bool stacked = false;
    MUST(check_recipe(ctx, config));
    for (int i = 0; i < 3; i++) stacked |= config->function->bundles[i].lying == BS_STACKED;
    if (!stacked || config->layer_axis == 0 || config->layer_axis == 1) return ASSAY_OK;
    return assay_refuse(ctx, "layer_axis is %" PRId64 ", expected 0 or 1: norms' scales have no other axis",
                        config->layer_axis);
}

static double products_of(const bs_run *run, const char *products, bool listed)
{
    double sum = 0, product = 1;
    for (const char *at = products; at != NULL && *at != '\0'; at++) {
        if (*at != ' ') product *= (double)bs_axis_size(run, *at);
        if (at[1] != '\0' && at[1] != ' ') continue;
        if (*at != ' ') sum += 2 * product;
        product = 1;
    }
    return sum * (listed ? (double)run->factor : 1);
}

double assay_function_flops(const assay_function_config *config)
{
    const stack_run stack = {.config = &config->stack};
    bs_run run;
    const assay_batch_split_function *row = bs_row_of(config->function);
    assay_function_tensors tensors;
    double numbers = 0;
    bs_run_of(&run, &stack);
    if (row->products != NULL) {
        const bool listed = strpbrk(row->out[0].axes, "jo") != NULL;
        return (row != config->function ? 2 : 1) * products_of(&run, row->products, listed);
    }
    assay_function_tensors_of(config, &tensors);
    for (int i = 0; i < tensors.count; i++) {
        if (tensors.items[i].result) numbers += (double)assay_shape_count(&tensors.items[i].shape);
    }
    return numbers;
}

int64_t assay_function_memory(const assay_function_config *config)
{
    const stack_run stack = {.config = &config->stack};
    bs_run run;
    assay_function_tensors tensors, made;
    double numbers = 0;
    bs_run_of(&run, &stack);
    assay_function_tensors_of(config, &tensors);
    assay_function_intermediates_of(config, &made);
    for (int i = 0; i < tensors.count; i++) numbers += 4 * (double)assay_shape_count(&tensors.items[i].shape);
    for (int i = 0; i < made.count; i++) numbers += 6 * (double)assay_shape_count(&made.items[i].shape);
    for (int weight = 0; weight < BS_WEIGHTS; weight++)
        numbers += 3 * (double)run.sizes.shards * (double)bs_weight_count(&run, weight, true);
    const double bytes = numbers * (double)sizeof(double) + (double)assay_batch_split_memory(&config->stack);
    return bytes < 0x1p61 ? (int64_t)bytes : INT64_C(1) << 61;
}
