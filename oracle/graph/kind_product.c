/* y = the product of two tensors by the names of their axes: axes of all three go along, axes of both operands are summed over. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_axes.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

/* As a product of matrices for each index of `batch`: a [batch,m,k], b [batch,k,n], y [batch,m,n]. */
typedef struct contraction {
    assay_tensor_row a, b, y; /* laid out so */
    int64_t batch, m, n, k;
    assay_product kind;
} contraction;

static const assay_tensor_row *row_of(const graph *g, int tensor)
{
    return &g->tensors[tensor].row;
}

static int64_t append_axes(assay_tensor_row *to, const assay_tensor_row *from, const char *axes)
{
    int64_t count = 1;
    for (; *axes != '\0'; axes++) {
        to->axes[to->shape.rank] = *axes;
        to->shape.dims[to->shape.rank] = from->shape.dims[strchr(from->axes, *axes) - from->axes];
        count *= to->shape.dims[to->shape.rank++];
        to->axes[to->shape.rank] = '\0';
    }
    return count;
}

static contraction contraction_of(const graph *g, const graph_step *step)
{
    const assay_tensor_row *a = row_of(g, step->in[0]), *b = row_of(g, step->in[1]), *y = row_of(g, step->out[0]);
    char own[ASSAY_MAX_RANK + 1], rows[ASSAY_MAX_RANK + 1], columns[ASSAY_MAX_RANK + 1], batch[ASSAY_MAX_RANK + 1],
        summed[ASSAY_MAX_RANK + 1];
    contraction p = {.kind = g->tensors[step->in[1]].step < 0 ? ASSAY_PRODUCT_LINEAR : ASSAY_PRODUCT_OTHER};
    graph_axes_without(y->axes, b->axes, rows);
    graph_axes_without(y->axes, a->axes, columns);
    graph_axes_without(a->axes, y->axes, summed);
    graph_axes_without(y->axes, rows, own);
    graph_axes_without(own, columns, batch);
    p.batch = append_axes(&p.a, a, batch);
    p.m = append_axes(&p.a, a, rows);
    p.k = append_axes(&p.a, a, summed);
    append_axes(&p.b, b, batch);
    append_axes(&p.b, b, summed);
    p.n = append_axes(&p.b, b, columns);
    append_axes(&p.y, y, batch);
    append_axes(&p.y, y, rows);
    append_axes(&p.y, y, columns);
    return p;
}

/* The numbers in another order; *made is the caller's, NULL where they lie so already. */
static assay_status laid_out(assay_context *ctx, const double **values, const assay_tensor_row *is,
                             const assay_tensor_row *wanted, double **made)
{
    if (strcmp(is->axes, wanted->axes) == 0) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "an operand", assay_shape_count(&is->shape), made));
    graph_copy(ctx, *made, wanted, *values, is);
    *values = *made;
    return ASSAY_OK;
}

/* to = the product of each index of the batch, made as `result` and laid out as `is`. */
static assay_status multiply(assay_context *ctx, double *to, const assay_tensor_row *is, const assay_tensor_row *result,
                             assay_matmul_args args, int64_t batch)
{
    const bool lies = strcmp(is->axes, result->axes) == 0;
    OWNED double *made = NULL;
    if (!lies) MUST(assay_alloc_f64(ctx, "a product", batch * args.m * args.n, &made));
    args.c = lies ? to : made;
    for (int64_t i = 0; i < batch; i++) {
        MUST(assay_matmul(ctx, &args));
        args.a += args.m * args.k;
        args.b += args.k * args.n;
        args.c += args.m * args.n;
    }
    if (!lies) graph_copy(ctx, to, is, made, result);
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const graph_call *c)
{
    const graph *g = c->graph;
    const contraction p = contraction_of(g, c->step);
    const double *a = c->x[0], *b = c->x[1];
    OWNED double *made_a = NULL, *made_b = NULL;
    MUST(laid_out(ctx, &a, row_of(g, c->step->in[0]), &p.a, &made_a));
    MUST(laid_out(ctx, &b, row_of(g, c->step->in[1]), &p.b, &made_b));
    assay_matmul_args args = assay_product_ab(NULL, a, b, p.m, p.n, p.k);
    args.kind = p.kind;
    return multiply(ctx, c->y[0], row_of(g, c->step->out[0]), &p.y, args, p.batch);
}

static int64_t behind(const assay_tensor_row *row, int64_t axis)
{
    int64_t numbers = 1;
    for (int64_t i = axis + 1; i < row->shape.rank; i++) numbers *= row->shape.dims[i];
    return numbers;
}

/* The result of a softmax along `over` that p is, maybe under other axes, cast, or without the column of a sink; nothing else reads it.
 * *rows: axes that say how it lies. 0: there is none. */
static int softmax_result(const graph_call *c, int p, char over, const assay_tensor_row **rows)
{
    const graph *g = c->graph;
    const graph_step *step;
    *rows = row_of(g, p);
    for (;;) {
        if (g->tensors[p].step < 0 || c->run->pending[p] != 1 || c->run->gradient[p] != NULL) return 0;
        step = &g->steps[g->tensors[p].step];
        if (step->kind == &graph_kind_softmax) break;
        const bool cast = step->kind == &graph_kind_map && step->with.general.function == GRAPH_MAP_cast;
        const bool stays =
            cast || (step->kind == &graph_kind_slice && row_of(g, step->in[0])->shape.rank == row_of(g, p)->shape.rank);
        const bool moves = !stays && step->with.general.function == 0;
        if (!stays && (step->kind != &graph_kind_order || graph_size(g, step->in[0]) != graph_size(g, p))) return 0;
        if (moves && strcmp((*rows)->axes, row_of(g, p)->axes) != 0) return 0;
        p = step->in[0];
        if (moves) *rows = row_of(g, p);
    }
    const assay_tensor_row *made = row_of(g, p);
    const int64_t axis = strchr((*rows)->axes, over) - (*rows)->axes,
                  own = strchr(made->axes, step->with.general.over[0]) - made->axes;
    const bool alike = assay_tensor_row_count(*rows) / (*rows)->shape.dims[axis] ==
                           assay_tensor_row_count(made) / made->shape.dims[own] &&
                       behind(*rows, axis) == behind(made, own);
    return alike ? p : 0;
}

/* Flash kernels know <p, dp> of a softmax's result, over its axis, as the sum of y dy, where y is the product of it: as it is stored
 * for another kernel, whatever this one keeps in registers. */
static assay_status sum_rows(assay_context *ctx, const graph_call *c, int i)
{
    const graph *g = c->graph;
    graph_run *r = c->run;
    const int y = c->step->out[0];
    const assay_tensor_row *of_p = row_of(g, c->step->in[i]);
    char over[ASSAY_MAX_RANK + 1], left[ASSAY_MAX_RANK + 1];
    graph_axes_without(of_p->axes, row_of(g, y)->axes, over);
    const int p =
        assay_rounds_at_random(ctx) && strlen(over) == 1 ? softmax_result(c, c->step->in[i], over[0], &of_p) : 0;
    if (p == 0 || r->row_sums[p] != NULL) return ASSAY_OK;
    assay_tensor_row rows = {.name = "sums of rows"};
    const int64_t count = graph_size(g, y);
    OWNED double *terms = NULL;
    graph_axes_without(of_p->axes, over, left);
    const int64_t row_count = append_axes(&rows, of_p, left);
    MUST(graph_require(ctx, r, y));
    MUST(assay_alloc_f64(ctx, "terms of sums of rows", count, &terms));
    MUST(assay_alloc_f64(ctx, "sums of rows", row_count, &r->row_sums[p]));
    memcpy(terms, r->value[y], (size_t)count * sizeof *terms);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, terms);
    for (int64_t k = 0; k < count; k++) terms[k] *= c->dy[0][k];
    graph_sum(ctx, r->row_sums[p], &rows, terms, row_of(g, y));
    return ASSAY_OK;
}

/* da = dy b^T, db = a^T dy. */
static assay_status backward(assay_context *ctx, const graph_call *c)
{
    const graph *g = c->graph;
    const contraction p = contraction_of(g, c->step);
    const double *a = c->x[0], *b = c->x[1], *dy = c->dy[0];
    OWNED double *made_a = NULL, *made_b = NULL, *made_dy = NULL;
    for (int i = 0; i < 2; i++) MUST(sum_rows(ctx, c, i));
    MUST(laid_out(ctx, &a, row_of(g, c->step->in[0]), &p.a, &made_a));
    MUST(laid_out(ctx, &b, row_of(g, c->step->in[1]), &p.b, &made_b));
    MUST(laid_out(ctx, &dy, row_of(g, c->step->out[0]), &p.y, &made_dy));
    if (c->dx[0] != NULL) {
        assay_matmul_args args = assay_product_abt(NULL, dy, b, p.m, p.k, p.n);
        args.kind = p.kind;
        MUST(multiply(ctx, c->dx[0], row_of(g, c->step->in[0]), &p.a, args, p.batch));
        graph_round_gradient(ctx, c, 0);
    }
    if (c->dx[1] != NULL) {
        assay_matmul_args args = assay_product_atb(NULL, a, dy, p.k, p.n, p.m);
        args.kind = p.kind == ASSAY_PRODUCT_LINEAR ? ASSAY_PRODUCT_LINEAR_GRADIENT : p.kind;
        MUST(multiply(ctx, c->dx[1], row_of(g, c->step->in[1]), &p.b, args, p.batch));
        if (p.kind == ASSAY_PRODUCT_OTHER) graph_round_gradient(ctx, c, 1);
    }
    return ASSAY_OK;
}

static double operations(const graph *g, const graph_step *step, int out)
{
    const contraction p = contraction_of(g, step);
    (void)out;
    return 2 * (double)p.batch * (double)p.m * (double)p.n * (double)p.k;
}

static double backward_operations(const graph *g, const graph_step *step)
{
    return 2 * operations(g, step, 0);
}

const graph_kind graph_kind_product = {.name = "product",
                                       .reads = 3,
                                       .forward = forward,
                                       .backward = backward,
                                       .operations = operations,
                                       .backward_operations = backward_operations};
