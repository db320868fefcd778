/* Steps along axes: sums, means and maxima, softmax, log-sum-exp, running sums, linear recurrences. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_axes.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"
#include "oracle/ops/attention.h"

/* --- sums, means, maxima --- */

/* Numbers of x that one of y is made of. */
static int64_t terms_of(const graph_call *c)
{
    return graph_in_size(c->graph, c->step, 0) / graph_out_size(c->graph, c->step, 0);
}

static double largest_of(const graph_loop *over, const graph_strides *strides, const double *x)
{
    const int64_t step = graph_row_step(over, strides);
    double largest = -INFINITY;
    for (int64_t row = 0; row < over->rows; row++) {
        const double *term = x + graph_row_start(over, strides, row);
        for (int64_t i = 0; i < over->width; i++)
            largest = term[i * step] > largest || term[i * step] != term[i * step] ? term[i * step] : largest;
    }
    return largest;
}

static void maxima(const assay_context *ctx, const graph_call *c, double *y)
{
    const char *axes = c->step->with.general.over;
    const graph_loop loop = graph_loop_over(graph_row_out(c)), over = graph_loop_over_axes(graph_row_in(c, 0), axes);
    const graph_strides kept = graph_strides_of(graph_row_in(c, 0), graph_row_out(c)->axes),
                        strides = graph_strides_of(graph_row_in(c, 0), axes);
    const int64_t step = graph_row_step(&loop, &kept);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < loop.rows * loop.width; i++) {
        const int64_t at = graph_row_start(&loop, &kept, i / loop.width) + i % loop.width * step;
        y[i] = largest_of(&over, &strides, c->x[0] + at);
    }
}

static assay_status reduce_forward(assay_context *ctx, const graph_call *c)
{
    const graph_general *with = &c->step->with.general;
    const int64_t size = graph_out_size(c->graph, c->step, 0);
    if (with->function == GRAPH_REDUCTION_max) {
        maxima(ctx, c, c->y[0]);
        return ASSAY_OK;
    }
    graph_sum(ctx, c->y[0], graph_row_out(c), c->x[0], graph_row_in(c, 0));
    if (with->function != GRAPH_REDUCTION_mean) return ASSAY_OK;
    for (int64_t i = 0; i < size; i++) c->y[0][i] /= (double)terms_of(c);
    if (graph_in_registers(c)) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, size, c->y[0]);
    return ASSAY_OK;
}

/* Of the numbers of x that are marked as largest only the first stays so. */
static void keep_first(const assay_context *ctx, const graph_call *c, double *largest)
{
    const char *axes = c->step->with.general.over;
    const graph_loop loop = graph_loop_over(graph_row_out(c)), over = graph_loop_over_axes(graph_row_in(c, 0), axes);
    const graph_strides kept = graph_strides_of(graph_row_in(c, 0), graph_row_out(c)->axes),
                        strides = graph_strides_of(graph_row_in(c, 0), axes);
    const int64_t step = graph_row_step(&loop, &kept), along = graph_row_step(&over, &strides);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < loop.rows * loop.width; i++) {
        double *mark = largest + graph_row_start(&loop, &kept, i / loop.width) + i % loop.width * step;
        bool found = false;
        for (int64_t k = 0; k < over.rows * over.width; k++) {
            double *at = mark + graph_row_start(&over, &strides, k / over.width) + k % over.width * along;
            *at = found ? 0 : *at;
            found |= *at != 0;
        }
    }
}

/* Those that are largest share the gradient, or the first has it, or each has `kink` of it: of x as it is here, whatever became of y
 * where that is stored. */
static assay_status maxima_backward(assay_context *ctx, const graph_call *c)
{
    const graph_general *with = &c->step->with.general;
    const int64_t size = graph_in_size(c->graph, c->step, 0), results = graph_out_size(c->graph, c->step, 0);
    OWNED double *largest = NULL;
    OWNED double *count = NULL;
    assay_context plain = *ctx;
    plain.arithmetic = &assay_arithmetic_reference; /* a count is exact */
    MUST(assay_alloc_f64(ctx, "largest numbers", size, &largest));
    MUST(assay_alloc_f64(ctx, "how many are largest", results, &count));
    maxima(ctx, c, count);
    graph_copy(ctx, largest, graph_row_in(c, 0), count, graph_row_out(c));
    for (int64_t i = 0; i < size; i++) largest[i] = c->x[0][i] == largest[i];
    if (with->kink < 0 && with->first != 0) keep_first(ctx, c, largest);
    graph_sum(&plain, count, graph_row_out(c), largest, graph_row_in(c, 0));
    graph_copy(ctx, c->dx[0], graph_row_in(c, 0), count, graph_row_out(c));
    for (int64_t i = 0; i < size; i++) {
        const bool alone = c->dx[0][i] == 1;
        const double share = with->kink < 0 || alone ? 1 / c->dx[0][i] : with->kink;
        largest[i] = largest[i] == 0 ? 0 : share;
    }
    graph_copy(ctx, c->dx[0], graph_row_in(c, 0), c->dy[0], graph_row_out(c));
    for (int64_t i = 0; i < size; i++) c->dx[0][i] *= largest[i];
    return ASSAY_OK;
}

static assay_status reduce_backward(assay_context *ctx, const graph_call *c)
{
    const graph_general *with = &c->step->with.general;
    const int64_t size = graph_in_size(c->graph, c->step, 0);
    if (with->function == GRAPH_REDUCTION_max) return maxima_backward(ctx, c);
    graph_copy(ctx, c->dx[0], graph_row_in(c, 0), c->dy[0], graph_row_out(c));
    const double terms = (double)terms_of(c), share = graph_as_stored(ctx, 1 / terms);
    for (int64_t i = 0; i < size && with->function == GRAPH_REDUCTION_mean; i++)
        c->dx[0][i] = graph_in_parts(ctx, c) ? c->dx[0][i] * share : c->dx[0][i] / terms;
    graph_round_gradient(ctx, c, 0);
    return ASSAY_OK;
}

static const char *const reductions[] = {
#define REDUCTION(name) #name,
#include "oracle/graph/maps.inc"
};

const graph_kind graph_kind_reduce = {
    .name = "reduce", .functions = reductions, .reads = 1, .forward = reduce_forward, .backward = reduce_backward};

/* --- along one axis --- */

/* The numbers along an axis, for every index of the others: line i begins at `start`, and has `count` numbers `step` apart. */
typedef struct lines {
    graph_loop others;
    graph_strides strides;
    int64_t count, step;
} lines;

static lines lines_of(const graph_call *c)
{
    char axes[ASSAY_MAX_RANK + 1];
    const char *over = c->step->with.general.over;
    const assay_tensor_row *row = graph_row_in(c, 0);
    graph_axes_without(row->axes, over, axes);
    const graph_strides along = graph_strides_of(row, over);
    return (lines){.others = graph_loop_over_axes(row, axes),
                   .strides = graph_strides_of(row, axes),
                   .count = graph_loop_over_axes(row, over).width,
                   .step = along.along[0]};
}

static int64_t line_count(const lines *l)
{
    return l->others.rows * l->others.width;
}

static int64_t start_of(const lines *l, int64_t line)
{
    return graph_row_start(&l->others, &l->strides, line / l->others.width) +
           line % l->others.width * graph_row_step(&l->others, &l->strides);
}

/* By how much rounding moves the largest number of a line or its log-sum-exp: e to its power is off by as much of itself. None
 * where that is no small error any more: a correct kernel makes it smaller then. */
static double moved_a_little(const assay_context *ctx, double number)
{
    const double moved = assay_moved_by(ctx, number);
    return fabs(moved) <= 0.5 ? moved : 0;
}

/* exp(x - largest) of a line and their sum; y may be NULL. Kernels with exp2 have products of both with log2(e), which are rounded
 * each: in the emulated runs lines take turns, those whose exponentials are made again by lse among them. */
static double exponentials(const assay_context *ctx, const lines *l, int64_t line, const double *x, double largest,
                           double *y)
{
    const double moved = moved_a_little(ctx, largest);
    const bool other = assay_uses_second_form_at(ctx, line) || assay_uses_third_form_at(ctx, line);
    const bool scaled = other && moved != 0;
    double sum = 0;
    for (int64_t i = 0; i < l->count; i++) {
        double e = x[i * l->step];
        if (scaled) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &e);
        e -= scaled ? largest + moved : largest;
        assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &e);
        e = assay_exp(e);
        assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &e);
        if (y != NULL) y[i * l->step] = e;
        sum += e;
    }
    assay_round_sums(ctx, ceil((double)(l->count - 1) / 3), 1, &sum); /* as of attention */
    return sum;
}

/* At a quarter of the lines: where no other form is. */
static bool in_parts_at(const assay_context *ctx, const graph_call *c, int64_t line)
{
    return c->step->in_parts && c->step->with.general.unfused && assay_rounds_at_random(ctx) &&
           !assay_uses_second_form_at(ctx, line) && !assay_uses_third_form_at(ctx, line);
}

/* The same of operators that store their results each. */
static double stored_exponentials(const assay_context *ctx, const lines *l, const double *x, double largest, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < l->count; i++) {
        const double e = graph_as_stored(ctx, assay_exp(graph_as_stored(ctx, x[i * l->step] - largest)));
        if (y != NULL) y[i * l->step] = e;
        sum += e;
    }
    return graph_as_stored(ctx, sum);
}

static double largest_on(const lines *l, const double *x)
{
    double largest = -INFINITY;
    for (int64_t i = 0; i < l->count; i++) largest = x[i * l->step] > largest ? x[i * l->step] : largest;
    return largest;
}

/* What exponentials are divided by, or multiplied with its inverse; or they are made again as exp2(x log2e - lse log2e), where the roundings of
 * lse, of its product and of that of the largest x are errors that all of the line have. In the emulated runs lines take turns. */
static double divisor_of(const assay_context *ctx, int64_t line, double largest, double sum)
{
    const double lse = largest + assay_rounded_log(ctx, sum), log2e = 1.4426950408889634;
    const double products = moved_a_little(ctx, lse * log2e) + moved_a_little(ctx, -largest * log2e);
    if (assay_uses_third_form_at(ctx, line)) return sum * assay_exp(moved_a_little(ctx, lse) + products / log2e);
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &sum);
    return sum;
}

static assay_status softmax_forward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t line = 0; line < line_count(&l); line++) {
        const int64_t start = start_of(&l, line);
        const double *x = c->x[0] + start, largest = largest_on(&l, x);
        double *y = c->y[0] + start;
        const double sum = in_parts_at(ctx, c, line)
                               ? stored_exponentials(ctx, &l, x, largest, y)
                               : divisor_of(ctx, line, largest, exponentials(ctx, &l, line, x, largest, y));
        for (int64_t i = 0; i < l.count; i++) y[i * l.step] /= sum;
    }
    if (graph_in_registers(c)) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, graph_out_size(c->graph, c->step, 0), c->y[0]);
    return ASSAY_OK;
}

/* dx = y (dy - <dy, y>). An emulated run errs as the terms do that cancel, in every line: where one number rules it as well. Flash
 * kernels take <dy, y> from what a product made of y and from the gradient of that (graph_run.row_sums); lines take turns. So
 * it errs as a softmax of chosen x does where those of y are divided by their sum (graph_run.cancelled). */
static assay_status softmax_backward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
    const bool rounds = ctx->arithmetic->round != NULL;
    const double *of_product = c->run->row_sums[c->step->out[0]], *of_chosen = c->run->cancelled[c->step->out[0]];
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t line = 0; line < line_count(&l); line++) {
        const int64_t start = start_of(&l, line);
        const double *y = c->y[0] + start, *dy = c->dy[0] + start;
        double *dx = c->dx[0] + start, sum = 0, squares = 0, of_largest = 0;
        int64_t largest = 0;
        for (int64_t i = 0; i < l.count; i++) {
            const double a = y[i * l.step], b = dy[i * l.step];
            sum = fma(a, b, sum);
            squares += rounds ? (a * b) * (a * b) : 0;
        }
        assay_round_terms(ctx, l.count, 1, &squares, &sum);
        const bool in_parts = in_parts_at(ctx, c, line);
        if (in_parts) sum = graph_as_stored(ctx, sum);
        if (of_product != NULL && assay_uses_second_form_at(ctx, line)) sum = of_product[line];
        for (int64_t i = 0; i < l.count; i++) {
            double rest = dy[i * l.step] - sum;
            assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &rest);
            if (rounds) rest += assay_moved_by(ctx, dy[i * l.step]);
            if (in_parts) rest = graph_as_stored(ctx, rest);
            dx[i * l.step] = y[i * l.step] * rest;
            if (in_parts) of_largest -= graph_as_stored(ctx, dx[i * l.step]);
            largest = y[i * l.step] > y[largest * l.step] ? i : largest;
            if (of_chosen != NULL) dx[i * l.step] += assay_moved_by(ctx, of_chosen[start + i * l.step]);
        }
        /* of the largest x that was taken off: 0 but for what was rounded */
        if (in_parts) dx[largest * l.step] += of_largest;
    }
    graph_round_gradient(ctx, c, 0);
    return ASSAY_OK;
}

const graph_kind graph_kind_softmax = {
    .name = "softmax", .reads = 1u << GRAPH_READS_OUT, .forward = softmax_forward, .backward = softmax_backward};

static assay_status logsumexp_forward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t line = 0; line < line_count(&l); line++) {
        const double *x = c->x[0] + start_of(&l, line), largest = largest_on(&l, x);
        double y = in_parts_at(ctx, c, line)
                       ? largest + graph_as_stored(ctx, assay_log(stored_exponentials(ctx, &l, x, largest, NULL)))
                       : largest + assay_rounded_log(ctx, exponentials(ctx, &l, line, x, largest, NULL));
        /* log2(sum) + largest log2(e), times ln(2) */
        if (graph_in_registers(c) || assay_uses_second_form_at(ctx, line))
            assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &y);
        c->y[0][line] = y;
    }
    return ASSAY_OK;
}

/* dx = dy exp(x - largest) / sum. Kernels take exp(x - y) of the y that they stored, and so do emulated runs, where its rounding is a
 * small error. */
static assay_status logsumexp_backward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
    const bool rounds = ctx->arithmetic->round != NULL;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t line = 0; line < line_count(&l); line++) {
        const int64_t start = start_of(&l, line);
        const double *x = c->x[0] + start, largest = largest_on(&l, x);
        double sum = 0;
        for (int64_t i = 0; i < l.count; i++) sum += assay_exp(x[i * l.step] - largest);
        const double kept = c->y[0][line] - largest;
        if (in_parts_at(ctx, c, line)) {
            sum = stored_exponentials(ctx, &l, x, largest, c->dx[0] + start);
            for (int64_t i = 0; i < l.count; i++)
                c->dx[0][start + i * l.step] =
                    c->dy[0][line] * graph_as_stored(ctx, c->dx[0][start + i * l.step] / sum);
            continue;
        }
        const bool by_y = rounds && fabs(kept - assay_log(sum)) <= 0.5;
        double from = by_y ? c->y[0][line] : largest;
        if (by_y && assay_uses_second_form_at(ctx, line)) from += moved_a_little(ctx, from);
        for (int64_t i = 0; i < l.count; i++) {
            double share = x[i * l.step] - from;
            assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &share);
            share = assay_exp(share);
            assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &share);
            c->dx[0][start + i * l.step] = c->dy[0][line] * (by_y ? share : share / sum);
        }
    }
    graph_round_gradient(ctx, c, 0);
    return ASSAY_OK;
}

const graph_kind graph_kind_logsumexp = {.name = "logsumexp",
                                         .reads = 1 | 1u << GRAPH_READS_OUT,
                                         .forward = logsumexp_forward,
                                         .backward = logsumexp_backward};

/* Each sum may be rounded, but of whole numbers; XLA, which stores them, adds up pieces, and what is before a piece. */
static void run_along(const assay_context *ctx, const lines *l, double *y, const double *x, bool back, bool exact,
                      int64_t piece)
{
    double sum = 0, before = 0;
    for (int64_t i = 0; i < l->count; i++) {
        const int64_t at = (back ? l->count - 1 - i : i) * l->step;
        if (i % piece == 0 && i > 0) before = y[(back ? l->count - i : i - 1) * l->step];
        sum = (i % piece == 0 ? 0 : sum) + x[at];
        if (i % piece > 0 && !exact) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &sum);
        y[at] = before + sum;
        if (i >= piece && !exact) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &y[at]);
    }
}

static assay_status running_sum(assay_context *ctx, const graph_call *c, double *y, const double *x, bool back)
{
    const lines l = lines_of(c);
    const bool exact = c->graph->tensors[c->step->out[0]].constant;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t line = 0; line < line_count(&l); line++) {
        const int64_t start = start_of(&l, line);
        run_along(ctx, &l, y + start, x + start, back, exact, c->step->sums == ASSAY_DTYPE_COUNT ? 16 : l.count);
    }
    return ASSAY_OK;
}

static assay_status running_forward(assay_context *ctx, const graph_call *c)
{
    return running_sum(ctx, c, c->y[0], c->x[0], false);
}

static assay_status running_backward(assay_context *ctx, const graph_call *c)
{
    const assay_status status = running_sum(ctx, c, c->dx[0], c->dy[0], true);
    graph_round_gradient(ctx, c, 0);
    return status;
}

const graph_kind graph_kind_running_sum = {.name = "cumsum", .forward = running_forward, .backward = running_backward};

/* y_t = a_t y_{t-1} + b_t along an axis, from 0 on; back with the gradient g of y: g_t = dy_t + a_{t+1} g_{t+1}, db = g,
 * da_t = g_t y_{t-1}.
 * Kernels of chunks (Mamba-2) have exp of differences of sums of log a, whose gradients are sums, too: a_t da_t = a_{t+1} da_{t+1} +
 * y_t dy_t - b_t g_t. An emulated run errs as these do, also where da is 0; not where the step says what its sums are kept in: then a
 * kernel goes one by one. */
enum { DECAY, ADDED, SCAN_CHUNK = 256 /* Mamba-2's */, SCAN_TERMS = 16 /* that count in a sum */ };

/* Not of a gate that the storage type has no number for: its log is -inf where it was stored. */
static bool has_log(const assay_context *ctx, const graph_call *c, double a)
{
    return ctx->emulation != NULL && c->step->sums == ASSAY_FLOAT64 && a <= DBL_MAX &&
           a >= fmax(DBL_MIN, assay_dtype_least_subnormal(ctx->emulation->storage));
}

/* Element i of a line, as kernels may have it; *sum: of log a in its chunk so far. */
static double decay_at(const assay_context *ctx, const graph_call *c, double a, int64_t i, double *sum)
{
    if (i % SCAN_CHUNK == 0 || !has_log(ctx, c, a)) *sum = 0;
    return has_log(ctx, c, a) ? a * assay_exp(graph_sum_moved(ctx, assay_log(a), sum)) : a;
}

/* From a state on, which becomes that behind the last: all of a line, or a chunk where states are changed (graph_hooks.states). */
static void scan(const assay_context *ctx, const graph_call *c, const lines *l, int64_t start, int64_t first,
                 int64_t last, double *state)
{
    const double *a = c->x[DECAY] + start, *b = c->x[ADDED] + start;
    double *y = c->y[0] + start, sum = 0;
    for (int64_t i = first; i < last; i++) {
        *state = fma(decay_at(ctx, c, a[i * l->step], i, &sum), *state, b[i * l->step]);
        if (i > 0) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, state);
        y[i * l->step] = *state;
    }
}

static int64_t chunk_of(const graph_call *c, const lines *l)
{
    return c->step->hooks.states != NULL ? c->step->hooks.chunk : l->count;
}

/* Those of all lines. */
static void hand_over(const graph_call *c, const lines *l, double *states, bool gradient)
{
    const assay_tensor_row *row = graph_row_in(c, 0);
    int64_t rows = 1, columns = 1;
    for (int i = 0; i < row->shape.rank; i++) {
        if (row->axes[i] == c->step->with.general.over[0]) continue;
        rows = columns;
        columns = row->shape.dims[i];
    }
    if (c->step->hooks.states != NULL) c->step->hooks.states(rows, columns, line_count(l), states, gradient);
}

/* Decays, and sums of squares of the terms that y is made of. */
static void scan_again(const assay_context *ctx, const graph_call *c, const lines *l, int64_t start, double *decays,
                       double *squares)
{
    const double *a = c->x[DECAY] + start, *y = c->y[0] + start;
    double sum = 0, square = 0;
    for (int64_t i = 0, at = 0; i < l->count; i++, at += l->step) {
        const double b = i > 0 ? y[at] - a[at] * y[at - l->step] : y[at];
        decays[at] = decay_at(ctx, c, a[at], i, &sum);
        square = fma(a[at] * a[at], square, b * b);
        squares[at] = square;
    }
}

/* state: before the first, whose gradient becomes that of this state. */
static void scan_back(const assay_context *ctx, const graph_call *c, const lines *l, int64_t start, int64_t first,
                      int64_t last, double state, double *gradient)
{
    const double *a = c->x[DECAY] + start, *y = c->y[0] + start, *dy = c->dy[0] + start;
    double *da = c->dx[DECAY] + start, *db = c->dx[ADDED] + start, next = *gradient, decay = 1, square = 0, off = 0;
    if (last == l->count) scan_again(ctx, c, l, start, da, db);
    for (int64_t i = last - 1; i >= first; i--) {
        const int64_t at = i * l->step;
        const double before = i > first ? y[at - l->step] : state, b = y[at] - a[at] * before, of_y = db[at];
        next = fma(decay, next, dy[at]);
        if (i < l->count - 1) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, 1, &next);
        square = fma(decay * decay, square, dy[at] * dy[at]);
        decay = da[at];
        da[at] = next * before;
        db[at] = next;
        if (i % SCAN_CHUNK == SCAN_CHUNK - 1 || !has_log(ctx, c, a[at])) off = 0;
        if (!has_log(ctx, c, a[at])) continue;
        const double squares = of_y * dy[at] * dy[at] + square * b * b;
        double moved = 0;
        assay_round_terms(ctx, SCAN_TERMS, 1, &squares, &moved);
        off += moved;
        da[at] = graph_gate_as_sum(ctx, decay * da[at], &off) / a[at];
    }
    *gradient = decay * next;
}

static assay_status scan_forward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
    const int64_t chunk = chunk_of(c, &l);
    OWNED double *states = NULL;
    MUST(assay_alloc_zeros(ctx, "states", line_count(&l), &states));
    for (int64_t first = 0; first < l.count; first += chunk) {
        const int64_t last = first + chunk < l.count ? first + chunk : l.count;
        if (first > 0 && graph_boundary(c->step, first) == first) hand_over(c, &l, states, false);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t line = 0; line < line_count(&l); line++)
            scan(ctx, c, &l, start_of(&l, line), first, last, states + line);
    }
    return ASSAY_OK;
}

static assay_status scan_backward(assay_context *ctx, const graph_call *c)
{
    const lines l = lines_of(c);
    const int64_t chunk = chunk_of(c, &l), count = line_count(&l);
    OWNED double *states = NULL; /* and their gradients */
    MUST(assay_alloc_zeros(ctx, "states", 2 * count, &states));
    for (int64_t first = (l.count - 1) / chunk * chunk; first >= 0; first -= chunk) {
        const int64_t last = first + chunk < l.count ? first + chunk : l.count;
        for (int64_t line = 0; line < count; line++)
            states[line] = first == 0 ? 0 : c->y[0][start_of(&l, line) + (first - 1) * l.step];
        if (first > 0 && graph_boundary(c->step, first) == first) hand_over(c, &l, states, false);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t line = 0; line < count; line++)
            scan_back(ctx, c, &l, start_of(&l, line), first, last, states[line], states + count + line);
        if (first > 0 && graph_boundary(c->step, first) == first) hand_over(c, &l, states + count, true);
    }
    for (int i = DECAY; i <= ADDED; i++) graph_round_gradient(ctx, c, i);
    return ASSAY_OK;
}

const graph_kind graph_kind_linear_scan = {.name = "linear_scan",
                                           .reads = 1u << DECAY | 1u << GRAPH_READS_OUT,
                                           .makes = 1u << DECAY | 1u << ADDED,
                                           .forward = scan_forward,
                                           .backward = scan_backward};
