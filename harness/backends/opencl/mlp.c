/* The gated MLP of each group's rows: a = x wi_0, b = x wi_1, h = u(a) v(b), o = h wo. */
#include <stdio.h>
#include <string.h>

#include "call.h"

/* As enum activation of glu.cl has them; the last two are GPT-OSS's, which no case names. */
static const char *const ACTIVATIONS[] = {"silu", "gelu", "gelu_exact", "relu", "sigmoid", "linear"};
enum { NAMES = sizeof ACTIVATIONS / sizeof *ACTIVATIONS, LINEAR = 5, GPT_OSS_GATE = 6, PLUS_ONE = 7 };

static int find(const char *name, size_t length)
{
    for (int i = 0; i < NAMES; i++)
        if (strlen(ACTIVATIONS[i]) == length && strncmp(name, ACTIVATIONS[i], length) == 0) return i;
    return NAMES;
}

const char *mlp_refused(const assay_backend_request *request)
{
    const char *names = setting(request, "mlp_activations");
    const size_t first = strcspn(names, ",");
    const bool known = find(names, first) < NAMES && find(names + first + 1, strlen(names + first + 1)) < NAMES;
    return known ? NULL : names;
}

/* A dense MLP has an activation of b besides; only routed experts of some blocks have clamps. */
static void activations(const assay_backend_request *request, mlp *m, enum mlp_place place)
{
    const char *names = setting(request, "mlp_activations");
    const size_t first = strcspn(names, ",");
    const bool gpt_oss = is(request, "decoder_block", "gpt_oss");
    const bool deepseek = strncmp(setting(request, "decoder_block"), "deepseek", 8) == 0;
    const bool clamped = place == DENSE || (place == ROUTED && (gpt_oss || deepseek));
    m->gate = find(names, first);
    m->up = place == DENSE ? find(names + first + 1, strlen(names + first + 1)) : LINEAR;
    m->limit = clamped ? (float)number(request, "mlp_activations_limit") : 0;
    if (gpt_oss && clamped) m->gate = GPT_OSS_GATE, m->up = PLUS_ONE;
}

void mlp_load(call *c, mlp *m, const rows *r, enum mlp_place place, const char *prefix, const char *suffix)
{
    static const char *const KERNELS[] = {"wi_0", "wi_1", "wo"};
    const char *bias = suffix[0] == '\0' ? "_bias" : "/bias";
    char path[96];
    snprintf(path, sizeof path, "%swo%s", prefix, suffix);
    const assay_backend_tensor *wo = given(c, path);
    *m = (mlp){.rows = *r, .emb = wo->dims[wo->rank - 1], .hidden = wo->dims[wo->rank - 2]};
    activations(c->request, m, place);
    for (int i = 0; i < PROJECTIONS; i++) {
        snprintf(m->paths[i][0], sizeof m->paths[i][0], "%s%s%s", prefix, KERNELS[i], suffix);
        snprintf(m->paths[i][1], sizeof m->paths[i][1], "%s%s%s", prefix, KERNELS[i], bias);
        m->weights[i] = stored(c, STORED, m->paths[i][0]);
        m->biases[i] = stored(c, STORED, m->paths[i][1]);
        m->layouts[i] = i == DOWN ? plain(m->hidden, m->emb) : plain(m->emb, m->hidden);
    }
    if (m->weights[GATE] != NULL) return;
    snprintf(m->paths[GATE][0], sizeof m->paths[GATE][0], "%swi%s", prefix, suffix); /* gate first, then up */
    m->weights[GATE] = m->weights[UP] = stored(c, STORED, m->paths[GATE][0]);
    m->layouts[GATE] = m->layouts[UP] = plain(m->emb, 2 * m->hidden);
    m->layouts[UP].first = m->hidden;
}

cl_mem mlp_forward(call *c, mlp *m, cl_mem x)
{
    const int64_t count = m->rows.count * m->hidden;
    cl_mem o = stored_room(c, STORED, m->rows.count * m->emb);
    m->x = x;
    m->a = stored_room(c, STORED, count), m->b = stored_room(c, STORED, count), m->h = stored_room(c, STORED, count);
    product(c, STORED, m->a, x, m->weights[GATE], m->biases[GATE], NULL, &m->rows, m->emb, m->hidden, m->layouts[GATE]);
    product(c, STORED, m->b, x, m->weights[UP], m->biases[UP], NULL, &m->rows, m->emb, m->hidden, m->layouts[UP]);
    LAUNCH(&c->d, STORED, "glu_forward", LINE, count, 1, 1, mem(m->h), mem(m->a), mem(m->b), num(count), num(m->gate),
           num(m->up), real(m->limit));
    product(c, STORED, o, m->h, m->weights[DOWN], m->biases[DOWN], NULL, &m->rows, m->hidden, m->emb, m->layouts[DOWN]);
    return o;
}

/* Gradients of a projection [k,n] from those of its results. */
static void projection_gradients(call *c, const mlp *m, int i, cl_mem of_weights, cl_mem in, cl_mem d_out)
{
    const int64_t k = i == DOWN ? m->hidden : m->emb, n = i == DOWN ? m->emb : m->hidden;
    char path[128];
    product_weights(c, STORED, of_weights, in, d_out, NULL, &m->rows, k, n, m->layouts[i]);
    if (m->biases[i] == NULL) return;
    cl_mem d_bias = word_room(c, m->rows.groups * n);
    LAUNCH(&c->d, STORED, "sum_rows", LINE, n, m->rows.groups, 1, mem(d_bias), mem(d_out), mem(m->rows.segment_table),
           num(m->rows.segments), num(n));
    snprintf(path, sizeof path, "gradients/%s", m->paths[i][1]);
    give(c, path, d_bias, ASSAY_BACKEND_FLOAT32);
}

cl_mem mlp_backward(call *c, const mlp *m, cl_mem d_o)
{
    const int64_t count = m->rows.count * m->hidden, size = m->rows.groups * m->emb * m->hidden;
    const bool fused = m->weights[GATE] == m->weights[UP];
    cl_mem d_h = stored_room(c, STORED, count), d_a = stored_room(c, STORED, count),
           d_b = stored_room(c, STORED, count);
    cl_mem d_x = stored_room(c, STORED, m->rows.count * m->emb), part = stored_room(c, STORED, m->rows.count * m->emb);
    cl_mem d_gate = word_room(c, fused ? 2 * size : size), d_up = fused ? d_gate : word_room(c, size);
    cl_mem d_weights[PROJECTIONS] = {d_gate, d_up, word_room(c, size)};
    product(c, STORED, d_h, d_o, m->weights[DOWN], NULL, NULL, &m->rows, m->emb, m->hidden,
            transposed(m->layouts[DOWN]));
    LAUNCH(&c->d, STORED, "glu_backward", LINE, count, 1, 1, mem(d_a), mem(d_b), mem(d_h), mem(m->a), mem(m->b),
           num(count), num(m->gate), num(m->up), real(m->limit));
    product(c, STORED, part, d_a, m->weights[GATE], NULL, NULL, &m->rows, m->hidden, m->emb,
            transposed(m->layouts[GATE]));
    product(c, STORED, d_x, d_b, m->weights[UP], NULL, part, &m->rows, m->hidden, m->emb, transposed(m->layouts[UP]));
    projection_gradients(c, m, GATE, d_weights[GATE], m->x, d_a);
    projection_gradients(c, m, UP, d_weights[UP], m->x, d_b);
    projection_gradients(c, m, DOWN, d_weights[DOWN], m->h, d_o);
    for (int i = 0; i < PROJECTIONS; i++) {
        char path[128];
        snprintf(path, sizeof path, "gradients/%s", m->paths[i][0]);
        give(c, path, d_weights[i], ASSAY_BACKEND_FLOAT32);
    }
    return d_x;
}
