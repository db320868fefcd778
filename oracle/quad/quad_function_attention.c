/* Norm, rotation and attention. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_function.h"

/* --- norm and rotation --- */

static void rms_norm(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        quad_give(c, "outputs/y", shard, c->s.shards,
                  quad_normed(c, "weights/scale", shard, quad_in(c, "inputs/x", shard, c->mla->emb_dim)));
}

static void initialize_yarn_mask(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim;
    quad *mask;
    quad_give(c, "outputs/mask", 0, 1, quad_constant(c->t, dim, dim, &mask));
    for (int64_t at = 0; mask != NULL && at < dim * dim; at++) {
        const int64_t i = at / dim, j = at % dim, swapped = i % 2 == 0 ? i + 1 : i - 1;
        mask[at] = swapped == j ? (j % 2 == 0 ? -1 : 1) : 0;
    }
}

/* The definition, and the module's divisor of the ramp. */
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

static void initialize_yarn_freqs(quad_call *c)
{
    const assay_rope_config *rope = &c->mla->rope;
    const int32_t *positions = quad_in_indices(c, "inputs/positions");
    const int64_t tokens = c->s.shards * c->s.tokens;
    quad *freqs;
    quad_give(c, "outputs/yarn_freqs", 0, 1, quad_constant(c->t, tokens, rope->dim, &freqs));
    for (int64_t i = 0; freqs != NULL && i < tokens * rope->dim; i++)
        freqs[i] = positions[i / rope->dim] * frequency(rope, i % rope->dim / 2);
}

/* Pairs of neighbours by the angle that both have: y = x cos + (x mask) sin. */
static quad_node rotated(quad_call *c, quad_node x, quad_node angles)
{
    const assay_rope_config pairs = {.dim = c->mla->rope.dim, .interleave = true, .pairwise = true};
    const int64_t count = quad_rows(c->t, angles) * quad_columns(c->t, angles);
    quad *turns = quad_keep(c->t, count, sizeof *turns);
    for (int64_t i = 0; turns != NULL && angles != 0 && i < count; i += 2) {
        turns[i] = cosq(quad_values(c->t, angles)[i]);
        turns[i + 1] = sinq(quad_values(c->t, angles)[i]);
    }
    return quad_rotate(c->t, x, &pairs, turns);
}

static void yarn(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim, heads = c->mla->heads;
    quad_give(c, "outputs/output", 0, 1,
              rotated(c, quad_in_all(c, "inputs/inputs", heads * dim), quad_in_all(c, "inputs/freqs", dim)));
}

/* --- attention of one shard's microbatch --- */

static quad_node make_query(quad_call *c, int64_t shard, quad_node x, quad_node angles)
{
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->q_lora_rank, nope = m->qk_nope_head_dim, rope = m->rope.dim, heads = m->heads;
    const quad_node low = quad_times_weight(c, x, "weights/wq_a_weights", shard, rank);
    const quad_node scale = quad_in(c, "weights/q_norm_scale_weights", shard, rank);
    const quad_node latent = quad_normalise(c->t, low, scale, m->epsilon);
    const quad_node q = quad_times_weight(c, latent, "weights/wq_b_weights", shard, heads * (nope + rope));
    const quad_node turned = rotated(c, quad_of_heads(c->t, q, heads, nope, rope), angles);
    const quad_node query = quad_heads_beside(c->t, quad_of_heads(c->t, q, heads, 0, nope), turned, heads);
    return quad_times(c->t, query, quad_softmax_scale(m));
}

typedef struct key_value {
    quad_node key, value;
} key_value;

/* From the latent and the rotated part that all heads share. */
static key_value key_value_of(quad_call *c, int64_t shard, quad_node latent, quad_node rope)
{
    const assay_mla_config *m = c->mla;
    const int64_t nope = m->qk_nope_head_dim, heads = m->heads, dim = m->rope.dim;
    const quad_node both = quad_times_weight(c, latent, "weights/wkv_b_weights", shard, heads * (nope + m->v_head_dim));
    const quad_node shared = quad_view(c->t, quad_repeat(c->t, rope, heads), heads * dim);
    return (key_value){quad_heads_beside(c->t, quad_of_heads(c->t, both, heads, 0, nope), shared, heads),
                       quad_of_heads(c->t, both, heads, nope, m->v_head_dim)};
}

static key_value make_key_value(quad_call *c, int64_t shard, quad_node x, quad_node angles)
{
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->kv_lora_rank, rope = m->rope.dim;
    const quad_node low = quad_times_weight(c, x, "weights/wkv_a_weights", shard, rank + rope);
    const quad_node scale = quad_in(c, "weights/kv_norm_scale_weights", shard, rank);
    return key_value_of(c, shard, quad_normalise(c->t, quad_columns_of(c->t, low, 0, rank), scale, m->epsilon),
                        rotated(c, quad_columns_of(c->t, low, rank, rope), angles));
}

static quad_node attend(quad_call *c, quad_node query, key_value kv, quad_node *lse)
{
    const assay_mla_config *m = c->mla;
    const assay_attention_config config = {.batch = c->s.rows,
                                           .sequence = m->sequence,
                                           .heads = m->heads,
                                           .qk_dim = m->qk_nope_head_dim + m->rope.dim,
                                           .v_dim = m->v_head_dim,
                                           .window = m->window,
                                           .soft_cap = m->soft_cap};
    return quad_attend(c->t, &config, query, kv.key, kv.value, 0, NULL, lse);
}

static void query_projection(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        quad_give(c, "outputs/query", shard, c->s.shards,
                  make_query(c, shard, quad_in(c, "inputs/inputs_q", shard, c->mla->emb_dim),
                             quad_in(c, "inputs/yarn_freqs", shard, c->mla->rope.dim)));
}

static void give_key_value(quad_call *c, int64_t piece, int64_t pieces, key_value kv)
{
    quad_give(c, "outputs/key", piece, pieces, kv.key);
    quad_give(c, "outputs/value", piece, pieces, kv.value);
}

static void kv_projection(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        give_key_value(c, shard, c->s.shards,
                       make_key_value(c, shard, quad_in(c, "inputs/inputs", shard, c->mla->emb_dim),
                                      quad_in(c, "inputs/yarn_freqs", shard, c->mla->rope.dim)));
}

static void get_key_value(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        give_key_value(c, shard, c->s.shards,
                       key_value_of(c, shard, quad_in(c, "inputs/low_rank_main", shard, c->mla->kv_lora_rank),
                                    quad_in(c, "inputs/key_rope", shard, c->mla->rope.dim)));
}

static void tpu_flash_attention(quad_call *c)
{
    const assay_mla_config *m = c->mla;
    const int64_t width = m->heads * (m->qk_nope_head_dim + m->rope.dim), of_value = m->heads * m->v_head_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const key_value kv = {quad_in(c, "inputs/key", shard, width), quad_in(c, "inputs/value", shard, of_value)};
        quad_node lse;
        const quad_node out = attend(c, quad_in(c, "inputs/query", shard, width), kv, &lse);
        quad_give(c, "outputs/attention_output", shard, c->s.shards, out);
        quad_give(c, "outputs/logsumexp", shard, c->s.shards, lse);
    }
}

/* Of one shard's microbatch, whose input is normalised; piece number `piece` of `pieces`, microbatch i. 0: the function ends before
 * attention. */
static quad_node mla_rows(quad_call *c, int64_t shard, int64_t i, int64_t parts, quad_node x, quad_node angles,
                          bool whole)
{
    const int64_t piece = shard * parts + i, pieces = c->s.shards * parts;
    const quad_node query = make_query(c, shard, x, angles);
    const key_value kv = make_key_value(c, shard, x, angles);
    quad_node lse;
    quad_give(c, "outputs/query", piece, pieces, query);
    give_key_value(c, piece, pieces, kv);
    if (!whole) return 0;
    const quad_node out = quad_at_residual(c, "attn_out", shard, i, attend(c, query, kv, &lse));
    quad_give(c, "outputs/attn_out", piece, pieces, out);
    quad_give(c, "outputs/lse", piece, pieces, lse);
    return quad_times_weight(c, out, "weights/out_weights", shard, c->mla->emb_dim);
}

/* And mla_remat. */
static void mla(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        quad_give(c, "outputs/out", shard, c->s.shards,
                  mla_rows(c, shard, 0, 1, quad_in(c, "inputs/inputs", shard, c->mla->emb_dim),
                           quad_in(c, "inputs/yarn_freqs", shard, c->mla->rope.dim), quad_gives(c, "outputs/out")));
}

/* x + mla(rms_norm(x)) of each microbatch. */
quad_node *quad_attention_half(quad_call *c, const char *inputs)
{
    const bool whole = quad_gives(c, "outputs/mla_out");
    quad_node *all = quad_keep(c->t, c->s.shards * c->factor, sizeof *all);
    for (int64_t piece = 0; all != NULL && piece < c->s.shards * c->factor; piece++) {
        const int64_t shard = piece / c->factor, i = piece % c->factor;
        const quad_node x = quad_in_part(c, inputs, shard, i, c->mla->emb_dim);
        const quad_node angles = quad_in_part(c, "inputs/yarn_freqs", shard, i, c->mla->rope.dim);
        const quad_node normed = quad_normed(c, "weights/pre_attn_scale", shard, x);
        const quad_node y = mla_rows(c, shard, i, c->factor, normed, angles, whole);
        all[piece] = whole ? quad_at_residual(c, "mla_out", shard, i, quad_add(c->t, x, y)) : 0;
        if (whole) quad_give(c, "outputs/mla_out", piece, c->s.shards * c->factor, all[piece]);
    }
    return all;
}

static void mla_with_norms(quad_call *c)
{
    quad_attention_half(c, "inputs/inputs");
}

static void mla_with_norms_remat(quad_call *c)
{
    quad_attention_half(c, "inputs/layer_inputs");
}

const quad_named_function quad_attention_functions[] = {
    {"rms_norm", rms_norm, NULL},
    {"initialize_yarn_mask", initialize_yarn_mask, NULL},
    {"initialize_yarn_freqs", initialize_yarn_freqs, NULL},
    {"yarn", yarn, NULL},
    {"query_projection", query_projection, NULL},
    {"kv_projection", kv_projection, NULL},
    {"get_key_value", get_key_value, NULL},
    {"tpu_flash_attention", tpu_flash_attention, NULL},
    {"mla", mla, NULL},
    {"mla_remat", mla, NULL},
    {"mla_with_norms", mla_with_norms, NULL},
    {"mla_with_norms_remat", mla_with_norms_remat, NULL},
    {NULL, NULL, NULL},
};
