#include "oracle/blocks/attention_chunks.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/merge_states.h"

enum { QUERY, KEY, VALUE, SEGMENTS, SINKS };

/* Keys [first, end) for one query of one head. */
typedef struct chunk_row {
    const assay_attention_config *config;
    const int32_t *segments; /* of the batch row; NULL: one segment */
    int64_t query, first, end;
    const double *q, *k, *v; /* k, v: of key 0, whose rows are `heads` of keys apart */
} chunk_row;

static bool sees(const chunk_row *r, int64_t key)
{
    const int32_t *s = r->segments;
    if (key > r->query || (r->config->window > 0 && r->query - key >= r->config->window)) return false;
    return s == NULL || (s[key] == s[r->query] && (s[key] != 0 || !r->config->mask_padding));
}

static double score_of(const chunk_row *r, int64_t key)
{
    const double *k = r->k + key * assay_attention_kv_heads(r->config) * r->config->qk_dim, cap = r->config->soft_cap;
    double sum = 0;
    for (int64_t i = 0; i < r->config->qk_dim; i++) sum += r->q[i] * k[i];
    return cap > 0 ? cap * tanh(sum / cap) : sum;
}

/* The state of a chunk: out [Dv], and lse, -inf where no key of it is seen. */
static double state_of(const chunk_row *r, double *out)
{
    const int64_t wide = r->config->v_dim, apart = assay_attention_kv_heads(r->config) * wide;
    double largest = -INFINITY, sum = 0;
    memset(out, 0, (size_t)wide * sizeof *out);
    for (int64_t key = r->first; key < r->end; key++)
        if (sees(r, key)) largest = fmax(largest, score_of(r, key));
    for (int64_t key = r->first; key < r->end; key++) {
        if (!sees(r, key)) continue;
        const double p = assay_exp(score_of(r, key) - largest);
        sum += p;
        for (int64_t i = 0; i < wide; i++) out[i] += p * r->v[key * apart + i];
    }
    for (int64_t i = 0; i < wide && sum > 0; i++) out[i] /= sum;
    return sum > 0 ? largest + assay_log(sum) : -INFINITY;
}

/* partial_out [P,B,S,N,Dv], partial_lse [P,B,N,S]. */
static void make_states(const graph_run *r, const graph_step *step, int64_t chunk, int64_t chunks, double *out,
                        double *lse)
{
    const assay_attention_config *a = &step->with.attention;
    const int64_t s = a->sequence, n = a->heads, kv = assay_attention_kv_heads(a), rows = a->batch * s * n;
    for (int64_t i = 0; i < chunks * rows; i++) {
        const int64_t part = i / rows, head = i % n, token = i % rows / n, batch = token / s, group = head / (n / kv);
        const int32_t *segments = r->indices[step->in[SEGMENTS]];
        const chunk_row row = {.config = a,
                               .segments = segments == NULL ? NULL : segments + batch * s,
                               .query = token % s,
                               .first = part * chunk,
                               .end = (part + 1) * chunk < s ? (part + 1) * chunk : s,
                               .q = r->value[step->in[QUERY]] + (token * n + head) * a->qk_dim,
                               .k = r->value[step->in[KEY]] + (batch * s * kv + group) * a->qk_dim,
                               .v = r->value[step->in[VALUE]] + (batch * s * kv + group) * a->v_dim};
        lse[((part * a->batch + batch) * n + head) * s + token % s] = state_of(&row, out + i * a->v_dim);
    }
}

static const graph_step *attention_of(const graph *g)
{
    int i = 0;
    while (g->steps[i].kind != &graph_kind_attention) i++;
    return &g->steps[i];
}

assay_status assay_attention_chunks_forward(assay_context *ctx, double *y, graph_run *r, int64_t chunk)
{
    const graph_step *step = attention_of(r->graph);
    const assay_attention_config *a = &step->with.attention;
    const int64_t chunks = (a->sequence + chunk - 1) / chunk, rows = a->batch * a->sequence * a->heads;
    OWNED double *partial_out = NULL, *partial_lse = NULL, *out = NULL, *lse = NULL;
    for (int i = QUERY; i <= VALUE; i++) MUST(graph_require(ctx, r, step->in[i]));
    MUST(assay_alloc_f64(ctx, "partial_out", chunks * rows * a->v_dim, &partial_out));
    MUST(assay_alloc_f64(ctx, "partial_lse", chunks * rows, &partial_lse));
    MUST(assay_alloc_f64(ctx, "attention_out", rows * a->v_dim, &out));
    MUST(assay_alloc_f64(ctx, "lse", rows, &lse));
    make_states(r, step, chunk, chunks, partial_out, partial_lse);
    const assay_merge_states_config config = {.states = chunks,
                                              .batch = a->batch,
                                              .sequence = a->sequence,
                                              .heads = a->heads,
                                              .v_dim = a->v_dim,
                                              .empty_row = -INFINITY};
    const assay_merge_states_inputs in = {
        .partial_out = partial_out, .partial_lse = partial_lse, .sinks = r->value[step->in[SINKS]]};
    const assay_merge_states_call call = {.config = &config, .in = &in, .attention_out = out, .lse = lse};
    MUST(assay_merge_states_forward(ctx, &call));
    graph_lend(r, step->out[0], out);
    MUST(graph_require(ctx, r, r->graph->result));
    memcpy(y, r->value[r->graph->result], (size_t)graph_size(r->graph, r->graph->result) * sizeof *y);
    graph_lend(r, step->out[0], NULL);
    return ASSAY_OK;
}
