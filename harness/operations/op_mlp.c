#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/gated_mlp_gauge.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_gated_mlp_config config;
    return assay_mlp_config_of(ctx, c, &config);
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_gated_mlp_config config;
    const assay_status status = assay_mlp_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_gated_mlp(ctx, &config, in, out) : status;
}

assay_status assay_describe_mlp_weights(const assay_describer *d, const assay_gated_mlp_config *config)
{
    assay_status status;
    int64_t dim = config->emb_dim, hidden = config->mlp_dim;
    assay_dims up = {"DF", {dim, hidden}}, bias = {"F", {hidden}};
    assay_fill bias_fill = assay_fill_normal(0.1, 0.0);
    if (config->fused) {
        TRY(assay_describe_weight(d, "wi/kernel", assay_fill_fan_in(dim), (assay_dims){"Df", {dim, 2 * hidden}}));
    } else {
        TRY(assay_describe_weight(d, "wi_0/kernel", assay_fill_fan_in(dim), up));
        TRY(assay_describe_weight(d, "wi_1/kernel", assay_fill_fan_in(dim), up));
    }
    TRY(assay_describe_weight(d, "wo/kernel", assay_fill_fan_in(hidden), (assay_dims){"FD", {hidden, dim}}));
    if (d->c->config.mlp_bias) {
        TRY(assay_describe_weight(d, "wi_0/bias", bias_fill, bias));
        TRY(assay_describe_weight(d, "wi_1/bias", bias_fill, bias));
        TRY(assay_describe_weight(d, "wo/bias", bias_fill, (assay_dims){"D", {dim}}));
    }
cleanup:
    return status;
}

assay_status assay_describe_mlp_checkpoints(const assay_describer *d, const assay_gated_mlp_config *config)
{
    assay_status status;
    const int64_t batch = d->c->batch, sequence = d->c->sequence, hidden = config->mlp_dim;
    if (config->fused) {
        TRY(assay_describe_result(d, "checkpoints", "mlpwi", ASSAY_FLOAT64,
                                  (assay_dims){"BSf", {batch, sequence, 2 * hidden}}));
    } else {
        const assay_dims branch = {"BSF", {batch, sequence, hidden}};
        TRY(assay_describe_result(d, "checkpoints", "mlpwi_0", ASSAY_FLOAT64, branch));
        TRY(assay_describe_result(d, "checkpoints", "mlpwi_1", ASSAY_FLOAT64, branch));
    }
    TRY(assay_describe_result(d, "checkpoints", "mlpwo", ASSAY_FLOAT64,
                              (assay_dims){"BSD", {batch, sequence, config->emb_dim}}));
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_dims x = {"BSD", {c->batch, c->sequence, c->config.base_emb_dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_gated_mlp_config config;
    TRY(assay_mlp_config_of(ctx, c, &config));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_mlp_weights(&d, &config));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    TRY(assay_describe_mlp_checkpoints(&d, &config));
cleanup:
    return status;
}

/* One tensor of the operation: where it is read from and written to. */
typedef struct variable {
    const char *path, *gradient;
    int64_t size;
    double *value, *derivative;
} variable;

enum { X, WI, WI_0, WI_1, WO, WI_0_BIAS, WI_1_BIAS, WO_BIAS, VARIABLES };

static assay_status read_variables(assay_context *ctx, const assay_source *in, variable *v, const assay_case *c)
{
    assay_status status;
    int64_t dim = c->config.base_emb_dim, hidden = c->config.base_mlp_dim;
    const variable table[VARIABLES] = {
        [X] = {"inputs/x", "gradients/inputs/x", c->batch * c->sequence * dim, NULL, NULL},
        [WI] = {"weights/wi/kernel", "gradients/weights/wi/kernel", 2 * dim * hidden, NULL, NULL},
        [WI_0] = {"weights/wi_0/kernel", "gradients/weights/wi_0/kernel", dim * hidden, NULL, NULL},
        [WI_1] = {"weights/wi_1/kernel", "gradients/weights/wi_1/kernel", dim * hidden, NULL, NULL},
        [WO] = {"weights/wo/kernel", "gradients/weights/wo/kernel", dim * hidden, NULL, NULL},
        [WI_0_BIAS] = {"weights/wi_0/bias", "gradients/weights/wi_0/bias", hidden, NULL, NULL},
        [WI_1_BIAS] = {"weights/wi_1/bias", "gradients/weights/wi_1/bias", hidden, NULL, NULL},
        [WO_BIAS] = {"weights/wo/bias", "gradients/weights/wo/bias", dim, NULL, NULL},
    };
    for (int i = 0; i < VARIABLES; i++) v[i] = table[i];
    for (int i = 0; i < VARIABLES; i++) {
        TRY(assay_read_whole(ctx, in, v[i].path, v[i].size, &v[i].value));
        if (v[i].value != NULL) TRY(assay_alloc_f64(ctx, v[i].gradient, v[i].size, &v[i].derivative));
    }
cleanup:
    return status;
}

static assay_gated_mlp_gradients gradients_of(const variable *v)
{
    return (assay_gated_mlp_gradients){.dx = v[X].derivative,
                                       .dwi = v[WI].derivative,
                                       .dwi_0 = v[WI_0].derivative,
                                       .dwi_1 = v[WI_1].derivative,
                                       .dwo = v[WO].derivative,
                                       .dwi_0_bias = v[WI_0_BIAS].derivative,
                                       .dwi_1_bias = v[WI_1_BIAS].derivative,
                                       .dwo_bias = v[WO_BIAS].derivative};
}

static assay_gated_mlp_weights weights_of(const variable *v)
{
    return (assay_gated_mlp_weights){.wi = v[WI].value,
                                     .wi_0 = v[WI_0].value,
                                     .wi_1 = v[WI_1].value,
                                     .wo = v[WO].value,
                                     .wi_0_bias = v[WI_0_BIAS].value,
                                     .wi_1_bias = v[WI_1_BIAS].value,
                                     .wo_bias = v[WO_BIAS].value};
}

/* What the up products gave: one tensor when they are fused, else two. */
static assay_status write_up(assay_context *ctx, const assay_sink *out, const assay_gated_mlp_residuals *r,
                             const assay_gated_mlp_config *config)
{
    assay_status status;
    int64_t block = config->rows * config->mlp_dim;
    if (config->fused) return assay_write_result(ctx, out, "checkpoints/mlpwi", 2 * block, r->a);
    TRY(assay_write_result(ctx, out, "checkpoints/mlpwi_0", block, r->a));
    TRY(assay_write_result(ctx, out, "checkpoints/mlpwi_1", block, r->b));
cleanup:
    return status;
}

static assay_status write_up_scales(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                                    const double *variance_a, const double *variance_b,
                                    const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    int64_t width = config->mlp_dim, block = config->rows * width;
    if (!config->fused) {
        TRY(assay_write_scale(ctx, out, precision, "checkpoints/mlpwi_0", block, variance_a));
        TRY(assay_write_scale(ctx, out, precision, "checkpoints/mlpwi_1", block, variance_b));
        goto cleanup;
    }
    for (int64_t row = 0; row < config->rows; row++) {
        TRY(assay_write_scale(ctx, out, precision, "checkpoints/mlpwi", width, variance_a + row * width));
        TRY(assay_write_scale(ctx, out, precision, "checkpoints/mlpwi", width, variance_b + row * width));
    }
cleanup:
    return status;
}

static assay_status write_scales(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                                 const variable *v, double *y, const double *dy, const assay_gated_mlp_residuals *r,
                                 const assay_gated_mlp_config *config)
{
    assay_status status;
    double *pre = NULL;
    int64_t block = config->rows * config->mlp_dim;
    assay_gated_mlp_weights w = weights_of(v);
    TRY(assay_alloc_f64(ctx, "error scale of mlp", 2 * block, &pre));
    assay_gated_mlp_variances variances = {.a = pre, .b = pre + block, .y = y, .gradients = gradients_of(v)};
    TRY(assay_gated_mlp_gauge(ctx, precision, &variances, dy, NULL, r, v[X].value, &w, config));
    for (int i = 0; i < VARIABLES; i++) {
        if (v[i].value != NULL) {
            TRY(assay_write_scale(ctx, out, precision, v[i].gradient, v[i].size, v[i].derivative));
        }
    }
    TRY(write_up_scales(ctx, out, precision, variances.a, variances.b, config));
    TRY(assay_write_scale(ctx, out, precision, "outputs/y", v[X].size, y));
    TRY(assay_write_scale(ctx, out, precision, "checkpoints/mlpwo", v[X].size, y));
cleanup:
    free(pre);
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    variable v[VARIABLES] = {0};
    double *y = NULL, *dy = NULL;
    assay_gated_mlp_residuals r = {0};
    assay_gated_mlp_config config;
    TRY(assay_mlp_config_of(ctx, c, &config));
    TRY(read_variables(ctx, in, v, c));
    TRY(assay_read_whole(ctx, in, "cotangents/y", v[X].size, &dy));
    TRY(assay_alloc_f64(ctx, "outputs/y", v[X].size, &y));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &r, &config));
    assay_gated_mlp_weights w = weights_of(v);
    assay_gated_mlp_gradients g = gradients_of(v);
    TRY(assay_gated_mlp_forward(ctx, y, &r, v[X].value, &w, &config));
    TRY(assay_gated_mlp_backward(ctx, &g, dy, &r, v[X].value, &w, &config));
    TRY(assay_write_result(ctx, out, "outputs/y", v[X].size, y));
    for (int i = 0; i < VARIABLES; i++) {
        if (v[i].value != NULL) TRY(assay_write_result(ctx, out, v[i].gradient, v[i].size, v[i].derivative));
    }
    TRY(write_up(ctx, out, &r, &config));
    TRY(assay_write_result(ctx, out, "checkpoints/mlpwo", v[X].size, y));
    for (int i = 0; i < precision_count; i++) TRY(write_scales(ctx, out, &precisions[i], v, y, dy, &r, &config));
cleanup:
    for (int i = 0; i < VARIABLES; i++) {
        free(v[i].value);
        free(v[i].derivative);
    }
    free(y);
    free(dy);
    assay_gated_mlp_residuals_free(&r);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    double rows = (double)(c->batch * c->sequence);
    return (backward ? 18.0 : 6.0) * rows * (double)c->config.base_emb_dim * (double)c->config.base_mlp_dim;
}

static int64_t memory(const assay_case *c)
{
    int64_t rows = c->batch * c->sequence, dim = c->config.base_emb_dim, hidden = c->config.base_mlp_dim;
    /* weights and gradients, the error scale's copies of a product's operands, and what rows keep */
    return 8 * (8 * dim * hidden + rows * (8 * dim + 24 * hidden));
}

const assay_operation assay_op_mlp = {.name = "mlp",
                                      .parts = ASSAY_PART_MLP,
                                      .summary = "gated MLP of a dense layer, fused or not",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .second_form = {second_form},
                                      .flops = flops,
                                      .memory = memory};
