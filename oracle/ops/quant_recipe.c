#include "oracle/ops/quant_recipe.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/ops/quantised_deviation.h"
#include "oracle/ops/quantize.h"

/* Of a matrix: codes as numbers and each element's scale; of what stays as it is codes are what is given, and scale is NULL. */
typedef struct coded {
    const double *codes;
    double *scale;
    const double *numbers;
} coded;

typedef struct quantiser {
    const assay_quant_recipe_config *config;
    assay_quant_recipe_operands *operands;
    int stored;
} quantiser;

static assay_status store(assay_context *ctx, quantiser *q, int64_t count, double **values)
{
    const assay_status status = assay_alloc_f64(ctx, "quantised operands", count, values);
    if (status == ASSAY_OK) q->operands->storage[q->stored++] = *values;
    return status;
}

/* --- in blocks --- */

static assay_status quantise_part(assay_context *ctx, const quantiser *q, const assay_block_format *format,
                                  const double *x, int64_t rows, int64_t columns, double *numbers)
{
    assay_quantize_config config = assay_quantize_default(format, rows, columns);
    OWNED double *codes = NULL, *scale = NULL;
    OWNED int32_t *code_bits = NULL, *scale_bits = NULL;
    int32_t none = 0;
    if (q->config->powers) config.rounding = ASSAY_SCALE_UP;
    const int64_t scales = assay_quantize_scales(&config);
    MUST(assay_alloc_f64(ctx, "codes", rows * columns, &codes));
    MUST(assay_alloc_f64(ctx, "scales", scales, &scale));
    MUST(assay_alloc_i32(ctx, "codes", rows * columns, &code_bits));
    MUST(assay_alloc_i32(ctx, "scales", scales, &scale_bits));
    assay_dtype_round_many(ASSAY_FLOAT32, rows * columns, x, numbers);
    MUST(assay_quantize(ctx, code_bits, scale_bits, &none, numbers, &config));
    assay_quantised_decode(ctx, format->element, rows * columns, code_bits, codes);
    assay_quantised_decode(ctx, format->scale, scales, scale_bits, scale);
    assay_dequantize(ctx, numbers, codes, scale, NULL, &config);
    return ASSAY_OK;
}

/* Blocks begin anew with each group. */
static assay_status quantise_blocks(assay_context *ctx, quantiser *q, const assay_quant_recipe_operand *how,
                                    const double *x, const int32_t *group_sizes, const assay_gmm_dims *dims,
                                    int64_t columns, coded *out)
{
    double *numbers = NULL;
    int64_t first = 0;
    const assay_block_format *format = assay_block_format_by_name(how->format);
    MUST(store(ctx, q, dims->m * columns, &numbers));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        if (group_sizes[g] == 0) continue;
        MUST(quantise_part(ctx, q, format, x + first * columns, group_sizes[g], columns, numbers + first * columns));
    }
    *out = (coded){.codes = numbers, .numbers = numbers};
    return ASSAY_OK;
}

/* --- by row or column --- */

static double rounded(const assay_quant_recipe_config *config, double x)
{
    return assay_dtype_round(config->type, x, false);
}

static double scale_of(const assay_quant_recipe_config *config, const assay_quant_recipe_operand *how,
                       const assay_calibration *calibration, double largest)
{
    const assay_dtype type = config->type;
    const double least_normal = assay_dtype_least_subnormal(type) / (2 * assay_dtype_unit_roundoff(type));
    const double amax = calibration->fixed > 0 ? calibration->fixed : largest * rounded(config, calibration->factor);
    const double scale = rounded(config, rounded(config, amax) / assay_dtype_max(how->element));
    return scale < rounded(config, sqrt(least_normal)) ? 1 : scale;
}

static double code_of(const assay_quant_recipe_config *config, assay_dtype element, double x, double scale)
{
    const double most = assay_dtype_max(element), y = rounded(config, x / scale);
    return assay_dtype_round(element, copysign(fmin(fabs(y), most), y), true);
}

assay_status assay_quant_recipe_codes(assay_context *ctx, double *codes, double *scale, const double *x, int64_t rows,
                                      int64_t columns, const assay_quant_recipe_operand *how,
                                      const assay_calibration *calibration, const assay_quant_recipe_config *config)
{
    OWNED double *largest = NULL;
    const bool none = how == NULL || how->scales == ASSAY_SCALES_NONE;
    const bool by_row = none || how->scales == ASSAY_SCALES_ROWS;
    const int64_t count = rows * columns;
    MUST(assay_alloc_f64(ctx, "scales", by_row ? rows : columns, &largest));
    for (int64_t i = 0; i < (by_row ? rows : columns); i++) largest[i] = 0;
    for (int64_t i = 0; i < count; i++) {
        double *of = &largest[by_row ? i / columns : i % columns];
        *of = fmax(*of, fabs(x[i]));
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        scale[i] = none ? 1 : scale_of(config, how, calibration, largest[by_row ? i / columns : i % columns]);
        codes[i] = none ? x[i] : code_of(config, how->element, x[i], scale[i]);
    }
    return ASSAY_OK;
}

static assay_status quantise_vectors(assay_context *ctx, quantiser *q, const assay_quant_recipe_operand *how,
                                     const assay_calibration *calibration, const double *x, int64_t rows,
                                     int64_t columns, coded *out)
{
    double *codes = NULL, *scale = NULL, *numbers = NULL;
    const int64_t count = rows * columns;
    MUST(store(ctx, q, count, &codes));
    MUST(store(ctx, q, count, &scale));
    MUST(store(ctx, q, count, &numbers));
    MUST(assay_quant_recipe_codes(ctx, codes, scale, x, rows, columns, how, calibration, q->config));
    for (int64_t i = 0; i < count; i++) numbers[i] = codes[i] * scale[i];
    *out = (coded){codes, scale, numbers};
    return ASSAY_OK;
}

/* dy times the scales of w, one for each column of dy, or of x, one for each row. */
static assay_status fold(assay_context *ctx, quantiser *q, const double *dy, const assay_gmm_dims *dims,
                         const double *scale, bool of_w, const double **folded)
{
    double *product = NULL;
    *folded = dy;
    if (!q->config->recipe->folds) return ASSAY_OK;
    MUST(store(ctx, q, dims->m * dims->n, &product));
    for (int64_t i = 0; i < dims->m * dims->n; i++)
        product[i] = rounded(q->config, dy[i] * scale[of_w ? i % dims->n : i / dims->n * dims->k]);
    *folded = product;
    return ASSAY_OK;
}

/* What is quantised of x: what errors may have made of it, and, where steps are rounded to the type of tensors, that of it. */
static assay_status take(assay_context *ctx, quantiser *q, int64_t count, const double *x, const double *deviation,
                         const double **taken)
{
    double *values = NULL;
    const bool rounds = q->config->recipe->dx_dy.scales != ASSAY_SCALES_BLOCKS;
    *taken = x;
    if (deviation == NULL && !rounds) return ASSAY_OK;
    MUST(store(ctx, q, count, &values));
    assay_deviation_move(ctx, count, x, deviation, values);
    if (rounds) assay_dtype_round_many(q->config->type, count, values, values);
    *taken = values;
    return ASSAY_OK;
}

/* What is not quantised stays x. */
static assay_status quantise(assay_context *ctx, quantiser *q, const assay_quant_recipe_operand *how,
                             const assay_calibration *calibration, const double *x, const double *taken,
                             const int32_t *group_sizes, const assay_gmm_dims *dims, int64_t columns, coded *out)
{
    *out = (coded){.codes = x, .numbers = x};
    if (how->scales == ASSAY_SCALES_NONE) return ASSAY_OK;
    if (how->scales == ASSAY_SCALES_BLOCKS) return quantise_blocks(ctx, q, how, taken, group_sizes, dims, columns, out);
    return quantise_vectors(ctx, q, how, calibration, taken, dims->m, columns, out);
}

static assay_status quantise_backward(assay_context *ctx, quantiser *q, const assay_quant_recipe_inputs *in,
                                      const assay_gmm_dims *dims, const coded *of_x, const double *x, const coded *of_w)
{
    const assay_quant_recipe_config *config = q->config;
    const assay_quant_recipe *r = config->recipe;
    const int32_t *sizes = in->group_sizes;
    coded of_dx, of_dw, of_dw_x;
    const double *dy, *for_dx, *for_dw;
    MUST(take(ctx, q, dims->m * dims->n, in->dy, in->dy_deviation, &dy));
    MUST(fold(ctx, q, dy, dims, of_w->scale, true, &for_dx));
    MUST(fold(ctx, q, dy, dims, of_x->scale, false, &for_dw));
    MUST(quantise(ctx, q, &r->dx_dy, &config->dy, in->dy, for_dx, sizes, dims, dims->n, &of_dx));
    MUST(quantise(ctx, q, &r->dw_x, &config->x, of_x->codes, x, sizes, dims, dims->k, &of_dw_x));
    MUST(quantise(ctx, q, &r->dw_dy, &config->dy, in->dy, for_dw, sizes, dims, dims->n, &of_dw));
    q->operands->dx_dy = of_dx.numbers;
    q->operands->dx_w = of_w->codes;
    q->operands->dw_x = of_dw_x.numbers;
    q->operands->dw_dy = of_dw.numbers;
    return ASSAY_OK;
}

assay_status assay_quant_recipe_quantise(assay_context *ctx, assay_quant_recipe_operands *operands,
                                         const assay_quant_recipe_inputs *in, const assay_gmm_dims *dims,
                                         const assay_quant_recipe_config *config)
{
    assay_status status = ASSAY_OK;
    const assay_quant_recipe *r = config->recipe;
    const double *x = in->x, *w = in->w, *dy = in->dy, *taken;
    const int32_t *sizes = in->group_sizes;
    quantiser q = {.config = config, .operands = operands};
    coded of_x, of_w;
    *operands = (assay_quant_recipe_operands){.x = x, .w = w, .dx_dy = dy, .dx_w = w, .dw_x = x, .dw_dy = dy};
    if (r == NULL) return ASSAY_OK;
    const assay_gmm_dims of_weights = {.m = dims->groups * dims->k};
    TRY(take(ctx, &q, dims->m * dims->k, x, in->x_deviation, &taken));
    TRY(quantise(ctx, &q, &r->x, &config->x, x, taken, sizes, dims, dims->k, &of_x));
    TRY(quantise(ctx, &q, &r->w, &config->w, w, w, NULL, &of_weights, dims->n, &of_w));
    operands->x = of_x.numbers;
    operands->w = of_w.numbers;
    if (r->x.scales != ASSAY_SCALES_NONE) taken = of_x.codes;
    if (dy != NULL) TRY(quantise_backward(ctx, &q, in, dims, &of_x, taken, &of_w));
cleanup:
    if (status != ASSAY_OK) assay_quant_recipe_operands_free(operands);
    return status;
}

void assay_quant_recipe_operands_free(assay_quant_recipe_operands *operands)
{
    for (size_t i = 0; i < sizeof operands->storage / sizeof *operands->storage; i++) free(operands->storage[i]);
    *operands = (assay_quant_recipe_operands){0};
}
