/* quantize and dequantize: a tensor to codes with a scale for each block of them, and back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/ops/quantize.h"
#include "oracle/propagate/rules.h"
#include "oracle/propagate/scales.h"

static int place_of(const char *word, const char *const words[])
{
    int place = 0;
    while (strcmp(words[place], word) != 0) place++;
    return place;
}

/* By the rules that the case's keys say. */
static assay_quantize_config rules_of(const assay_case *c, const assay_block_format *format, int64_t rows,
                                      int64_t columns)
{
    static const char *const RULES[] = {"divide", "multiply", "invert"};
    static const char *const ROUNDINGS[] = {"nearest", "up", "down"};
    const assay_model_config *m = &c->config;
    return (assay_quantize_config){.rows = rows,
                                   .columns = columns,
                                   .format = format,
                                   .rule = (assay_scale_rule)place_of(m->quant_scale.text, RULES),
                                   .rounding = (assay_scale_rounding)place_of(m->quant_scale_rounding.text, ROUNDINGS),
                                   .subnormal_scale = m->quant_subnormal_scale,
                                   .saturate = m->quant_saturate,
                                   .ties_down = strcmp(m->quant_ties.text, "down") == 0,
                                   .negative_zero = m->quant_negative_zero,
                                   .pack = m->pack_codes && format->element == ASSAY_FLOAT4_E2M1FN,
                                   .swizzle = strcmp(m->quant_scale_layout.text, "swizzled_128x4") == 0,
                                   .smallest_amax = (float)m->quant_smallest_amax,
                                   .largest_of_input = assay_dtype_max(c->dtype)};
}

/* The format must be there (check_format). */
static assay_quantize_config config_of(const assay_case *c)
{
    const assay_block_format *format = assay_block_format_by_name(c->config.quant_format.text);
    return rules_of(c, format, c->batch * c->sequence, c->config.base_emb_dim);
}

static assay_status refuse(assay_context *ctx, const char *key, const char *value, const char *expected,
                           const char *format)
{
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %s, expected %s with the format %s", key, value, expected, format);
}

static assay_status check_format(assay_context *ctx, const assay_case *c)
{
    const assay_model_config *m = &c->config;
    assay_status status = assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim);
    RETURN_IF(status != ASSAY_OK, status);
    const assay_block_format *f = assay_block_format_by_name(m->quant_format.text);
    if (f == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_format is \"\", expected one of docs/operations.md");
    if (m->pack_codes && f->element == ASSAY_FLOAT4_E2M1FN && m->base_emb_dim % 2 != 0) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "base_emb_dim is %lld, expected an even number: two codes of %s are a byte (pack_codes: false "
            "has one)",
            (long long)m->base_emb_dim, f->name);
    }
    const char *layout = m->quant_scale_layout.text;
    if (strcmp(layout, "row_major") != 0 && (f->scale == ASSAY_FLOAT32 || f->rows != 1))
        return refuse(ctx, "quant_scale_layout", layout, "row_major", f->name);
    return ASSAY_OK;
}

/* Rules that the format's scales do not have are refused, not passed over. */
static assay_status check_rules(assay_context *ctx, const assay_case *c, const assay_quantize_config *rules)
{
    const assay_model_config *m = &c->config;
    const assay_quantize_config q = *rules;
    const assay_block_format *f = q.format;
    const char *rounding = m->quant_scale_rounding.text;
    const bool small = f->element == ASSAY_FLOAT4_E2M1FN, float32 = f->scale == ASSAY_FLOAT32;
    const bool powers = f->scale == ASSAY_FLOAT8_E8M0FNU || (float32 && q.rounding != ASSAY_SCALE_NEAREST);
    if (f->scale == ASSAY_FLOAT8_E8M0FNU && q.rounding == ASSAY_SCALE_NEAREST)
        return refuse(ctx, "quant_scale_rounding", rounding, "up or down", f->name);
    if (f->scale == ASSAY_FLOAT8_E4M3FN && q.rounding != ASSAY_SCALE_NEAREST)
        return refuse(ctx, "quant_scale_rounding", rounding, "nearest", f->name);
    if (float32 && q.rounding == ASSAY_SCALE_DOWN)
        return refuse(ctx, "quant_scale_rounding", rounding, "nearest, or up to a power of two,", f->name);
    if (f->tensor_scale && q.rule != ASSAY_SCALE_INVERT)
        return refuse(ctx, "quant_scale", m->quant_scale.text, "invert", f->name);
    if (!f->tensor_scale && !float32 && q.rule == ASSAY_SCALE_INVERT)
        return refuse(ctx, "quant_scale", m->quant_scale.text, "divide or multiply", f->name);
    if (!q.subnormal_scale && (!powers || q.rule == ASSAY_SCALE_INVERT))
        return refuse(ctx, "quant_subnormal_scale", "false", "true", f->name);
    if (q.ties_down && !small) return refuse(ctx, "quant_ties", "down", "even", f->name);
    if (!q.saturate && small) return refuse(ctx, "quant_saturate", "false", "true", f->name);
    const double amax = q.smallest_amax;
    if (!(amax >= 0 && amax <= 1)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_smallest_amax is %g, expected a number from 0 to 1", amax);
    }
    return amax == 0 || !f->tensor_scale ? ASSAY_OK : refuse(ctx, "quant_smallest_amax", "above 0", "0", f->name);
}

static assay_status check_quantize(assay_context *ctx, const assay_case *c)
{
    const assay_status status = check_format(ctx, c);
    RETURN_IF(status != ASSAY_OK, status);
    const assay_quantize_config q = config_of(c);
    if (c->dtype == ASSAY_FLOAT64) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "dtype is float64, expected float32 or one of fewer bits");
    }
    return check_rules(ctx, c, &q);
}

static assay_status check_tensor_scale(assay_context *ctx, double scale, const assay_block_format *format)
{
    if (format->tensor_scale ? scale > 0 && scale <= 1 : scale == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_hidden_tensor_scale is %g, expected %s with quant_hidden_format %s",
                      scale, format->tensor_scale ? "a number above 0, at most 1," : "0", format->name);
}

assay_status assay_hidden_config_of(assay_context *ctx, const assay_case *c, int64_t columns,
                                    assay_quantize_config *hidden)
{
    const assay_model_config *m = &c->config;
    const assay_block_format *format = assay_block_format_by_name(m->quant_hidden_format.text);
    assay_status status = ASSAY_OK;
    *hidden = (assay_quantize_config){0};
    if (format == NULL) return ASSAY_OK;
    *hidden = rules_of(c, format, 1, columns);
    hidden->pack = false;
    hidden->largest_of_input = assay_dtype_max(ASSAY_FLOAT32);
    hidden->tensor_scale = (float)m->quant_hidden_tensor_scale;
    if (format->rows != 1) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "quant_hidden_format is %s, expected one whose blocks have one row: kernels quantise a row of "
            "h by itself",
            format->name);
    }
    if (hidden->swizzle)
        return refuse(ctx, "quant_scale_layout", m->quant_scale_layout.text, "row_major", format->name);
    TRY(check_rules(ctx, c, hidden));
    TRY(check_tensor_scale(ctx, hidden->tensor_scale, format));
cleanup:
    return status;
}

bool assay_quantises_hidden(const assay_case *c)
{
    return c->config.quant_hidden_format.text[0] != '\0';
}

bool assay_quantises_made(const assay_case *c)
{
    return assay_quantises_hidden(c) || c->config.quant_recipe.text[0] != '\0';
}

static assay_dims codes_dims(const assay_quantize_config *q)
{
    return (assay_dims){q->pack ? "T2" : "TD", {q->rows, assay_quantize_row(q)}};
}

static assay_dims scale_dims(const assay_quantize_config *q)
{
    assay_dims dims = {.labels = "IJ"};
    assay_quantize_scale_shape(q, dims.dims);
    return dims;
}

static const assay_dims ONE = {"1", {1}};

static assay_status describe_quantize(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_quantize_config q = config_of(c);
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_describe(ctx, list, "inputs/x", c->dtype, &one, (assay_dims){"TD", {q.rows, q.columns}}));
    if (q.format->tensor_scale) TRY(assay_describe(ctx, list, "outputs/tensor_scale", ASSAY_INT32, NULL, ONE));
    TRY(assay_describe(ctx, list, "outputs/scale", ASSAY_INT32, NULL, scale_dims(&q)));
    TRY(assay_describe(ctx, list, "outputs/codes", ASSAY_INT32, NULL, codes_dims(&q)));
    list->entries[list->count - 1].nan_codes = q.format->element == ASSAY_FLOAT8_E4M3FN;
cleanup:
    return status;
}

static assay_status run_quantize(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                                 const assay_precision *precisions, int precision_count)
{
    assay_status status;
    (void)precisions, (void)precision_count; /* bits have no error scale */
    const assay_quantize_config q = config_of(c);
    const int64_t count = q.rows * assay_quantize_row(&q), scales = assay_quantize_scales(&q);
    double *x = NULL;
    int32_t *codes = NULL, *scale = NULL, tensor_scale = 0;
    TRY(assay_read_whole(ctx, in, "inputs/x", q.rows * q.columns, &x));
    TRY(assay_alloc_i32(ctx, "quantize", count, &codes));
    TRY(assay_alloc_i32(ctx, "quantize", scales, &scale));
    TRY(assay_quantize(ctx, codes, scale, &tensor_scale, x, &q));
    if (q.format->tensor_scale) TRY(assay_write_result_i32(ctx, out, "outputs/tensor_scale", 1, &tensor_scale));
    TRY(assay_write_result_i32(ctx, out, "outputs/scale", scales, scale));
    TRY(assay_write_result_i32(ctx, out, "outputs/codes", count, codes));
cleanup:
    free(x);
    free(codes);
    free(scale);
    return status;
}

/* turned [columns,rows] to out [rows,columns]. */
static void turn(int64_t rows, int64_t columns, const int32_t *turned, int32_t *out)
{
    for (int64_t i = 0; i < rows * columns; i++) out[i] = turned[i % columns * rows + i / columns];
}

assay_status assay_quantize_run_transposed(assay_context *ctx, const assay_case *c, const assay_source *in,
                                           const assay_sink *out)
{
    assay_status status;
    const assay_quantize_config q = config_of(c);
    const int64_t size = q.rows * q.columns, scales = assay_quantize_scales(&q);
    const int64_t bands = assay_block_count(q.rows, q.format->rows),
                  blocks = assay_block_count(q.columns, q.format->columns);
    assay_block_format format = *q.format;
    assay_quantize_config other = q;
    double *x = NULL, *x_turned = NULL;
    int32_t *codes = NULL, *scale = NULL, *turned = NULL, tensor_scale = 0;
    format.rows = q.format->columns, format.columns = q.format->rows;
    other.rows = q.columns, other.columns = q.rows, other.format = &format, other.pack = other.swizzle = false;
    TRY(assay_read_whole(ctx, in, "inputs/x", size, &x));
    TRY(assay_alloc_f64(ctx, "x, turned", size, &x_turned));
    TRY(assay_alloc_i32(ctx, "quantize", size, &codes));
    TRY(assay_alloc_i32(ctx, "quantize", scales > size ? scales : size, &turned));
    TRY(assay_alloc_i32(ctx, "quantize", scales, &scale));
    for (int64_t i = 0; i < size; i++) x_turned[i % q.columns * q.rows + i / q.columns] = x[i];
    TRY(assay_quantize(ctx, turned, scale, &tensor_scale, x_turned, &other));
    turn(q.rows, q.columns, turned, codes);
    memset(turned, 0, (size_t)scales * sizeof *turned); /* the padding */
    for (int64_t band = 0; band < bands; band++) {
        for (int64_t block = 0; block < blocks; block++)
            turned[assay_quantize_scale_place(&q, band, block)] = scale[block * bands + band];
    }
    for (int64_t i = 0; q.pack && i < size / 2; i++) codes[i] = codes[2 * i] | codes[2 * i + 1] << 4;
    if (format.tensor_scale) TRY(assay_write_result_i32(ctx, out, "outputs/tensor_scale", 1, &tensor_scale));
    TRY(assay_write_result_i32(ctx, out, "outputs/scale", scales, turned));
    TRY(assay_write_result_i32(ctx, out, "outputs/codes", q.rows * assay_quantize_row(&q), codes));
cleanup:
    free(x);
    free(x_turned);
    free(codes);
    free(scale);
    free(turned);
    return status;
}

static assay_status describe_dequantize(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_quantize_config q = config_of(c);
    const assay_fill bytes = assay_fill_range(ASSAY_INTEGERS, 0.0, 255.0), one = assay_fill_normal(1.0, 0.0);
    const assay_fill positive = assay_fill_range(ASSAY_UNIFORM, 0.25, 4.0);
    TRY(assay_describe(ctx, list, "inputs/codes", q.pack ? ASSAY_INT32 : q.format->element, q.pack ? &bytes : &one,
                       codes_dims(&q)));
    if (q.pack) list->entries[list->count - 1].most = 255;
    TRY(assay_describe(ctx, list, "inputs/scale", q.format->scale, &positive, scale_dims(&q)));
    if (q.format->tensor_scale) TRY(assay_describe(ctx, list, "inputs/tensor_scale", ASSAY_FLOAT32, &positive, ONE));
    TRY(assay_describe_output(ctx, list, c, "y", NULL, (assay_dims){"TD", {q.rows, q.columns}}));
cleanup:
    return status;
}

/* Of y, which is exact: what rounding to the storage type may do, and with a scale of the tensor, which comes in a second
 * product, rounding to float32 before. */
static double variance_of(const assay_precision *p, const assay_quantize_config *q, double y)
{
    const double unit = p->storage / ASSAY_ROUNDING_RMS, size = fabs(y);
    int exponent = 0;
    if (y == 0) return 0;
    frexp(size, &exponent);
    const double spacing = fmax(2 * unit * ldexp(1, exponent - 1), p->least);
    const double first = q->format->tensor_scale ? assay_propagate_rounding(ASSAY_FLOAT32_RMS, 0, y) : 0;
    return first + (fmod(size, spacing) == 0 ? 0 : assay_propagate_stored(p, y));
}

static assay_status run_dequantize(assay_context *ctx, const assay_case *c, const assay_source *in,
                                   const assay_sink *out, const assay_precision *precisions, int precision_count)
{
    assay_status status;
    const assay_quantize_config q = config_of(c);
    const int64_t size = q.rows * q.columns;
    double *codes = NULL, *scale = NULL, *tensor_scale = NULL, *y = NULL, *variance = NULL;
    int32_t *bytes = NULL;
    if (q.pack) {
        TRY(assay_read_whole_i32(ctx, in, "inputs/codes", size / 2, &bytes));
        TRY(assay_alloc_f64(ctx, "dequantize", size, &codes));
        assay_unpack_e2m1(codes, bytes, size / 2);
    } else {
        TRY(assay_read_whole(ctx, in, "inputs/codes", size, &codes));
    }
    TRY(assay_read_whole(ctx, in, "inputs/scale", assay_quantize_scales(&q), &scale));
    TRY(assay_read_whole(ctx, in, "inputs/tensor_scale", 1, &tensor_scale));
    TRY(assay_alloc_f64(ctx, "dequantize", size, &y));
    assay_dequantize(ctx, y, codes, scale, tensor_scale, &q);
    TRY(assay_write_result(ctx, out, "outputs/y", size, y));
    if (precision_count > 0) TRY(assay_alloc_f64(ctx, "dequantize", size, &variance));
    for (int i = 0; i < precision_count; i++) {
        for (int64_t j = 0; j < size; j++) variance[j] = variance_of(&precisions[i], &q, y[j]);
        TRY(assay_write_scale(ctx, out, &precisions[i], "outputs/y", size, variance));
    }
cleanup:
    free(codes);
    free(scale);
    free(tensor_scale);
    free(y);
    free(variance);
    free(bytes);
    return status;
}

static void second_quantize(quad_tape *t, const void *c)
{
    const assay_quantize_config q = config_of(c);
    quad_quantize(t, &q);
}

static void second_dequantize(quad_tape *t, const void *c)
{
    const assay_quantize_config q = config_of(c);
    quad_dequantize(t, &q);
}

static double flops(const assay_case *c, bool backward)
{
    (void)backward;
    return 2.0 * (double)c->batch * (double)c->sequence * (double)c->config.base_emb_dim;
}

static int64_t memory(const assay_case *c)
{
    return 8 * 4 * c->batch * c->sequence * c->config.base_emb_dim + 8;
}

const assay_operation assay_op_quantize = {.name = "quantize",
                                           .parts = ASSAY_PART_QUANTIZE,
                                           .summary = "a tensor to codes of 4 or 8 bits, with a scale for each block",
                                           .check = check_quantize,
                                           .describe = describe_quantize,
                                           .run = run_quantize,
                                           .second_form = {.form = second_quantize},
                                           .flops = flops,
                                           .memory = memory};

const assay_operation assay_op_dequantize = {.name = "dequantize",
                                             .parts = ASSAY_PART_DEQUANTIZE,
                                             .summary = "codes of 4 or 8 bits and the scales of blocks to numbers",
                                             .check = check_format,
                                             .describe = describe_dequantize,
                                             .run = run_dequantize,
                                             .second_form = {.form = second_dequantize},
                                             .flops = flops,
                                             .memory = memory};
