/* The attention half's functions as rows of the table call them: slots to arguments, shard after shard. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/rms_norm.h"

/* --- norm and rotation --- */

static int64_t tokens_of(const bs_call *c)
{
    return c->run.sizes.shards * c->run.sizes.tokens;
}

assay_status bs_call_rms_norm(assay_context *ctx, bs_call *c)
{
    double *rstd = NULL;
    const assay_status status = assay_alloc_f64(ctx, "rstd", tokens_of(c), &rstd);
    if (status != ASSAY_OK) return status;
    assay_rms_norm_forward(ctx, c->out[0].values, rstd, c->in[0].values, c->w.values[BS_PRE_NORM], tokens_of(c),
                           c->run.mla.emb_dim, c->config->stack.epsilon);
    free(rstd);
    return ASSAY_OK;
}

assay_status bs_call_rms_norm_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const int64_t tokens = c->run.sizes.tokens, dim = c->run.mla.emb_dim;
    double *rstd = NULL;
    TRY(assay_alloc_f64(ctx, "rstd", tokens_of(c), &rstd));
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const int64_t first = shard * tokens * dim;
        const double *scale = bs_weight_of(&c->run, &c->w, BS_PRE_NORM, shard);
        assay_rms_norm_forward(ctx, NULL, rstd, c->in[0].values + first, scale, tokens, dim, c->config->stack.epsilon);
        assay_rms_norm_backward(ctx, c->out[0].values + first, bs_weight_of(&c->run, &c->g, BS_PRE_NORM, shard),
                                c->in[1].values + first, c->in[0].values + first, scale, rstd, tokens, dim);
    }
cleanup:
    free(rstd);
    return status;
}

assay_status bs_call_initialize_yarn_mask(assay_context *ctx, bs_call *c)
{
    (void)ctx;
    bs_initialize_yarn_mask(c->out[0].values, c->run.mla.rope.dim);
    return ASSAY_OK;
}

/* Whole turns stay: the module multiplies positions by frequencies. */
assay_status bs_call_initialize_yarn_freqs(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t half = rope->dim / 2, tokens = tokens_of(c);
    double *frequencies = NULL;
    TRY(assay_rope_check_positions(ctx, c->in[0].indices, tokens, rope));
    TRY(assay_alloc_f64(ctx, "frequencies", half, &frequencies));
    assay_rope_frequencies(frequencies, rope);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, frequencies);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < rope->dim; i++)
            c->out[0].values[t * rope->dim + i] = c->in[0].indices[t] * frequencies[i / 2];
    }
cleanup:
    free(frequencies);
    return status;
}

/* Of a pair's two equal angles one: [tokens,Dr/2]. */
static assay_status angles_of(assay_context *ctx, const bs_slot *slot, int64_t microbatch, double **angles)
{
    const double *from = bs_part(slot, microbatch);
    const assay_status status = assay_alloc_f64(ctx, "rotation angles", slot->count / 2, angles);
    for (int64_t i = 0; status == ASSAY_OK && i < slot->count / 2; i++) (*angles)[i] = from[2 * i];
    return status;
}

static assay_status rotate(assay_context *ctx, bs_call *c, const bs_slot *x, const bs_slot *freqs,
                           assay_status (*turn)(assay_context *ctx, const assay_rope_rows *rows,
                                                const double *yarn_freqs, const assay_mla_config *config))
{
    assay_status status;
    assay_mla_config all = c->run.mla;
    const int64_t heads = all.heads, dim = all.rope.dim;
    double *angles = NULL;
    all.batch *= c->run.sizes.shards;
    const assay_rope_rows rows = {.y = c->out[0].values,
                                  .y_token_stride = heads * dim,
                                  .y_head_stride = dim,
                                  .x = x->values,
                                  .x_token_stride = heads * dim,
                                  .x_head_stride = dim,
                                  .heads = heads};
    TRY(angles_of(ctx, freqs, 0, &angles));
    TRY(turn(ctx, &rows, angles, &all));
cleanup:
    free(angles);
    return status;
}

assay_status bs_call_yarn(assay_context *ctx, bs_call *c)
{
    return rotate(ctx, c, &c->in[0], &c->in[1], bs_yarn);
}

assay_status bs_call_yarn_bwd(assay_context *ctx, bs_call *c)
{
    return rotate(ctx, c, &c->in[1], &c->in[0], bs_yarn_bwd);
}

/* --- one shard after the other --- */

/* What a shard's function works with. */
typedef struct shard_call {
    bs_call *c;
    int64_t shard;
    bs_mla_shard at;
    assay_mla_gradients g;
    assay_mla_residuals r; /* its own */
} shard_call;

/* A shard's part of a slot. */
static double *in_of(const shard_call *s, int place)
{
    return s->c->in[place].values + s->shard * (s->c->in[place].count / s->c->run.sizes.shards);
}

static double *out_of(const shard_call *s, int place)
{
    return s->c->out[place].values + s->shard * (s->c->out[place].count / s->c->run.sizes.shards);
}

static void take_out(const shard_call *s, int place, assay_mla_tensor tensor)
{
    const size_t count = (size_t)(s->c->out[place].count / s->c->run.sizes.shards);
    memcpy(out_of(s, place), s->r.values[tensor], count * sizeof(double));
}

/* x is the first argument and angles the second; those that have none do not look. */
static assay_status each_shard(assay_context *ctx, bs_call *c, bool rotates,
                               assay_status (*step)(assay_context *ctx, shard_call *s))
{
    assay_status status = ASSAY_OK;
    double *angles = NULL;
    if (rotates) TRY(angles_of(ctx, &c->in[1], 0, &angles));
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        shard_call s = {.c = c, .shard = shard, .at = {.config = &c->run.mla}};
        s.at.x = in_of(&s, 0);
        if (rotates) s.at.yarn_freqs = angles + shard * c->run.sizes.tokens * (c->run.mla.rope.dim / 2);
        for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
            s.at.w.w[i] = bs_weight_of(&c->run, &c->w, BS_MLA + i, shard);
            s.g.g[i] = bs_weight_of(&c->run, &c->g, BS_MLA + i, shard);
        }
        status = step(ctx, &s);
        assay_mla_residuals_free(&s.r);
        if (status != ASSAY_OK) goto cleanup;
    }
cleanup:
    free(angles);
    return status;
}

static assay_status query_projection(assay_context *ctx, shard_call *s)
{
    const assay_status status = bs_query_projection(ctx, &s->at, &s->r);
    if (status == ASSAY_OK) take_out(s, 0, ASSAY_MLA_QUERY_PROJ);
    return status;
}

static assay_status query_projection_bwd(assay_context *ctx, shard_call *s)
{
    assay_status status;
    s->g.dx = out_of(s, 0);
    TRY(bs_query_projection(ctx, &s->at, &s->r));
    TRY(bs_query_projection_bwd(ctx, &s->at, &s->g, in_of(s, 2), &s->r));
cleanup:
    return status;
}

static assay_status kv_projection(assay_context *ctx, shard_call *s)
{
    const assay_status status = bs_kv_projection(ctx, &s->at, &s->r);
    if (status != ASSAY_OK) return status;
    take_out(s, 0, ASSAY_MLA_KEY_PROJ);
    take_out(s, 1, ASSAY_MLA_VALUE_PROJ);
    return ASSAY_OK;
}

static assay_status kv_projection_bwd(assay_context *ctx, shard_call *s)
{
    assay_status status;
    s->g.dx = out_of(s, 0);
    TRY(bs_kv_projection(ctx, &s->at, &s->r));
    TRY(bs_kv_projection_bwd(ctx, &s->at, &s->g, in_of(s, 2), in_of(s, 3), &s->r));
cleanup:
    return status;
}

/* By a recipe keys and values are one product, [T,Lkv] and [Lkv,N (Dn+Dv)], with one group of all rows. */
typedef struct key_value_product {
    assay_gmm_dims dims;
    int32_t rows;
    double *kv; /* [T,N,Dn+Dv], or its gradient */
    assay_recipe_operands o;
} key_value_product;

static void key_value_close(key_value_product *p)
{
    free(p->kv);
    assay_recipe_operands_free(&p->o);
}

static assay_status key_value_open(assay_context *ctx, const shard_call *s, key_value_product *p)
{
    const assay_mla_config *m = s->at.config;
    const int64_t tokens = s->c->run.sizes.tokens, width = m->heads * (m->qk_nope_head_dim + m->v_head_dim);
    *p = (key_value_product){.dims = {tokens, m->kv_lora_rank, width, 1}, .rows = (int32_t)tokens};
    return assay_alloc_f64(ctx, "keys and values", tokens * width, &p->kv);
}

/* Between kv and what key and value have of it; the rotated part of keys stays. */
static void move_key_value(const shard_call *s, double *kv, double *key, double *value, bool join)
{
    const assay_mla_config *m = s->at.config;
    const int64_t nope = m->qk_nope_head_dim, dim = m->v_head_dim, width = nope + m->rope.dim;
    for (int64_t i = 0; i < s->c->run.sizes.tokens * m->heads; i++) {
        double *of_key = kv + i * (nope + dim), *of_value = of_key + nope;
        memcpy(join ? of_key : key + i * width, join ? key + i * width : of_key, (size_t)nope * sizeof *kv);
        memcpy(join ? of_value : value + i * dim, join ? value + i * dim : of_value, (size_t)dim * sizeof *kv);
    }
}

/* dkv NULL: forward. */
static assay_status quantise_key_value(assay_context *ctx, const shard_call *s, const double *dkv, key_value_product *p)
{
    const assay_recipe_given given = {
        .x = in_of(s, 0), .w = s->at.w.w[ASSAY_MLA_WKV_B], .dy = dkv, .group_sizes = &p->rows};
    return assay_recipe_quantise(ctx, &p->o, &given, &p->dims, &s->c->config->recipe);
}

static assay_status quantised_key_value(assay_context *ctx, shard_call *s)
{
    assay_status status;
    const assay_mla_config *m = s->at.config;
    const int64_t width = m->qk_nope_head_dim + m->rope.dim, heads = m->heads;
    key_value_product p;
    TRY(key_value_open(ctx, s, &p));
    TRY(quantise_key_value(ctx, s, NULL, &p));
    TRY(assay_gmm_forward(ctx, p.kv, p.o.x, p.o.w, &p.rows, &p.dims));
    move_key_value(s, p.kv, out_of(s, 0), out_of(s, 1), false);
    for (int64_t i = 0; i < p.dims.m * heads; i++) {
        memcpy(out_of(s, 0) + i * width + m->qk_nope_head_dim, in_of(s, 1) + i / heads * m->rope.dim,
               (size_t)m->rope.dim * sizeof(double));
    }
cleanup:
    key_value_close(&p);
    return status;
}

static assay_status quantised_key_value_bwd(assay_context *ctx, shard_call *s)
{
    assay_status status;
    key_value_product p;
    TRY(key_value_open(ctx, s, &p));
    move_key_value(s, p.kv, in_of(s, 1), in_of(s, 2), true);
    TRY(quantise_key_value(ctx, s, p.kv, &p));
    TRY(assay_gmm_backward(ctx, out_of(s, 0), NULL, p.o.dx_dy, p.o.dw_x, p.o.dx_w, &p.rows, &p.dims));
    TRY(assay_gmm_backward(ctx, NULL, s->g.g[ASSAY_MLA_WKV_B], p.o.dw_dy, p.o.dw_x, p.o.dx_w, &p.rows, &p.dims));
cleanup:
    key_value_close(&p);
    return status;
}

static assay_status get_key_value(assay_context *ctx, shard_call *s)
{
    if (s->c->config->recipe.recipe != NULL) return quantised_key_value(ctx, s);
    return bs_get_key_value(ctx, out_of(s, 0), out_of(s, 1), in_of(s, 0), in_of(s, 1), s->at.w.w[ASSAY_MLA_WKV_B],
                            s->at.config);
}

static assay_status get_key_value_bwd(assay_context *ctx, shard_call *s)
{
    const mla_key_value_gradients d = {out_of(s, 0), out_of(s, 1), s->g.g[ASSAY_MLA_WKV_B]};
    const assay_status status =
        bs_get_key_value_bwd(ctx, &d, in_of(s, 1), in_of(s, 2), in_of(s, 0), s->at.w.w[ASSAY_MLA_WKV_B], s->at.config);
    if (status != ASSAY_OK || s->c->config->recipe.recipe == NULL) return status;
    return quantised_key_value_bwd(ctx, s); /* the gradient of key_rope has no product, and stays */
}

static assay_status flash_attention(assay_context *ctx, shard_call *s)
{
    const assay_attention_inputs in = {.query = in_of(s, 0), .key = in_of(s, 1), .value = in_of(s, 2)};
    return bs_flash_attention(ctx, out_of(s, 0), out_of(s, 1), &in, s->at.config);
}

static assay_status flash_attention_bwd(assay_context *ctx, shard_call *s)
{
    const assay_attention_inputs in = {.query = in_of(s, 1), .key = in_of(s, 2), .value = in_of(s, 3)};
    const assay_attention_gradients d = {.dquery = out_of(s, 0), .dkey = out_of(s, 1), .dvalue = out_of(s, 2)};
    return bs_flash_attention_bwd(ctx, &d, in_of(s, 0), in_of(s, 4), in_of(s, 5), &in, s->at.config);
}

static assay_status mla(assay_context *ctx, shard_call *s)
{
    return bs_mla(ctx, &s->at, out_of(s, 0), out_of(s, 1), out_of(s, 2));
}

static assay_status mla_remat(assay_context *ctx, shard_call *s)
{
    const assay_status status = bs_mla_remat(ctx, &s->at, &s->r);
    if (status != ASSAY_OK) return status;
    take_out(s, 0, ASSAY_MLA_QUERY_PROJ);
    take_out(s, 1, ASSAY_MLA_KEY_PROJ);
    take_out(s, 2, ASSAY_MLA_VALUE_PROJ);
    return ASSAY_OK;
}

static assay_status mla_bwd(assay_context *ctx, shard_call *s)
{
    assay_status status;
    s->g.dx = out_of(s, 0);
    s->at.attn_out = in_of(s, 2);
    s->at.lse = in_of(s, 3);
    TRY(bs_mla_remat(ctx, &s->at, &s->r));
    TRY(bs_mla_bwd(ctx, &s->at, &s->g, in_of(s, 4), &s->r));
cleanup:
    return status;
}

#define OF_EACH_SHARD(name, rotates, step)                                                                             \
    assay_status bs_call_##name(assay_context *ctx, bs_call *c)                                                        \
    {                                                                                                                  \
        return each_shard(ctx, c, rotates, step);                                                                      \
    }
OF_EACH_SHARD(query_projection, true, query_projection)
OF_EACH_SHARD(query_projection_bwd, true, query_projection_bwd)
OF_EACH_SHARD(kv_projection, true, kv_projection)
OF_EACH_SHARD(kv_projection_bwd, true, kv_projection_bwd)
OF_EACH_SHARD(get_key_value, false, get_key_value)
OF_EACH_SHARD(get_key_value_bwd, false, get_key_value_bwd)
OF_EACH_SHARD(tpu_flash_attention, false, flash_attention)
OF_EACH_SHARD(tpu_flash_attention_bwd, false, flash_attention_bwd)
OF_EACH_SHARD(mla, true, mla)
OF_EACH_SHARD(mla_remat, true, mla_remat)
OF_EACH_SHARD(mla_bwd, true, mla_bwd)

/* --- with norms: a list of microbatches --- */

assay_status bs_take_angles(assay_context *ctx, bs_call *c, const bs_slot *freqs)
{
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < c->run.factor; i++) TRY(angles_of(ctx, freqs, i, &c->run.yarn_freqs[i]));
cleanup:
    return status;
}

assay_status bs_call_mla_with_norms(assay_context *ctx, bs_call *c)
{
    assay_status status;
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    for (int64_t i = 0; i < c->run.factor; i++) {
        TRY(bs_mla_with_norms(ctx, &c->run, i, bs_part(&c->out[0], i), bs_part(&c->out[1], i), bs_part(&c->out[2], i),
                              bs_part(&c->in[0], i), &c->w));
    }
cleanup:
    return status;
}

/* [M,...] of all shards' residuals. */
static void take_all(const bs_call *c, const bs_mla_state *state, int place, int64_t microbatch,
                     assay_mla_tensor tensor)
{
    const int64_t each = c->out[place].count / c->run.sizes.shards;
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        memcpy(bs_part(&c->out[place], microbatch) + shard * each, state->shards[shard].values[tensor],
               (size_t)each * sizeof(double));
    }
}

assay_status bs_call_mla_with_norms_remat(assay_context *ctx, bs_call *c)
{
    assay_status status;
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    for (int64_t i = 0; i < c->run.factor; i++) {
        bs_mla_state state;
        TRY(bs_mla_with_norms_remat(ctx, &c->run, i, &state, bs_part(&c->in[0], i), NULL, NULL, &c->w));
        take_all(c, &state, 0, i, ASSAY_MLA_QUERY_PROJ);
        take_all(c, &state, 1, i, ASSAY_MLA_KEY_PROJ);
        take_all(c, &state, 2, i, ASSAY_MLA_VALUE_PROJ);
        bs_mla_state_free(&state, &c->run);
    }
cleanup:
    return status;
}

assay_status bs_call_mla_with_norms_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    bs_gradient_sums sums = {0};
    bs_mla_state state = {0};
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    TRY(bs_gradient_sums_open(ctx, &c->run, &sums, &c->g, BS_PRE_NORM, BS_POST_NORM));
    for (int64_t i = 0; i < c->run.factor; i++) {
        const double *x = bs_part(&c->in[0], i);
        TRY(bs_mla_with_norms_remat(ctx, &c->run, i, &state, x, bs_part(&c->in[2], i), bs_part(&c->in[3], i), &c->w));
        TRY(bs_mla_with_norms_bwd(ctx, &c->run, i, bs_part(&c->out[0], i), bs_gradients_of(&sums, i),
                                  bs_part(&c->in[4], i), x, &state, &c->w));
        bs_add_gradients(ctx, &c->run, &sums, i);
        bs_mla_state_free(&state, &c->run);
    }
cleanup:
    bs_mla_state_free(&state, &c->run);
    bs_gradient_sums_close(&sums);
    return status;
}
