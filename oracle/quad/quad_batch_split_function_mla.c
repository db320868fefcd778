/* Norm, rotation and attention. */
#include <math.h>
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

/* --- norm and rotation --- */

void quad_normalise(const quad_call *c, const char *scale, int64_t shard, const quad *x, quad *y)
{
    const int64_t dim = c->mla->emb_dim;
    quad_rms_norm_rows(c->s.tokens, dim, c->config->stack.epsilon, x, dim, quad_in_shard(c, scale, shard), y);
}

static assay_status rms_norm(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        quad_normalise(c, "weights/scale", shard, quad_in_shard(c, "inputs/x", shard),
                       quad_out_shard(c, "outputs/y", shard));
    return ASSAY_OK;
}

static assay_status initialize_yarn_mask(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim;
    quad *mask = quad_tensors_find(&c->out, "outputs/mask")->values;
    for (int64_t i = 0; i < dim; i++) {
        for (int64_t j = 0; j < dim; j++) {
            const int64_t swapped = i % 2 == 0 ? i + 1 : i - 1;
            mask[i * dim + j] = swapped == j ? (j % 2 == 0 ? -1 : 1) : 0;
        }
    }
    return ASSAY_OK;
}

/* SPEC 2, and the module's divisor of the ramp. */
static quad frequency(const assay_rope_config *rope, int64_t i)
{
    const quad theta = rope->rope_max_timescale, dim = rope->dim, base = powq(theta, -2 * (quad)i / dim);
    if (!rope->yarn) return base;
    quad ends[2] = {rope->beta_fast, rope->beta_slow};
    for (int k = 0; k < 2; k++)
        ends[k] = dim * logq(rope->original_max_position_embeddings / (ends[k] * 2 * M_PIq)) / (2 * logq(theta));
    if (rope->truncate) {
        ends[0] = floorq(ends[0]);
        ends[1] = ceilq(ends[1]);
    }
    const quad low = fmaxq(ends[0], 0), high = fminq(ends[1], dim - 1);
    const quad ramp = (i - low) / (high > low ? high - low : (quad)0.001Q);
    const quad smooth = 1 - fminq(fmaxq(ramp, 0), 1);
    return base / rope->rope_factor * (1 - smooth) + base * smooth;
}

static assay_status initialize_yarn_freqs(quad_call *c)
{
    const assay_rope_config *rope = &c->mla->rope;
    const int32_t *positions = quad_given_indices(c, "inputs/positions");
    quad *freqs = quad_tensors_find(&c->out, "outputs/yarn_freqs")->values;
    for (int64_t i = 0; i < c->s.shards * c->s.tokens * rope->dim; i++)
        freqs[i] = positions[i / rope->dim] * frequency(rope, i % rope->dim / 2);
    return ASSAY_OK;
}

/* y = x cos + (x mask) sin of one row. */
static void rotate(const quad_call *c, const quad *angles, const quad *x, quad *y)
{
    for (int64_t i = 0; i < c->mla->rope.dim; i += 2) {
        const quad cosine = cosq(angles[i]), sine = sinq(angles[i]), first = x[i], second = x[i + 1];
        y[i] = first * cosine - second * sine;
        y[i + 1] = second * cosine + first * sine;
    }
}

static assay_status yarn(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim, heads = c->mla->heads;
    for (int64_t row = 0; row < c->s.shards * c->s.tokens * heads; row++) {
        rotate(c, quad_given(c, "inputs/freqs") + row / heads * dim, quad_given(c, "inputs/inputs") + row * dim,
               quad_tensors_find(&c->out, "outputs/output")->values + row * dim);
    }
    return ASSAY_OK;
}

/* --- attention of one shard's microbatch --- */

static quad softmax_scale(const quad_call *c)
{
    const assay_mla_config *config = c->mla;
    const quad scale = 1 / sqrtq(config->qk_nope_head_dim + config->rope.dim);
    if (config->rope.max_position_embeddings <= config->rope.original_max_position_embeddings) return scale;
    const quad m = logq(config->rope.rope_factor) * config->mscale / 10 + 1;
    return scale * m * m;
}

static void make_query(const quad_call *c, int64_t shard, const quad *x, const quad *angles, quad *query)
{
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->q_lora_rank, dim = m->emb_dim, rope = m->rope.dim, width = m->qk_nope_head_dim + rope;
    const quad *scale = quad_in_shard(c, "weights/q_norm_scale_weights", shard), factor = softmax_scale(c);
    for (int64_t t = 0; t < c->s.tokens; t++) {
        quad *low = c->scratch, *normed = low + rank, *q = query + t * m->heads * width;
        quad_vector_matrix(dim, rank, x + t * dim, quad_in_shard(c, "weights/wq_a_weights", shard), rank, low);
        quad_rms_norm_rows(1, rank, m->epsilon, low, rank, scale, normed);
        quad_vector_matrix(rank, m->heads * width, normed, quad_in_shard(c, "weights/wq_b_weights", shard),
                           m->heads * width, q);
        for (int64_t head = 0; head < m->heads; head++) {
            quad *row = q + head * width;
            rotate(c, angles + t * rope, row + m->qk_nope_head_dim, row + m->qk_nope_head_dim);
            for (int64_t i = 0; i < width; i++) row[i] *= factor;
        }
    }
}

/* Of one token, from the latent and the rotated part that all heads share. */
static void key_value_of(const quad_call *c, int64_t shard, const quad *latent, const quad *rope,
                         quad *key, quad *value, quad *row)
{
    const assay_mla_config *m = c->mla;
    const int64_t nope = m->qk_nope_head_dim, both = nope + m->v_head_dim, width = nope + m->rope.dim;
    quad_vector_matrix(m->kv_lora_rank, m->heads * both, latent, quad_in_shard(c, "weights/wkv_b_weights", shard),
                       m->heads * both, row);
    for (int64_t head = 0; head < m->heads; head++) {
        memcpy(key + head * width, row + head * both, (size_t)nope * sizeof *row);
        memcpy(key + head * width + nope, rope, (size_t)m->rope.dim * sizeof *row);
        memcpy(value + head * m->v_head_dim, row + head * both + nope, (size_t)m->v_head_dim * sizeof *row);
    }
}

static void make_key_value(const quad_call *c, int64_t shard, const quad *x, const quad *angles,
                           quad *key, quad *value)
{
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->kv_lora_rank, rope = m->rope.dim, dim = m->emb_dim;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        quad *low = c->scratch, *normed = low + rank + rope, *row = normed + rank;
        quad_vector_matrix(dim, rank + rope, x + t * dim, quad_in_shard(c, "weights/wkv_a_weights", shard), rank + rope,
                           low);
        quad_rms_norm_rows(1, rank, m->epsilon, low, rank, quad_in_shard(c, "weights/kv_norm_scale_weights", shard),
                           normed);
        rotate(c, angles + t * rope, low + rank, low + rank);
        key_value_of(c, shard, normed, low + rank, key + t * m->heads * (m->qk_nope_head_dim + rope),
                     value + t * m->heads * m->v_head_dim, row);
    }
}

static assay_status attend(const quad_call *c, const quad *query, const quad *key, const quad *value,
                           quad *out, quad *lse)
{
    const assay_mla_config *m = c->mla;
    const assay_attention_config config = {.batch = c->s.rows,
                                           .sequence = m->sequence,
                                           .heads = m->heads,
                                           .qk_dim = m->qk_nope_head_dim + m->rope.dim,
                                           .v_dim = m->v_head_dim};
    return quad_attend(
        c->ctx, &(quad_attention_problem){
                    .config = &config, .query = query, .key = key, .value = value, .attention_out = out, .lse = lse});
}

static assay_status query_projection(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        make_query(c, shard, quad_in_shard(c, "inputs/inputs_q", shard), quad_in_shard(c, "inputs/yarn_freqs", shard),
                   quad_out_shard(c, "outputs/query", shard));
    }
    return ASSAY_OK;
}

static assay_status kv_projection(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        make_key_value(c, shard, quad_in_shard(c, "inputs/inputs", shard), quad_in_shard(c, "inputs/yarn_freqs", shard),
                       quad_out_shard(c, "outputs/key", shard), quad_out_shard(c, "outputs/value", shard));
    }
    return ASSAY_OK;
}

static assay_status get_key_value(quad_call *c)
{
    const assay_mla_config *m = c->mla;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t t = 0; t < c->s.tokens; t++) {
            key_value_of(c, shard, quad_in_shard(c, "inputs/low_rank_main", shard) + t * m->kv_lora_rank,
                         quad_in_shard(c, "inputs/key_rope", shard) + t * m->rope.dim,
                         quad_out_shard(c, "outputs/key", shard) + t * m->heads * (m->qk_nope_head_dim + m->rope.dim),
                         quad_out_shard(c, "outputs/value", shard) + t * m->heads * m->v_head_dim, c->scratch);
        }
    }
    return ASSAY_OK;
}

static assay_status tpu_flash_attention(quad_call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(attend(c, quad_in_shard(c, "inputs/query", shard), quad_in_shard(c, "inputs/key", shard),
                   quad_in_shard(c, "inputs/value", shard), quad_out_shard(c, "outputs/attention_output", shard),
                   quad_out_shard(c, "outputs/logsumexp", shard)));
    }
cleanup:
    return status;
}

/* What there is to write of attention; NULL: nobody asks. */
typedef struct attention_results {
    quad *query, *key, *value, *attn_out, *lse, *out;
} attention_results;

/* Of one shard's microbatch, whose input is normalised. */
static assay_status mla_rows(quad_call *c, int64_t shard, int64_t i, const quad *x, const quad *angles,
                             const attention_results *r)
{
    assay_status status = ASSAY_OK;
    const assay_mla_config *m = c->mla;
    const int64_t tokens = c->s.tokens, heads = m->heads, width = m->qk_nope_head_dim + m->rope.dim;
    quad *query = NULL;
    TRY(quad_alloc(c->ctx, tokens * heads * (2 * width + m->v_head_dim), &query));
    quad *key = query + tokens * heads * width, *value = key + tokens * heads * width;
    make_query(c, shard, x, angles, query);
    make_key_value(c, shard, x, angles, key, value);
    if (r->query != NULL) memcpy(r->query, query, (size_t)(tokens * heads * width) * sizeof *query);
    if (r->key != NULL) memcpy(r->key, key, (size_t)(tokens * heads * width) * sizeof *query);
    if (r->value != NULL) memcpy(r->value, value, (size_t)(tokens * heads * m->v_head_dim) * sizeof *query);
    if (r->out == NULL) goto cleanup;
    TRY(attend(c, query, key, value, r->attn_out, r->lse));
    quad_add_offset(c, "attn_out", shard, i, tokens * heads * m->v_head_dim, r->attn_out);
    for (int64_t t = 0; t < tokens; t++) {
        quad_vector_matrix(heads * m->v_head_dim, m->emb_dim, r->attn_out + t * heads * m->v_head_dim,
                           quad_in_shard(c, "weights/out_weights", shard), m->emb_dim, r->out + t * m->emb_dim);
    }
cleanup:
    free(query);
    return status;
}

/* Those of a microbatch that the function has, whose `out` it calls so. */
static attention_results results_of(const quad_call *c, const char *out, int64_t shard, int64_t i, int64_t parts)
{
    attention_results r = {0};
    const struct {
        const char *path;
        quad **values;
    } all[] = {{"outputs/query", &r.query},       {"outputs/key", &r.key}, {"outputs/value", &r.value},
               {"outputs/attn_out", &r.attn_out}, {"outputs/lse", &r.lse}, {out, &r.out}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const quad_tensor *tensor = quad_tensors_find(&c->out, all[k].path);
        if (tensor != NULL) *all[k].values = quad_part_of(c, tensor, shard, i, parts);
    }
    return r;
}

/* And mla_remat, which ends before attention. */
static assay_status mla(quad_call *c)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const attention_results r = results_of(c, "outputs/out", shard, 0, 1);
        TRY(mla_rows(c, shard, 0, quad_in_shard(c, "inputs/inputs", shard),
                     quad_in_shard(c, "inputs/yarn_freqs", shard), &r));
    }
cleanup:
    return status;
}

/* x of microbatch i; r->out becomes x + mla(rms_norm(x)). */
static assay_status normed_mla_rows(quad_call *c, int64_t shard, int64_t i, const quad *x,
                                    const attention_results *r)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * c->mla->emb_dim;
    quad *normed = NULL;
    TRY(quad_alloc(c->ctx, count, &normed));
    quad_normalise(c, "weights/pre_attn_scale", shard, x, normed);
    TRY(mla_rows(c, shard, i, normed, quad_in_part(c, "inputs/yarn_freqs", shard, i, c->factor), r));
    if (r->out == NULL) goto cleanup;
    for (int64_t k = 0; k < count; k++) r->out[k] += x[k];
    quad_add_offset(c, "mla_out", shard, i, count, r->out);
cleanup:
    free(normed);
    return status;
}

static assay_status each_microbatch(quad_call *c, const char *inputs)
{
    assay_status status = ASSAY_OK;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t i = 0; i < c->factor; i++) {
            const attention_results r = results_of(c, "outputs/mla_out", shard, i, c->factor);
            TRY(normed_mla_rows(c, shard, i, quad_in_part(c, inputs, shard, i, c->factor), &r));
        }
    }
cleanup:
    return status;
}

assay_status quad_mla_with_norms(quad_call *c)
{
    return each_microbatch(c, "inputs/inputs");
}

static assay_status mla_with_norms_remat(quad_call *c)
{
    return each_microbatch(c, "inputs/layer_inputs");
}

const quad_named_function quad_mla_functions[] = {
    {"rms_norm", rms_norm},
    {"initialize_yarn_mask", initialize_yarn_mask},
    {"initialize_yarn_freqs", initialize_yarn_freqs},
    {"yarn", yarn},
    {"query_projection", query_projection},
    {"kv_projection", kv_projection},
    {"get_key_value", get_key_value},
    {"tpu_flash_attention", tpu_flash_attention},
    {"mla", mla},
    {"mla_remat", mla},
    {"mla_with_norms", quad_mla_with_norms},
    {"mla_with_norms_remat", mla_with_norms_remat},
    {NULL, NULL},
};
