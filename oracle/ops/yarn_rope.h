/* Rotary position embedding with YaRN's frequencies (docs/operations.md, "yarn_rope"; Peng et al. 2023; MaxText layers/embeddings.py
 * YarnRotaryEmbedding, DeepSeek-V3 inference/model.py precompute_freqs_cis).
 *
 * x [tokens,heads,Dr], positions [tokens] -> y [tokens,heads,Dr]; half = Dr/2, base_i = rope_max_timescale^(-2i/Dr).
 *   default: freq_i = base_i
 *   yarn:    corr(r) = Dr ln(original_max_position_embeddings / (2 pi r)) / (2 ln rope_max_timescale)
 *            low  = max(floor corr(beta_fast), 0)       (truncate off: no floor, no ceil)
 *            high = min(ceil corr(beta_slow), Dr - 1)
 *            ramp_i = clip((i - low) / (high - low), 0, 1); the divisor is 0.001 where low = high (pairwise, the
 *                     batch-split model: where low >= high)
 *            freq_i = base_i / rope_factor * ramp_i + base_i * (1 - ramp_i)
 *   angle = position * freq_i; (a, b) -> (a cos - b sin, a sin + b cos)
 *   attention_scaling: times 0.1 ln(rope_factor) + 1 (1 where rope_factor <= 1)
 * interleave: pairs are (x[2i], x[2i+1]), else (x[i], x[i+half]). pairwise: y is laid out as x is (interleave only),
 * else first components, then second ones. Gradient: the transposed rotation, from y's layout to x's.
 *
 * Frequencies and angles are taken in binary128 and reduced to (-pi, pi] before they become float64, so that cos and
 * sin are within 4e-16 at any position. Refused: Dr odd, below 2 or above 1024, rope_max_timescale <= 1, rope_factor <=
 * 0 and beta_fast < beta_slow (yarn), pairwise without interleave, a position outside [0, max_position_embeddings). */
#pragma once

#include "oracle/base/status.h"

enum { ASSAY_ROPE_DIM_MAX = 1024 };

typedef struct assay_rope_config {
    int64_t dim;               /* Dr, qk_rope_head_dim */
    bool yarn;                 /* rope_type: yarn; else default */
    double rope_max_timescale; /* rope_theta */
    double rope_factor, beta_fast, beta_slow;
    int64_t max_position_embeddings /* 0: any */, original_max_position_embeddings;
    bool interleave, truncate, attention_scaling, pairwise;
    const double *frequencies; /* [dim / 2], in the place of those above; NULL: none are given */
} assay_rope_config;

/* The rotation of each token, the same for all heads. */
typedef struct assay_rope_table {
    int64_t tokens, half;
    double *cosine, *sine; /* [tokens,half], scaled by the attention factor; one allocation, cosine first */
} assay_rope_table;

assay_status assay_rope_check(assay_context *ctx, const assay_rope_config *config);
/* "inputs/positions[3] is 163840, expected 0 to 163839 (max_position_embeddings)" */
assay_status assay_rope_check_positions(assay_context *ctx, const int32_t *positions, int64_t tokens,
                                        const assay_rope_config *config);

/* [half], rounded to float64: for reports and tests; the table is made from binary128. */
void assay_rope_frequencies(double *frequencies, const assay_rope_config *config);
/* angles [tokens,half] are in (-pi, pi]. In an emulated arithmetic frequencies and angles are off as its profile allows. */
void assay_rope_angles(const assay_context *ctx, double *angles, const int32_t *positions, int64_t tokens,
                       const assay_rope_config *config);
assay_status assay_rope_table_of_angles(assay_context *ctx, assay_rope_table *table, const double *angles,
                                        int64_t tokens, const assay_rope_config *config);
void assay_rope_table_free(assay_rope_table *table); /* safe on a zeroed struct */

/* Into a table that has room. */
void assay_rope_table_fill(const assay_context *ctx, const assay_rope_table *table, const double *angles,
                           const assay_rope_config *config);

/* Rows of Dr numbers: head h of token t is at x + t * token_stride + h * head_stride. y may be x: each row is read
 * before it is written. */
typedef struct assay_rope_rows {
    double *y;
    int64_t y_token_stride, y_head_stride;
    const double *x;
    int64_t x_token_stride, x_head_stride;
    int64_t heads;
} assay_rope_rows;

void assay_rope_forward(const assay_context *ctx, const assay_rope_rows *rows, const assay_rope_table *table,
                        const assay_rope_config *config);
/* y takes dx, x gives dy. */
void assay_rope_backward(const assay_context *ctx, const assay_rope_rows *rows, const assay_rope_table *table,
                         const assay_rope_config *config);
