/* Steps over rows: norms, a weight of each row. */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/layer_norm.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

/* A scale, or a bias, that the kernel computes itself is in registers: x rstd meets it there, and is not stored before. */
static assay_context norm_context(const assay_context *ctx, const graph_call *c, assay_emulation *own)
{
    assay_context norm = *ctx;
    bool registers = false;
    for (int i = 1; i < 3; i++) {
        const graph_tensor *operand = &c->graph->tensors[c->step->in[i]];
        registers |= operand->step >= 0 && operand->kept != GRAPH_STORED;
    }
    if (!registers || ctx->emulation == NULL) return norm;
    *own = *ctx->emulation;
    if (assay_dtype_unit_roundoff(own->storage) > assay_dtype_unit_roundoff(ASSAY_FLOAT32))
        own->storage = ASSAY_FLOAT32;
    norm.emulation = own;
    return norm;
}

/* --- y = rms_norm(x, scale) --- */

static assay_status norm_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t dim = graph_in_size(c->graph, c->step, 1), rows = graph_in_size(c->graph, c->step, 0) / dim;
    double *rstd = NULL;
    assay_emulation own;
    const assay_context norm = norm_context(ctx, c, &own);
    MUST(assay_alloc_f64(ctx, "1/rms", rows, &rstd));
    assay_rms_norm_forward(&norm, c->y[0], rstd, c->x[0], c->x[1], rows, dim, c->step->with.number);
    if (norm.emulation != ctx->emulation) assay_round(ctx, ASSAY_ROUND_ACCUMULATE, rows * dim, c->y[0]);
    free(rstd);
    return ASSAY_OK;
}

static assay_status norm_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_in_size(c->graph, c->step, 0), dim = graph_in_size(c->graph, c->step, 1);
    const int64_t owners = graph_owners(c->graph), own = size / owners;
    OWNED double *rstd = NULL, *term = NULL;
    double *dx = c->dx[0], *dscale = c->dx[1];
    MUST(assay_alloc_f64(ctx, "1/rms", size / dim, &rstd));
    if (owners > 1 && dscale != NULL) MUST(assay_alloc_f64(ctx, "gradient of a scale of an owner", dim, &term));
    assay_rms_norm_forward(ctx, NULL, rstd, c->x[0], c->x[1], size / dim, dim, c->step->with.number);
    for (int64_t owner = 0, at = 0; owner < owners; owner++, at += own) {
        assay_rms_norm_backward(ctx, dx == NULL ? NULL : dx + at, owner > 0 ? term : dscale, c->dy[0] + at,
                                c->x[0] + at, c->x[1], rstd + at / dim, own / dim, dim);
        if (owner > 0 && dscale != NULL) graph_join(ctx, dim, dscale, term);
    }
    if (dx != NULL) graph_round_gradient(ctx, c, 0);
    return ASSAY_OK;
}

const graph_kind graph_kind_rms_norm = {
    .name = "rms_norm", .reads = 3, .forward = norm_forward, .backward = norm_backward};

/* --- y = layer_norm(x, scale, bias) --- */

static assay_status layer_norm_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t dim = graph_in_size(c->graph, c->step, 1), rows = graph_in_size(c->graph, c->step, 0) / dim;
    assay_emulation own;
    const assay_context norm = norm_context(ctx, c, &own);
    assay_layer_norm_forward(&norm, c->y[0], c->x[0], c->x[1], c->x[2], rows, dim, c->step->with.number);
    return ASSAY_OK;
}

static assay_status layer_norm_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_in_size(c->graph, c->step, 0), dim = graph_in_size(c->graph, c->step, 1);
    double *n = NULL;
    MUST(assay_alloc_f64(ctx, "normalised rows", size, &n));
    assay_layer_norm_backward(ctx, c->dx[0], c->dx[1], c->dx[2], n, c->dy[0], c->x[0], c->x[1], size / dim, dim,
                              c->step->with.number);
    if (c->dx[0] != NULL) graph_round_gradient(ctx, c, 0);
    free(n);
    return ASSAY_OK;
}

const graph_kind graph_kind_layer_norm = {.name = "layer_norm",
                                          .reads = 3,
                                          .inaccurate = "variance as the mean of squares less the square of the mean",
                                          .forward = layer_norm_forward,
                                          .backward = layer_norm_backward};

/* --- y = x, each row times a weight of its own; its gradient may be stored where y may --- */

static assay_status weigh_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t rows = graph_in_size(c->graph, c->step, 1), width = graph_in_size(c->graph, c->step, 0) / rows;
    assay_weigh_rows(ctx, c->y[0], c->x[1], c->x[0], rows, width);
    return ASSAY_OK;
}

static assay_status weigh_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t rows = graph_in_size(c->graph, c->step, 1), width = graph_in_size(c->graph, c->step, 0) / rows;
    if (c->dx[0] != NULL) assay_weigh_rows(ctx, c->dx[0], c->x[1], c->dy[0], rows, width);
    if (c->dx[0] != NULL && c->graph->tensors[c->step->out[0]].kept == GRAPH_STORED) graph_round_gradient(ctx, c, 0);
#pragma omp parallel for num_threads(ctx->threads) if (c->dx[1] != NULL)
    for (int64_t row = 0; row < (c->dx[1] == NULL ? 0 : rows); row++)
        c->dx[1][row] = assay_dot(ctx, width, c->x[0] + row * width, c->dy[0] + row * width);
    return ASSAY_OK;
}

const graph_kind graph_kind_weigh_rows = {
    .name = "weigh_rows", .reads = 3, .forward = weigh_forward, .backward = weigh_backward};
