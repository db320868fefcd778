/* MLA by a training recipe, with its gradients, which are no derivatives: of the products as the recipe has them, of norms by
 * central differences, of rotations by those of unit vectors. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_recipe.h"

typedef struct recipe_mla {
    const assay_mla_config *config;
    int64_t tokens, qk, kv, kv_wa; /* Dn+Dr, Dn+Dv, Lkv+Dr */
    const quad *dy, *q_norm, *kv_norm;
    const int32_t *positions, *segment_ids;
    int64_t *group; /* of each row: 0 */
    quad *turns;
    quad_recipe_layer layers[ASSAY_MLA_WEIGHTS];
    const quad *parts[ASSAY_MLA_TENSORS + 1];
    /* gradients: of attention_out, of query, key and value, of latents, of weights */
    quad *attention_out, *query, *key, *value, *mla_q, *mla_kv, *dx, *part, *dw[ASSAY_MLA_WEIGHTS];
    quad *made[ASSAY_MLA_ROWS]; /* those that are checkpoints */
} recipe_mla;

static void release(recipe_mla *m)
{
    quad *const all[] = {m->turns, m->attention_out, m->query, m->key, m->value,
                              m->mla_q, m->mla_kv,        m->dx,    m->part};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        quad_recipe_free(&m->layers[i]);
        free(m->dw[i]);
    }
    free(m->group);
}

static assay_status prepare(assay_context *ctx, const quad_tensors *in, recipe_mla *m)
{
    assay_status status;
    const assay_mla_config *config = m->config;
    const int64_t heads = m->tokens * config->heads, of_x = m->tokens * config->emb_dim;
    const assay_tensor_table table = assay_mla_weight_table(config);
    const quad *w[ASSAY_MLA_WEIGHTS];
    void *group = NULL;
    TRY(quad_read(ctx, in, "cotangents/y", of_x, &m->dy));
    TRY(quad_read_indices(ctx, in, "inputs/positions", m->tokens, &m->positions));
    TRY(quad_read_optional_indices(ctx, in, "inputs/segment_ids", m->tokens, &m->segment_ids));
    TRY(quad_read_weights(ctx, &table, in, 1, w, NULL));
    m->q_norm = w[ASSAY_MLA_Q_NORM];
    m->kv_norm = w[ASSAY_MLA_KV_NORM];
    TRY(assay_alloc(ctx, "groups of rows", m->tokens, sizeof *m->group, &group));
    m->group = memset(group, 0, (size_t)m->tokens * sizeof *m->group);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        m->layers[i] =
            (quad_recipe_layer){.recipe = &config->recipe, .rows = m->tokens, .groups = 1, .group = m->group};
        if (table.rows[i].name != NULL) TRY(quad_alloc(ctx, assay_tensor_row_count(&table.rows[i]), &m->dw[i]));
    }
    TRY(quad_rope_turns(ctx, &config->rope, m->tokens, m->positions, &m->turns));
    TRY(quad_alloc(ctx, heads * config->v_head_dim, &m->attention_out));
    TRY(quad_alloc(ctx, heads * config->v_head_dim, &m->value));
    TRY(quad_alloc(ctx, heads * m->qk, &m->query));
    TRY(quad_alloc(ctx, heads * m->qk, &m->key));
    if (config->q_lora_rank > 0) TRY(quad_alloc(ctx, m->tokens * config->q_lora_rank, &m->mla_q));
    TRY(quad_alloc(ctx, m->tokens * config->kv_lora_rank, &m->mla_kv));
    TRY(quad_alloc(ctx, of_x, &m->dx));
    TRY(quad_alloc(ctx, of_x, &m->part));
cleanup:
    return status;
}

/* checkpoints/ of a row; NULL: there is none. */
static const char *checkpoint(const recipe_mla *m, int row, char path[ASSAY_PATH_SIZE])
{
    const assay_tensor_row tensor = assay_mla_tensor_row(m->config, (assay_mla_tensor)row);
    if (tensor.name == NULL) return NULL;
    assay_tensor_path("checkpoints/", "", &tensor, path);
    return path;
}

static assay_status forward(assay_context *ctx, const quad_tensors *in, recipe_mla *m, quad_tensors *out)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    TRY(quad_mla_parts_by(ctx, m->config, in, m->layers, out));
    for (int row = ASSAY_MLA_LSE + 1; row < ASSAY_MLA_ROWS; row++) {
        const assay_tensor_row tensor = assay_mla_tensor_row(m->config, (assay_mla_tensor)row);
        if (checkpoint(m, row, path) != NULL) TRY(quad_tensors_add(ctx, out, path, &tensor.shape, &m->made[row]));
    }
    for (int row = 0; row <= ASSAY_MLA_LSE; row++)
        if (checkpoint(m, row, path) != NULL) m->parts[row] = quad_tensors_find(out, path)->values;
    const quad_tensor y = *quad_tensors_find(out, "checkpoints/out_proj");
    TRY(quad_put(ctx, out, "outputs/y", &y.shape, y.values));
cleanup:
    return status;
}

static assay_status linear_back(assay_context *ctx, recipe_mla *m, assay_mla_weight weight, const quad *dy,
                                quad *dx)
{
    quad_recipe_layer *layer = &m->layers[weight];
    layer->dy = dy;
    const assay_status status = quad_recipe_take_back(ctx, layer);
    if (status == ASSAY_OK) quad_recipe_backward(layer, dx, m->dw[weight]);
    return status;
}

/* dx is the transposed rotation's of dy. */
static void rotate_back(const recipe_mla *m, int64_t token, const quad *dy, quad *dx)
{
    const int64_t dim = m->config->rope.dim;
    quad unit[ASSAY_ROPE_DIM_MAX] = {0}, turned[ASSAY_ROPE_DIM_MAX];
    for (int64_t i = 0; i < dim; i++) {
        unit[i] = 1;
        quad_rotate(&m->config->rope, m->turns + token * dim, unit, turned);
        unit[i] = 0;
        dx[i] = 0;
        for (int64_t j = 0; j < dim; j++) dx[i] += dy[j] * turned[j];
    }
}

/* <dy, norm(x)> of one row. */
static quad normed_sum(const recipe_mla *m, int64_t dim, const quad *x, const quad *scale,
                            const quad *dy, quad *y)
{
    quad sum = 0;
    quad_rms_norm_rows(1, dim, m->config->epsilon, x, dim, scale, y);
    for (int64_t i = 0; i < dim; i++) sum += y[i] * dy[i];
    return sum;
}

/* The norm of the first `dim` numbers of x's and dx's rows, which are `ld` apart, by central differences. */
static assay_status norm_back(assay_context *ctx, const recipe_mla *m, int64_t dim, const quad *x, int64_t ld,
                              const quad *scale, const quad *dy, quad *dx, quad *dscale)
{
    assay_status status;
    quad *row = NULL, *y = NULL, *ones = NULL;
    TRY(quad_alloc(ctx, dim, &row));
    TRY(quad_alloc(ctx, dim, &y));
    TRY(quad_alloc(ctx, dim, &ones));
    for (int64_t i = 0; i < dim; i++) {
        ones[i] = 1;
        dscale[i] = 0;
    }
    for (int64_t t = 0; t < m->tokens; t++) {
        memcpy(row, x + t * ld, (size_t)dim * sizeof *row);
        quad_rms_norm_rows(1, dim, m->config->epsilon, row, dim, ones, y);
        for (int64_t i = 0; i < dim; i++) dscale[i] += dy[t * dim + i] * y[i];
        for (int64_t i = 0; i < dim; i++) {
            const quad at = row[i], step = ldexpq(fmaxq(1, fabsq(at)), -36);
            row[i] = at + step;
            const quad above = normed_sum(m, dim, row, scale, dy + t * dim, y);
            row[i] = at - step;
            dx[t * ld + i] = (above - normed_sum(m, dim, row, scale, dy + t * dim, y)) / (2 * step);
            row[i] = at;
        }
    }
cleanup:
    free(row);
    free(y);
    free(ones);
    return status;
}

static void attention_back(recipe_mla *m)
{
    const assay_attention_config config = quad_mla_attention(m->config);
    const quad_attention_gradients d = {m->attention_out, m->query, m->key, m->value};
    const quad_attention_problem problem = {.config = &config,
                                            .query = m->parts[ASSAY_MLA_QUERY_PROJ],
                                            .key = m->parts[ASSAY_MLA_KEY_PROJ],
                                            .value = m->parts[ASSAY_MLA_VALUE_PROJ],
                                            .segment_ids = m->segment_ids,
                                            .attention_out = (quad *)m->parts[ASSAY_MLA_ATTENTION_OUT],
                                            .lse = (quad *)m->parts[ASSAY_MLA_LSE]};
    quad_attend_back(&problem, &d);
}

static assay_status query_back(assay_context *ctx, recipe_mla *m)
{
    assay_status status;
    const assay_mla_config *config = m->config;
    const int64_t nope = config->qk_nope_head_dim, rank = config->q_lora_rank;
    const quad scale = quad_mla_softmax_scale(config);
    quad *dq = m->made[ASSAY_MLA_Q_GRADIENT], *wa = m->made[ASSAY_MLA_QUERY_WA_GRADIENT];
    for (int64_t row = 0; row < m->tokens * config->heads; row++) {
        const quad *from = m->query + row * m->qk;
        memcpy(dq + row * m->qk, from, (size_t)nope * sizeof *dq);
        rotate_back(m, row / config->heads, from + nope, dq + row * m->qk + nope);
        for (int64_t i = 0; i < m->qk; i++) dq[row * m->qk + i] *= scale;
    }
    if (rank == 0) return linear_back(ctx, m, ASSAY_MLA_QUERY, dq, m->dx);
    TRY(linear_back(ctx, m, ASSAY_MLA_WQ_B, dq, m->mla_q));
    TRY(norm_back(ctx, m, rank, m->parts[ASSAY_MLA_QUERY_WA_PROJ], rank, m->q_norm, m->mla_q, wa,
                  m->dw[ASSAY_MLA_Q_NORM]));
    TRY(linear_back(ctx, m, ASSAY_MLA_WQ_A, wa, m->dx));
cleanup:
    return status;
}

static assay_status key_value_back(assay_context *ctx, recipe_mla *m)
{
    assay_status status;
    const assay_mla_config *config = m->config;
    const int64_t nope = config->qk_nope_head_dim, value = config->v_head_dim, rope = config->rope.dim;
    const int64_t rank = config->kv_lora_rank, heads = config->heads;
    quad *d_kv = m->made[ASSAY_MLA_KV_GRADIENT], *wa = m->made[ASSAY_MLA_KV_WA_GRADIENT];
    for (int64_t row = 0; row < m->tokens * heads; row++) {
        memcpy(d_kv + row * m->kv, m->key + row * m->qk, (size_t)nope * sizeof *d_kv);
        memcpy(d_kv + row * m->kv + nope, m->value + row * value, (size_t)value * sizeof *d_kv);
    }
    TRY(linear_back(ctx, m, ASSAY_MLA_WKV_B, d_kv, m->mla_kv));
    TRY(norm_back(ctx, m, rank, m->parts[ASSAY_MLA_KV_WA_PROJ], m->kv_wa, m->kv_norm, m->mla_kv, wa,
                  m->dw[ASSAY_MLA_KV_NORM]));
    for (int64_t t = 0; t < m->tokens; t++) {
        quad sum[ASSAY_ROPE_DIM_MAX] = {0};
        for (int64_t i = 0; i < heads * rope; i++)
            sum[i % rope] += m->key[(t * heads + i / rope) * m->qk + nope + i % rope];
        rotate_back(m, t, sum, wa + t * m->kv_wa + rank);
    }
    TRY(linear_back(ctx, m, ASSAY_MLA_WKV_A, wa, m->part));
    for (int64_t i = 0; i < m->tokens * config->emb_dim; i++) m->dx[i] += m->part[i];
cleanup:
    return status;
}

static assay_status put_gradients(assay_context *ctx, const quad_tensors *in, const recipe_mla *m, quad_tensors *out)
{
    assay_status status;
    const assay_tensor_table table = assay_mla_weight_table(m->config);
    TRY(quad_put(ctx, out, "gradients/inputs/x", &quad_tensors_find(in, "inputs/x")->shape, m->dx));
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        char path[ASSAY_PATH_SIZE];
        if (table.rows[i].name == NULL) continue;
        assay_tensor_path("gradients/weights/", "", &table.rows[i], path);
        TRY(quad_put(ctx, out, path, &table.rows[i].shape, m->dw[i]));
    }
cleanup:
    return status;
}

assay_status quad_quantised_mla(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                                quad_tensors *out)
{
    assay_status status;
    recipe_mla m = {.config = config,
                    .tokens = config->batch * config->sequence,
                    .qk = config->qk_nope_head_dim + config->rope.dim,
                    .kv = config->qk_nope_head_dim + config->v_head_dim,
                    .kv_wa = config->kv_lora_rank + config->rope.dim};
    TRY(prepare(ctx, in, &m));
    TRY(forward(ctx, in, &m, out));
    TRY(linear_back(ctx, &m, ASSAY_MLA_OUT, m.dy, m.attention_out));
    attention_back(&m);
    TRY(query_back(ctx, &m));
    TRY(key_value_back(ctx, &m));
    TRY(put_gradients(ctx, in, &m, out));
cleanup:
    release(&m);
    return status;
}
