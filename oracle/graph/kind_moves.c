/* Steps that move numbers: another order of axes, parts of an axis and parts put behind each other, rows by their indices; and a
 * causal convolution. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_axes.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

/* --- y is x with its axes in another order, split, or repeated along new ones --- */

static bool is_reshaped(const graph_call *c)
{
    return c->step->with.general.function != 0;
}

static assay_status order_forward(assay_context *ctx, const graph_call *c)
{
    if (is_reshaped(c)) {
        memcpy(c->y[0], c->x[0], (size_t)graph_in_size(c->graph, c->step, 0) * sizeof(double));
    } else {
        graph_copy(ctx, c->y[0], graph_row_out(c), c->x[0], graph_row_in(c, 0));
    }
    return ASSAY_OK;
}

/* Whether a sum is of a few terms, 8 on average, which operators add to a stored one piece by piece, as gradients of a few readers. */
static bool is_added_by_pieces(const assay_context *ctx, const graph_call *c, int64_t terms, int64_t sums)
{
    return graph_in_parts(ctx, c) && terms <= 8 * sums;
}

static assay_status order_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_in_size(c->graph, c->step, 0);
    if (is_reshaped(c)) {
        memcpy(c->dx[0], c->dy[0], (size_t)size * sizeof(double));
    } else {
        assay_context own = *ctx;
        assay_emulation stored;
        if (is_added_by_pieces(ctx, c, graph_out_size(c->graph, c->step, 0), size)) {
            stored = *ctx->emulation;
            stored.sums = stored.storage;
            own.emulation = &stored;
        }
        graph_sum(&own, c->dx[0], graph_row_in(c, 0), c->dy[0], graph_row_out(c));
        graph_round_gradient(ctx, c, 0);
    }
    return ASSAY_OK;
}

const graph_kind graph_kind_order = {.name = "order", .forward = order_forward, .backward = order_backward};

/* As a reshape, but nothing flows back. */
const graph_kind graph_kind_detach = {.name = "detach", .forward = order_forward};

/* --- parts along an axis --- */

/* Of a part and the whole: before the axis `outer` indices, and behind each index of it `inner` numbers. */
typedef struct slice {
    int64_t outer, inner, whole, count, first;
} slice;

static slice slice_of(const assay_tensor_row *whole, const assay_tensor_row *of, int axis, int64_t first)
{
    slice p = {.outer = 1, .inner = 1, .whole = whole->shape.dims[axis], .first = first};
    for (int i = 0; i < whole->shape.rank; i++) {
        if (i < axis) p.outer *= whole->shape.dims[i];
        if (i > axis) p.inner *= whole->shape.dims[i];
    }
    p.count = assay_shape_count(&of->shape) / p.outer / p.inner; /* 1 where the part lacks the axis */
    return p;
}

static void move(const assay_context *ctx, const slice *p, double *whole, double *of, bool take)
{
    const size_t size = (size_t)(p->count * p->inner) * sizeof(double);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < p->outer; i++) {
        double *at = whole + (i * p->whole + p->first) * p->inner, *own = of + i * p->count * p->inner;
        memcpy(take ? own : at, take ? at : own, size);
    }
}

static int axis_at(const assay_tensor_row *row, const graph_call *c)
{
    return (int)(strchr(row->axes, c->step->with.general.over[0]) - row->axes);
}

static assay_status slice_forward(assay_context *ctx, const graph_call *c)
{
    const slice p =
        slice_of(graph_row_in(c, 0), graph_row_out(c), axis_at(graph_row_in(c, 0), c), c->step->with.general.first);
    move(ctx, &p, (double *)c->x[0], c->y[0], true);
    return ASSAY_OK;
}

static assay_status slice_backward(assay_context *ctx, const graph_call *c)
{
    const slice p =
        slice_of(graph_row_in(c, 0), graph_row_out(c), axis_at(graph_row_in(c, 0), c), c->step->with.general.first);
    if (!c->graph->tensors[c->step->in[0]].read_in_slices)
        memset(c->dx[0], 0, (size_t)graph_in_size(c->graph, c->step, 0) * sizeof(double));
    move(ctx, &p, c->dx[0], (double *)c->dy[0], false);
    return ASSAY_OK;
}

const graph_kind graph_kind_slice = {.name = "slice", .forward = slice_forward, .backward = slice_backward};

static void move_slices(const assay_context *ctx, const graph_call *c, double *whole, double *const *slices, bool take)
{
    const int axis = axis_at(graph_row_out(c), c);
    int64_t first = 0;
    for (int i = 0; i < GRAPH_IN && c->step->in[i] != 0; i++) {
        const slice p = slice_of(graph_row_out(c), graph_row_in(c, i), axis, first);
        if (slices[i] != NULL) move(ctx, &p, whole, slices[i], take);
        first += p.count;
    }
}

static assay_status concatenate_forward(assay_context *ctx, const graph_call *c)
{
    double *slices[GRAPH_IN];
    for (int i = 0; i < GRAPH_IN; i++) slices[i] = (double *)c->x[i];
    move_slices(ctx, c, c->y[0], slices, false);
    return ASSAY_OK;
}

static assay_status concatenate_backward(assay_context *ctx, const graph_call *c)
{
    move_slices(ctx, c, (double *)c->dy[0], c->dx, true);
    return ASSAY_OK;
}

const graph_kind graph_kind_concatenate = {
    .name = "concatenate", .forward = concatenate_forward, .backward = concatenate_backward};

/* --- rows by their indices --- */

enum { SOURCE, INDEX };

static assay_status check_indices(assay_context *ctx, const graph_call *c, int64_t most)
{
    const int32_t *index = c->indices[INDEX];
    const int64_t count = graph_in_size(c->graph, c->step, INDEX);
    for (int64_t i = 0; i < count; i++)
        if ((index[i] < 0 || index[i] >= most) && index[i] != c->step->with.general.passed_over)
            return assay_refuse(ctx, "%s[%" PRId64 "] is %d, expected 0 to %" PRId64, graph_row_in(c, INDEX)->name, i,
                                index[i], most - 1);
    return ASSAY_OK;
}

/* What is passed over is no row: 0 is taken there, and nothing added. */
static bool is_row(int32_t index, int64_t rows)
{
    return index >= 0 && index < rows;
}

/* to[i] = from[index[i]], rows of `width`. */
static void gather_rows(const assay_context *ctx, double *to, const double *from, int64_t rows, const int32_t *index,
                        int64_t count, int64_t width)
{
    const size_t size = (size_t)width * sizeof *to;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        if (is_row(index[i], rows))
            memcpy(to + i * width, from + index[i] * width, size);
        else
            memset(to + i * width, 0, size);
    }
}

/* to[index[i]] += from[i], ascending; columns are split over threads. */
static void add_rows(const assay_context *ctx, const graph_call *c, double *to, int64_t rows, const double *from,
                     const int32_t *index, int64_t count, int64_t width)
{
    enum { COLUMNS = 64 };
    const bool stores = is_added_by_pieces(ctx, c, count, rows);
    memset(to, 0, (size_t)(rows * width) * sizeof *to);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < width; first += COLUMNS) {
        const int64_t columns = width - first < COLUMNS ? width - first : COLUMNS;
        for (int64_t i = 0; i < count; i++) {
            double *sums = to + index[i] * width + first;
            if (!is_row(index[i], rows)) continue;
            assay_add_scaled(ctx, columns, 1, from + i * width + first, sums);
            if (stores) assay_round(ctx, ASSAY_ROUND_STORAGE, columns, sums);
        }
    }
}

static int64_t index_count(const graph_call *c)
{
    return graph_in_size(c->graph, c->step, INDEX);
}

static assay_status gather_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t rows = graph_row_in(c, SOURCE)->shape.dims[0],
                  width = graph_in_size(c->graph, c->step, SOURCE) / rows;
    const assay_status status = check_indices(ctx, c, rows);
    if (status == ASSAY_OK) gather_rows(ctx, c->y[0], c->x[SOURCE], rows, c->indices[INDEX], index_count(c), width);
    return status;
}

static assay_status gather_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t rows = graph_row_in(c, SOURCE)->shape.dims[0], size = graph_in_size(c->graph, c->step, SOURCE);
    add_rows(ctx, c, c->dx[SOURCE], rows, c->dy[0], c->indices[INDEX], index_count(c), size / rows);
    graph_round_gradient(ctx, c, SOURCE);
    return ASSAY_OK;
}

const graph_kind graph_kind_gather = {.name = "gather", .forward = gather_forward, .backward = gather_backward};

static assay_status scatter_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t rows = graph_row_out(c)->shape.dims[0], width = graph_out_size(c->graph, c->step, 0) / rows;
    const assay_status status = check_indices(ctx, c, rows);
    if (status == ASSAY_OK) add_rows(ctx, c, c->y[0], rows, c->x[SOURCE], c->indices[INDEX], index_count(c), width);
    return status;
}

static assay_status scatter_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t width = graph_in_size(c->graph, c->step, SOURCE) / index_count(c);
    gather_rows(ctx, c->dx[SOURCE], c->dy[0], graph_row_out(c)->shape.dims[0], c->indices[INDEX], index_count(c),
                width);
    return ASSAY_OK;
}

const graph_kind graph_kind_scatter_add = {
    .name = "scatter_add", .forward = scatter_forward, .backward = scatter_backward};

/* y[i,k] = x[i,index[i,k]], or without k */
typedef struct picking {
    int64_t width, each; /* numbers of a row of x, and of y */
} picking;

static picking picking_of(const graph_call *c)
{
    const int64_t width = graph_last_axis(c->graph, c->step->in[SOURCE]);
    return (picking){width, index_count(c) * width / graph_in_size(c->graph, c->step, SOURCE)};
}

static int64_t picked_from(const picking *p, const graph_call *c, int64_t i)
{
    return i / p->each * p->width + c->indices[INDEX][i];
}

static assay_status pick_forward(assay_context *ctx, const graph_call *c)
{
    const picking p = picking_of(c);
    MUST(check_indices(ctx, c, p.width));
    for (int64_t i = 0; i < index_count(c); i++)
        c->y[0][i] = is_row(c->indices[INDEX][i], p.width) ? c->x[SOURCE][picked_from(&p, c, i)] : 0;
    return ASSAY_OK;
}

/* An index that is there twice has the sum. */
static assay_status pick_backward(assay_context *ctx, const graph_call *c)
{
    const picking p = picking_of(c);
    const int64_t size = graph_in_size(c->graph, c->step, SOURCE);
    memset(c->dx[SOURCE], 0, (size_t)size * sizeof(double));
    for (int64_t i = 0; i < index_count(c); i++)
        if (is_row(c->indices[INDEX][i], p.width))
            assay_add_scaled(ctx, 1, 1, c->dy[0] + i, c->dx[SOURCE] + picked_from(&p, c, i));
    if (p.each > 1) graph_round_gradient(ctx, c, SOURCE);
    return ASSAY_OK;
}

const graph_kind graph_kind_pick = {.name = "pick", .forward = pick_forward, .backward = pick_backward};

void graph_choose(const double *x, int64_t width, double *index, int64_t count, double above)
{
    for (int64_t k = 0; k < count; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < width; i++) {
            bool taken = false;
            for (int64_t j = 0; j < k; j++) taken |= index[j] == (double)i;
            const bool out = above > -INFINITY && x[i] <= above; /* without a bound an infinite score is one, too */
            if (!taken && !out && (best < 0 || x[i] > x[best])) best = i;
        }
        index[k] = (double)best;
    }
}

/* Those of no number behind all others. */
static int by_index(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < 0) != (y < 0) ? (x < 0) - (y < 0) : (x > y) - (x < y);
}

static assay_status top_k_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t width = graph_last_axis(c->graph, c->step->in[0]), each = graph_last_axis(c->graph, c->step->out[0]);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < graph_out_size(c->graph, c->step, 0) / each; row++) {
        double *index = c->y[0] + row * each;
        graph_choose(c->x[0] + row * width, width, index, each, c->step->with.general.a);
        if (c->step->with.general.first) qsort(index, (size_t)each, sizeof *index, by_index);
    }
    return ASSAY_OK;
}

const graph_kind graph_kind_top_k = {.name = "top_k", .forward = top_k_forward};

/* --- whole numbers from whole numbers --- */

typedef struct keyed {
    int32_t key, place;
} keyed;

static int by_key(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->place > y->place) - (x->place < y->place);
}

static assay_status argsort_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t count = graph_in_size(c->graph, c->step, 0);
    OWNED keyed *sorted = NULL;
    MUST(assay_alloc(ctx, "whole numbers that are sorted", count, sizeof *sorted, &sorted));
    for (int64_t i = 0; i < count; i++) sorted[i] = (keyed){c->indices[0][i], (int32_t)i};
    qsort(sorted, (size_t)count, sizeof *sorted, by_key);
    for (int64_t i = 0; i < count; i++) c->y[0][i] = sorted[i].place;
    return ASSAY_OK;
}

const graph_kind graph_kind_argsort = {.name = "argsort", .forward = argsort_forward};

static assay_status bincount_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t bins = graph_out_size(c->graph, c->step, 0);
    (void)ctx;
    memset(c->y[0], 0, (size_t)bins * sizeof(double));
    for (int64_t i = 0; i < graph_in_size(c->graph, c->step, 0); i++)
        if (is_row(c->indices[0][i], bins)) c->y[0][c->indices[0][i]]++;
    return ASSAY_OK;
}

const graph_kind graph_kind_bincount = {.name = "bincount", .forward = bincount_forward};

/* --- y[..,t,c] = the sum over k < K of w[c,k] x[..,t - (K-1) + k,c], of the state before x, or of what there is of x; function 1: w[c,K-1-k] --- */

enum { SERIES, TAPS, STATE };

typedef struct convolution {
    int64_t series, steps, channels, taps;
} convolution;

static convolution convolution_of(const graph_call *c)
{
    const assay_shape *x = &graph_row_in(c, SERIES)->shape, *w = &graph_row_in(c, TAPS)->shape;
    const int64_t steps = x->dims[x->rank - 2], channels = x->dims[x->rank - 1];
    return (convolution){graph_in_size(c->graph, c->step, SERIES) / steps / channels, steps, channels, w->dims[1]};
}

/* Where states are changed: which number of the last steps [taps - 1,C] before a chunk it has for which, 1 and up; 0: none. */
static assay_status handed_over(assay_context *ctx, const graph_call *c, const convolution *v, double **map)
{
    const int64_t size = (v->taps - 1) * v->channels;
    if (c->step->hooks.states == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "a state", size, map));
    for (int64_t i = 0; i < size; i++) (*map)[i] = (double)(i + 1);
    c->step->hooks.states(v->taps - 1, v->channels, size, *map, false);
    return ASSAY_OK;
}

/* What tap k of a row reads of channel i, of x or of the state before it, or their gradients; NULL: nothing. */
static double *number_at(const graph_call *c, const convolution *v, const double *map, int64_t row, int64_t k,
                         int64_t i, double *x, double *state)
{
    const int64_t t = row % v->steps, series = row / v->steps, at = t - (v->taps - 1) + k,
                  first = graph_boundary(c->step, t), before = (first - (v->taps - 1)) * v->channels;
    if (at < 0) return state == NULL ? NULL : state + (series * (v->taps - 1) + t + k) * v->channels + i;
    if (x == NULL) return NULL;
    x += series * v->steps * v->channels;
    if (map == NULL || at >= first) return x + at * v->channels + i;
    const int64_t handed = (int64_t)map[at * v->channels + i - before];
    return handed == 0 ? NULL : x + before + handed - 1;
}

/* The number of w by which tap k multiplies. */
static int64_t tap_at(const graph_call *c, const convolution *v, int64_t k, int64_t i)
{
    return i * v->taps + (c->step->with.general.function == 1 ? v->taps - 1 - k : k);
}

static assay_status convolution_forward(assay_context *ctx, const graph_call *c)
{
    const convolution v = convolution_of(c);
    OWNED double *map = NULL;
    MUST(handed_over(ctx, c, &v, &map));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < v.series * v.steps; row++) {
        double *y = c->y[0] + row * v.channels;
        memset(y, 0, (size_t)v.channels * sizeof *y);
        for (int64_t k = 0; k < v.taps; k++) {
            for (int64_t i = 0; i < v.channels; i++) {
                const double *x = number_at(c, &v, map, row, k, i, (double *)c->x[SERIES], (double *)c->x[STATE]);
                if (x != NULL) assay_add_scaled(ctx, 1, c->x[TAPS][tap_at(c, &v, k, i)], x, y + i);
            }
        }
    }
    return ASSAY_OK;
}

static assay_status convolution_backward(assay_context *ctx, const graph_call *c)
{
    const convolution v = convolution_of(c);
    double *dw = c->dx[TAPS];
    OWNED double *map = NULL;
    MUST(handed_over(ctx, c, &v, &map));
    for (int i = SERIES; i <= STATE; i++)
        if (c->dx[i] != NULL) memset(c->dx[i], 0, (size_t)graph_in_size(c->graph, c->step, i) * sizeof *dw);
#pragma omp parallel for num_threads(map == NULL ? ctx->threads : 1)
    for (int64_t i = 0; i < v.channels; i++) {
        for (int64_t row = 0; row < v.series * v.steps; row++) {
            for (int64_t k = 0; k < v.taps; k++) {
                const double *dy = c->dy[0] + row * v.channels + i,
                             *x = number_at(c, &v, map, row, k, i, (double *)c->x[SERIES], (double *)c->x[STATE]);
                double *dx = number_at(c, &v, map, row, k, i, c->dx[SERIES], c->dx[STATE]);
                if (dx != NULL) assay_add_scaled(ctx, 1, c->x[TAPS][tap_at(c, &v, k, i)], dy, dx);
                if (x != NULL && dw != NULL) assay_add_scaled(ctx, 1, *x, dy, dw + tap_at(c, &v, k, i));
            }
        }
    }
    for (int i = SERIES; i <= STATE; i++)
        if (c->dx[i] != NULL) graph_round_gradient(ctx, c, i);
    return ASSAY_OK;
}

const graph_kind graph_kind_causal_convolution = {
    .name = "causal_conv", .reads = 7, .forward = convolution_forward, .backward = convolution_backward};
