#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

/* Weights as in mla.h; the intermediates are tensors of `parts`. */
typedef struct mla {
    const assay_mla_config *config;
    int64_t tokens, qk_dim;
    spec_quad softmax_scale;
    const spec_quad *x, *w[ASSAY_MLA_WEIGHTS];
    const int32_t *positions, *segment_ids;
    spec_quad *turns;                        /* its own */
    spec_quad *row;                          /* scratch for the heads of one token; its own */
    spec_quad *parts[ASSAY_MLA_TENSORS + 1]; /* with lse */
} mla;

static assay_status read_inputs(assay_context *ctx, const spec_tensors *in, mla *m)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_table weights = assay_mla_weight_table(m->config);
    TRY(spec_read(ctx, in, "inputs/x", m->tokens * m->config->emb_dim, &m->x));
    TRY(spec_read_indices(ctx, in, "inputs/positions", m->tokens, &m->positions));
    TRY(spec_read_optional_indices(ctx, in, "inputs/segment_ids", m->tokens, &m->segment_ids));
    TRY(spec_read_weights(ctx, &weights, in, 1, m->w));
cleanup:
    return status;
}

static assay_status add_parts(assay_context *ctx, mla *m, spec_tensors *parts)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_MLA_TENSORS; i++) {
        const assay_tensor_row row = assay_mla_tensor_row(m->config, (assay_mla_tensor)i);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        assay_tensor_path("checkpoints/", "", &row, path);
        TRY(spec_tensors_add(ctx, parts, path, &row.shape, &m->parts[i]));
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
    spec_quad *query = m->parts[ASSAY_MLA_QUERY_PROJ] + t * width;
    if (lq > 0) {
        spec_quad *compressed = m->parts[ASSAY_MLA_QUERY_WA_PROJ] + t * lq,
                  *normed = m->parts[ASSAY_MLA_MLA_Q] + t * lq;
        spec_vector_matrix(d, lq, m->x + t * d, m->w[ASSAY_MLA_WQ_A], lq, compressed);
        spec_rms_norm_rows(1, lq, config->epsilon, compressed, lq, m->w[ASSAY_MLA_Q_NORM], normed);
        spec_vector_matrix(lq, width, normed, m->w[ASSAY_MLA_WQ_B], width, m->row);
    } else {
        spec_vector_matrix(d, width, m->x + t * d, m->w[ASSAY_MLA_QUERY], width, m->row);
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
    spec_quad *compressed = m->parts[ASSAY_MLA_KV_WA_PROJ] + t * (lkv + rope),
              *normed = m->parts[ASSAY_MLA_MLA_KV] + t * lkv;
    spec_vector_matrix(d, lkv + rope, m->x + t * d, m->w[ASSAY_MLA_WKV_A], lkv + rope, compressed);
    spec_rms_norm_rows(1, lkv, config->epsilon, compressed, lkv, m->w[ASSAY_MLA_KV_NORM], normed);
    spec_vector_matrix(lkv, width, normed, m->w[ASSAY_MLA_WKV_B], width, m->row);
    for (int64_t head = 0; head < config->heads; head++) {
        const spec_quad *from = m->row + head * (nope + v_dim);
        spec_quad *key = m->parts[ASSAY_MLA_KEY_PROJ] + (t * config->heads + head) * m->qk_dim;
        spec_quad *value = m->parts[ASSAY_MLA_VALUE_PROJ] + (t * config->heads + head) * v_dim;
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
                                                   .query = m.parts[ASSAY_MLA_QUERY_PROJ],
                                                   .key = m.parts[ASSAY_MLA_KEY_PROJ],
                                                   .value = m.parts[ASSAY_MLA_VALUE_PROJ],
                                                   .segment_ids = m.segment_ids,
                                                   .attention_out = m.parts[ASSAY_MLA_ATTENTION_OUT],
                                                   .lse = m.parts[ASSAY_MLA_LSE]}));
    int64_t heads = config->heads * v_dim, dim = config->emb_dim;
    for (int64_t t = 0; t < m.tokens; t++) {
        spec_vector_matrix(heads, dim, m.parts[ASSAY_MLA_ATTENTION_OUT] + t * heads, m.w[ASSAY_MLA_OUT], dim,
                           m.parts[ASSAY_MLA_OUT_PROJ] + t * dim);
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
