/* Steps of a gated MLP between its products: the unit itself, and h that is quantised. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/glu.h"
#include "oracle/ops/requantise.h"

/* --- h = glu(gate, up), which may lie beside each other --- */

typedef struct branches {
    int64_t rows, width, ld; /* of gate and up, whose rows are `ld` apart */
} branches;

static branches branches_of(const graph_call *c)
{
    const int64_t width = c->step->with.mlp.mlp_dim, size = graph_out_size(c->graph, c->step, 0);
    return (branches){size / width, width, c->step->in[1] == 0 ? 2 * width : width};
}

/* Columns that one thread takes of a row at a time, so that few long rows are shared out as well. */
enum { PIECE = 512 };

static int64_t piece_of(int64_t first, int64_t width)
{
    return width - first < PIECE ? width - first : PIECE;
}

static assay_status glu_forward(assay_context *ctx, const graph_call *c)
{
    const branches s = branches_of(c);
    const double *gate = c->x[0], *up = c->step->in[1] == 0 ? gate + s.width : c->x[1];
#pragma omp parallel for collapse(2) num_threads(ctx->threads)
    for (int64_t row = 0; row < s.rows; row++) {
        for (int64_t first = 0; first < s.width; first += PIECE) {
            const int64_t at = row * s.ld + first;
            assay_glu_forward(ctx, c->y[0] + row * s.width + first, gate + at, up + at, piece_of(first, s.width),
                              &c->step->with.mlp);
        }
    }
    return ASSAY_OK;
}

static assay_status glu_backward(assay_context *ctx, const graph_call *c)
{
    const branches s = branches_of(c);
    const bool beside = c->step->in[1] == 0, rounds = graph_rounds_gradient(c, 0);
    const double *gate = c->x[0], *up = beside ? gate + s.width : c->x[1];
    double *d_gate = c->dx[0], *d_up = beside ? d_gate + s.width : c->dx[1];
#pragma omp parallel for collapse(2) num_threads(ctx->threads)
    for (int64_t row = 0; row < s.rows; row++) {
        for (int64_t first = 0; first < s.width; first += PIECE) {
            const int64_t at = row * s.ld + first, count = piece_of(first, s.width);
            assay_glu_backward(ctx, d_gate + at, d_up + at, c->dy[0] + row * s.width + first, gate + at, up + at, count,
                               &c->step->with.mlp);
            if (!rounds) continue;
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_gate + at);
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, d_up + at);
        }
    }
    return ASSAY_OK;
}

const graph_kind graph_kind_glu = {
    .name = "glu", .reads = 3, .makes = 3, .forward = glu_forward, .backward = glu_backward};

/* --- codes and scales of h, and their numbers; gradients go straight through, to codes as if these were h --- */

static assay_status quantise_forward(assay_context *ctx, const graph_call *c)
{
    return assay_requantise(ctx, c->y[0], c->y[1], c->x[0], c->deviation, &c->step->with.quantise);
}

static assay_status numbers_forward(assay_context *ctx, const graph_call *c)
{
    const assay_quantize_config *rules = &c->step->with.quantise;
    assay_dequantize(ctx, c->y[0], c->x[0], c->x[1], rules->format->tensor_scale ? &rules->tensor_scale : NULL, rules);
    return ASSAY_OK;
}

static assay_status straight_through(assay_context *ctx, const graph_call *c)
{
    (void)ctx;
    memcpy(c->dx[0], c->dy[0], (size_t)graph_in_size(c->graph, c->step, 0) * sizeof(double));
    return ASSAY_OK;
}

const graph_kind graph_kind_quantise_hidden = {
    .name = "quantise_hidden", .forward = quantise_forward, .backward = straight_through};
const graph_kind graph_kind_hidden_numbers = {
    .name = "hidden_numbers", .forward = numbers_forward, .backward = straight_through};
