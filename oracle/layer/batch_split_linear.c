/* The routed experts from their activations on: the gate, the routing weight and wo, on all shards. Rows beyond a shard's
 * own are 0 on the way in, so they are 0 all the way.
 *
 * The schedule weighs the rows that go into wo. A kernel that weighs those that come out computes the same with other
 * roundings, above all of a gradient that cancels in the product with wo: half of the emulated runs are such a kernel. By a
 * recipe it is not the same: what is quantised is h weighed.
 */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/moe/permute.h"
#include "oracle/ops/glu.h"
#include "oracle/ops/vector_sums.h"

static bool weighs_outputs(const assay_context *ctx, const bs_layer *at)
{
    return assay_takes_second_form(ctx) && !bs_quantises(at);
}

/* Beside products of codes, which are exact, errors of functions show as in a run stage by stage: the context that has them. */
typedef struct gate_context {
    assay_context ctx;
    assay_emulation emulation;
} gate_context;

static const assay_context *gate_context_of(const assay_context *ctx, const bs_layer *at, gate_context *own)
{
    if (!bs_quantises(at) || ctx->emulation == NULL) return ctx;
    own->ctx = *ctx;
    own->emulation = *ctx->emulation;
    own->emulation.staged = true;
    own->ctx.emulation = &own->emulation;
    return &own->ctx;
}

static int64_t row_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.copies;
}

static bs_gmm_args linear_args(const bs_layer *at, const bs_microbatch *b, const double *hidden)
{
    return (bs_gmm_args){.lhs = hidden,
                         .rhs = at->w->values[BS_ROUTED + ASSAY_MLP_WO],
                         .group_sizes = b->indices[MB_OWN_COUNTS],
                         .k = at->run->stack->config->moe.moe_mlp_dim,
                         .n = at->run->mla.emb_dim,
                         .recipe = at->recipe};
}

static assay_gated_mlp_config glu_config(const bs_run *run)
{
    return (assay_gated_mlp_config){.activation = {run->stack->config->moe.activation, ASSAY_LINEAR}};
}

/* hidden [M,R,H]: silu(layer_w0) * layer_w1. */
static void gate_rows(const assay_context *ctx, const bs_layer *at, double *hidden, const bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim;
    const assay_gated_mlp_config config = glu_config(run);
    gate_context own;
    const assay_context *gate = gate_context_of(ctx, at, &own);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < row_count(run); row++) {
        const int64_t first = row * width;
        assay_glu_forward(gate, hidden + first, b->values[MB_GATE] + first, b->values[MB_UP] + first, width, &config);
        assay_round(ctx, ASSAY_ROUND_STORAGE, width, hidden + first);
    }
}

/* What goes into wo of h, in its place; a recipe quantises it, and spread is what may be said of its errors. */
static assay_status weigh_hidden(assay_context *ctx, const bs_layer *at, bool again, double *hidden,
                                 const bs_microbatch *b, double **spread)
{
    const int64_t rows = row_count(at->run), width = at->run->stack->config->moe.moe_mlp_dim;
    assay_weigh_rows(ctx, hidden, b->values[MB_ROW_WEIGHTS], hidden, rows, width);
    if (!bs_quantises(at)) return ASSAY_OK;
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, hidden);
    return bs_made_show(ctx, at->made, "intermediate_layer", again, b->number, rows * width, hidden, spread);
}

assay_status bs_compute_linear(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t rows = row_count(run), width = run->stack->config->moe.moe_mlp_dim, dim = run->mla.emb_dim;
    OWNED double *hidden = NULL, *spread = NULL;
    MUST(bs_alloc_shards(ctx, run, "hidden rows", run->sizes.copies, width, &hidden));
    MUST(bs_make(ctx, run, b, MB_ROUTED_OUT));
    double *y = b->values[MB_ROUTED_OUT];
    bs_gmm_args args = linear_args(at, b, hidden);
    gate_rows(ctx, at, hidden, b);
    if (!weighs_outputs(ctx, at)) MUST(weigh_hidden(ctx, at, false, hidden, b, &spread));
    args.lhs_spread = spread;
    MUST(bs_gmm(ctx, run, y, &args));
    if (weighs_outputs(ctx, at)) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows * dim, y);
        assay_weigh_rows(ctx, y, b->values[MB_ROW_WEIGHTS], y, rows, dim);
    }
    return ASSAY_OK;
}

/* From the gradient of each row's h to those of what it came from. */
static void gate_rows_bwd(const assay_context *ctx, const bs_layer *at, bs_microbatch *d, const double *d_hidden,
                          const bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim;
    const assay_gated_mlp_config config = glu_config(run);
    gate_context own;
    const assay_context *gate = gate_context_of(ctx, at, &own);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < row_count(run); row++) {
        const int64_t first = row * width;
        assay_glu_backward(gate, d->values[MB_GATE] + first, d->values[MB_UP] + first, d_hidden + first,
                           b->values[MB_GATE] + first, b->values[MB_UP] + first, width, &config);
    }
}

/* d_weights [M,R]: each row of `values` [M,R,width] times that of its gradient. */
static void weights_bwd(const assay_context *ctx, const bs_run *run, double *d_weights, const double *values,
                        const double *d_values, int64_t width)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < row_count(run); row++)
        d_weights[row] = assay_dot(ctx, width, values + row * width, d_values + row * width);
}

/* d_hidden, d_weights and BS_ROUTED + ASSAY_MLP_WO, rows weighed that go into wo; `hidden` has h, and in between h weighed. */
static assay_status weighed_inputs_bwd(assay_context *ctx, const bs_layer *at, double *d_hidden, bs_microbatch *d,
                                       double *hidden, const bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t rows = row_count(run), width = run->stack->config->moe.moe_mlp_dim;
    bs_gmm_args args = linear_args(at, b, hidden);
    OWNED double *spread = NULL;
    MUST(weigh_hidden(ctx, at, true, hidden, b, &spread));
    args.lhs_spread = spread;
    MUST(bs_gmm_bwd(ctx, run, d_hidden, at->g->values[BS_ROUTED + ASSAY_MLP_WO], d->values[MB_ROUTED_OUT], &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, d_hidden);
    gate_rows(ctx, at, hidden, b);
    weights_bwd(ctx, run, d->values[MB_ROW_WEIGHTS], hidden, d_hidden, width);
    assay_weigh_rows(ctx, d_hidden, b->values[MB_ROW_WEIGHTS], d_hidden, rows, width);
    /* else the members that weigh outputs err by more */
    if (bs_quantises(at)) assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, d_hidden);
    return ASSAY_OK;
}

/* The same, rows weighed that come out of it. */
static assay_status weighed_outputs_bwd(assay_context *ctx, const bs_layer *at, double *d_hidden, bs_microbatch *d,
                                        double *hidden, const bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t rows = row_count(run), dim = run->mla.emb_dim, width = run->stack->config->moe.moe_mlp_dim;
    const bs_gmm_args args = linear_args(at, b, hidden);
    OWNED double *y = NULL;
    MUST(bs_alloc_shards(ctx, run, "rows out of wo", run->sizes.copies, dim, &y));
    MUST(bs_gmm(ctx, run, y, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * dim, y);
    weights_bwd(ctx, run, d->values[MB_ROW_WEIGHTS], y, d->values[MB_ROUTED_OUT], dim);
    assay_weigh_rows(ctx, y, b->values[MB_ROW_WEIGHTS], d->values[MB_ROUTED_OUT], rows, dim);
    MUST(bs_gmm_bwd(ctx, run, d_hidden, at->g->values[BS_ROUTED + ASSAY_MLP_WO], y, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * width, d_hidden);
    return ASSAY_OK;
}

assay_status bs_compute_linear_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    static const bs_tensor made[] = {MB_GATE, MB_UP, MB_ROW_WEIGHTS};
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim, copies = run->sizes.copies;
    OWNED double *hidden = NULL, *d_hidden = NULL;
    for (int i = 0; i < 3; i++) MUST(bs_make(ctx, run, d, made[i]));
    MUST(bs_alloc_shards(ctx, run, "hidden rows", copies, width, &hidden));
    MUST(bs_alloc_shards(ctx, run, "gradient of hidden rows", copies, width, &d_hidden));
    gate_rows(ctx, at, hidden, b);
    MUST((weighs_outputs(ctx, at) ? weighed_outputs_bwd : weighed_inputs_bwd)(ctx, at, d_hidden, d, hidden, b));
    gate_rows_bwd(ctx, at, d, d_hidden, b);
    return ASSAY_OK;
}
