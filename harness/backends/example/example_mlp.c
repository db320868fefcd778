/* The gated MLP: a dense layer, an expert on its rows, the shared expert. */
#include "example.h"

#include <stdio.h>

void mlp_load(example *e, mlp *m, const char *prefix, const char *suffix, int64_t expert)
{
    char wi[16], wi_0[16], wi_1[16], wo[16];
    snprintf(wi, sizeof wi, "wi%s", suffix), snprintf(wo, sizeof wo, "wo%s", suffix);
    snprintf(wi_0, sizeof wi_0, "wi_0%s", suffix), snprintf(wi_1, sizeof wi_1, "wi_1%s", suffix);
    const assay_backend_tensor *both = tensor_in(e, prefix, wi);
    const int64_t size = m->emb * m->hidden, up = both != NULL ? m->hidden : size;
    float *values = take(e, 2 * size), *down = take(e, size);
    m->wi_row = both != NULL ? 2 * m->hidden : m->hidden;
    if (both != NULL) {
        load(values, both, expert * 2 * size, 2 * size);
        m->d_wi_0 = gradient(e, prefix, wi, expert * 2 * size);
        m->d_wi_1 = m->d_wi_0 == NULL ? NULL : m->d_wi_0 + up;
    } else {
        load(values, tensor_in(e, prefix, wi_0), expert * size, size);
        load(values + size, tensor_in(e, prefix, wi_1), expert * size, size);
        m->d_wi_0 = gradient(e, prefix, wi_0, expert * size);
        m->d_wi_1 = gradient(e, prefix, wi_1, expert * size);
    }
    load(down, tensor_in(e, prefix, wo), expert * size, size);
    m->d_wo = gradient(e, prefix, wo, expert * size);
    m->wi_0 = values, m->wi_1 = values + up, m->wo = down;
    if (m->bug == GATE_UP_SWAPPED) {
        float *d_wi = m->d_wi_0;
        m->wi_0 = m->wi_1, m->wi_1 = values;
        m->d_wi_0 = m->d_wi_1, m->d_wi_1 = d_wi;
    }
}

void mlp_take(example *e, mlp *m)
{
    m->a = take(e, m->rows * m->hidden), m->b = take(e, m->rows * m->hidden);
    m->h = take(e, m->rows * m->hidden), m->o = take(e, m->rows * m->emb);
}

/* LAST_TILE_DROPPED: of h, or of its gradient. */
static void drop_tile(const mlp *m, float *h)
{
    const int64_t H = m->hidden, kept = m->bug == LAST_TILE_DROPPED ? H / 16 * 16 : H;
    for (int64_t i = 0; i < m->rows * H; i++)
        if (i % H >= kept) h[i] = 0;
}

void mlp_forward(const mlp *m)
{
    const int64_t D = m->emb, H = m->hidden;
    product(m->a, H, m->rows, H, D, (matrix){m->x, D, 1}, (matrix){m->wi_0, m->wi_row, 1});
    product(m->b, H, m->rows, H, D, (matrix){m->x, D, 1}, (matrix){m->wi_1, m->wi_row, 1});
    round_bf16(m->a, m->rows * H);
    round_bf16(m->b, m->rows * H);
    for (int64_t i = 0; i < m->rows * H; i++) m->h[i] = m->a[i] * sigmoid(m->a[i]) * m->b[i];
    round_bf16(m->h, m->rows * H);
    drop_tile(m, m->h);
    product(m->o, D, m->rows, D, H, (matrix){m->h, H, 1}, (matrix){m->wo, D, 1});
    round_bf16(m->o, m->rows * D);
}

void mlp_backward(example *e, const mlp *m, float *d_x)
{
    const int mark = e->count;
    const int64_t D = m->emb, H = m->hidden, rows = m->rows;
    float *d_h = take(e, rows * H), *d_x_up = take(e, rows * D);
    product(d_h, H, rows, H, D, (matrix){m->d_o, D, 1}, (matrix){m->wo, 1, D});
    drop_tile(m, d_h);
    for (int64_t i = 0; i < rows * H; i++) {
        const float a = m->a[i], s = sigmoid(a);
        m->a[i] = d_h[i] * m->b[i] * s * (1 + a * sigmoid(-a));
        m->b[i] = d_h[i] * a * s;
    }
    round_bf16(m->a, rows * H);
    round_bf16(m->b, rows * H);
    product(d_x, D, rows, D, H, (matrix){m->a, H, 1}, (matrix){m->wi_0, 1, m->wi_row});
    product(d_x_up, D, rows, D, H, (matrix){m->b, H, 1}, (matrix){m->wi_1, 1, m->wi_row});
    if (m->bug != DX_WITHOUT_UP) add(d_x, d_x_up, rows * D);
    release(e, mark);
    if (rows == 0 && m->bug == EMPTY_EXPERT_UNWRITTEN) return;
    product(m->d_wi_0, m->wi_row, D, H, rows, (matrix){m->x, 1, D}, (matrix){m->a, H, 1});
    product(m->d_wi_1, m->wi_row, D, H, rows, (matrix){m->x, 1, D}, (matrix){m->b, H, 1});
    product(m->d_wo, D, H, D, rows, (matrix){m->h, 1, H}, (matrix){m->d_o, D, 1});
}
