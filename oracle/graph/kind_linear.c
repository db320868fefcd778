/* y = x w + bias, by a recipe if there is one: x [..., k], w [k..., n...]. Every kernel multiplies all rows at once. */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

enum { X, W, BIAS };

static graph_linear_size size_of(const graph *g, const graph_step *step)
{
    const assay_tensor_row *w = &g->tensors[step->in[W]].row;
    graph_linear_size size = {.k = 1};
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
    return assay_recipe_quantise(ctx, o, &given, &dims, &c->step->with.recipe);
}

static void add_bias(const assay_context *ctx, double *y, const double *bias, graph_linear_size size)
{
    if (bias == NULL) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, size.m * size.n, y);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < size.m; row++) assay_add_scaled(ctx, size.n, 1, bias, y + row * size.n);
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
    add_bias(ctx, c->y[0], c->x[BIAS], size);
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

assay_status graph_linear_backward(assay_context *ctx, const graph_call *c, const double *dy, graph_linear_size size)
{
    assay_status status = ASSAY_OK;
    assay_recipe_operands o = {0};
    if (c->dx[X] == NULL && c->dx[W] == NULL) return ASSAY_OK;
    TRY(graph_linear_operands(ctx, &o, c, dy, size));
    assay_matmul_args to_w = assay_product_atb(c->dx[W], o.dw_x, o.dw_dy, size.k, size.n, size.m);
    assay_matmul_args to_x = assay_product_abt(c->dx[X], o.dx_dy, o.dx_w, size.m, size.k, size.n);
    to_w.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    to_x.kind = ASSAY_PRODUCT_LINEAR;
    if (c->dx[W] != NULL) TRY(assay_matmul(ctx, &to_w));
    if (c->dx[X] == NULL) goto cleanup;
    TRY(assay_matmul(ctx, &to_x));
    assay_round(ctx, ASSAY_ROUND_STORAGE, size.m * size.k, c->dx[X]);
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

static assay_status bias_backward(assay_context *ctx, double *dbias, const double *dy, graph_linear_size size)
{
    assay_status status = ASSAY_OK;
    double *ones = NULL;
    if (dbias == NULL) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "ones", size.m, &ones));
    for (int64_t row = 0; row < size.m; row++) ones[row] = 1;
    const assay_matmul_args args = assay_product_ab(dbias, ones, dy, 1, size.n, size.m);
    TRY(assay_matmul(ctx, &args));
cleanup:
    free(ones);
    return status;
}

static assay_status backward(assay_context *ctx, const graph_call *c)
{
    assay_status status;
    const graph_linear_size size = size_of(c->graph, c->step);
    TRY(graph_show_gradient(ctx, c, c->dy[0]));
    TRY(graph_linear_backward(ctx, c, c->dy[0], size));
    TRY(bias_backward(ctx, c->dx[BIAS], c->dy[0], size));
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
    if (backward) assay_matmul_shares(rows, least, size.m, size.k, size.n);
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
