#include "oracle/ops/yarn_rope.h"

#include <inttypes.h>
#include <math.h>
#include <quadmath.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

/* Where a float64 angle would be off by its position times an ulp, so binary128 until it is reduced. */
typedef __float128 quad;

static assay_status check_yarn(assay_context *ctx, const assay_rope_config *config)
{
    if (!(config->rope_factor > 0) || !isfinite(config->rope_factor))
        return assay_refuse(ctx, "rope_factor is %g, expected a number above 0", config->rope_factor);
    if (!(config->beta_slow > 0) || !(config->beta_fast >= config->beta_slow) || !isfinite(config->beta_fast)) {
        return assay_refuse(ctx, "beta_fast is %g and beta_slow %g, expected beta_fast >= beta_slow > 0",
                            config->beta_fast, config->beta_slow);
    }
    if (config->original_max_position_embeddings < 1) {
        return assay_refuse(ctx, "original_max_position_embeddings is %" PRId64 ", expected 1 or more",
                            config->original_max_position_embeddings);
    }
    return ASSAY_OK;
}

assay_status assay_rope_check(assay_context *ctx, const assay_rope_config *config)
{
    if (config->dim < 2 || config->dim > ASSAY_ROPE_DIM_MAX || config->dim % 2 != 0) {
        return assay_refuse(ctx, "qk_rope_head_dim is %" PRId64 ", expected an even number from 2 to %d", config->dim,
                            ASSAY_ROPE_DIM_MAX);
    }
    if (!(config->rope_max_timescale > 1) || !isfinite(config->rope_max_timescale))
        return assay_refuse(ctx, "rope_max_timescale is %g, expected a number above 1", config->rope_max_timescale);
    if (config->max_position_embeddings < 1 || config->max_position_embeddings > INT32_MAX) {
        return assay_refuse(ctx, "max_position_embeddings is %" PRId64 ", expected 1 to %" PRId32,
                            config->max_position_embeddings, INT32_MAX);
    }
    if (config->pairwise && !config->interleave) return assay_refuse(ctx, "rope_pairwise needs rope_interleave=true");
    return config->yarn ? check_yarn(ctx, config) : ASSAY_OK;
}

assay_status assay_rope_check_positions(assay_context *ctx, const int32_t *positions, int64_t tokens,
                                        const assay_rope_config *config)
{
    for (int64_t t = 0; t < tokens && config->max_position_embeddings > 0; t++) {
        if (positions[t] >= 0 && positions[t] < config->max_position_embeddings) continue;
        return assay_refuse(
            ctx, "inputs/positions[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (max_position_embeddings)", t,
            positions[t], config->max_position_embeddings - 1);
    }
    return ASSAY_OK;
}

/* The dimension whose wavelength makes `rotations` turns over the original length. */
static quad correction(const assay_rope_config *config, double rotations)
{
    const quad turns = (quad)config->original_max_position_embeddings / (rotations * 2 * M_PIq);
    return config->dim * logq(turns) / (2 * logq(config->rope_max_timescale));
}

/* Where the ramp from high frequencies (kept) to low ones (interpolated) begins and ends. */
typedef struct ramp_range {
    quad low, high;
} ramp_range;

static ramp_range ramp_range_of(const assay_rope_config *config)
{
    if (!config->yarn) return (ramp_range){0};
    quad low = correction(config, config->beta_fast), high = correction(config, config->beta_slow);
    if (config->truncate) {
        low = floorq(low);
        high = ceilq(high);
    }
    return (ramp_range){.low = fmaxq(low, 0), .high = fminq(high, config->dim - 1)};
}

/* 0 where a frequency is kept, 1 where it is interpolated. */
static quad ramp_of(const assay_rope_config *config, const ramp_range *range, int64_t i)
{
    const quad low = range->low, high = range->high;
    const bool empty = low == high || (config->pairwise && low > high); /* pairwise is the batch-split model */
    const quad width = empty ? (quad)1 / 1000 : high - low;
    return config->yarn ? fminq(fmaxq((i - low) / width, 0), 1) : 0;
}

static quad frequency(const assay_rope_config *config, quad ramp, int64_t i)
{
    const quad exponent = -2 * (quad)i / config->dim, base = powq(config->rope_max_timescale, exponent);
    return config->yarn ? base / config->rope_factor * ramp + base * (1 - ramp) : base;
}

void assay_rope_frequencies(double *frequencies, const assay_rope_config *config)
{
    const ramp_range range = ramp_range_of(config);
    for (int64_t i = 0; i < config->dim / 2; i++)
        frequencies[i] = (double)frequency(config, ramp_of(config, &range, i), i);
}

static double attention_factor(const assay_rope_config *config)
{
    if (!config->attention_scaling || config->rope_factor <= 1) return 1;
    return 0.1 * assay_log(config->rope_factor) + 1;
}

/* What an implementation of the context's arithmetic adds to `value` by rounding it: 0 but in the emulated one. */
static double rounding_of(const assay_context *ctx, double value)
{
    double rounded = value;
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rounded);
    return rounded - value;
}

/* position * frequency in (-pi, pi]. */
static double reduced_angle(const assay_context *ctx, int32_t position, quad freq)
{
    quad angle = position * freq;
    angle += rounding_of(ctx, (double)angle);
    angle = remainderq(angle, 2 * M_PIq);
    return (double)angle;
}

void assay_rope_angles(const assay_context *ctx, double *angles, const int32_t *positions, int64_t tokens,
                       const assay_rope_config *config)
{
    const int64_t half = config->dim / 2;
    const ramp_range range = ramp_range_of(config);
    quad frequencies[ASSAY_ROPE_DIM_MAX / 2];
    for (int64_t i = 0; i < half; i++) {
        quad ramp = ramp_of(config, &range, i);
        if (ramp > 0 && ramp < 1) ramp += rounding_of(ctx, (double)ramp); /* of 1 - ramp near 0 it is many roundings */
        frequencies[i] = frequency(config, ramp, i);
        frequencies[i] += rounding_of(ctx, (double)frequencies[i]);
        if (config->frequencies != NULL) frequencies[i] = config->frequencies[i];
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < half; i++) angles[t * half + i] = reduced_angle(ctx, positions[t], frequencies[i]);
}

static assay_status alloc_table(assay_context *ctx, assay_rope_table *table, int64_t tokens, int64_t half)
{
    int64_t count = 0;
    *table = (assay_rope_table){.tokens = tokens, .half = half};
    MUST(assay_checked_count(ctx, "rotations", 3, (int64_t[]){2, tokens, half}, &count));
    MUST(assay_alloc_f64(ctx, "rotations", count, &table->cosine));
    table->sine = table->cosine + tokens * half;
    return ASSAY_OK;
}

void assay_rope_table_fill(const assay_context *ctx, const assay_rope_table *table, const double *angles,
                           const assay_rope_config *config)
{
    const int64_t half = table->half;
    const double factor = attention_factor(config);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < table->tokens; t++) {
        double *cosine = table->cosine + t * half, *sine = table->sine + t * half;
        for (int64_t i = 0; i < half; i++) {
            const double angle = angles[t * half + i];
            cosine[i] = factor * assay_cos(angle);
            sine[i] = factor * assay_sin(angle);
        }
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, cosine);
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, sine);
    }
}

assay_status assay_rope_table_of_angles(assay_context *ctx, assay_rope_table *table, const double *angles,
                                        int64_t tokens, const assay_rope_config *config)
{
    assay_status status = alloc_table(ctx, table, tokens, config->dim / 2);
    if (status == ASSAY_OK) assay_rope_table_fill(ctx, table, angles, config);
    return status;
}

void assay_rope_table_free(assay_rope_table *table)
{
    free(table->cosine);
    *table = (assay_rope_table){0};
}

/* The components of pair i lie at first + i * step and second + i * step of a row. */
typedef struct layout {
    int64_t step, second;
} layout;

static layout layout_of(bool interleaved, int64_t half)
{
    return interleaved ? (layout){.step = 2, .second = 1} : (layout){.step = 1, .second = half};
}

/* Through scratch: y may be x with another layout. */
static void rotate_row(double *y, layout to, const double *x, layout from, const double *cosine, const double *sine,
                       double sign, int64_t half)
{
    double first[ASSAY_ROPE_DIM_MAX / 2], second[ASSAY_ROPE_DIM_MAX / 2];
    for (int64_t i = 0; i < half; i++) {
        const double a = x[i * from.step], b = x[i * from.step + from.second], s = sign * sine[i];
        first[i] = a * cosine[i] - b * s;
        second[i] = a * s + b * cosine[i];
    }
    for (int64_t i = 0; i < half; i++) {
        y[i * to.step] = first[i];
        y[i * to.step + to.second] = second[i];
    }
}

static void rotate(const assay_context *ctx, const assay_rope_rows *rows, const assay_rope_table *table, layout to,
                   layout from, double sign)
{
    const int64_t half = table->half;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < table->tokens; t++) {
        const double *cosine = table->cosine + t * half, *sine = table->sine + t * half;
        for (int64_t h = 0; h < rows->heads; h++) {
            double *y = rows->y + t * rows->y_token_stride + h * rows->y_head_stride;
            const double *x = rows->x + t * rows->x_token_stride + h * rows->x_head_stride;
            rotate_row(y, to, x, from, cosine, sine, sign, half);
        }
    }
}

void assay_rope_forward(const assay_context *ctx, const assay_rope_rows *rows, const assay_rope_table *table,
                        const assay_rope_config *config)
{
    rotate(ctx, rows, table, layout_of(config->pairwise, table->half), layout_of(config->interleave, table->half), 1);
}

void assay_rope_backward(const assay_context *ctx, const assay_rope_rows *rows, const assay_rope_table *table,
                         const assay_rope_config *config)
{
    rotate(ctx, rows, table, layout_of(config->interleave, table->half), layout_of(config->pairwise, table->half), -1);
}
