/* Multi-head latent attention: queries, keys and values from low-rank latents, one rotated key for all heads. */
#include "example.h"

#include <math.h>
#include <string.h>

typedef struct mla {
    int64_t emb, heads, nope, v_dim, rope_dim, q_rank, kv_rank;
    float scale; /* of the softmax */
    norm q_norm, kv_norm;
    rope rope;
    attention attention;
    const float *wq_a, *wq_b, *wkv_a, *wkv_b, *out; /* wq_b stands for query where q_rank is 0 */
    float *x, *q_a, *q_n, *kv_a, *c_kv;             /* [T,D], [T,Lq] twice, [T,Lkv+Dr], [T,Lkv] */
} mla;

static float softmax_scale(const example *e, const mla *m)
{
    const assay_backend_request *request = e->request;
    const float magnitude = yarn_magnitude(request, number(request, "mscale"));
    const bool stretched =
        number(request, "max_position_embeddings") > number(request, "original_max_position_embeddings");
    float scale = 1 / sqrtf((float)(m->nope + m->rope_dim));
    if (number(request, "query_pre_attn_scalar") != 0) return (float)number(request, "query_pre_attn_scalar");
    if (e->bug == SCALE_FROM_HIDDEN) scale = 1 / sqrtf((float)(m->emb / m->heads));
    return stretched && e->bug != MSCALE_MISSING ? scale * magnitude * magnitude : scale;
}

static void set_up(example *e, mla *m)
{
    const assay_backend_request *request = e->request;
    const float epsilon = e->bug == LATENT_EPSILON ? 1e-5F : (float)number(request, "latent_norm_epsilon");
    const assay_backend_tensor *out = tensor(request, "weights/out/kernel");
    const assay_backend_tensor *wq_a = tensor(request, "weights/wq_a/kernel");
    m->heads = out->dims[0], m->v_dim = out->dims[1], m->emb = out->dims[2];
    m->nope = (int64_t)number(request, "qk_nope_head_dim"), m->rope_dim = (int64_t)number(request, "qk_rope_head_dim");
    m->q_rank = wq_a == NULL ? 0 : wq_a->dims[1], m->kv_rank = (int64_t)number(request, "kv_lora_rank");
    m->scale = softmax_scale(e, m);
    m->wq_a = whole(e, "weights/wq_a/kernel"), m->wkv_a = whole(e, "weights/wkv_a/kernel");
    m->wq_b = whole(e, m->q_rank > 0 ? "weights/wq_b/kernel" : "weights/query/kernel");
    m->wkv_b = whole(e, "weights/wkv_b/kernel"), m->out = whole(e, "weights/out/kernel");
    m->q_norm = (norm){e->tokens, m->q_rank, m->q_rank, epsilon, NULL, whole(e, "weights/q_norm/scale")};
    m->kv_norm =
        (norm){e->tokens, m->kv_rank, m->kv_rank + m->rope_dim, epsilon, NULL, whole(e, "weights/kv_norm/scale")};
    rope_set_up(e, &m->rope, m->rope_dim);
}

static void query_forward(example *e, mla *m)
{
    const int64_t T = e->tokens, N = m->heads, dim = m->nope + m->rope_dim, in = m->q_rank > 0 ? m->q_rank : m->emb;
    float *query = m->attention.query;
    if (m->q_rank > 0) {
        linear(m->q_a, m->x, m->wq_a, T, m->emb, m->q_rank);
        m->q_norm.x = m->q_a;
        norm_forward(m->q_n, &m->q_norm);
    }
    linear(query, m->q_n, m->wq_b, T, in, N * dim);
    float *turned = take(&e->memory, m->rope_dim);
    for (int64_t i = 0; i < T * N; i++) {
        float *pe = query + i * dim + m->nope;
        rope_rotate(turned, pe, &m->rope, i / N, false);
        memcpy(pe, turned, (size_t)m->rope_dim * sizeof *pe);
    }
    for (int64_t i = 0; i < T * N * dim; i++) query[i] *= m->scale;
    round_bf16(query, T * N * dim);
}

static void key_value_forward(example *e, mla *m)
{
    const int64_t T = e->tokens, N = m->heads, latent = m->kv_rank + m->rope_dim, both = m->nope + m->v_dim;
    float *turned = take(&e->memory, m->rope_dim), *kv = take(&e->memory, T * N * both);
    linear(m->kv_a, m->x, m->wkv_a, T, m->emb, latent);
    m->kv_norm.x = m->kv_a;
    norm_forward(m->c_kv, &m->kv_norm);
    for (int64_t t = 0; t < T && e->bug == KV_NORM_OMITTED; t++)
        memcpy(m->c_kv + t * m->kv_rank, m->kv_a + t * latent, (size_t)m->kv_rank * sizeof(float));
    linear(kv, m->c_kv, m->wkv_b, T, m->kv_rank, N * both);
    for (int64_t i = 0; i < T * N; i++) {
        float *key = m->attention.key + i * (m->nope + m->rope_dim);
        memcpy(key, kv + i * both, (size_t)m->nope * sizeof *key);
        memcpy(m->attention.value + i * m->v_dim, kv + i * both + m->nope, (size_t)m->v_dim * sizeof *key);
        rope_rotate(turned, m->kv_a + i / N * latent + m->kv_rank, &m->rope, i / N, false);
        memcpy(key + m->nope, turned, (size_t)m->rope_dim * sizeof *key);
        round_bf16(key + m->nope, m->rope_dim);
    }
}

static void store_checkpoints(const example *e, const mla *m, const float *y)
{
    const int64_t T = e->tokens, rows = T * m->heads, dim = m->nope + m->rope_dim;
    store(e, "checkpoints/query_wa_proj", true, m->q_a, T * m->q_rank);
    store(e, "checkpoints/mla_q", true, m->q_n, T * m->q_rank);
    store(e, "checkpoints/kv_wa_proj", true, m->kv_a, T * (m->kv_rank + m->rope_dim));
    store(e, "checkpoints/mla_kv", true, m->c_kv, T * m->kv_rank);
    store(e, "checkpoints/out_proj", true, y, T * m->emb);
    store(e, "checkpoints/query_proj", true, m->attention.query, rows * dim);
    store(e, "checkpoints/key_proj", true, m->attention.key, rows * dim);
    store(e, "checkpoints/value_proj", true, m->attention.value, rows * m->v_dim);
    store(e, "checkpoints/attention_out", true, m->attention.out, rows * m->v_dim);
    store(e, "checkpoints/lse", false, m->attention.lse, rows);
}

static void forward(example *e, mla *m, float *y)
{
    const assay_backend_tensor *segment_ids = tensor(e->request, "inputs/segment_ids");
    set_up(e, m);
    const int64_t T = e->tokens, N = m->heads, dim = m->nope + m->rope_dim;
    m->q_a = take(&e->memory, T * m->q_rank), m->q_n = m->q_rank > 0 ? take(&e->memory, T * m->q_rank) : m->x;
    m->kv_a = take(&e->memory, T * (m->kv_rank + m->rope_dim)), m->c_kv = take(&e->memory, T * m->kv_rank);
    m->attention =
        (attention){.batch = e->batch, .sequence = e->sequence, .heads = N, .qk_dim = dim, .v_dim = m->v_dim};
    m->attention.mask_padding = is(e->request, "mask_padding", "true");
    m->attention.segment_ids = segment_ids == NULL ? NULL : segment_ids->data;
    m->attention.query = take(&e->memory, T * N * dim), m->attention.key = take(&e->memory, T * N * dim);
    m->attention.value = take(&e->memory, T * N * m->v_dim), m->attention.out = take(&e->memory, T * N * m->v_dim);
    m->attention.lse = take(&e->memory, T * N);
    query_forward(e, m);
    key_value_forward(e, m);
    attention_forward(e, &m->attention);
    linear(y, m->attention.out, m->out, T, N * m->v_dim, m->emb);
    store_checkpoints(e, m, y);
}

/* d_query becomes what comes from the product with wq_b; then to d_x [T,D]. */
static void query_backward(example *e, mla *m, float *d_x, float *d_query)
{
    const int64_t T = e->tokens, N = m->heads, dim = m->nope + m->rope_dim;
    float *turned = take(&e->memory, m->rope_dim), *d_latent = take(&e->memory, T * m->q_rank);
    for (int64_t i = 0; i < T * N * dim; i++) d_query[i] *= m->scale;
    for (int64_t i = 0; i < T * N; i++) {
        float *pe = d_query + i * dim + m->nope;
        rope_rotate(turned, pe, &m->rope, i / N, true);
        memcpy(pe, turned, (size_t)m->rope_dim * sizeof *pe);
    }
    round_bf16(d_query, T * N * dim);
    if (m->q_rank == 0) {
        linear_backward(d_x, gradient(e, "weights/query/kernel", 0), d_query, m->x, m->wq_b, T, m->emb, N * dim);
        return;
    }
    linear_backward(d_latent, gradient(e, "weights/wq_b/kernel", 0), d_query, m->q_n, m->wq_b, T, m->q_rank, N * dim);
    float *d_q_a = take(&e->memory, T * m->q_rank);
    norm_backward(d_q_a, gradient(e, "weights/q_norm/scale", 0), d_latent, &m->q_norm);
    linear_backward(d_x, gradient(e, "weights/wq_a/kernel", 0), d_q_a, m->x, m->wq_a, T, m->emb, m->q_rank);
}

static void key_value_backward(example *e, mla *m, float *d_x, const float *d_key, const float *d_value)
{
    const int64_t T = e->tokens, N = m->heads, latent = m->kv_rank + m->rope_dim, both = m->nope + m->v_dim;
    float *d_kv = take(&e->memory, T * N * both), *d_latent = take(&e->memory, T * m->kv_rank),
          *d_kv_a = take(&e->memory, T * latent);
    float *d_pe = take(&e->memory, m->rope_dim);
    for (int64_t i = 0; i < T * N; i++) {
        memcpy(d_kv + i * both, d_key + i * (m->nope + m->rope_dim), (size_t)m->nope * sizeof *d_kv);
        memcpy(d_kv + i * both + m->nope, d_value + i * m->v_dim, (size_t)m->v_dim * sizeof *d_kv);
    }
    linear_backward(d_latent, gradient(e, "weights/wkv_b/kernel", 0), d_kv, m->c_kv, m->wkv_b, T, m->kv_rank, N * both);
    float *d_scale = gradient(e, "weights/kv_norm/scale", 0);
    norm_backward(d_kv_a, d_scale, d_latent, &m->kv_norm);
    if (e->bug == KV_NORM_OMITTED && d_scale != NULL) memset(d_scale, 0, (size_t)m->kv_rank * sizeof *d_scale);
    for (int64_t t = 0; t < T; t++) {
        float *d = d_kv_a + t * latent;
        if (e->bug == KV_NORM_OMITTED) memcpy(d, d_latent + t * m->kv_rank, (size_t)m->kv_rank * sizeof *d);
        memset(d_pe, 0, (size_t)m->rope_dim * sizeof *d_pe);
        for (int64_t n = 0; n < N; n++) /* the rotated key is every head's */
            add(d_pe, d_key + (t * N + n) * (m->nope + m->rope_dim) + m->nope, m->rope_dim);
        rope_rotate(d + m->kv_rank, d_pe, &m->rope, t, true);
        round_bf16(d + m->kv_rank, m->rope_dim);
    }
    linear_backward(d_x, gradient(e, "weights/wkv_a/kernel", 0), d_kv_a, m->x, m->wkv_a, T, m->emb, latent);
}

static void backward(example *e, mla *m, float *d_x, const float *d_y)
{
    const int64_t T = e->tokens, N = m->heads, dim = m->nope + m->rope_dim;
    float *d_out = take(&e->memory, T * N * m->v_dim), *d_x_kv = take(&e->memory, T * m->emb);
    float *d_query = take(&e->memory, T * N * dim), *d_key = take(&e->memory, T * N * dim),
          *d_value = take(&e->memory, T * N * m->v_dim);
    linear_backward(d_out, gradient(e, "weights/out/kernel", 0), d_y, m->attention.out, m->out, T, N * m->v_dim,
                    m->emb);
    attention_backward(e, &m->attention, d_query, d_key, d_value, d_out, NULL);
    query_backward(e, m, d_x, d_query);
    key_value_backward(e, m, d_x_kv, d_key, d_value);
    add(d_x, d_x_kv, T * m->emb);
    round_bf16(d_x, T * m->emb);
}

/* NaN in padding counts as 0, so that it reaches no gradient of weights. */
static void clear_padding(const example *e, float *x, int64_t emb)
{
    const assay_backend_tensor *segment_ids = tensor(e->request, "inputs/segment_ids");
    if (segment_ids == NULL || !is(e->request, "mask_padding", "true")) return;
    const int32_t *segments = segment_ids->data;
    for (int64_t i = 0; i < e->tokens * emb; i++)
        if (segments[i / emb] == 0 && !isfinite(x[i])) x[i] = 0;
}

void mla_run(example *e)
{
    const int64_t emb = tensor(e->request, "inputs/x")->dims[2], size = e->tokens * emb;
    float *x = whole(e, "inputs/x"), *d_y = whole(e, "cotangents/y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size);
    mla m = {.x = x};
    clear_padding(e, x, emb);
    forward(e, &m, y);
    store(e, "outputs/y", true, y, size);
    if (d_y == NULL) return;
    backward(e, &m, d_x, d_y);
    store(e, "gradients/inputs/x", true, d_x, size);
}
