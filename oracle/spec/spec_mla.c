#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

/* Weights as in mla.h; the intermediates are tensors of `parts`. */
typedef struct mla {
    const assay_mla_config *config;
    int64_t tokens, qk_dim;
    spec_quad softmax_scale;
    const spec_quad *x, *wq_a, *q_norm, *wq_b, *query, *wkv_a, *kv_norm, *wkv_b, *out;
    const int32_t *positions, *segment_ids;
    spec_quad *turns; /* its own */
    spec_quad *row;   /* scratch for the heads of one token; its own */
    spec_quad *query_wa_proj, *mla_q, *kv_wa_proj, *mla_kv, *query_proj, *key_proj, *value_proj, *attention_out, *lse,
        *out_proj;
} mla;

static assay_status read_inputs(assay_context *ctx, const spec_tensors *in, mla *m)
{
    const assay_mla_config *config = m->config;
    assay_status status = ASSAY_OK;
    int64_t d = config->emb_dim, n = config->heads, lq = config->q_lora_rank, lkv = config->kv_lora_rank;
    TRY(spec_read(ctx, in, "inputs/x", m->tokens * d, &m->x));
    TRY(spec_read_indices(ctx, in, "inputs/positions", m->tokens, &m->positions));
    TRY(spec_read_optional_indices(ctx, in, "inputs/segment_ids", m->tokens, &m->segment_ids));
    if (lq > 0) {
        TRY(spec_read(ctx, in, "weights/wq_a/kernel", d * lq, &m->wq_a));
        TRY(spec_read(ctx, in, "weights/q_norm/scale", lq, &m->q_norm));
        TRY(spec_read(ctx, in, "weights/wq_b/kernel", lq * n * m->qk_dim, &m->wq_b));
    } else {
        TRY(spec_read(ctx, in, "weights/query/kernel", d * n * m->qk_dim, &m->query));
    }
    TRY(spec_read(ctx, in, "weights/wkv_a/kernel", d * (lkv + config->rope.dim), &m->wkv_a));
    TRY(spec_read(ctx, in, "weights/kv_norm/scale", lkv, &m->kv_norm));
    TRY(spec_read(ctx, in, "weights/wkv_b/kernel", lkv * n * (config->qk_nope_head_dim + config->v_head_dim),
                  &m->wkv_b));
    TRY(spec_read(ctx, in, "weights/out/kernel", n * config->v_head_dim * d, &m->out));
cleanup:
    return status;
}

static assay_status add_parts(assay_context *ctx, mla *m, spec_tensors *parts)
{
    const assay_mla_config *config = m->config;
    assay_status status = ASSAY_OK;
    int64_t b = config->batch, s = config->sequence, n = config->heads, lq = config->q_lora_rank;
    const struct {
        const char *path;
        spec_quad **values;
        assay_shape shape;
    } table[] = {
        {"checkpoints/query_wa_proj", &m->query_wa_proj, assay_shape_of(3, b, s, lq)},
        {"checkpoints/mla_q", &m->mla_q, assay_shape_of(3, b, s, lq)},
        {"checkpoints/kv_wa_proj", &m->kv_wa_proj, assay_shape_of(3, b, s, config->kv_lora_rank + config->rope.dim)},
        {"checkpoints/mla_kv", &m->mla_kv, assay_shape_of(3, b, s, config->kv_lora_rank)},
        {"checkpoints/query_proj", &m->query_proj, assay_shape_of(4, b, s, n, m->qk_dim)},
        {"checkpoints/key_proj", &m->key_proj, assay_shape_of(4, b, s, n, m->qk_dim)},
        {"checkpoints/value_proj", &m->value_proj, assay_shape_of(4, b, s, n, config->v_head_dim)},
        {"checkpoints/attention_out", &m->attention_out, assay_shape_of(4, b, s, n, config->v_head_dim)},
        {"checkpoints/lse", &m->lse, assay_shape_of(3, b, n, s)},
        {"checkpoints/out_proj", &m->out_proj, assay_shape_of(3, b, s, config->emb_dim)},
    };
    for (size_t i = lq > 0 ? 0 : 2; i < sizeof table / sizeof *table; i++) {
        TRY(spec_tensors_add(ctx, parts, table[i].path, &table[i].shape, table[i].values));
    }
cleanup:
    return status;
}

static spec_quad softmax_scale(const assay_mla_config *config)
{
    spec_quad scale = 1 / sqrtq(config->qk_nope_head_dim + config->rope.dim);
    if (config->rope.max_position_embeddings <= config->rope.original_max_position_embeddings) return scale;
    spec_quad m = logq(config->rope.rope_factor) * config->mscale / 10 + 1;
    return scale * m * m;
}

static void make_query(const mla *m, int64_t t)
{
    const assay_mla_config *config = m->config;
    int64_t d = config->emb_dim, lq = config->q_lora_rank, nope = config->qk_nope_head_dim;
    int64_t width = config->heads * m->qk_dim;
    spec_quad *query = m->query_proj + t * width;
    if (lq > 0) {
        spec_quad *compressed = m->query_wa_proj + t * lq, *normed = m->mla_q + t * lq;
        spec_vector_matrix(d, lq, m->x + t * d, m->wq_a, lq, compressed);
        spec_rms_norm_rows(1, lq, config->epsilon, compressed, lq, m->q_norm, normed);
        spec_vector_matrix(lq, width, normed, m->wq_b, width, m->row);
    } else {
        spec_vector_matrix(d, width, m->x + t * d, m->query, width, m->row);
    }
    for (int64_t head = 0; head < config->heads; head++) {
        const spec_quad *from = m->row + head * m->qk_dim;
        spec_quad *to = query + head * m->qk_dim;
        for (int64_t i = 0; i < nope; i++) to[i] = from[i];
        spec_rotate(&config->rope, m->turns + t * config->rope.dim, from + nope, to + nope);
        for (int64_t i = 0; i < m->qk_dim; i++) to[i] *= m->softmax_scale;
    }
}

static void make_key_and_value(const mla *m, int64_t t)
{
    const assay_mla_config *config = m->config;
    int64_t d = config->emb_dim, lkv = config->kv_lora_rank, rope = config->rope.dim;
    int64_t nope = config->qk_nope_head_dim, v_dim = config->v_head_dim, width = config->heads * (nope + v_dim);
    spec_quad *compressed = m->kv_wa_proj + t * (lkv + rope), *normed = m->mla_kv + t * lkv;
    spec_vector_matrix(d, lkv + rope, m->x + t * d, m->wkv_a, lkv + rope, compressed);
    spec_rms_norm_rows(1, lkv, config->epsilon, compressed, lkv, m->kv_norm, normed);
    spec_vector_matrix(lkv, width, normed, m->wkv_b, width, m->row);
    for (int64_t head = 0; head < config->heads; head++) {
        const spec_quad *from = m->row + head * (nope + v_dim);
        spec_quad *key = m->key_proj + (t * config->heads + head) * m->qk_dim;
        spec_quad *value = m->value_proj + (t * config->heads + head) * v_dim;
        for (int64_t i = 0; i < nope; i++) key[i] = from[i];
        spec_rotate(&config->rope, m->turns + t * rope, compressed + lkv, key + nope);
        for (int64_t i = 0; i < v_dim; i++) value[i] = from[nope + i];
    }
}

static assay_status check(assay_context *ctx, const assay_mla_config *config)
{
    if (config->batch < 1 || config->sequence < 1 || config->emb_dim < 1 || config->heads < 1 ||
        config->qk_nope_head_dim < 1 || config->v_head_dim < 1 || config->q_lora_rank < 0 || config->kv_lora_rank < 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "MLA needs sizes of at least 1, and a q_lora_rank of at least 0");
    }
    return ASSAY_OK;
}

assay_status spec_mla_parts(assay_context *ctx, const assay_mla_config *config, const spec_tensors *in,
                            spec_tensors *parts)
{
    assay_status status = ASSAY_OK;
    int64_t nope = config->qk_nope_head_dim, v_dim = config->v_head_dim, qk_dim = nope + config->rope.dim;
    mla m = {.config = config,
             .tokens = config->batch * config->sequence,
             .qk_dim = qk_dim,
             .softmax_scale = softmax_scale(config)};
    const assay_attention_config attention = {.batch = config->batch,
                                              .sequence = config->sequence,
                                              .heads = config->heads,
                                              .qk_dim = qk_dim,
                                              .v_dim = v_dim,
                                              .mask_padding = config->mask_padding};
    TRY(check(ctx, config));
    TRY(read_inputs(ctx, in, &m));
    TRY(add_parts(ctx, &m, parts));
    TRY(spec_rope_turns(ctx, &config->rope, m.tokens, m.positions, &m.turns));
    TRY(spec_alloc(ctx, config->heads * (qk_dim > nope + v_dim ? qk_dim : nope + v_dim), &m.row));
    for (int64_t t = 0; t < m.tokens; t++) {
        make_query(&m, t);
        make_key_and_value(&m, t);
    }
    TRY(spec_attend(ctx, &(spec_attention_problem){.config = &attention,
                                                   .query = m.query_proj,
                                                   .key = m.key_proj,
                                                   .value = m.value_proj,
                                                   .segment_ids = m.segment_ids,
                                                   .attention_out = m.attention_out,
                                                   .lse = m.lse}));
    int64_t heads = config->heads * v_dim, dim = config->emb_dim;
    for (int64_t t = 0; t < m.tokens; t++) {
        spec_vector_matrix(heads, dim, m.attention_out + t * heads, m.out, dim, m.out_proj + t * dim);
    }
cleanup:
    free(m.turns);
    free(m.row);
    return status;
}

assay_status spec_mla(assay_context *ctx, const assay_mla_config *config, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    spec_tensors parts = {0};
    spec_quad *y = NULL;
    TRY(spec_mla_parts(ctx, config, in, &parts));
    const spec_tensor *result = spec_tensors_find(&parts, "checkpoints/out_proj");
    TRY(spec_tensors_add(ctx, out, "outputs/y", &result->shape, &y));
    for (int64_t i = 0; i < assay_shape_count(&result->shape); i++) y[i] = result->values[i];
cleanup:
    spec_tensors_free(&parts);
    return status;
}

assay_status spec_mla_checkpoints(assay_context *ctx, const assay_mla_config *config, const spec_tensors *in,
                                  spec_tensors *out)
{
    return spec_mla_parts(ctx, config, in, out);
}
