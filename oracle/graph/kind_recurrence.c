/* The gated delta rule (Yang, Kautz and Hatamizadeh 2024, equation 10; transformers modeling_qwen3_next.py): a state S [K,V] for
 * each series and head, along the tokens t:
 *   P_t = exp(gate_t) S_{t-1}, u_t = value_t - key_t P_t, d_t = beta_t u_t, S_t = P_t + key_t^T d_t, y_t = query_t S_t
 * from zeros or a given state on; a gate may be one for each row of the state (Kimi Linear 2025, equation 1). And back, with G the gradient of S_t:
 *   G += query_t^T dy_t, dquery_t = dy_t S_t^T, dd = key_t G, dbeta_t = <dd, u_t>, dvalue_t = beta_t dd,
 *   dkey_t = d_t G^T - dvalue_t P_t^T, dP = G - key_t^T dvalue_t, dgate_t = <dP, P_t>, G = exp(gate_t) dP
 * Kernels of chunks have the gradients of sums of gates: dgate_t = dgate_{t+1} + <y_t, dy_t> - <dvalue_t, value_t>, of a gate of rows by
 * what query_t dquery_t and key_t dkey_t are of that row.
 * Kernels take several tokens at once, with products whose operands are rounded: so is here what each token reads and writes, but
 * where a kernel says that its state has a type of its own. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

enum { QUERY, KEY, VALUE, GATE, BETA, STATE, CHUNK = 64 /* tokens of which kernels add the gates up */ };

/* The series and heads; of one of them token t is row (series * tokens + t) * heads + head. */
typedef struct sizes {
    int64_t series, tokens, heads, k, v;
    int64_t gates; /* of a token: 1, or one for each of K */
} sizes;

static sizes sizes_of(const graph *g, const graph_step *step)
{
    const assay_shape *query = &g->tensors[step->in[QUERY]].row.shape;
    sizes s = {.tokens = query->dims[query->rank - 3],
               .heads = query->dims[query->rank - 2],
               .k = query->dims[query->rank - 1],
               .v = graph_last_axis(g, step->in[VALUE])};
    s.series = graph_in_size(g, step, BETA) / s.tokens / s.heads;
    s.gates = graph_in_size(g, step, GATE) / graph_in_size(g, step, BETA);
    return s;
}

/* Of one series and head: what backward reads of forward. */
typedef struct trail {
    double *states; /* [tokens + 1,K,V], from zeros or the given one on */
    double *decay;  /* [tokens,gates] */
    double *sums;   /* [gates]: of gates within a chunk; backward: what kernels' gradients of gates are off by */
    double *u, *d;  /* [tokens,V] */
} trail;

static void free_trail(trail *t)
{
    free(t->states);
    free(t->decay);
    free(t->sums);
    free(t->u);
    free(t->d);
}

static assay_status make_trail(assay_context *ctx, const sizes *s, trail *t)
{
    MUST(assay_alloc_f64(ctx, "states", (s->tokens + 1) * s->k * s->v, &t->states));
    MUST(assay_alloc_f64(ctx, "decays", s->tokens * s->gates, &t->decay));
    MUST(assay_alloc_f64(ctx, "sums of gates", s->gates, &t->sums));
    MUST(assay_alloc_f64(ctx, "what values are off by", s->tokens * s->v, &t->u));
    return assay_alloc_f64(ctx, "what is written", s->tokens * s->v, &t->d);
}

/* exp(gate), of which kernels have the differences of sums. */
static double decay_of(const assay_context *ctx, double gate, double *sum)
{
    double decay = assay_exp(gate + graph_sum_moved(ctx, gate, sum));
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &decay);
    return decay;
}

/* Before a token that a chunk begins with. */
static void hand_over(const graph_call *c, const sizes *s, int64_t token, double *state, bool gradient)
{
    if (token > 0 && graph_boundary(c->step, token) == token)
        c->step->hooks.states(s->k, s->v, s->k * s->v, state, gradient);
}

static void decay_state(const assay_context *ctx, double *state, const double *decay, const sizes *s)
{
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j < s->v; j++) state[i * s->v + j] *= decay[s->gates == 1 ? 0 : i];
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, s->k * s->v, state);
}

/* That of the token before, as this one has it. */
static void decayed_state(const assay_context *ctx, const graph_call *c, const trail *t, int64_t i, const sizes *s,
                          double *to)
{
    const int64_t size = s->k * s->v;
    memcpy(to, t->states + i * size, (size_t)size * sizeof *to);
    hand_over(c, s, i, to, false);
    decay_state(ctx, to, t->decay + i * s->gates, s);
}

/* state += a^T b */
static assay_status write_state(assay_context *ctx, double *state, const double *a, const double *b, const sizes *s)
{
    assay_matmul_args args = assay_product_ab(state, a, b, s->k, s->v, 1);
    args.accumulate = true;
    return assay_matmul(ctx, &args);
}

static assay_status read_state(assay_context *ctx, double *to, const double *a, const double *state, const sizes *s)
{
    const assay_matmul_args args = assay_product_ab(to, a, state, 1, s->v, s->k);
    return assay_matmul(ctx, &args);
}

/* What a token writes, which a kernel that says what its sums are kept in keeps in that too. */
static void round_written(const assay_context *ctx, const graph_call *c, double *row, const sizes *s)
{
    const bool own = c->step->sums != ASSAY_FLOAT64;
    assay_round(ctx, own ? ASSAY_ROUND_ACCUMULATE : ASSAY_ROUND_STORAGE, s->v, row);
}

static void clear_sums(const trail *t, const sizes *s)
{
    memset(t->sums, 0, (size_t)s->gates * sizeof *t->sums);
}

static int64_t first_row(const sizes *s, int64_t line)
{
    return line / s->heads * s->tokens * s->heads + line % s->heads;
}

/* The states of one series and head after each token. */
static assay_status run_states(assay_context *ctx, const graph_call *c, const sizes *s, int64_t line, trail *t)
{
    const int64_t size = s->k * s->v, first = first_row(s, line);
    memset(t->states, 0, (size_t)size * sizeof *t->states);
    if (c->x[STATE] != NULL) memcpy(t->states, c->x[STATE] + line * size, (size_t)size * sizeof *t->states);
    for (int64_t i = 0; i < s->tokens; i++) {
        const int64_t row = first + i * s->heads;
        double *state = t->states + (i + 1) * size, *u = t->u + i * s->v, *d = t->d + i * s->v;
        if (i % CHUNK == 0) clear_sums(t, s);
        for (int64_t j = 0; j < s->gates; j++)
            t->decay[i * s->gates + j] = decay_of(ctx, c->x[GATE][row * s->gates + j], &t->sums[j]);
        decayed_state(ctx, c, t, i, s, state);
        MUST(read_state(ctx, u, c->x[KEY] + row * s->k, state, s));
        round_written(ctx, c, u, s);
        for (int64_t j = 0; j < s->v; j++) u[j] = c->x[VALUE][row * s->v + j] - u[j];
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, s->v, u);
        for (int64_t j = 0; j < s->v; j++) d[j] = c->x[BETA][row] * u[j];
        round_written(ctx, c, d, s);
        MUST(write_state(ctx, state, c->x[KEY] + row * s->k, d, s));
    }
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const graph_call *c)
{
    const sizes s = sizes_of(c->graph, c->step);
    OWNED_BY(free_trail) trail t = {0};
    MUST(make_trail(ctx, &s, &t));
    for (int64_t line = 0; line < s.series * s.heads; line++) {
        const int64_t first = first_row(&s, line), size = s.k * s.v;
        MUST(run_states(ctx, c, &s, line, &t));
        if (c->y[1] != NULL) memcpy(c->y[1] + line * size, t.states + s.tokens * size, (size_t)size * sizeof(double));
        for (int64_t i = 0; i < s.tokens; i++) {
            const int64_t row = first + i * s.heads;
            MUST(read_state(ctx, c->y[0] + row * s.v, c->x[QUERY] + row * s.k, t.states + (i + 1) * size, &s));
        }
    }
    return ASSAY_OK;
}

/* sum over i and j of a[i] m[i,j] b[j] */
static double between(const sizes *s, const double *a, const double *m, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j < s->v; j++) sum += a[i] * m[i * s->v + j] * b[j];
    return sum;
}

static double dot(int64_t count, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* How far x dx is off in each row of the state, where each has a gate: dx should be m b. */
static void rows_off(const assay_context *ctx, const sizes *s, const double *x, const double *dx, const double *m,
                     const double *b, double *off)
{
    for (int64_t i = 0; i < s->k && s->gates > 1 && ctx->emulation != NULL; i++)
        off[i] += x[i] * (dx[i] - dot(s->v, m + i * s->v, b));
}

/* Of each gate <dstate, decayed> over its rows. */
static void gates_back(const assay_context *ctx, const sizes *s, const double *dstate, const double *decayed,
                       double *off, double *dgate)
{
    const int64_t count = s->k / s->gates * s->v;
    for (int64_t i = 0; i < s->gates; i++) {
        dgate[i] = assay_dot(ctx, count, dstate + i * count, decayed + i * count);
        if (ctx->emulation != NULL) dgate[i] = graph_gate_as_sum(ctx, dgate[i], &off[i]);
    }
}

/* A given state is read by several products, and each may store its gradient. */
static void round_terms(const assay_context *ctx, const graph_call *c, const sizes *s, int64_t i, double *dstate)
{
    if (i == 0 && c->x[STATE] != NULL) assay_round(ctx, ASSAY_ROUND_STORAGE, s->k * s->v, dstate);
}

/* Token i; dstate: the gradient of its state from later ones, and then of the state before it. */
static assay_status token_back(assay_context *ctx, const graph_call *c, const sizes *s, const trail *t, int64_t i,
                               int64_t row, double *dstate, double *decayed, const double *dy)
{
    const bool emulated = ctx->emulation != NULL && s->gates == 1;
    double *off = t->sums;
    const int64_t size = s->k * s->v;
    const double *state = t->states + (i + 1) * size, *query = c->x[QUERY] + row * s->k, *key = c->x[KEY] + row * s->k,
                 *value = c->x[VALUE] + row * s->v;
    double *dkey = c->dx[KEY] + row * s->k, *dvalue = c->dx[VALUE] + row * s->v;
    const assay_matmul_args dquery = assay_product_abt(c->dx[QUERY] + row * s->k, dy, state, 1, s->k, s->v);
    MUST(assay_matmul(ctx, &dquery));
    if (emulated) *off += dot(s->k, query, c->dx[QUERY] + row * s->k) - between(s, query, state, dy);
    rows_off(ctx, s, query, c->dx[QUERY] + row * s->k, state, dy, off);
    MUST(write_state(ctx, dstate, query, dy, s));
    round_terms(ctx, c, s, i, dstate);
    MUST(read_state(ctx, dvalue, key, dstate, s));
    c->dx[BETA][row] = assay_dot(ctx, s->v, dvalue, t->u + i * s->v);
    for (int64_t j = 0; j < s->v; j++) dvalue[j] *= c->x[BETA][row];
    round_written(ctx, c, dvalue, s);
    if (emulated) *off -= dot(s->v, dvalue, value) - c->x[BETA][row] * between(s, key, dstate, value);
    for (int64_t j = 0; j < s->v; j++) decayed[size + j] = -dvalue[j];
    const double *drest = decayed + size;
    decayed_state(ctx, c, t, i, s, decayed);
    assay_matmul_args dkeys = assay_product_abt(dkey, t->d + i * s->v, dstate, 1, s->k, s->v);
    MUST(assay_matmul(ctx, &dkeys));
    rows_off(ctx, s, key, dkey, dstate, t->d + i * s->v, off);
    dkeys = assay_product_abt(dkey, drest, decayed, 1, s->k, s->v);
    dkeys.accumulate = true;
    MUST(assay_matmul(ctx, &dkeys));
    MUST(write_state(ctx, dstate, key, drest, s));
    round_terms(ctx, c, s, i, dstate);
    gates_back(ctx, s, dstate, decayed, off, c->dx[GATE] + row * s->gates);
    decay_state(ctx, dstate, t->decay + i * s->gates, s);
    hand_over(c, s, i, dstate, true);
    return ASSAY_OK;
}

static assay_status backward(assay_context *ctx, const graph_call *c)
{
    const sizes s = sizes_of(c->graph, c->step);
    const int64_t size = s.k * s.v;
    OWNED_BY(free_trail) trail t = {0};
    OWNED double *dstate = NULL, *decayed = NULL, *none = NULL; /* decayed: with a row of V behind it */
    MUST(make_trail(ctx, &s, &t));
    MUST(assay_alloc_f64(ctx, "gradient of a state", size, &dstate));
    MUST(assay_alloc_f64(ctx, "a state that has decayed", size + s.v, &decayed));
    MUST(assay_alloc_zeros(ctx, "gradient of nothing", s.v, &none));
    for (int64_t line = 0; line < s.series * s.heads; line++) {
        const int64_t first = first_row(&s, line);
        MUST(run_states(ctx, c, &s, line, &t));
        clear_sums(&t, &s);
        memset(dstate, 0, (size_t)size * sizeof *dstate);
        if (c->dy[1] != NULL) memcpy(dstate, c->dy[1] + line * size, (size_t)size * sizeof *dstate);
        for (int64_t i = s.tokens; i-- > 0;) {
            const int64_t row = first + i * s.heads;
            const double *dy = c->dy[0] == NULL ? none : c->dy[0] + row * s.v;
            if (i % CHUNK == CHUNK - 1) clear_sums(&t, &s);
            MUST(token_back(ctx, c, &s, &t, i, row, dstate, decayed, dy));
        }
        if (c->dx[STATE] != NULL) memcpy(c->dx[STATE] + line * size, dstate, (size_t)size * sizeof *dstate);
    }
    for (int i = QUERY; i <= STATE; i++)
        if (c->dx[i] != NULL) graph_round_gradient(ctx, c, i);
    return ASSAY_OK;
}

/* Of each token: read twice, written once. */
static double operations(const graph *g, const graph_step *step, int out)
{
    const sizes s = sizes_of(g, step);
    (void)out;
    return 6 * (double)(s.series * s.tokens * s.heads) * (double)s.k * (double)s.v;
}

static double backward_operations(const graph *g, const graph_step *step)
{
    return 3 * operations(g, step, 0);
}

static double scratch(const graph *g, const graph_step *step)
{
    const sizes s = sizes_of(g, step);
    return (double)(s.tokens + 3) * (double)s.k * (double)s.v;
}

const graph_kind graph_kind_gated_delta_rule = {.name = "gated_delta_rule",
                                                .reads = 63,
                                                .makes = 31,
                                                .recurrent = true,
                                                .forward = forward,
                                                .backward = backward,
                                                .operations = operations,
                                                .backward_operations = backward_operations,
                                                .scratch = scratch};
