#include <quadmath.h>

#include "oracle/quad/tape.h"

static void check(quad_tape *t, const assay_rope_config *config)
{
    if (config->dim < 2 || config->dim % 2 != 0) {
        quad_refuse(t, "the rotary dimension is %lld, expected an even number above 0", (long long)config->dim);
    }
    if (!(config->rope_max_timescale > 1)) {
        quad_refuse(t, "rope_max_timescale is %g, expected more than 1", config->rope_max_timescale);
    }
    if (config->yarn && !(config->rope_factor > 0 && config->beta_fast >= config->beta_slow)) {
        quad_refuse(t,
                    "rope_factor is %g, beta_fast %g, beta_slow %g; expected a factor above 0 and beta_fast >= "
                    "beta_slow",
                    config->rope_factor, config->beta_fast, config->beta_slow);
    }
    if (config->pairwise && !config->interleave) {
        quad_refuse(t, "rope_pairwise needs rope_interleave");
    }
}

/* The index of the pair that turns `rotations` times in the original length. */
static quad correction(const assay_rope_config *config, double rotations)
{
    quad turns = 2 * M_PIq * rotations;
    return config->dim * logq(config->original_max_position_embeddings / turns) /
           (2 * logq(config->rope_max_timescale));
}

quad quad_frequency(const assay_rope_config *config, int64_t i)
{
    quad base = 1 / powq(config->rope_max_timescale, (quad)(2 * i) / config->dim);
    if (config->frequencies != NULL) return config->frequencies[i];
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

quad *quad_turns(quad_tape *t, const assay_rope_config *config, int64_t tokens, const int32_t *positions)
{
    check(t, config);
    for (int64_t i = 0; t->status == ASSAY_OK && i < tokens && config->max_position_embeddings > 0; i++) {
        if (positions[i] >= 0 && positions[i] < config->max_position_embeddings) continue;
        quad_refuse(t, "position %d of token %lld is outside 0 to %lld", (int)positions[i], (long long)i,
                    (long long)config->max_position_embeddings - 1);
    }
    quad *turns = t->status == ASSAY_OK ? quad_keep(t, tokens * config->dim, sizeof *turns) : NULL;
    for (int64_t i = 0; turns != NULL && i < config->dim / 2; i++) {
        const quad radians = quad_frequency(config, i), factor = attention_factor(config);
        for (int64_t token = 0; token < tokens; token++) {
            turns[token * config->dim + 2 * i] = factor * cosq(positions[token] * radians);
            turns[token * config->dim + 2 * i + 1] = factor * sinq(positions[token] * radians);
        }
    }
    return turns;
}

typedef struct rotation {
    assay_rope_config config;
    const quad *turns;
} rotation;

/* Of pair i where its two numbers are, in x and in y. */
typedef struct places {
    int64_t x[2], y[2];
} places;

static places places_of(const assay_rope_config *config, int64_t i)
{
    const int64_t half = config->dim / 2;
    const bool in = config->interleave, out = config->pairwise;
    return (places){{in ? 2 * i : i, in ? 2 * i + 1 : i + half}, {out ? 2 * i : i, out ? 2 * i + 1 : i + half}};
}

/* Adds what is turned, or turned back, of so many heads to `to`. */
static void turn(const rotation *r, int64_t tokens, int64_t heads, const quad *from, quad *to, bool back)
{
    const int64_t dim = r->config.dim;
    for (int64_t i = 0; i < tokens * heads * dim / 2; i++) {
        const int64_t head = i / (dim / 2), pair = i % (dim / 2);
        const places at = places_of(&r->config, pair);
        const int64_t *in = back ? at.y : at.x, *out = back ? at.x : at.y;
        const quad *angle = r->turns + head / heads * dim + 2 * pair, cosine = angle[0];
        const quad sine = back ? -angle[1] : angle[1], a = from[head * dim + in[0]], b = from[head * dim + in[1]];
        to[head * dim + out[0]] += a * cosine - b * sine;
        to[head * dim + out[1]] += a * sine + b * cosine;
    }
}

static void rotate_back(quad_tape *t, const quad_record *y)
{
    const rotation *r = y->with;
    quad *into = quad_into(t, y->from[0]);
    if (into != NULL) turn(r, y->rows, y->columns / r->config.dim, y->gradient, into, true);
}

quad_node quad_rotate(quad_tape *t, quad_node x, const assay_rope_config *config, const quad *turns)
{
    quad_node y;
    rotation *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || turns == NULL || with == NULL) return 0;
    const int64_t tokens = quad_rows(t, x), columns = quad_columns(t, x);
    *with = (rotation){*config, turns};
    quad *values = quad_new(t, tokens, columns, (quad_record){.from = {x}, .back = rotate_back, .with = with}, &y);
    for (int64_t i = 0; values != NULL && i < tokens * columns; i++) values[i] = 0;
    if (values != NULL) turn(with, tokens, columns / config->dim, quad_values(t, x), values, false);
    return y;
}
