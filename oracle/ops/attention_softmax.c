/* The softmax of a row of scores: caps, splits that are merged, sinks. */
#include "oracle/ops/attention_internal.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/ops/activation.h"

double attention_gate(const assay_context *ctx, double lse, double sink)
{
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    double gate = assay_sigmoid(lse - sink);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &gate);
    return gate;
}

double attention_sink_share(const assay_context *ctx, double lse, double sink)
{
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &lse);
    double share = assay_sigmoid(sink - lse);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share);
    return share;
}

/* tanh(x) = (1 - e) / (1 + e) with e = exp(-2 |x|), and 1 - tanh(x)^2 = 4 e / (1 + e)^2, which loses no digits. A kernel that
 * takes the slope from its rounded tanh has the error of that. */
static double capped(const assay_context *ctx, double x, double *slope)
{
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &x);
    const double e = assay_exp(-2 * fabs(x)), exact = copysign((1 - e) / (1 + e), x);
    double rounded = exact;
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &rounded);
    *slope = 4 * e / ((1 + e) * (1 + e)) - (rounded - exact) * (rounded + exact);
    return rounded;
}

void attention_cap(const assay_context *ctx, double soft_cap, double *scores, double *slopes, int64_t count)
{
    if (soft_cap == 0) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, scores);
    for (int64_t i = 0; i < count; i++) {
        double slope;
        scores[i] = soft_cap * capped(ctx, scores[i] / soft_cap, &slope);
        if (slopes != NULL) slopes[i] = slope;
    }
}

/* The sum of a row's exponentials. A sum of `count` positive terms that is rounded after every term has the error of
 * count / 3 roundings of its final value. */
static double sum_row(const assay_context *ctx, const double *p, int64_t count)
{
    double sum = 0;
    for (int64_t j = 0; j < count; j++) sum += p[j];
    assay_round_sums(ctx, ceil((double)count / 3), 1, &sum);
    return sum;
}

/* Half of the rows that are merged have two parts, whose errors are the largest; the others up to ATTENTION_SPLITS. */
static int64_t splits_of(const assay_context *ctx, int64_t row)
{
    if (!assay_uses_third_form_at(ctx, row)) return 1;
    return assay_turn_at(ctx, 2 * row, 2) == 0 ? 2 : 3 + assay_turn_at(ctx, 2 * row + 1, ATTENTION_SPLITS - 2);
}

attention_softmax attention_softmax_of(const assay_context *ctx, int64_t row, const double *sink)
{
    const bool last = assay_uses_second_form_at(ctx, row);
    const bool gated = !last && sink != NULL && assay_uses_third_form_at(ctx, row);
    return (attention_softmax){.form = last    ? ATTENTION_DIVIDED_LAST
                                       : gated ? ATTENTION_GATED_FIRST
                                               : ATTENTION_DIVIDED_FIRST,
                               .splits = splits_of(ctx, row),
                               .sink = sink};
}

double assay_rounded_log(const assay_context *ctx, double x)
{
    double log = assay_log(x);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &log);
    return log;
}

/* A kernel that has the keys in parts (split KV, a ring) keeps an lse of each, and merges results by exp(lse_part - lse): where lse is
 * large, its rounding is a common error of the row. How many keys a part has decides which of them share it. In the emulated runs rows
 * take turns here too, and draw the number of parts. Exponentials of a row, of the sum
 * `sum`, become what such a kernel weighs with, times that sum; returns its lse. Not where the rounding of an lse is no small error any
 * more: no correct kernel has that. */
static double merge_splits(const assay_context *ctx, double *p, int64_t count, int64_t splits, double largest,
                           double sum)
{
    double lse[ATTENTION_SPLITS], sums[ATTENTION_SPLITS], weights[ATTENTION_SPLITS];
    const double whole = largest + assay_rounded_log(ctx, sum);
    bool small = true;
    for (int64_t split = 0; split < splits; split++) {
        const int64_t begin = count * split / splits;
        sums[split] = sum_row(ctx, p + begin, count * (split + 1) / splits - begin);
        lse[split] = largest + assay_rounded_log(ctx, sums[split]);
    }
    memcpy(weights, lse, (size_t)splits * sizeof *lse);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, splits, lse);
    for (int64_t split = 0; split < splits; split++) small &= !(fabs(lse[split] - weights[split]) > 0.5);
    if (!small) return whole;
    for (int64_t split = 0; split < splits; split++) weights[split] = assay_exp(lse[split] - largest);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, splits, weights);
    const double merged = largest + assay_rounded_log(ctx, sum_row(ctx, weights, splits));
    double stored = merged;
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &stored);
    if (fabs(stored - merged) > 0.5) return whole;
    for (int64_t split = 0; split < splits; split++) {
        const double factor = sums[split] > 0 ? sum * (assay_exp(lse[split] - stored) / sums[split]) : 0;
        for (int64_t j = count * split / splits; j < count * (split + 1) / splits; j++) p[j] *= factor;
    }
    return stored;
}

double attention_softmax_row(const assay_context *ctx, const attention_softmax *how, double *p, int64_t count,
                             double *divisor)
{
    const bool last = how->form == ATTENTION_DIVIDED_LAST;
    double largest = -INFINITY;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    for (int64_t j = 0; j < count; j++) largest = p[j] > largest ? p[j] : largest;
    for (int64_t j = 0; j < count; j++) p[j] -= largest;
    assay_exp_many(ctx, count, p, p);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, count, p);
    const double sum = sum_row(ctx, p, count);
    const double lse = how->splits > 1 ? merge_splits(ctx, p, count, how->splits, largest, sum)
                                       : largest + assay_rounded_log(ctx, sum);
    const double gate = how->form == ATTENTION_GATED_FIRST ? attention_gate(ctx, lse, *how->sink) : 1;
    *divisor = last ? sum : 1;
    for (int64_t j = 0; j < count && !last; j++) p[j] = p[j] / sum * gate;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, p);
    assay_round(ctx, ASSAY_ROUND_OPERAND, count, p);
    return lse;
}

void attention_divide_row(double *out, int64_t wide, double divisor)
{
    for (int64_t d = 0; d < wide && divisor != 1; d++) out[d] /= divisor;
}

void attention_gate_row(const assay_context *ctx, const attention_softmax *how, double *out, int64_t wide, double lse)
{
    if (how->sink == NULL || how->form == ATTENTION_GATED_FIRST) return;
    if (how->form == ATTENTION_DIVIDED_FIRST) assay_round(ctx, ASSAY_ROUND_STORAGE, wide, out);
    const double gate = attention_gate(ctx, lse, *how->sink);
    for (int64_t d = 0; d < wide; d++) out[d] *= gate;
}
