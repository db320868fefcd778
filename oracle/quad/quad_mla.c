#include <quadmath.h>

#include "oracle/quad/quad_product.h"
#include "oracle/quad/quad_recipe.h"

/* Weights as in mla.h; the intermediates are tensors of `parts`. */
typedef struct mla {
    const assay_mla_config *config;
    int64_t tokens, qk_dim;
    quad softmax_scale;
    const quad *x, *w[ASSAY_MLA_WEIGHTS];
    const int32_t *positions, *segment_ids;
    quad *turns;                        /* its own */
    quad *heads;                        /* scratch: the heads of all tokens, [B,S,N,..]; its own */
    quad *parts[ASSAY_MLA_TENSORS + 1]; /* with lse */
    quad_recipe_layer *layers;               /* by a recipe of each weight; else NULL */
} mla;

static assay_status read_inputs(assay_context *ctx, const quad_tensors *in, mla *m)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_table weights = assay_mla_weight_table(m->config);
    TRY(quad_read(ctx, in, "inputs/x", m->tokens * m->config->emb_dim, &m->x));
    TRY(quad_read_indices(ctx, in, "inputs/positions", m->tokens, &m->positions));
    TRY(quad_read_optional_indices(ctx, in, "inputs/segment_ids", m->tokens, &m->segment_ids));
    TRY(quad_read_weights(ctx, &weights, in, 1, m->w, NULL));
cleanup:
    return status;
}

static assay_status add_parts(assay_context *ctx, mla *m, quad_tensors *parts)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_MLA_TENSORS; i++) {
        const assay_tensor_row row = assay_mla_tensor_row(m->config, (assay_mla_tensor)i);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        assay_tensor_path("checkpoints/", "", &row, path);
        TRY(quad_tensors_add(ctx, parts, path, &row.shape, &m->parts[i]));
    }
cleanup:
    return status;
}

assay_attention_config quad_mla_attention(const assay_mla_config *config)
{
    return (assay_attention_config){.batch = config->batch,
                                    .sequence = config->sequence,
                                    .heads = config->heads,
                                    .qk_dim = config->qk_nope_head_dim + config->rope.dim,
                                    .v_dim = config->v_head_dim,
                                    .mask_padding = config->mask_padding};
}

quad quad_mla_softmax_scale(const assay_mla_config *config)
{
    quad scale = 1 / sqrtq(config->qk_nope_head_dim + config->rope.dim);
    if (config->rope.max_position_embeddings <= config->rope.original_max_position_embeddings) return scale;
    quad m = logq(config->rope.rope_factor) * config->mscale / 10 + 1;
    return scale * m * m;
}

/* y [T,n] of x [T,k]. */
static assay_status project(assay_context *ctx, const mla *m, const quad *x, assay_mla_weight weight, int64_t k,
                            int64_t n, quad *y)
{
    const quad_product product = quad_product_xw(y, x, m->w[weight], m->tokens, n, k);
    if (m->layers == NULL) return quad_multiply(ctx, &product);
    quad_recipe_layer *layer = &m->layers[weight];
    layer->x = x;
    layer->w = m->w[weight];
    layer->k = k;
    layer->n = n;
    const assay_status status = quad_recipe_take(ctx, layer);
    if (status == ASSAY_OK) quad_recipe_forward(layer, y);
    return status;
}

static assay_status make_query(assay_context *ctx, const mla *m)
{
    assay_status status;
    const assay_mla_config *config = m->config;
    const int64_t d = config->emb_dim, lq = config->q_lora_rank, nope = config->qk_nope_head_dim;
    const int64_t heads = config->heads, width = heads * m->qk_dim;
    if (lq > 0) {
        quad *compressed = m->parts[ASSAY_MLA_QUERY_WA_PROJ], *normed = m->parts[ASSAY_MLA_MLA_Q];
        TRY(project(ctx, m, m->x, ASSAY_MLA_WQ_A, d, lq, compressed));
        quad_rms_norm_rows(m->tokens, lq, config->epsilon, compressed, lq, m->w[ASSAY_MLA_Q_NORM], normed);
        TRY(project(ctx, m, normed, ASSAY_MLA_WQ_B, lq, width, m->heads));
    } else {
        TRY(project(ctx, m, m->x, ASSAY_MLA_QUERY, d, width, m->heads));
    }
    for (int64_t i = 0; i < m->tokens * heads; i++) {
        const quad *from = m->heads + i * m->qk_dim;
        quad *to = m->parts[ASSAY_MLA_QUERY_PROJ] + i * m->qk_dim;
        for (int64_t j = 0; j < nope; j++) to[j] = from[j];
        quad_rotate(&config->rope, m->turns + i / heads * config->rope.dim, from + nope, to + nope);
        for (int64_t j = 0; j < m->qk_dim; j++) to[j] *= m->softmax_scale;
    }
cleanup:
    return status;
}

static assay_status make_key_and_value(assay_context *ctx, const mla *m)
{
    assay_status status;
    const assay_mla_config *config = m->config;
    const int64_t d = config->emb_dim, lkv = config->kv_lora_rank, rope = config->rope.dim, heads = config->heads;
    const int64_t nope = config->qk_nope_head_dim, v_dim = config->v_head_dim, width = heads * (nope + v_dim);
    quad *compressed = m->parts[ASSAY_MLA_KV_WA_PROJ], *normed = m->parts[ASSAY_MLA_MLA_KV];
    TRY(project(ctx, m, m->x, ASSAY_MLA_WKV_A, d, lkv + rope, compressed));
    quad_rms_norm_rows(m->tokens, lkv, config->epsilon, compressed, lkv + rope, m->w[ASSAY_MLA_KV_NORM], normed);
    TRY(project(ctx, m, normed, ASSAY_MLA_WKV_B, lkv, width, m->heads));
    for (int64_t i = 0; i < m->tokens * heads; i++) {
        const int64_t t = i / heads;
        const quad *from = m->heads + i * (nope + v_dim);
        quad *key = m->parts[ASSAY_MLA_KEY_PROJ] + i * m->qk_dim;
        quad *value = m->parts[ASSAY_MLA_VALUE_PROJ] + i * v_dim;
        for (int64_t j = 0; j < nope; j++) key[j] = from[j];
        quad_rotate(&config->rope, m->turns + t * rope, compressed + t * (lkv + rope) + lkv, key + nope);
        for (int64_t j = 0; j < v_dim; j++) value[j] = from[nope + j];
    }
cleanup:
    return status;
}

static assay_status check(assay_context *ctx, const assay_mla_config *config)
{
    if (config->batch < 1 || config->sequence < 1 || config->emb_dim < 1 || config->heads < 1 ||
        config->qk_nope_head_dim < 1 || config->v_head_dim < 1 || config->q_lora_rank < 0 || config->kv_lora_rank < 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "MLA needs sizes of at least 1, and a q_lora_rank of at least 0");
    }
    return ASSAY_OK;
}

assay_status quad_mla_parts_by(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                               quad_recipe_layer *layers, quad_tensors *parts)
{
    assay_status status = ASSAY_OK;
    int64_t nope = config->qk_nope_head_dim, v_dim = config->v_head_dim, qk_dim = nope + config->rope.dim;
    mla m = {.config = config,
             .tokens = config->batch * config->sequence,
             .qk_dim = qk_dim,
             .softmax_scale = quad_mla_softmax_scale(config),
             .layers = layers};
    const assay_attention_config attention = quad_mla_attention(config);
    TRY(check(ctx, config));
    TRY(read_inputs(ctx, in, &m));
    TRY(add_parts(ctx, &m, parts));
    TRY(quad_rope_turns(ctx, &config->rope, m.tokens, m.positions, &m.turns));
    TRY(quad_alloc(ctx, m.tokens * config->heads * (qk_dim > nope + v_dim ? qk_dim : nope + v_dim), &m.heads));
    TRY(make_query(ctx, &m));
    TRY(make_key_and_value(ctx, &m));
    TRY(quad_attend(ctx, &(quad_attention_problem){.config = &attention,
                                                   .query = m.parts[ASSAY_MLA_QUERY_PROJ],
                                                   .key = m.parts[ASSAY_MLA_KEY_PROJ],
                                                   .value = m.parts[ASSAY_MLA_VALUE_PROJ],
                                                   .segment_ids = m.segment_ids,
                                                   .attention_out = m.parts[ASSAY_MLA_ATTENTION_OUT],
                                                   .lse = m.parts[ASSAY_MLA_LSE]}));
    TRY(project(ctx, &m, m.parts[ASSAY_MLA_ATTENTION_OUT], ASSAY_MLA_OUT, config->heads * v_dim, config->emb_dim,
                m.parts[ASSAY_MLA_OUT_PROJ]));
cleanup:
    free(m.turns);
    free(m.heads);
    return status;
}

assay_status quad_mla_parts(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                            quad_tensors *parts)
{
    return quad_mla_parts_by(ctx, config, in, NULL, parts);
}

assay_status quad_mla(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    quad_tensors parts = {0};
    quad *y = NULL;
    TRY(quad_mla_parts(ctx, config, in, &parts));
    const quad_tensor *result = quad_tensors_find(&parts, "checkpoints/out_proj");
    TRY(quad_tensors_add(ctx, out, "outputs/y", &result->shape, &y));
    for (int64_t i = 0; i < assay_shape_count(&result->shape); i++) y[i] = result->values[i];
cleanup:
    quad_tensors_free(&parts);
    return status;
}

assay_status quad_mla_checkpoints(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                                  quad_tensors *out)
{
    return quad_mla_parts(ctx, config, in, out);
}
