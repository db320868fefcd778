/* quantize and dequantize: a tensor to codes with a scale for each block of them, and back. */
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_work.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/ops/quantize.h"

assay_quantize_config assay_quantize_rules_of(const assay_case *c, const assay_block_format *format, int64_t rows,
                                              int64_t columns)
{
    const assay_model_config *m = &c->config;
    return (assay_quantize_config){.rows = rows,
                                   .columns = columns,
                                   .format = format,
                                   .rule = (assay_scale_rule)assay_model_choice(m, ASSAY_KEY_AT_quant_scale),
                                   .rounding =
                                       (assay_scale_rounding)assay_model_choice(m, ASSAY_KEY_AT_quant_scale_rounding),
                                   .subnormal_scale = m->quant_subnormal_scale,
                                   .saturate = m->quant_saturate,
                                   .ties_down = strcmp(m->quant_ties.text, "down") == 0,
                                   .negative_zero = m->quant_negative_zero,
                                   .divide = strcmp(m->quant_elements.text, "divide") == 0,
                                   .pack = m->pack_codes && format->element == ASSAY_FLOAT4_E2M1FN,
                                   .swizzle = strcmp(m->quant_scale_layout.text, "swizzled_128x4") == 0,
                                   .smallest_amax = (float)m->quant_smallest_amax,
                                   .largest_of_input = assay_dtype_max(c->dtype)};
}

static assay_status refuse(assay_context *ctx, const char *key, const char *value, const char *expected,
                           const char *format)
{
    return assay_refuse(ctx, "%s is %s, expected %s with the format %s", key, value, expected, format);
}

/* Of dequantize, and what both check. */
static assay_status config_of(assay_context *ctx, const assay_case *c, void *config)
{
    const assay_model_config *m = &c->config;
    MUST(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    const assay_block_format *f = assay_block_format_by_name(m->quant_format.text);
    if (f == NULL) return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_format, "one of docs/operations.md");
    if (m->pack_codes && f->element == ASSAY_FLOAT4_E2M1FN && m->base_emb_dim % 2 != 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_emb_dim,
                                "an even number: two codes of %s are a byte (pack_codes: false has one)", f->name);
    }
    const char *layout = m->quant_scale_layout.text;
    if (strcmp(layout, "row_major") != 0 && (f->scale == ASSAY_FLOAT32 || f->rows != 1))
        return refuse(ctx, "quant_scale_layout", layout, "row_major", f->name);
    *(assay_quantize_config *)config = assay_quantize_rules_of(c, f, c->batch * c->sequence, m->base_emb_dim);
    return ASSAY_OK;
}

static assay_status quantize_config_of(assay_context *ctx, const assay_case *c, void *config)
{
    MUST(config_of(ctx, c, config));
    if (c->dtype == ASSAY_FLOAT64) return assay_refuse(ctx, "dtype is float64, expected float32 or one of fewer bits");
    return assay_quantize_check(ctx, "quant_", config);
}

static assay_status check_tensor_scale(assay_context *ctx, double scale, const assay_block_format *format)
{
    if (format->tensor_scale ? scale > 0 && scale <= 1 : scale == 0) return ASSAY_OK;
    return assay_refuse(ctx, "quant_hidden_tensor_scale is %g, expected %s with quant_hidden_format %s", scale,
                        format->tensor_scale ? "a number above 0, at most 1," : "0", format->name);
}

assay_status assay_hidden_config_of(assay_context *ctx, const assay_case *c, int64_t columns,
                                    assay_quantize_config *hidden)
{
    const assay_model_config *m = &c->config;
    const assay_block_format *format = assay_block_format_by_name(m->quant_hidden_format.text);
    *hidden = (assay_quantize_config){0};
    if (format == NULL) return ASSAY_OK;
    *hidden = assay_quantize_rules_of(c, format, 1, columns);
    hidden->pack = false;
    hidden->largest_of_input = assay_dtype_max(ASSAY_FLOAT32);
    hidden->tensor_scale = (float)m->quant_hidden_tensor_scale;
    if (format->rows != 1) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_hidden_format,
                                "one whose blocks have one row: kernels quantise a row of h by itself");
    }
    if (hidden->swizzle)
        return refuse(ctx, "quant_scale_layout", m->quant_scale_layout.text, "row_major", format->name);
    MUST(assay_quantize_check(ctx, "quant_", hidden));
    return check_tensor_scale(ctx, hidden->tensor_scale, format);
}

bool assay_quantises_hidden(const assay_case *c)
{
    return c->config.quant_hidden_format.text[0] != '\0';
}

/* T and D of the numbers, 2 of bytes with two codes, I and J of scales. */
static int64_t axis_size(const void *config, char axis)
{
    const assay_quantize_config *q = config;
    int64_t scales[2];
    assay_quantize_scale_shape(q, scales);
    if (axis == 'T') return q->rows;
    if (axis == 'D') return q->columns;
    if (axis == '2') return assay_quantize_row(q);
    if (axis == 'I') return scales[0];
    if (axis == 'J') return scales[1];
    return 1;
}

static void describe_quantize(assay_describer *d, const void *config)
{
    const assay_quantize_config *q = config;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_describe(d, "inputs/x", d->c->dtype, &one, "TD");
    if (q->format->tensor_scale) assay_describe(d, "outputs/tensor_scale", ASSAY_INT32, NULL, "1");
    assay_describe(d, "outputs/scale", ASSAY_INT32, NULL, "IJ");
    assay_describe(d, "outputs/codes", ASSAY_INT32, NULL, q->pack ? "T2" : "TD");
    assay_described(d, 1)->nan_codes = q->format->element == ASSAY_FLOAT8_E4M3FN;
}

/* Bits have no error scale. */
static assay_status quantize(assay_context *ctx, const assay_work *w)
{
    int32_t none = 0, *tensor_scale = assay_i32(w, "outputs/tensor_scale");
    return assay_quantize(ctx, assay_i32(w, "outputs/codes"), assay_i32(w, "outputs/scale"),
                          tensor_scale != NULL ? tensor_scale : &none, assay_f64(w, "inputs/x"), w->config);
}

static void describe_dequantize(assay_describer *d, const void *config)
{
    const assay_quantize_config *q = config;
    const assay_fill bytes = assay_fill_range(ASSAY_INTEGERS, 0.0, 255.0), one = assay_fill_normal(1.0, 0.0);
    const assay_fill positive = assay_fill_range(ASSAY_UNIFORM, 0.25, 4.0);
    assay_describe(d, "inputs/codes", q->pack ? ASSAY_INT32 : q->format->element, q->pack ? &bytes : &one,
                   q->pack ? "T2" : "TD");
    if (q->pack) assay_described(d, 1)->most = 255;
    assay_describe(d, "inputs/scale", q->format->scale, &positive, "IJ");
    if (q->format->tensor_scale) assay_describe(d, "inputs/tensor_scale", ASSAY_FLOAT32, &positive, "1");
    assay_describe_output(d, "y", NULL, "TD");
}

/* y is exact. A correct kernel may round it to its storage, and with a scale of the tensor, which comes in a second product, to
 * float32 before. */
static void round_emulated(const assay_context *ctx, const assay_quantize_config *q, double *y)
{
    const int64_t count = q->rows * q->columns;
    if (ctx->emulation == NULL) return;
    assay_emulation float32 = *ctx->emulation;
    assay_context own = *ctx;
    float32.storage = ASSAY_FLOAT32;
    own.emulation = &float32;
    if (q->format->tensor_scale) assay_round(&own, ASSAY_ROUND_STORAGE, count, y);
    if (ctx->emulation->storage != ASSAY_FLOAT64) assay_round(ctx, ASSAY_ROUND_STORAGE, count, y);
}

static assay_status dequantize(assay_context *ctx, const assay_work *w)
{
    const assay_quantize_config *q = w->config;
    const int32_t *bytes = assay_i32(w, "inputs/codes");
    OWNED double *unpacked = NULL;
    double *y = assay_f64(w, "outputs/y");
    if (bytes != NULL) {
        MUST(assay_alloc_f64(ctx, "dequantize", q->rows * q->columns, &unpacked));
        assay_unpack_e2m1(unpacked, bytes, q->rows * q->columns / 2);
    }
    assay_dequantize(ctx, y, unpacked != NULL ? unpacked : assay_f64(w, "inputs/codes"), assay_f64(w, "inputs/scale"),
                     assay_f64(w, "inputs/tensor_scale"), q);
    round_emulated(ctx, q, y);
    return ASSAY_OK;
}

const assay_operation assay_op_quantize = {.name = "quantize",
                                           .components = ASSAY_USES_QUANTIZE,
                                           .summary = "a tensor to codes of 4 or 8 bits, with a scale for each block",
                                           .config_of = quantize_config_of,
                                           .axis_size = axis_size,
                                           .describe = describe_quantize,
                                           .compute = quantize,
                                           .second_form = {.form = quad_quantize},
                                           .count = {"TD", 2, 2}};

const assay_operation assay_op_dequantize = {.name = "dequantize",
                                             .components = ASSAY_USES_DEQUANTIZE,
                                             .summary = "codes of 4 or 8 bits and the scales of blocks to numbers",
                                             .config_of = config_of,
                                             .axis_size = axis_size,
                                             .describe = describe_dequantize,
                                             .compute = dequantize,
                                             .second_form = {.form = quad_dequantize},
                                             .count = {"TD", 2, 2}};
