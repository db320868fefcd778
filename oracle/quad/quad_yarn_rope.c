#include <quadmath.h>

#include "oracle/quad/quad_internal.h"

static assay_status check(assay_context *ctx, const assay_rope_config *config)
{
    if (config->dim < 2 || config->dim % 2 != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the rotary dimension is %lld, expected an even number above 0",
                          (long long)config->dim);
    }
    if (!(config->rope_max_timescale > 1)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "rope_max_timescale is %g, expected more than 1",
                          config->rope_max_timescale);
    }
    if (config->yarn && !(config->rope_factor > 0 && config->beta_fast >= config->beta_slow)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "rope_factor is %g, beta_fast %g, beta_slow %g; expected a factor above 0 and beta_fast >= "
                          "beta_slow",
                          config->rope_factor, config->beta_fast, config->beta_slow);
    }
    if (config->pairwise && !config->interleave) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "rope_pairwise needs rope_interleave");
    }
    return ASSAY_OK;
}

/* The index of the pair that turns `rotations` times in the original length. */
static quad correction(const assay_rope_config *config, double rotations)
{
    quad turns = 2 * M_PIq * rotations;
    return config->dim * logq(config->original_max_position_embeddings / turns) /
           (2 * logq(config->rope_max_timescale));
}

static quad frequency(const assay_rope_config *config, int64_t i)
{
    quad base = 1 / powq(config->rope_max_timescale, (quad)(2 * i) / config->dim);
    if (!config->yarn) return base;
    quad low = correction(config, config->beta_fast), high = correction(config, config->beta_slow);
    if (config->truncate) low = floorq(low), high = ceilq(high);
    if (low < 0) low = 0;
    if (high > config->dim - 1) high = config->dim - 1;
    /* The batch-split model, which is the pairwise one, sees to the divisor's sign as well. */
    bool flat = config->pairwise ? low >= high : low == high;
    quad ramp = (i - low) / (flat ? (quad)1 / 1000 : high - low);
    if (ramp < 0) ramp = 0;
    if (ramp > 1) ramp = 1;
    quad smooth = 1 - ramp;
    return base / config->rope_factor * (1 - smooth) + base * smooth;
}

static quad attention_factor(const assay_rope_config *config)
{
    if (!config->attention_scaling || config->rope_factor <= 1) return 1;
    return logq(config->rope_factor) / 10 + 1;
}

assay_status quad_rope_turns(assay_context *ctx, const assay_rope_config *config, int64_t tokens,
                             const int32_t *positions, quad **turns)
{
    assay_status status = ASSAY_OK;
    TRY(check(ctx, config));
    TRY(quad_alloc(ctx, tokens * config->dim, turns));
    for (int64_t t = 0; t < tokens; t++) {
        if (positions[t] >= 0 && positions[t] < config->max_position_embeddings) continue;
        TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "position %d of token %lld is outside 0 to %lld", (int)positions[t],
                       (long long)t, (long long)config->max_position_embeddings - 1));
    }
    for (int64_t i = 0; i < config->dim / 2; i++) {
        quad radians = frequency(config, i), factor = attention_factor(config);
        for (int64_t t = 0; t < tokens; t++) {
            (*turns)[t * config->dim + 2 * i] = factor * cosq(positions[t] * radians);
            (*turns)[t * config->dim + 2 * i + 1] = factor * sinq(positions[t] * radians);
        }
    }
cleanup:
    return status;
}

void quad_rotate(const assay_rope_config *config, const quad *turn, const quad *x, quad *y)
{
    int64_t half = config->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        quad a = config->interleave ? x[2 * i] : x[i], b = config->interleave ? x[2 * i + 1] : x[i + half];
        quad cosine = turn[2 * i], sine = turn[2 * i + 1];
        y[config->pairwise ? 2 * i : i] = a * cosine - b * sine;
        y[config->pairwise ? 2 * i + 1 : i + half] = a * sine + b * cosine;
    }
}

assay_status quad_yarn_rope(assay_context *ctx, const assay_rope_config *config, const quad_tensors *in,
                            quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const quad_tensor *x = NULL;
    const int32_t *positions = NULL;
    quad *turns = NULL, *y = NULL;
    int64_t rows = 0, dim = 0;
    TRY(quad_read_rows(ctx, in, "inputs/x", &x, &rows, &dim));
    if (x->shape.rank != 4 || dim != config->dim) {
        TRY(assay_fail(ctx, ASSAY_BAD_INPUT, "'inputs/x' has rank %d and a last axis of %lld, expected 4 and %lld",
                       x->shape.rank, (long long)dim, (long long)config->dim));
    }
    int64_t tokens = x->shape.dims[0] * x->shape.dims[1], heads = x->shape.dims[2];
    TRY(quad_read_indices(ctx, in, "inputs/positions", tokens, &positions));
    TRY(quad_rope_turns(ctx, config, tokens, positions, &turns));
    TRY(quad_tensors_add(ctx, out, "outputs/y", &x->shape, &y));
    for (int64_t row = 0; row < rows; row++) {
        quad_rotate(config, turns + row / heads * dim, x->values + row * dim, y + row * dim);
    }
cleanup:
    free(turns);
    return status;
}
