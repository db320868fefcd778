/* The configuration of a training recipe. */
#include <stdio.h>
#include <string.h>

#include "harness/operations/op_support.h"

static assay_status calibration_of(assay_context *ctx, int key, const assay_model_config *m, assay_calibration *to)
{
    char text[ASSAY_KEY_VALUE_SIZE];
    const assay_text *value = (const assay_text *)((const char *)m + assay_model_keys[key].offset);
    if (assay_calibration_of(value->text, to)) return ASSAY_OK;
    assay_model_key_text(&assay_model_keys[key], m, text, sizeof text);
    return assay_refuse(ctx,
                        "%s is %.80s, expected absmax, absmax,FACTOR, fixed,MAX or fixed,-MAX,MAX: quant_recipe %s has "
                        "scales without a zero point, and the root of a mean is no exact number",
                        assay_model_keys[key].name, text, m->quant_recipe.text);
}

assay_status assay_require_absmax(assay_context *ctx, const assay_model_config *m, const char *who, const char *why)
{
    for (int key = ASSAY_KEY_AT_act_quantization_calibration_method;
         key <= ASSAY_KEY_AT_bwd_quantization_calibration_method; key++) {
        const assay_text *method = (const assay_text *)((const char *)m + assay_model_keys[key].offset);
        if (strcmp(method->text, "absmax") == 0) continue;
        return assay_refuse(ctx, "%s is %s, expected absmax: %s %s", assay_model_keys[key].name, method->text, who,
                            why);
    }
    return ASSAY_OK;
}

/* Blocks have the recipe's own scales. */
static assay_status refuse_calibrations(assay_context *ctx, const assay_model_config *m)
{
    char who[ASSAY_TEXT_SIZE + 16];
    snprintf(who, sizeof who, "quant_recipe %s", m->quant_recipe.text);
    const assay_status status = assay_require_absmax(ctx, m, who, "has scales of blocks");
    if (status != ASSAY_OK || strcmp(m->quant_scale_rounding.text, "down") != 0) return status;
    return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_scale_rounding, "nearest or up: quant_recipe is %s",
                            m->quant_recipe.text);
}

/* What the recipe quantises is given as numbers. */
static assay_status refuse_formats(assay_context *ctx, const assay_case *c, const assay_quant_recipe *recipe)
{
    const bool forward = recipe->x.scales != ASSAY_SCALES_NONE;
    for (int i = 0; i < c->quant_format_count; i++) {
        const char *path = c->quant_formats[i].path;
        if (!forward && assay_role_of(path) != ASSAY_ROLE_COTANGENT) continue;
        return assay_refuse(ctx, "quant_formats has %s, expected none: quant_recipe %s quantises it", path,
                            recipe->name);
    }
    if (!forward || c->config.quant_hidden_format.text[0] == '\0') return ASSAY_OK;
    return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_quant_hidden_format, "\"\": quant_recipe %s quantises h",
                            recipe->name);
}

assay_status assay_quant_recipe_config_of(assay_context *ctx, const assay_case *c, assay_quant_recipe_config *config)
{
    const assay_model_config *m = &c->config;
    const assay_quant_recipe *named = assay_quant_recipe_by_name(m->quant_recipe.text);
    *config = (assay_quant_recipe_config){.recipe = named != NULL && m->other_recipe != NULL ? m->other_recipe : named,
                                          .powers = strcmp(m->quant_scale_rounding.text, "up") == 0,
                                          .type = c->dtype};
    if (config->recipe == NULL) return ASSAY_OK;
    if (c->dtype != ASSAY_FLOAT32 && c->dtype != ASSAY_BFLOAT16 && c->dtype != ASSAY_FLOAT16) {
        return assay_refuse(ctx, "dtype is %s, expected float32, bfloat16 or float16: quant_recipe %s",
                            assay_dtype_name(c->dtype), m->quant_recipe.text);
    }
    if (assay_case_is_exact(c)) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_recipe,
                                "\"\": the case has the tag exact, and codes times scales are not");
    }
    MUST(calibration_of(ctx, ASSAY_KEY_AT_act_quantization_calibration_method, m, &config->x));
    MUST(calibration_of(ctx, ASSAY_KEY_AT_weight_quantization_calibration_method, m, &config->w));
    MUST(calibration_of(ctx, ASSAY_KEY_AT_bwd_quantization_calibration_method, m, &config->dy));
    if (config->recipe->dx_dy.scales == ASSAY_SCALES_BLOCKS) MUST(refuse_calibrations(ctx, m));
    return refuse_formats(ctx, c, config->recipe);
}

assay_status assay_refuse_cutting_off(assay_context *ctx, const char *layer, const assay_quant_recipe_config *config)
{
    const assay_calibration *const calibrations[] = {&config->x, &config->w};
    for (int i = 0; config->recipe != NULL && i < 2; i++) {
        const int key = ASSAY_KEY_AT_act_quantization_calibration_method + i;
        if (calibrations[i]->fixed == 0 && calibrations[i]->factor == 1) continue;
        return assay_refuse(ctx, "%s is no absmax, expected absmax: the gradients of %s would be cut off at its range",
                            assay_model_keys[key].name, layer);
    }
    return ASSAY_OK;
}

assay_status assay_linear_recipe_of(assay_context *ctx, const assay_case *c, assay_quant_recipe_config *config)
{
    char layer[sizeof c->op + 3];
    snprintf(layer, sizeof layer, "op %s", c->op);
    const assay_status status = assay_quant_recipe_config_of(ctx, c, config);
    return status == ASSAY_OK ? assay_refuse_cutting_off(ctx, layer, config) : status;
}
