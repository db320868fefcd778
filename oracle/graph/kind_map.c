/* Steps of numbers one by one: a function of one, of two that are repeated along the axes that they lack, a choice by a mask. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_axes.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/quantised_deviation.h"

enum { PIECE = 1024 };

void graph_pass(const assay_context *ctx, const graph_call *calls, int count)
{
    enum { BLOCK = 4096 };
    const graph_loop loop = graph_loop_over(graph_row_out(calls));
    const int64_t rows = loop.width < BLOCK ? BLOCK / (loop.width < 1 ? 1 : loop.width) : 1;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < loop.rows; first += rows) {
        const int64_t end = first + rows < loop.rows ? first + rows : loop.rows;
        for (int i = 0; i < count; i++) calls[i].step->kind->rows(ctx, &calls[i], first, end);
    }
}

assay_status graph_by_rows(assay_context *ctx, const graph_call *c)
{
    graph_pass(ctx, c, 1);
    return ASSAY_OK;
}

/* --- y = f(x) --- */

static const double two_over_root_pi = 1.1283791670955126, root_half = 0.7071067811865476;
static const double gelu_root = 0.7978845608028654, gelu_cubic = 0.044715; /* (2/pi)^(1/2) (x + cubic x^3) */

/* Where the function has a slope on either side, and none of its own. */
static bool is_kink(graph_map f, double x, const graph_general *with)
{
    const bool bound = f == GRAPH_MAP_clamp && (x == with->a || x == with->b);
    return bound || (x == 0 && (f == GRAPH_MAP_abs || f == GRAPH_MAP_relu));
}

/* 1 - tanh(x)^2 would lose digits. */
static double slope_of_tanh(double x)
{
    const double t = assay_exp(-2 * fabs(x));
    return 4 * t / ((1 + t) * (1 + t));
}

/* f(x), or its slope there. */
static double map_of(graph_map f, double x, const graph_general *with, bool slopes)
{
    switch (f) {
#define MAP(name, value, slope)                                                                                        \
    case GRAPH_MAP_##name:                                                                                             \
        return slopes ? slope : value;
#include "oracle/graph/maps.inc"
    default:
        return NAN;
    }
}

static const assay_activation activations[GRAPH_MAP_COUNT] = {
#define ACTIVATION(name, activation) [GRAPH_MAP_##name] = activation,
#include "oracle/graph/maps.inc"
};

static bool is_activation(graph_map f)
{
    return activations[f] != ASSAY_SILU || f == GRAPH_MAP_silu;
}

/* How a correct kernel rounds what it computed, before it is stored: nothing where the result is exact. */
static void round_function(const assay_context *ctx, graph_map f, int64_t count, double *values)
{
    const bool exact = f == GRAPH_MAP_neg || f == GRAPH_MAP_abs || f == GRAPH_MAP_relu || f >= GRAPH_MAP_cast;
    if (!exact) assay_round(ctx, ASSAY_ROUND_ELEMENTARY, count, values);
}

/* Kernels take e^x as exp2 of x log2(e), which is rounded. */
static void round_argument(const assay_context *ctx, graph_map f, int64_t count, const double *x, double *values)
{
    const bool below =
        f == GRAPH_MAP_sigmoid || f == GRAPH_MAP_silu || f == GRAPH_MAP_softplus; /* as e^x where it is */
    if ((f != GRAPH_MAP_exp && !below) || ctx->emulation == NULL) return;
    for (int64_t i = 0; i < count; i++)
        if (f == GRAPH_MAP_exp || x[i] < 0) values[i] *= 1 + assay_moved_by(ctx, x[i]);
}

/* A number near the middle of two of the type goes to either of them, by errors that are far finer than the type: an emulated
 * run moves it by several of these. */
static void cast_many(const assay_context *ctx, assay_dtype type, int64_t count, const double *x, double *y)
{
    const assay_emulation *e = ctx->emulation;
    const double reach = e != NULL && !e->nearest ? ASSAY_DEVIATION_REACH : 0;
    const bool moves =
        reach > 0 && 2 * reach * assay_dtype_unit_roundoff(e->storage) <= assay_dtype_unit_roundoff(type);
    memcpy(y, x, (size_t)count * sizeof *y);
    if (moves) assay_round(ctx, ASSAY_ROUND_ELEMENTARY, count, y);
    for (int64_t i = 0; i < count; i++)
        y[i] = assay_dtype_round(type, moves ? x[i] + reach * (y[i] - x[i]) : x[i], false);
}

/* Where e^-x overflows a correct kernel has another form. */
static double stored_sigmoid(const assay_context *ctx, double x)
{
    const double e = graph_as_stored(ctx, assay_exp(-x));
    return graph_as_stored(ctx, isfinite(e) ? 1 / graph_as_stored(ctx, 1 + e) : assay_sigmoid(x));
}

/* tanh of gelu's argument, whose slope is that by x. */
static double stored_tanh(const assay_context *ctx, double x, double *slope)
{
    const double root = graph_as_stored(ctx, gelu_root), cubic = graph_as_stored(ctx, gelu_cubic),
                 square = graph_as_stored(ctx, x * x);
    const double sum = graph_as_stored(ctx, x + graph_as_stored(ctx, cubic * graph_as_stored(ctx, square * x)));
    *slope = graph_as_stored(ctx, root * graph_as_stored(ctx, 1 + graph_as_stored(ctx, 3 * cubic * square)));
    return graph_as_stored(ctx, assay_tanh(graph_as_stored(ctx, root * sum)));
}

/* A function and its slope that are made of operators which store their results each. */
static void make_unfused(const assay_context *ctx, graph_map f, double x, double *value, double *slope)
{
    const double half = graph_as_stored(ctx, 0.5 * x);
    double t, inner;
    switch (f) {
    case GRAPH_MAP_sigmoid:
        *value = stored_sigmoid(ctx, x);
        *slope = *value * graph_as_stored(ctx, 1 - *value);
        break;
    case GRAPH_MAP_silu:
        t = stored_sigmoid(ctx, x);
        *value = x * t;
        *slope = t + graph_as_stored(ctx, x * graph_as_stored(ctx, t * graph_as_stored(ctx, 1 - t)));
        break;
    case GRAPH_MAP_softplus:
        inner = graph_as_stored(ctx, assay_log1p(graph_as_stored(ctx, assay_exp(-fabs(x)))));
        *value = (x > 0 ? x : 0) + inner;
        *slope = stored_sigmoid(ctx, x);
        break;
    case GRAPH_MAP_gelu:
        t = stored_tanh(ctx, x, &inner);
        *value = half * graph_as_stored(ctx, 1 + t);
        inner = graph_as_stored(ctx, inner * graph_as_stored(ctx, 1 - graph_as_stored(ctx, t * t)));
        *slope = graph_as_stored(ctx, 0.5 * (1 + t)) + graph_as_stored(ctx, half * inner);
        break;
    case GRAPH_MAP_gelu_exact:
        inner = graph_as_stored(ctx, x * graph_as_stored(ctx, root_half));
        t = graph_as_stored(ctx, assay_erf(inner));
        *value = half * graph_as_stored(ctx, 1 + t);
        inner = two_over_root_pi * root_half * graph_as_stored(ctx, assay_exp(-graph_as_stored(ctx, inner * inner)));
        *slope = graph_as_stored(ctx, 0.5 * (1 + t)) + graph_as_stored(ctx, half * graph_as_stored(ctx, inner));
        break;
    default:
        break;
    }
}

/* The slope where frameworks take it from the result that they stored, as 1 - t^2 of a tanh t, or store parts of it. */
static double slope_by_parts(const assay_context *ctx, graph_map f, double x, double value, double slope)
{
    const double result = graph_as_stored(ctx, value);
    switch (f) {
    case GRAPH_MAP_exp:
        return result;
    case GRAPH_MAP_tanh:
        return 1 - graph_as_stored(ctx, result * result);
    case GRAPH_MAP_sigmoid:
        return result * graph_as_stored(ctx, 1 - result);
    case GRAPH_MAP_sqrt:
        return 0.5 / result;
    case GRAPH_MAP_rsqrt:
        return -0.5 * graph_as_stored(ctx, result * graph_as_stored(ctx, result * result));
    case GRAPH_MAP_reciprocal:
        return -result * result;
    case GRAPH_MAP_erf:
        return graph_as_stored(ctx, two_over_root_pi) * graph_as_stored(ctx, assay_exp(-graph_as_stored(ctx, x * x)));
    default:
        return slope;
    }
}

/* What a type has no number for stays as it was. */
static void make_in_parts(const assay_context *ctx, const graph_call *c, double x, double *value, double *slope)
{
    const graph_general *with = &c->step->with.general;
    const graph_map f = (graph_map)with->function;
    double y = *value, by_x = *slope;
    if (with->unfused)
        make_unfused(ctx, f, x, &y, &by_x);
    else
        by_x = slope_by_parts(ctx, f, x, y, by_x);
    if (isfinite(y)) *value = y;
    if (isfinite(by_x)) *slope = graph_as_stored(ctx, by_x);
}

static void map_rows(const assay_context *ctx, const graph_call *c, int64_t first, int64_t end)
{
    const graph_general *with = &c->step->with.general;
    const graph_map f = (graph_map)with->function;
    const int64_t width = graph_loop_over(graph_row_out(c)).width, count = (end - first) * width;
    const double *x = c->x[0] + first * width;
    double *y = c->y[0] + first * width;
    if (is_activation(f)) {
        assay_activation_many(ctx, activations[f], count, x, y, NULL);
    } else if (f == GRAPH_MAP_cast) {
        cast_many(ctx, with->type, count, x, y);
    } else if (f == GRAPH_MAP_exp) {
        assay_exp_many(ctx, count, x, y);
    } else {
        const bool jumps = f >= GRAPH_MAP_floor; /* errors carry a number over the edge */
        if (jumps) assay_deviation_move(ctx, count, x, c->deviation == NULL ? NULL : c->deviation + first * width, y);
        for (int64_t i = 0; i < count; i++) y[i] = map_of(f, jumps ? y[i] : x[i], with, false);
    }
    round_function(ctx, f, count, y);
    round_argument(ctx, f, count, x, y);
    for (int64_t i = 0; graph_in_parts(ctx, c) && i < count; i++) make_in_parts(ctx, c, x[i], &y[i], &(double){0});
}

/* What an emulated run makes of 1 - t^2 by the t = tanh(z) that it keeps, which cancels where t is near 1. */
static double cancelled(const assay_context *ctx, double t)
{
    double kept = t;
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &kept);
    return (t - kept) * (t + kept);
}

/* A slope is a sum of terms, which may cancel: near its zero that of an activation, and 1 - tanh^2. An emulated run errs as the
 * terms do. */
static void cancel_terms(const assay_context *ctx, graph_map f, int64_t count, const double *x, const double *value,
                         double *slope)
{
    const bool unit = f == GRAPH_MAP_silu || f == GRAPH_MAP_gelu || f == GRAPH_MAP_gelu_exact;
    for (int64_t i = 0; i < count && ctx->emulation != NULL; i++) {
        const double size = fabs(value[i]), square = x[i] * x[i];
        const double terms = fmin(size + size / fmax(fabs(x[i]), 0x1p-60), 1 + size);
        double moved = terms;
        if (unit) {
            assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &moved);
            slope[i] += moved - terms;
        }
        if (f == GRAPH_MAP_erf) slope[i] *= 1 + assay_moved_by(ctx, square);
        if (f == GRAPH_MAP_tanh) slope[i] += cancelled(ctx, value[i]);
        if (f == GRAPH_MAP_gelu)
            slope[i] += 0.5 * x[i] * gelu_root * (1 + 3 * gelu_cubic * square) *
                        cancelled(ctx, assay_tanh(gelu_root * x[i] * (1 + gelu_cubic * square)));
    }
}

static assay_status map_backward(assay_context *ctx, const graph_call *c)
{
    const graph_general *with = &c->step->with.general;
    const graph_map f = (graph_map)with->function;
    const int64_t size = graph_in_size(c->graph, c->step, 0);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < size; first += PIECE) {
        const int64_t count = size - first < PIECE ? size - first : PIECE;
        const double *x = c->x[0] + first;
        double *dx = c->dx[0] + first, value[PIECE];
        if (is_activation(f)) {
            assay_activation_many(ctx, activations[f], count, x, value, dx);
            for (int64_t i = 0; i < count && with->kink != 0; i++) dx[i] = is_kink(f, x[i], with) ? with->kink : dx[i];
        } else {
            for (int64_t i = 0; i < count; i++) value[i] = map_of(f, x[i], with, false);
            for (int64_t i = 0; i < count; i++) dx[i] = map_of(f, x[i], with, true);
        }
        round_function(ctx, f, count, dx);
        round_argument(ctx, f, count, x, dx);
        cancel_terms(ctx, f, count, x, value, dx);
        for (int64_t i = 0; graph_in_parts(ctx, c) && i < count; i++) make_in_parts(ctx, c, x[i], &value[i], &dx[i]);
        for (int64_t i = 0; i < count; i++) dx[i] *= c->dy[0][first + i];
    }
    graph_round_gradient(ctx, c, 0);
    return ASSAY_OK;
}

static const char *const maps[] = {
#define MAP(name, value, slope) #name,
#include "oracle/graph/maps.inc"
};

const graph_kind graph_kind_map = {
    .name = "map", .functions = maps, .reads = 1, .forward = graph_by_rows, .rows = map_rows, .backward = map_backward};

/* --- y = f(a, b) --- */

enum { ALONG_A, ALONG_B, VALUE };

/* f(a, b), or the slope along an operand. */
static inline __attribute__((always_inline)) double of_both(graph_binary f, int what, double a, double b, double kink)
{
    switch (f) {
#define BINARY(name, value, by_a, by_b)                                                                                \
    case GRAPH_BINARY_##name:                                                                                          \
        return what == VALUE ? value : what == ALONG_A ? by_a : by_b;
#include "oracle/graph/maps.inc"
    default:
        return NAN;
    }
}

/* Steps of 1 and 0 have loops of their own, and so has each function: they are vectorised. */
static inline __attribute__((always_inline)) void both_along(graph_binary f, int64_t count, double *y, const double *a,
                                                             int64_t a_step, const double *b, int64_t b_step)
{
    if (a_step == 1 && b_step == 1) {
        for (int64_t i = 0; i < count; i++) y[i] = of_both(f, VALUE, a[i], b[i], 0);
    } else if (a_step == 1 && b_step == 0) {
        for (int64_t i = 0; i < count; i++) y[i] = of_both(f, VALUE, a[i], b[0], 0);
    } else {
        for (int64_t i = 0; i < count; i++) y[i] = of_both(f, VALUE, a[i * a_step], b[i * b_step], 0);
    }
}

static void of_both_many(graph_binary f, int64_t count, double *y, const double *a, int64_t a_step, const double *b,
                         int64_t b_step)
{
    switch (f) {
#define BINARY(name, value, by_a, by_b)                                                                                \
    case GRAPH_BINARY_##name:                                                                                          \
        both_along(GRAPH_BINARY_##name, count, y, a, a_step, b, b_step);                                               \
        break;
#include "oracle/graph/maps.inc"
    default:
        break;
    }
}

/* Where operands lie for a loop over rows of y. */
typedef struct operands {
    graph_loop loop;
    const double *x[3];
    graph_strides strides[3];
    int64_t step[3];
    double number;
} operands;

/* A number as a kernel keeps it; of a divisor it keeps the reciprocal. One that decides is not made coarser, nor is one among whole
 * numbers. */
static double kept_number(const assay_context *ctx, const graph_call *c, int i, double number)
{
    const graph_binary f = (graph_binary)c->step->with.general.function;
    const bool decides = f > GRAPH_BINARY_div, divides = f == GRAPH_BINARY_div && i == 1;
    if (!graph_in_parts(ctx, c) || decides || c->graph->tensors[c->step->out[0]].constant) return number;
    const double kept = divides ? 1 / graph_as_stored(ctx, 1 / number) : graph_as_stored(ctx, number);
    return isfinite(kept) ? kept : number;
}

/* Of a function of two: what is no tensor, or is not there because backward does not read it, is a number. */
static void find_operands(const assay_context *ctx, const graph_call *c, operands *o)
{
    o->loop = graph_loop_over(graph_row_out(c));
    for (int i = 0; i < 3; i++) {
        const bool there = c->x[i] != NULL || c->indices[i] != NULL,
                   number = c->step->kind == &graph_kind_binary && i < 2 &&
                            (!there || c->graph->tensors[c->step->in[i]].role == GRAPH_NUMBER);
        if (number) o->number = kept_number(ctx, c, i, there ? c->x[i][0] : c->step->with.general.b);
        o->x[i] = number ? &o->number : c->x[i];
        o->strides[i] =
            graph_strides_of(there ? graph_row_in(c, i) : &c->graph->tensors[0].row, graph_row_out(c)->axes);
        o->step[i] = graph_row_step(&o->loop, &o->strides[i]);
    }
}

static const double *operand_at(const operands *o, int i, int64_t row)
{
    return o->x[i] + graph_row_start(&o->loop, &o->strides[i], row);
}

static void binary_rows(const assay_context *ctx, const graph_call *c, int64_t first, int64_t end)
{
    operands o;
    find_operands(ctx, c, &o);
    const graph_binary f = (graph_binary)c->step->with.general.function;
    for (int64_t row = first; row < end; row++) {
        double *y = c->y[0] + row * o.loop.width;
        of_both_many(f, o.loop.width, y, operand_at(&o, 0, row), o.step[0], operand_at(&o, 1, row), o.step[1]);
        if (graph_in_registers(c)) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, o.loop.width, y); /* else the walker does */
    }
}

/* dy times the slope along one operand, of all of y; `stored`: a correct kernel may store it before it adds up. */
static void terms_of(const assay_context *ctx, const graph_call *c, const operands *o, int along, bool stored,
                     double *terms)
{
    const graph_binary f = (graph_binary)c->step->with.general.function;
    const double kink = c->step->with.general.kink;
    const bool parts = f == GRAPH_BINARY_div && along == 1 && graph_in_parts(ctx, c); /* -a b^-2 */
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < o->loop.rows; row++) {
        const double *a = operand_at(o, 0, row), *b = operand_at(o, 1, row);
        const double *dy = c->dy[0] + row * o->loop.width;
        double *to = terms + row * o->loop.width;
        for (int64_t i = 0; i < o->loop.width; i++) {
            const double x = a[i * o->step[0]], by = b[i * o->step[1]];
            to[i] = dy[i] * (parts ? -x * graph_as_stored(ctx, 1 / graph_as_stored(ctx, by * by))
                                   : of_both(f, along, x, by, kink));
        }
        if (stored) assay_round(ctx, ASSAY_ROUND_STORAGE, o->loop.width, to);
    }
}

static const graph_step *maker_of(const graph *g, int tensor)
{
    return g->tensors[tensor].step < 0 ? NULL : &g->steps[g->tensors[tensor].step];
}

/* What a divisor is the sum of, over `over`; a number may be added to it, or bounds it. 0: it is no sum. */
static int summed_by(const graph *g, int divisor, char *over)
{
    const graph_step *step = maker_of(g, divisor);
    if (step == NULL) return 0;
    const int f = step->with.general.function;
    const bool adds = step->kind == &graph_kind_binary && f == GRAPH_BINARY_add;
    if (adds && g->tensors[step->in[1]].role == GRAPH_NUMBER) return summed_by(g, step->in[0], over);
    if (adds && g->tensors[step->in[0]].role == GRAPH_NUMBER) return summed_by(g, step->in[1], over);
    if (step->kind == &graph_kind_map && f == GRAPH_MAP_clamp) return summed_by(g, step->in[0], over);
    if (step->kind != &graph_kind_reduce || f != GRAPH_REDUCTION_sum || step->with.general.over[1] != '\0') return 0;
    *over = step->with.general.over[0];
    return step->in[0];
}

/* Where w is divided by its own sum the two terms of its gradient, n (dn - <n, dn>) / w, cancel: wholly where one number is summed. An emulated
 * run errs as they do. */
static void err_as_terms(const assay_context *ctx, const graph_call *c, int64_t rows, int64_t each)
{
    const assay_rounding kind = graph_in_registers(c) ? ASSAY_ROUND_ACCUMULATE : ASSAY_ROUND_STORAGE;
    for (int64_t row = 0; row < rows; row++) {
        const double *dn = c->dy[0] + row * each;
        for (int64_t i = 0; i < each; i++) {
            const double sum = c->x[1][row], term[2] = {dn[i] / sum, c->x[0][row * each + i] / (sum * sum)};
            double rounded[2] = {term[0], term[1]};
            assay_round(ctx, kind, 2, rounded);
            c->dx[0][row * each + i] += rounded[0] - term[0] + dn[i] * (rounded[1] - term[1]);
        }
    }
}

/* Results p of a softmax, or those of them that are picked, divided by their sum are a softmax n of the chosen x, whose gradient is
 * n (dn - <n, dn>). By the steps these terms cancel before the softmax's own: an emulated run keeps them for it. */
static assay_status keep_terms(assay_context *ctx, const graph_call *c)
{
    const graph *g = c->graph;
    const int w = c->step->in[0];
    const char *axes = graph_row_in(c, 0)->axes;
    char over = '\0';
    if (!assay_rounds_at_random(ctx) || summed_by(g, c->step->in[1], &over) != w) return ASSAY_OK;
    if (over != axes[strlen(axes) - 1] || strcmp(axes, graph_row_out(c)->axes) != 0) return ASSAY_OK;
    const graph_step *made = maker_of(g, w);
    const bool picked = made != NULL && made->kind == &graph_kind_pick;
    const int p = picked ? made->in[0] : w;
    const graph_step *softmax = maker_of(g, p);
    const int64_t each = graph_last_axis(g, w);
    const char *of_p = g->tensors[p].row.axes;
    const bool known = softmax != NULL && softmax->kind == &graph_kind_softmax && c->run->cancelled[p] == NULL &&
                       softmax->with.general.over[0] == of_p[strlen(of_p) - 1];
    if (!known && c->dx[0] != NULL) err_as_terms(ctx, c, graph_size(g, w) / each, each);
    if (!known) return ASSAY_OK;
    const int64_t size = graph_size(g, p), width = graph_last_axis(g, p);
    MUST(assay_alloc_zeros(ctx, "terms of a gradient", size, &c->run->cancelled[p]));
    for (int64_t row = 0; row < size / width; row++) {
        const double *x = c->x[0] + row * each, *dn = c->dy[0] + row * each, sum = c->x[1][row];
        double mean = 0;
        for (int64_t i = 0; i < each; i++) mean += dn[i] * x[i] / sum;
        for (int64_t i = 0; i < each; i++) {
            const int64_t at = picked ? c->run->indices[made->in[1]][row * each + i] : i;
            c->run->cancelled[p][row * width + at] += x[i] / sum * (fabs(dn[i]) + fabs(mean));
        }
    }
    return ASSAY_OK;
}

static assay_status binary_backward(assay_context *ctx, const graph_call *c)
{
    operands o;
    find_operands(ctx, c, &o);
    const graph_binary f = (graph_binary)c->step->with.general.function;
    const bool exact = f == GRAPH_BINARY_add || f == GRAPH_BINARY_sub;
    OWNED double *terms = NULL;
    for (int i = 0; i < 2; i++) {
        const bool same = strcmp(graph_row_in(c, i)->axes, graph_row_out(c)->axes) == 0;
        if (c->dx[i] == NULL) continue;
        if (!same && terms == NULL)
            MUST(assay_alloc_f64(ctx, "terms of a gradient", graph_out_size(c->graph, c->step, 0), &terms));
        terms_of(ctx, c, &o, i, !exact && !same, same ? c->dx[i] : terms);
        if (!same) graph_sum(ctx, c->dx[i], graph_row_in(c, i), terms, graph_row_out(c));
        if (!same || !exact) graph_round_gradient(ctx, c, i);
    }
    return f == GRAPH_BINARY_div ? keep_terms(ctx, c) : ASSAY_OK;
}

graph_step graph_times(int x, double factor)
{
    return (graph_step){
        .kind = &graph_kind_binary, .in = {x}, .with.general = {.function = GRAPH_BINARY_mul, .b = factor}};
}

static const char *const binaries[] = {
#define BINARY(name, value, by_a, by_b) #name,
#include "oracle/graph/maps.inc"
};

bool graph_is_factor(const graph_step *step)
{
    return step->kind == &graph_kind_binary && step->in[1] == 0;
}

/* Sums, and what has a number for its second operand. */
static bool reads_nothing(const graph_step *step)
{
    const int f = step->with.general.function;
    return step->in[1] == 0 || f == GRAPH_BINARY_add || f == GRAPH_BINARY_sub;
}

const graph_kind graph_kind_binary = {.name = "binary",
                                      .functions = binaries,
                                      .reads = 3,
                                      .reads_nothing = reads_nothing,
                                      .forward = graph_by_rows,
                                      .rows = binary_rows,
                                      .backward = binary_backward};

/* --- y = a where the mask is not 0, else b --- */

enum { MASK, CHOSEN, OTHER };

/* A mask is indices, or whole numbers as numbers. */
static bool is_chosen(const graph_call *c, int64_t at)
{
    return c->indices[MASK] != NULL ? c->indices[MASK][at] != 0 : c->x[MASK][at] != 0;
}

static void choice_rows(const assay_context *ctx, const graph_call *c, int64_t first, int64_t end)
{
    operands o;
    find_operands(ctx, c, &o);
    for (int64_t row = first; row < end; row++) {
        const int64_t mask = graph_row_start(&o.loop, &o.strides[MASK], row);
        const double *a = operand_at(&o, CHOSEN, row), *b = operand_at(&o, OTHER, row);
        double *y = c->y[0] + row * o.loop.width;
        for (int64_t i = 0; i < o.loop.width; i++)
            y[i] = is_chosen(c, mask + i * o.step[MASK]) ? a[i * o.step[CHOSEN]] : b[i * o.step[OTHER]];
    }
}

static assay_status choice_backward(assay_context *ctx, const graph_call *c)
{
    operands o;
    find_operands(ctx, c, &o);
    OWNED double *terms = NULL;
    MUST(assay_alloc_f64(ctx, "terms of a gradient", graph_out_size(c->graph, c->step, 0), &terms));
    for (int i = CHOSEN; i <= OTHER; i++) {
        if (c->dx[i] == NULL) continue;
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = 0; row < o.loop.rows; row++) {
            const int64_t mask = graph_row_start(&o.loop, &o.strides[MASK], row);
            for (int64_t k = 0; k < o.loop.width; k++) {
                const int64_t at = row * o.loop.width + k;
                terms[at] = is_chosen(c, mask + k * o.step[MASK]) == (i == CHOSEN) ? c->dy[0][at] : 0;
            }
        }
        graph_sum(ctx, c->dx[i], graph_row_in(c, i), terms, graph_row_out(c));
        graph_round_gradient(ctx, c, i);
    }
    return ASSAY_OK;
}

const graph_kind graph_kind_where = {
    .name = "where", .reads = 1u << MASK, .forward = graph_by_rows, .rows = choice_rows, .backward = choice_backward};

/* --- y = x, whole numbers, which lie as such or as numbers; of nothing 0, 1, .. --- */

static assay_status float_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_out_size(c->graph, c->step, 0);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < size; i++) c->y[0][i] = c->indices[0] ? c->indices[0][i] : c->x[0] ? c->x[0][i] : (double)i;
    return ASSAY_OK;
}

const graph_kind graph_kind_float = {.name = "float", .forward = float_forward};
