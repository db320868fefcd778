/* The gated MLP: a dense layer, an expert on its rows, the shared expert. */
#include "example.h"

#include <stdio.h>

typedef struct path {
    char text[64];
} path;

static path path_of(const char *prefix, const char *name, const char *suffix)
{
    path p;
    snprintf(p.text, sizeof p.text, "%s%s%s", prefix, name, suffix);
    return p;
}

/* The bias [n] of the projection <name><suffix>, where the case has one. */
static void load_bias(example *e, projection *p, const char *prefix, const char *name, const char *suffix, int64_t n,
                      int64_t expert)
{
    const path bias = path_of(prefix, name, suffix[0] == '/' ? "/bias" : "_bias");
    const assay_backend_tensor *t = tensor(e->request, bias.text);
    if (t == NULL) return;
    float *values = take(&e->memory, n);
    load(values, t, expert * n, n);
    p->bias = values, p->d_bias = gradient(e, bias.text, expert * n);
}

void mlp_load(example *e, mlp *m, const char *prefix, const char *suffix, int64_t expert)
{
    const path wi = path_of(prefix, "wi", suffix), wo = path_of(prefix, "wo", suffix);
    const path wi_0 = path_of(prefix, "wi_0", suffix), wi_1 = path_of(prefix, "wi_1", suffix);
    const assay_backend_tensor *both = tensor(e->request, wi.text);
    const int64_t size = m->emb * m->hidden, up = both != NULL ? m->hidden : size;
    const int64_t row = both != NULL ? 2 * m->hidden : m->hidden;
    float *values = take(&e->memory, 2 * size), *down = take(&e->memory, size);
    m->wi_0 = (projection){.w = values, .row = row}, m->wi_1 = (projection){.w = values + up, .row = row};
    m->wo = (projection){.w = down, .row = m->emb};
    if (both != NULL) {
        load(values, both, expert * 2 * size, 2 * size);
        m->wi_0.d_w = gradient(e, wi.text, expert * 2 * size);
        m->wi_1.d_w = m->wi_0.d_w == NULL ? NULL : m->wi_0.d_w + up;
    } else {
        load(values, tensor(e->request, wi_0.text), expert * size, size);
        load(values + size, tensor(e->request, wi_1.text), expert * size, size);
        m->wi_0.d_w = gradient(e, wi_0.text, expert * size);
        m->wi_1.d_w = gradient(e, wi_1.text, expert * size);
    }
    load(down, tensor(e->request, wo.text), expert * size, size);
    m->wo.d_w = gradient(e, wo.text, expert * size);
    load_bias(e, &m->wi_0, prefix, "wi_0", suffix, m->hidden, expert);
    load_bias(e, &m->wi_1, prefix, "wi_1", suffix, m->hidden, expert);
    load_bias(e, &m->wo, prefix, "wo", suffix, m->emb, expert);
    if (m->bug == GATE_UP_SWAPPED) {
        const projection gate = m->wi_0;
        m->wi_0 = m->wi_1, m->wi_1 = gate;
    }
}

void mlp_take(example *e, mlp *m)
{
    m->a = take(&e->memory, m->rows * m->hidden), m->b = take(&e->memory, m->rows * m->hidden);
    m->h = take(&e->memory, m->rows * m->hidden), m->o = take(&e->memory, m->rows * m->emb);
}

/* LAST_TILE_DROPPED: of h, or of its gradient. */
static void drop_tile(const mlp *m, float *h)
{
    const int64_t H = m->hidden, kept = m->bug == LAST_TILE_DROPPED ? H / 16 * 16 : H;
    for (int64_t i = 0; i < m->rows * H; i++)
        if (i % H >= kept) h[i] = 0;
}

/* y [rows,m] = x [rows,n] w + bias, in bfloat16. */
static void project(float *y, const float *x, const projection *p, int64_t rows, int64_t n, int64_t m)
{
    product(y, m, rows, m, n, (matrix){x, n, 1}, (matrix){p->w, p->row, 1});
    for (int64_t i = 0; i < rows && p->bias != NULL; i++) add(y + i * m, p->bias, m);
    round_bf16(y, rows * m);
}

/* The gradients of w and bias. */
static void project_backward(const projection *p, const float *x, const float *d_y, int64_t rows, int64_t n, int64_t m)
{
    product(p->d_w, p->row, n, m, rows, (matrix){x, 1, n}, (matrix){d_y, m, 1});
    for (int64_t i = 0; i < m && p->d_bias != NULL; i++) p->d_bias[i] = 0;
    for (int64_t i = 0; i < rows && p->d_bias != NULL; i++) add(p->d_bias, d_y + i * m, m);
}

void mlp_forward(const mlp *m)
{
    const int64_t D = m->emb, H = m->hidden;
    project(m->a, m->x, &m->wi_0, m->rows, D, H);
    project(m->b, m->x, &m->wi_1, m->rows, D, H);
    for (int64_t i = 0; i < m->rows * H; i++) {
        const glu_point at = glu_at(&m->glu, m->a[i], m->b[i]);
        m->h[i] = at.u * at.v;
    }
    round_bf16(m->h, m->rows * H);
    drop_tile(m, m->h);
    project(m->o, m->h, &m->wo, m->rows, H, D);
}

void mlp_backward(example *e, const mlp *m, float *d_x)
{
    const int mark = e->memory.count;
    const int64_t D = m->emb, H = m->hidden, rows = m->rows;
    float *d_h = take(&e->memory, rows * H), *d_x_up = take(&e->memory, rows * D);
    product(d_h, H, rows, H, D, (matrix){m->d_o, D, 1}, (matrix){m->wo.w, 1, D});
    drop_tile(m, d_h);
    for (int64_t i = 0; i < rows * H; i++) {
        const glu_point at = glu_at(&m->glu, m->a[i], m->b[i]);
        m->a[i] = d_h[i] * at.v * at.d_u;
        m->b[i] = d_h[i] * at.u * at.d_v;
    }
    round_bf16(m->a, rows * H);
    round_bf16(m->b, rows * H);
    product(d_x, D, rows, D, H, (matrix){m->a, H, 1}, (matrix){m->wi_0.w, 1, m->wi_0.row});
    product(d_x_up, D, rows, D, H, (matrix){m->b, H, 1}, (matrix){m->wi_1.w, 1, m->wi_1.row});
    if (m->bug != DX_WITHOUT_UP) add(d_x, d_x_up, rows * D);
    give_back(&e->memory, mark);
    if (rows == 0 && m->bug == EMPTY_EXPERT_UNWRITTEN) return;
    project_backward(&m->wi_0, m->x, m->a, rows, D, H);
    project_backward(&m->wi_1, m->x, m->b, rows, D, H);
    project_backward(&m->wo, m->h, m->d_o, rows, H, D);
}

void mlp_run(example *e)
{
    const int64_t emb = tensor(e->request, "inputs/x")->dims[2], size = e->tokens * emb;
    float *d_x = take(&e->memory, size);
    mlp m = {.bug = e->bug, .rows = e->tokens, .emb = emb};
    m.hidden = tensor(e->request, "weights/wo/kernel")->dims[0];
    m.x = whole(e, "inputs/x"), m.d_o = whole(e, "cotangents/y");
    m.glu = glu_of(e->request, DENSE);
    mlp_take(e, &m);
    mlp_load(e, &m, "weights/", "/kernel", 0);
    mlp_forward(&m);
    store(e, "outputs/y", true, m.o, size);
    if (m.d_o == NULL) return;
    mlp_backward(e, &m, d_x);
    store(e, "gradients/inputs/x", true, d_x, size);
}
