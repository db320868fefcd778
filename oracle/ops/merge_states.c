#include "oracle/ops/merge_states.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

static const double LN_2 = 0x1.62e42fefa39efp-1;

/* One token of one head. */
typedef struct row {
    const assay_merge_states_config *config;
    const assay_merge_states_inputs *in;
    int64_t token, head; /* token in [0,B*S) */
} row;

static int64_t row_count(const assay_merge_states_config *c)
{
    return c->batch * c->sequence * c->heads;
}

static row row_at(const assay_merge_states_config *config, const assay_merge_states_inputs *in, int64_t i)
{
    return (row){config, in, i / config->heads, i % config->heads};
}

/* In [B,N,S]. */
static int64_t place_of_lse(const row *r)
{
    const assay_merge_states_config *c = r->config;
    return (r->token / c->sequence * c->heads + r->head) * c->sequence + r->token % c->sequence;
}

static int64_t place_of_out(const row *r)
{
    return (r->token * r->config->heads + r->head) * r->config->v_dim;
}

static const double *out_of(const row *r, int64_t state)
{
    return r->in->partial_out + state * row_count(r->config) * r->config->v_dim + place_of_out(r);
}

/* Natural; -inf where the part has no keys. */
static double lse_of(const assay_context *ctx, const row *r, int64_t state)
{
    double lse = r->in->partial_lse[state * row_count(r->config) + place_of_lse(r)];
    if (isinf(lse)) return -INFINITY;
    if (!r->config->base_2) return lse;
    lse *= LN_2;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    return lse;
}

/* 2^(l log2 e - from log2 e), each of which is rounded. */
static double share_in_base_2(const assay_context *ctx, double l, double from)
{
    double exponents[] = {l, from};
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 2, exponents);
    double share = assay_exp(exponents[0] - exponents[1]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share);
    return share;
}

/* exp(l - from) */
static double share_of(const assay_context *ctx, double l, double from)
{
    double share = l - from;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &share);
    share = assay_exp(share);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share);
    return share;
}

static double gate_of(const assay_context *ctx, const row *r, double natural)
{
    if (r->in->sinks == NULL) return 1;
    double gate = assay_sigmoid(natural - r->in->sinks[r->head]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &gate);
    return gate;
}

/* log sum exp of numbers whose exponentials less `largest` add up to that. */
static double log_of(const assay_context *ctx, double sum, double largest)
{
    double natural = assay_log(sum);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &natural);
    natural += largest;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &natural);
    return natural;
}

/* Weights are shares of a sum, or exp(l - L) with the rounding of L in them, as combine kernels have them, by powers of e or of 2. In
 * the emulated runs rows take turns. */
typedef enum weighing { BY_SHARES, BY_WHOLE, BY_WHOLE_IN_BASE_2, WEIGHINGS } weighing;

static weighing weighing_of(const assay_context *ctx, const row *r)
{
    const int64_t i = r->token * r->config->heads + r->head;
    return (weighing)assay_turn_at(ctx, 2 * row_count(r->config) + i, WEIGHINGS);
}

static double weight_by(const assay_context *ctx, weighing by, double share, double sum, double l, double whole)
{
    if (by == BY_WHOLE) return share_of(ctx, l, whole);
    if (by == BY_WHOLE_IN_BASE_2) return share_in_base_2(ctx, l, whole);
    double weight = share / sum;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &weight);
    return weight;
}

/* All parts at once; gives their natural log-sum-exp. */
static double merge_all(const assay_context *ctx, const row *r, double *out, double largest)
{
    const assay_merge_states_config *c = r->config;
    const weighing by = weighing_of(ctx, r);
    double sum = 0;
    for (int64_t p = 0; p < c->states; p++) sum += share_of(ctx, lse_of(ctx, r, p), largest);
    assay_round_sums(ctx, ceil((double)(c->states - 1) / 3), 1, &sum);
    const double whole = log_of(ctx, sum, largest);
    for (int64_t p = 0; p < c->states; p++) {
        const double l = lse_of(ctx, r, p);
        if (isinf(l)) continue;
        const double share = by == BY_SHARES ? share_of(ctx, l, largest) : 0;
        assay_add_scaled(ctx, c->v_dim, weight_by(ctx, by, share, sum, l, whole), out_of(r, p), out);
    }
    return whole;
}

/* One part after the other: what there is so far is stored, and its log-sum-exp rounded. Both, after each part, go to outs
 * [states,Dv] and sums [states], unless NULL. */
static double merge_in_turn(const assay_context *ctx, const row *r, double *out, double *outs, double *sums)
{
    const int64_t v_dim = r->config->v_dim;
    const weighing by = weighing_of(ctx, r);
    double so_far = -INFINITY;
    for (int64_t p = 0; p < r->config->states; p++) {
        const double l = lse_of(ctx, r, p), largest = fmax(so_far, l);
        if (!isinf(l)) {
            const double kept = isinf(so_far) ? 0 : share_of(ctx, so_far, largest), added = share_of(ctx, l, largest);
            double sum = kept + added;
            assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &sum);
            const double whole = log_of(ctx, sum, largest);
            const double weight = isinf(so_far) ? 0 : weight_by(ctx, by, kept, sum, so_far, whole);
            for (int64_t d = 0; d < v_dim; d++) out[d] *= weight;
            assay_add_scaled(ctx, v_dim, weight_by(ctx, by, added, sum, l, whole), out_of(r, p), out);
            assay_round(ctx, ASSAY_ROUND_STORAGE, v_dim, out);
            so_far = whole;
        }
        if (sums == NULL) continue;
        sums[p] = so_far;
        memcpy(outs + p * v_dim, out, (size_t)v_dim * sizeof *out);
    }
    return so_far;
}

static void merge_row(const assay_context *ctx, const row *r, double *out, double *lse)
{
    const assay_merge_states_config *c = r->config;
    double largest = -INFINITY;
    *lse = c->empty_row;
    for (int64_t p = 0; p < c->states; p++) largest = fmax(largest, lse_of(ctx, r, p));
    for (int64_t d = 0; d < c->v_dim; d++) out[d] = isinf(largest) ? c->blind : 0;
    if (isinf(largest)) return;
    const double natural =
        assay_uses_second_form(ctx) ? merge_in_turn(ctx, r, out, NULL, NULL) : merge_all(ctx, r, out, largest);
    const double gate = gate_of(ctx, r, natural);
    for (int64_t d = 0; d < c->v_dim && gate != 1; d++) out[d] *= gate;
    *lse = c->base_2 ? natural / LN_2 : natural;
    if (c->base_2) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, lse);
}

assay_status assay_merge_states_forward(assay_context *ctx, double *attention_out, double *lse,
                                        const assay_merge_states_inputs *in, const assay_merge_states_config *config)
{
    for (int64_t i = 0; i < config->states * row_count(config); i++) {
        if (!isnan(in->partial_lse[i])) continue;
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "inputs/partial_lse[%" PRId64 "] is NaN, expected a number, or an infinity of a part without keys", i);
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < row_count(config); i++) {
        const row r = row_at(config, in, i);
        merge_row(ctx, &r, attention_out + place_of_out(&r), lse + place_of_lse(&r));
    }
    return ASSAY_OK;
}

/* What backward has of a row. */
typedef struct back_row {
    row r;
    const double *dout;
    double natural, gate;
    double through; /* D */
    double dlse;    /* natural */
} back_row;

static back_row open_back(const assay_context *ctx, const row *r, const assay_merge_states_call *call)
{
    const assay_merge_states_config *c = r->config;
    const double lse = call->lse[place_of_lse(r)], unit = c->base_2 ? LN_2 : 1;
    back_row b = {.r = *r, .dout = call->dout + place_of_out(r), .natural = lse * unit};
    if (isinf(lse)) return b;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &b.natural);
    b.gate = gate_of(ctx, r, b.natural);
    b.through = assay_dot(ctx, c->v_dim, b.dout, call->attention_out + place_of_out(r));
    if (call->dlse != NULL) b.dlse = call->dlse[place_of_lse(r)] / unit;
    return b;
}

/* The gradients of a part: weight dout, and dlse, which is natural. */
static void give(const assay_context *ctx, const back_row *b, const assay_merge_states_gradients *g, int64_t state,
                 double weight, const double *dout, double dlse)
{
    const assay_merge_states_config *c = b->r.config;
    if (g->dpartial_out != NULL) {
        double *to = g->dpartial_out + state * row_count(c) * c->v_dim + place_of_out(&b->r);
        for (int64_t d = 0; d < c->v_dim; d++) to[d] = weight * dout[d];
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, to);
    }
    if (g->dpartial_lse != NULL) {
        double *to = g->dpartial_lse + state * row_count(c) + place_of_lse(&b->r);
        *to = dlse * (c->base_2 ? LN_2 : 1);
        assay_round(ctx, ASSAY_ROUND_STORAGE, 1, to);
    }
}

/* share (<dout, out> - through) and what flows to the whole's log-sum-exp besides. */
static double change_of(const assay_context *ctx, const back_row *b, double share, double gate, const double *dout,
                        const double *out, double through, double dlse)
{
    double change = assay_dot(ctx, b->r.config->v_dim, dout, out) - through;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &change);
    change = gate * change + dlse;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &change);
    return share * change;
}

static void state_back(const assay_context *ctx, const back_row *b, const assay_merge_states_gradients *g,
                       int64_t state)
{
    const double l = lse_of(ctx, &b->r, state);
    const bool empty = isinf(l);
    const double share = empty ? 0 : share_of(ctx, l, b->natural);
    double weight = share * b->gate;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &weight);
    give(ctx, b, g, state, weight, b->dout,
         empty ? 0 : change_of(ctx, b, share, b->gate, b->dout, out_of(&b->r, state), b->through, b->dlse));
}

/* Numbers of room that a row takes back. */
static int64_t room_in_turn(const assay_merge_states_config *c)
{
    return (c->states + 2) * c->v_dim + c->states;
}

/* Back through a merge that took one part after the other: what flows to those before is stored each time. */
static void row_back_in_turn(const assay_context *ctx, const back_row *b, const assay_merge_states_gradients *g,
                             double *room)
{
    const assay_merge_states_config *c = b->r.config;
    const int64_t v_dim = c->v_dim;
    double *outs = room, *dout = outs + c->states * v_dim, *out = dout + v_dim, *sums = out + v_dim;
    double dlse = b->dlse + (1 - b->gate) * b->through;
    memset(out, 0, (size_t)v_dim * sizeof *out);
    merge_in_turn(ctx, &b->r, out, outs, sums);
    for (int64_t d = 0; d < v_dim; d++) dout[d] = b->gate * b->dout[d];
    for (int64_t p = c->states - 1; p >= 0; p--) {
        const double l = lse_of(ctx, &b->r, p), before = p > 0 ? sums[p - 1] : -INFINITY;
        if (isinf(l)) {
            give(ctx, b, g, p, 0, dout, 0);
            continue;
        }
        const double through = assay_dot(ctx, v_dim, dout, outs + p * v_dim), share = share_of(ctx, l, sums[p]);
        give(ctx, b, g, p, share, dout, change_of(ctx, b, share, 1, dout, out_of(&b->r, p), through, dlse));
        if (isinf(before)) continue;
        const double kept = share_of(ctx, before, sums[p]);
        dlse = change_of(ctx, b, kept, 1, dout, outs + (p - 1) * v_dim, through, dlse);
        for (int64_t d = 0; d < v_dim; d++) dout[d] *= kept;
        assay_round(ctx, ASSAY_ROUND_STORAGE, v_dim, dout);
    }
}

/* D and the share of the sink, 1 - g, of each token of a head. */
static void sink_back(const assay_context *ctx, const assay_merge_states_call *call, int64_t head, double *share,
                      double *through)
{
    const assay_merge_states_config *c = call->config;
    for (int64_t token = 0; token < c->batch * c->sequence; token++) {
        const row r = {c, call->in, token, head};
        const back_row b = open_back(ctx, &r, call);
        const bool empty = isinf(call->lse[place_of_lse(&r)]);
        share[token] = empty ? 0 : -assay_sigmoid(call->in->sinks[head] - b.natural);
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share[token]);
        through[token] = b.through;
    }
}

assay_status assay_merge_states_backward(assay_context *ctx, const assay_merge_states_gradients *g,
                                         const assay_merge_states_call *call)
{
    const assay_merge_states_config *c = call->config;
    const int64_t tokens = c->batch * c->sequence;
    const bool in_turn = assay_uses_second_form(ctx);
    OWNED double *scratch = NULL;
    OWNED double *room = NULL;
    if (in_turn) MUST(assay_alloc_f64(ctx, "merges one after the other", row_count(c) * room_in_turn(c), &room));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < row_count(c); i++) {
        const row r = row_at(c, call->in, i);
        const back_row b = open_back(ctx, &r, call);
        if (in_turn && !isinf(call->lse[place_of_lse(&r)])) {
            row_back_in_turn(ctx, &b, g, room + i * room_in_turn(c));
        } else {
            for (int64_t p = 0; p < c->states; p++) state_back(ctx, &b, g, p);
        }
    }
    if (g->dsinks == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "gradients of sinks", 2 * tokens, &scratch));
    for (int64_t head = 0; head < c->heads; head++) {
        sink_back(ctx, call, head, scratch, scratch + tokens);
        g->dsinks[head] = assay_dot(ctx, tokens, scratch, scratch + tokens);
    }
    return ASSAY_OK;
}
