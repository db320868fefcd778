/* MLA in binary128, one number after the other. */
#include <math.h>
#include <stdbool.h>

#include "oracle/ops/tests/mla_problem.h"

/* Of libquadmath, as in ops_test.h. */
quad logq(quad x);
quad powq(quad x, quad y);
quad cosq(quad x);
quad sinq(quad x);
quad floorq(quad x);
quad ceilq(quad x);

/* float64's pi, and what it leaves out. */
static quad pi(void)
{
    return (quad)M_PI + (quad)1.2246467991473531772e-16;
}

static void product(quad *y, const quad *x, const quad *w, int64_t rows, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++) y[i * n + j] += x[i * k + l] * w[l * n + j];
        }
    }
}

/* Of the first `dim` of rows of `width`. */
static void norm(quad *y, const quad *x, int64_t width, const quad *scale, int64_t rows, int64_t dim, double epsilon)
{
    for (int64_t row = 0; row < rows; row++) {
        quad squares = 0;
        for (int64_t i = 0; i < dim; i++) squares += x[row * width + i] * x[row * width + i];
        for (int64_t i = 0; i < dim; i++)
            y[row * dim + i] = x[row * width + i] / sqrtq(squares / dim + epsilon) * scale[i];
    }
}

static quad turn(const assay_rope_config *c, quad rotations)
{
    return c->dim * logq(c->original_max_position_embeddings / (rotations * 2 * pi())) /
           (2 * logq(c->rope_max_timescale));
}

static quad frequency(const assay_rope_config *c, int64_t i)
{
    const quad base = 1 / powq(c->rope_max_timescale, (quad)(2 * i) / c->dim);
    if (!c->yarn) return base;
    quad low = turn(c, c->beta_fast), high = turn(c, c->beta_slow);
    if (c->truncate) low = floorq(low), high = ceilq(high);
    if (low < 0) low = 0;
    if (high > c->dim - 1) high = c->dim - 1;
    quad ramp = (i - low) / (low == high ? (quad)0.001 : high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    const quad smooth = 1 - ramp;
    return base / c->rope_factor * (1 - smooth) + base * smooth;
}

void mla_naive_rotations(mla_naive *n)
{
    const assay_rope_config *c = &n->config->rope;
    const int64_t half = c->dim / 2, tokens = n->config->batch * n->config->sequence;
    const bool scaled = c->attention_scaling && c->rope_factor > 1;
    const quad factor = scaled ? logq(c->rope_factor) / 10 + 1 : 1;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < half; i++) {
            const quad angle = n->positions[t] * frequency(c, i);
            n->cosine[t * half + i] = cosq(angle) * factor;
            n->sine[t * half + i] = sinq(angle) * factor;
        }
    }
}

/* y and x [Dr] of token t. */
static void rotate(const mla_naive *n, quad *y, const quad *x, int64_t t)
{
    const assay_rope_config *c = &n->config->rope;
    const int64_t half = c->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const quad cosine = n->cosine[t * half + i], sine = n->sine[t * half + i];
        const quad a = c->interleave ? x[2 * i] : x[i], b = c->interleave ? x[2 * i + 1] : x[i + half];
        y[c->pairwise ? 2 * i : i] = a * cosine - b * sine;
        y[c->pairwise ? 2 * i + 1 : i + half] = a * sine + b * cosine;
    }
}

static quad softmax_scale(const assay_mla_config *c)
{
    const quad scale = 1 / sqrtq((quad)(c->qk_nope_head_dim + c->rope.dim));
    if (c->rope.max_position_embeddings <= c->rope.original_max_position_embeddings) return scale;
    const quad m = c->mscale * logq(c->rope.rope_factor) / 10 + 1;
    return scale * m * m;
}

static void query(mla_naive *n)
{
    const assay_mla_config *c = n->config;
    const int64_t tokens = c->batch * c->sequence, nope = c->qk_nope_head_dim, width = nope + c->rope.dim;
    quad *out = n->results[ASSAY_MLA_QUERY_PROJ], pe[ASSAY_ROPE_DIM_MAX];
    const quad scale = softmax_scale(c);
    if (c->q_lora_rank > 0) {
        quad *down = n->results[ASSAY_MLA_QUERY_WA_PROJ], *latent = n->results[ASSAY_MLA_MLA_Q];
        product(down, n->values[MLA_X], n->values[MLA_WQ_A], tokens, c->q_lora_rank, c->emb_dim);
        norm(latent, down, c->q_lora_rank, n->values[MLA_Q_NORM], tokens, c->q_lora_rank, c->epsilon);
        product(out, latent, n->values[MLA_WQ_B], tokens, c->heads * width, c->q_lora_rank);
    } else {
        product(out, n->values[MLA_X], n->values[MLA_QUERY], tokens, c->heads * width, c->emb_dim);
    }
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        quad *q = out + row * width;
        rotate(n, pe, q + nope, row / c->heads);
        for (int64_t i = 0; i < width; i++) q[i] = scale * (i < nope ? q[i] : pe[i - nope]);
    }
}

static void key_value(mla_naive *n)
{
    const assay_mla_config *c = n->config;
    const int64_t tokens = c->batch * c->sequence, nope = c->qk_nope_head_dim, wide = c->v_head_dim;
    const int64_t rank = c->kv_lora_rank, down_width = rank + c->rope.dim, head_width = nope + wide;
    quad *down = n->results[ASSAY_MLA_KV_WA_PROJ], *latent = n->results[ASSAY_MLA_MLA_KV];
    product(down, n->values[MLA_X], n->values[MLA_WKV_A], tokens, down_width, c->emb_dim);
    norm(latent, down, down_width, n->values[MLA_KV_NORM], tokens, rank, c->epsilon);
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        const int64_t t = row / c->heads, head = row % c->heads;
        quad *key = n->results[ASSAY_MLA_KEY_PROJ] + row * (nope + c->rope.dim);
        for (int64_t i = 0; i < head_width; i++) {
            quad sum = 0;
            for (int64_t l = 0; l < rank; l++)
                sum += latent[t * rank + l] * n->values[MLA_WKV_B][(l * c->heads + head) * head_width + i];
            if (i < nope)
                key[i] = sum;
            else
                n->results[ASSAY_MLA_VALUE_PROJ][row * wide + i - nope] = sum;
        }
        rotate(n, key + nope, down + t * down_width + rank, t);
    }
}

static bool sees(const mla_naive *n, int64_t i, int64_t j)
{
    const int32_t *ids = n->segment_ids;
    return ids == NULL || (ids[i] == ids[j] && !(n->config->mask_padding && ids[i] == 0));
}

/* Of the token t of the whole batch and one head. */
static void attend(mla_naive *n, int64_t t, int64_t head)
{
    const assay_mla_config *c = n->config;
    const int64_t width = c->qk_nope_head_dim + c->rope.dim, wide = c->v_head_dim, first = t - t % c->sequence;
    quad *out = n->results[ASSAY_MLA_ATTENTION_OUT] + (t * c->heads + head) * wide, sum = 0;
    for (int64_t i = 0; i < wide; i++) out[i] = 0;
    for (int64_t j = first; j <= t; j++) {
        quad score = 0;
        if (!sees(n, t, j)) continue;
        for (int64_t i = 0; i < width; i++)
            score += n->results[ASSAY_MLA_QUERY_PROJ][(t * c->heads + head) * width + i] *
                     n->results[ASSAY_MLA_KEY_PROJ][(j * c->heads + head) * width + i];
        const quad weight = expq(score); /* scores are small here: no maximum is needed */
        sum += weight;
        for (int64_t i = 0; i < wide; i++)
            out[i] += weight * n->results[ASSAY_MLA_VALUE_PROJ][(j * c->heads + head) * wide + i];
    }
    for (int64_t i = 0; i < wide && sum > 0; i++) out[i] /= sum;
    n->lse[(t / c->sequence * c->heads + head) * c->sequence + t % c->sequence] = sum > 0 ? logq(sum) : -(quad)INFINITY;
}

void mla_naive_forward(mla_naive *n)
{
    const assay_mla_config *c = n->config;
    const int64_t tokens = c->batch * c->sequence;
    query(n);
    key_value(n);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t head = 0; head < c->heads; head++) attend(n, t, head);
    }
    product(n->results[ASSAY_MLA_OUT_PROJ], n->results[ASSAY_MLA_ATTENTION_OUT], n->values[MLA_OUT], tokens, c->emb_dim,
            c->heads * c->v_head_dim);
}
