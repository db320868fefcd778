/* Causal attention as a flash kernel: tile of keys after tile of keys, with a running maximum and a running sum for
 * each query, so that no row of scores is ever whole; backward makes them again from the log-sum-exp (Dao 2023). */
#include "example.h"

#include <math.h>
#include <string.h>

enum { TILE = 16 };

static const float LOG2_E = 1.4426950409F;

/* One head of one batch row. */
typedef struct head {
    const attention *a;
    enum bug bug;
    int64_t first, number;              /* token of its first query; head */
    int64_t keys;                       /* how many there are */
    float *keys_across, *values_across; /* a tile of each, transposed: [Dq,TILE], [Dv,TILE] */
} head;

static const float *row_of(const float *x, const head *h, int64_t i, int64_t dim)
{
    return x + ((h->first + i) * h->a->heads + h->number) * dim;
}

static float *lse_of(const head *h)
{
    return h->a->lse + (h->first * h->a->heads + h->number * h->a->sequence);
}

static head head_at(example *e, const attention *a, int64_t n)
{
    head h = {.a = a, .bug = e->bug, .first = n / a->heads * a->sequence, .number = n % a->heads};
    h.keys = e->bug == LAST_KEYS_DROPPED ? a->sequence / TILE * TILE : a->sequence;
    h.keys_across = take(&e->memory, a->qk_dim * TILE), h.values_across = take(&e->memory, a->v_dim * TILE);
    return h;
}

static void load_tile(const head *h, int64_t tile)
{
    for (int64_t j = 0; j < TILE && tile + j < h->keys; j++) {
        const float *key = row_of(h->a->key, h, tile + j, h->a->qk_dim);
        const float *value = row_of(h->a->value, h, tile + j, h->a->v_dim);
        for (int64_t c = 0; c < h->a->qk_dim; c++) h->keys_across[c * TILE + j] = key[c];
        for (int64_t c = 0; c < h->a->v_dim; c++) h->values_across[c * TILE + j] = value[c];
    }
}

/* out [TILE] = row [dim] times a tile [dim,TILE]. */
static void row_times_tile(float *out, const float *row, const float *across, int64_t dim)
{
    for (int64_t j = 0; j < TILE; j++) out[j] = 0;
    for (int64_t c = 0; c < dim; c++)
        for (int64_t j = 0; j < TILE; j++) out[j] += row[c] * across[c * TILE + j];
}

/* A query sees its own key and earlier ones, of its own segment; segment 0 may be padding. */
static bool sees(const head *h, int64_t i, int64_t j)
{
    const int32_t *segments = h->a->segment_ids == NULL ? NULL : h->a->segment_ids + h->first;
    if (j >= h->keys || j > i + (h->bug == MASK_OFF_BY_ONE)) return false;
    return segments == NULL || (segments[i] == segments[j] && (segments[i] != 0 || !h->a->mask_padding));
}

/* Scores of query i with a tile of keys, -inf where it does not see one; whether it sees any. */
static bool scores_of(float *scores, const head *h, int64_t i, int64_t tile)
{
    bool any = false;
    row_times_tile(scores, row_of(h->a->query, h, i, h->a->qk_dim), h->keys_across, h->a->qk_dim);
    for (int64_t j = 0; j < TILE; j++) {
        const bool seen = sees(h, i, tile + j);
        any |= seen;
        if (!seen) scores[j] = -INFINITY;
    }
    return any;
}

/* The rows of `out` hold sums of p * v over the tiles before, relative to the maximum so far. */
static void forward_tile(const head *h, int64_t tile, float *maximum, float *sum)
{
    const int64_t dim = h->a->v_dim, first = tile - (h->bug == MASK_OFF_BY_ONE);
    load_tile(h, tile);
    for (int64_t i = first < 0 ? 0 : first; i < h->a->sequence; i++) {
        float p[TILE], largest = maximum[i], *out = h->a->out + ((h->first + i) * h->a->heads + h->number) * dim;
        if (!scores_of(p, h, i, tile)) continue;
        for (int64_t j = 0; j < TILE; j++) largest = fmaxf(largest, p[j]);
        const float shrink = expf(maximum[i] - largest);
        maximum[i] = largest;
        sum[i] *= shrink;
        for (int64_t c = 0; c < dim; c++) out[c] *= shrink;
        for (int64_t j = 0; j < TILE; j++) {
            p[j] = expf(p[j] - largest);
            sum[i] += p[j];
        }
        round_bf16(p, TILE);
        for (int64_t j = 0; j < TILE; j++) {
            if (!sees(h, i, tile + j)) continue; /* what it does not see may hold anything */
            const float *value = row_of(h->a->value, h, tile + j, dim);
            for (int64_t c = 0; c < dim; c++) out[c] += p[j] * value[c];
        }
    }
}

void attention_forward(example *e, const attention *a)
{
    const int64_t dim = a->v_dim;
    memset(a->out, 0, (size_t)(a->batch * a->sequence * a->heads * dim) * sizeof(float));
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        const int mark = e->memory.count;
        const head h = head_at(e, a, n);
        float *maximum = take(&e->memory, a->sequence), *sum = take(&e->memory, a->sequence), *lse = lse_of(&h);
        for (int64_t i = 0; i < a->sequence; i++) maximum[i] = -INFINITY;
        for (int64_t tile = 0; tile < h.keys; tile += TILE) forward_tile(&h, tile, maximum, sum);
        for (int64_t i = 0; i < a->sequence; i++) {
            float *out = a->out + ((h.first + i) * a->heads + h.number) * dim;
            const bool blind = sum[i] == 0 && e->bug != MASKED_ROWS_NAN;
            for (int64_t c = 0; c < dim; c++) out[c] = blind ? 0 : out[c] / sum[i];
            lse[i] = (maximum[i] + logf(sum[i])) * (e->bug == LSE_BASE_2 ? LOG2_E : 1);
        }
        give_back(&e->memory, mark);
    }
    round_bf16(a->out, a->batch * a->sequence * a->heads * dim);
}

typedef struct head_gradients {
    const float *d_out, *d_lse; /* [T,N,Dv]; [S] of this head, or NULL */
    float *d_query, *d_key, *d_value;
} head_gradients;

static void backward_row(const head *h, int64_t tile, int64_t i, const head_gradients *g, float through)
{
    const int64_t qk_dim = h->a->qk_dim, v_dim = h->a->v_dim;
    const int64_t columns = h->bug == DV_NARROW_HEADS && v_dim < qk_dim ? (v_dim - 1) / 8 * 8 : v_dim;
    const float *query = row_of(h->a->query, h, i, qk_dim), *d_out = row_of(g->d_out, h, i, v_dim);
    float p[TILE], ds[TILE], *d_query = g->d_query + (query - h->a->query);
    if (!scores_of(p, h, i, tile)) return;
    row_times_tile(ds, d_out, h->values_across, v_dim);
    for (int64_t j = 0; j < TILE; j++) {
        p[j] = h->bug == LSE_BASE_2 ? exp2f(p[j] * LOG2_E - lse_of(h)[i]) : expf(p[j] - lse_of(h)[i]);
        ds[j] = p[j] * (ds[j] - through);
    }
    round_bf16(p, TILE);
    round_bf16(ds, TILE);
    for (int64_t j = 0; j < TILE; j++) {
        if (!sees(h, i, tile + j)) continue;
        const float *key = row_of(h->a->key, h, tile + j, qk_dim), *value = row_of(h->a->value, h, tile + j, v_dim);
        float *d_key = g->d_key + (key - h->a->key), *d_value = g->d_value + (value - h->a->value);
        for (int64_t c = 0; c < qk_dim; c++) {
            d_query[c] += ds[j] * key[c];
            d_key[c] += ds[j] * query[c];
        }
        for (int64_t c = 0; c < columns; c++) d_value[c] += p[j] * d_out[c];
    }
}

void attention_backward(example *e, const attention *a, float *d_query, float *d_key, float *d_value,
                        const float *d_out, const float *d_lse)
{
    const int64_t tokens = a->batch * a->sequence;
    for (int64_t n = 0; n < a->batch * a->heads; n++) {
        const int mark = e->memory.count;
        const head h = head_at(e, a, n);
        const float *d_lse_head = d_lse == NULL ? NULL : d_lse + (lse_of(&h) - a->lse);
        const head_gradients g = {d_out, d_lse_head, d_query, d_key, d_value};
        float *through = take(&e->memory, a->sequence); /* what each row's sum takes away */
        for (int64_t i = 0; i < a->sequence; i++) {
            const float *d = row_of(d_out, &h, i, a->v_dim), *out = row_of(a->out, &h, i, a->v_dim);
            for (int64_t c = 0; c < a->v_dim; c++) through[i] += d[c] * out[c];
            if (d_lse_head != NULL) through[i] -= d_lse_head[i];
        }
        for (int64_t tile = 0; tile < h.keys; tile += TILE) {
            load_tile(&h, tile);
            for (int64_t i = tile > 0 ? tile - 1 : 0; i < a->sequence; i++) backward_row(&h, tile, i, &g, through[i]);
        }
        give_back(&e->memory, mark);
    }
    round_bf16(d_query, tokens * a->heads * a->qk_dim);
    round_bf16(d_key, tokens * a->heads * a->qk_dim);
    round_bf16(d_value, tokens * a->heads * a->v_dim);
}

void attention_run(example *e)
{
    const int64_t *q = tensor(e->request, "inputs/query")->dims, *v = tensor(e->request, "inputs/value")->dims;
    const assay_backend_tensor *segment_ids = tensor(e->request, "inputs/segment_ids");
    const int64_t rows = e->tokens * q[2], qk_size = rows * q[3], v_size = rows * v[3];
    attention a = {.batch = e->batch, .sequence = e->sequence, .heads = q[2], .qk_dim = q[3], .v_dim = v[3]};
    a.mask_padding = is(e->request, "mask_padding", "true");
    a.segment_ids = segment_ids == NULL ? NULL : segment_ids->data;
    a.query = whole(e, "inputs/query"), a.key = whole(e, "inputs/key"), a.value = whole(e, "inputs/value");
    a.out = take(&e->memory, v_size), a.lse = take(&e->memory, rows);
    attention_forward(e, &a);
    store(e, "outputs/attention_out", true, a.out, v_size);
    store(e, "outputs/lse", false, a.lse, rows);
    float *d_out = whole(e, "cotangents/attention_out"), *d_lse = whole(e, "cotangents/lse");
    float *d_query = take(&e->memory, qk_size), *d_key = take(&e->memory, qk_size), *d_value = take(&e->memory, v_size);
    attention_backward(e, &a, d_query, d_key, d_value, d_out != NULL ? d_out : take(&e->memory, v_size), d_lse);
    store(e, "gradients/inputs/query", true, d_query, qk_size);
    store(e, "gradients/inputs/key", true, d_key, qk_size);
    store(e, "gradients/inputs/value", true, d_value, v_size);
}
