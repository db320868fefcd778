/* y = x w + bias, by a recipe if there is one: x [..., k], w [k..., n...]. */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

enum { X, W, BIAS, SECOND_BIAS };

static graph_linear_size size_of(const graph *g, const graph_step *step)
{
    const assay_tensor_row *w = &g->tensors[step->in[W]].row;
    graph_linear_size size = {.k = 1, .branches = step->with.product.branches};
    for (int i = 0; i < w->inputs; i++) size.k *= w->shape.dims[i];
    size.m = graph_in_size(g, step, X) / size.k;
    size.n = graph_in_size(g, step, W) / size.k;
    return size;
}

assay_status graph_linear_operands(assay_context *ctx, assay_recipe_operands *o, const graph_call *c, const double *dy,
                                   graph_linear_size size)
{
    const assay_gmm_dims dims = {.m = size.m, .k = size.k, .n = size.n, .groups = 1};
    const int32_t all = (int32_t)size.m;
    const assay_recipe_given given = {.x = c->x[X],
                                      .w = c->x[W],
                                      .dy = dy,
                                      .x_spread = c->spread,
                                      .dy_spread = c->gradient_spread,
                                      .group_sizes = &all};
    return assay_recipe_quantise(ctx, o, &given, &dims, &c->step->with.product.recipe);
}

/* A product may be stored before its bias comes. */
static void add_biases(const assay_context *ctx, const graph_call *c, graph_linear_size size)
{
    const int64_t width = size.n / size.branches;
    if (c->x[BIAS] == NULL && c->x[SECOND_BIAS] == NULL) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, size.m * size.n, c->y[0]);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < size.m; row++) {
        for (int i = 0; i < size.branches; i++)
            if (c->x[BIAS + i] != NULL)
                assay_add_scaled(ctx, width, 1, c->x[BIAS + i], c->y[0] + row * size.n + i * width);
    }
}

static assay_status forward(assay_context *ctx, const graph_call *c)
{
    assay_status status;
    const graph_linear_size size = size_of(c->graph, c->step);
    assay_recipe_operands o = {0};
    TRY(graph_linear_operands(ctx, &o, c, NULL, size));
    assay_matmul_args args = assay_product_ab(c->y[0], o.x, o.w, size.m, size.n, size.k);
    args.kind = ASSAY_PRODUCT_LINEAR;
    TRY(assay_matmul(ctx, &args));
    add_biases(ctx, c, size);
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

/* dx = dy w^T: of each branch a chain and then a sum, also where they are one matrix, for the same bits as apart. */
static assay_status input_gradient(assay_context *ctx, double *dx, const assay_recipe_operands *o,
                                   graph_linear_size size)
{
    assay_status status = ASSAY_OK;
    const int64_t width = size.n / size.branches, count = size.m * size.k;
    double *part = NULL;
    assay_matmul_args args = assay_product_abt(dx, o->dx_dy, o->dx_w, size.m, size.k, width);
    args.lda = args.ldb = size.n;
    args.kind = ASSAY_PRODUCT_LINEAR;
    if (size.branches > 1) TRY(assay_alloc_f64(ctx, "gradient through a branch", count, &part));
    for (int i = 0; i < size.branches; i++) {
        args.c = i == 0 ? dx : part;
        args.a = o->dx_dy + i * width;
        args.b = o->dx_w + i * width;
        TRY(assay_matmul(ctx, &args));
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, args.c);
        if (i > 0) graph_add_term(ctx, count, part, dx);
    }
    if (size.branches > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, count, dx);
cleanup:
    free(part);
    return status;
}

assay_status graph_linear_backward(assay_context *ctx, const graph_call *c, const double *dy, graph_linear_size size)
{
    assay_status status = ASSAY_OK;
    assay_recipe_operands o = {0};
    if (c->dx[X] == NULL && c->dx[W] == NULL) return ASSAY_OK;
    TRY(graph_linear_operands(ctx, &o, c, dy, size));
    assay_matmul_args to_w = assay_product_atb(c->dx[W], o.dw_x, o.dw_dy, size.k, size.n, size.m);
    to_w.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    if (c->dx[W] != NULL) TRY(assay_matmul(ctx, &to_w));
    if (c->dx[X] != NULL) TRY(input_gradient(ctx, c->dx[X], &o, size));
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

static assay_status backward(assay_context *ctx, const graph_call *c)
{
    assay_status status;
    const graph_linear_size size = size_of(c->graph, c->step);
    TRY(graph_show_gradient(ctx, c, c->dy[0]));
    TRY(graph_linear_backward(ctx, c, c->dy[0], size));
    for (int i = 0; i < size.branches; i++) {
        const int64_t width = size.n / size.branches;
        if (c->dx[BIAS + i] != NULL)
            assay_column_sums(ctx, c->dx[BIAS + i], size.m, width, size.n, c->dy[0] + i * width);
    }
cleanup:
    return status;
}

static double operations(const graph *g, const graph_step *step, int out)
{
    const graph_linear_size size = size_of(g, step);
    (void)out;
    return 2 * (double)size.m * (double)size.n * (double)size.k;
}

static double backward_operations(const graph *g, const graph_step *step)
{
    return 2 * operations(g, step, 0);
}

void graph_linear_shares(assay_run_shares *shares, double least, graph_linear_size size, bool backward)
{
    assay_ranks_loop *rows = &shares->loops[ASSAY_SHARE_ROWS];
    if (!backward) assay_matmul_shares(rows, least, size.m, size.n, size.k);
    if (backward) assay_matmul_shares(rows, least, size.k, size.n, size.m);
    for (int i = 0; backward && i < size.branches; i++)
        assay_matmul_shares(rows, least, size.m, size.k, size.n / size.branches);
}

static void shares_of(assay_run_shares *shares, double least, const graph *g, const graph_step *step, bool backward)
{
    graph_linear_shares(shares, least, size_of(g, step), backward);
}

const graph_kind graph_kind_linear = {.name = "linear",
                                      .reads = 1u << X | 1u << W,
                                      .forward = forward,
                                      .backward = backward,
                                      .operations = operations,
                                      .backward_operations = backward_operations,
                                      .shares = shares_of};
