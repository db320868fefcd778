/* The routed experts from their activations on: the gate, the routing weight and wo, on all shards.
 *
 * The schedule weighs the rows that go into wo. A kernel that weighs those that come out computes the same with other
 * roundings, above all of a gradient that cancels in the product with wo: half of the emulated runs are such a kernel.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/glu.h"
#include "oracle/ops/vector_sums.h"

static bool weighs_outputs(const assay_context *ctx)
{
    return assay_takes_second_form(ctx);
}

/* Of all shards, those that stay empty included. */
static int64_t row_count(const bs_run *run)
{
    return run->sizes.shards * run->sizes.copies;
}

static bs_gmm_args linear_args(const bs_moe_layer *at, const bs_routed *routed, const double *hidden)
{
    return (bs_gmm_args){.lhs = hidden,
                         .rhs = at->w->values[BS_ROUTED + ASSAY_MLP_WO],
                         .group_sizes = routed->group_sizes,
                         .k = at->run->stack->config->moe.moe_mlp_dim,
                         .n = at->run->mla.emb_dim};
}

/* One row h [H] of silu(layer_w0) * layer_w1. */
static void gate_row(const assay_context *ctx, const bs_run *run, double *h, const bs_gating *gating, int64_t row)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const assay_gated_mlp_config config = {.activation = {moe->activation, ASSAY_LINEAR}};
    const int64_t at = row * moe->moe_mlp_dim;
    assay_glu_forward(ctx, h, gating->layer_w0 + at, gating->layer_w1 + at, moe->moe_mlp_dim, &config);
    assay_round(ctx, ASSAY_ROUND_STORAGE, moe->moe_mlp_dim, h);
}

/* Each row of [M,R,width] times its routing weight, as far as a shard's experts have rows. */
static void weigh_rows(const assay_context *ctx, const bs_run *run, double *values, int64_t width,
                       const bs_routed *routed)
{
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * run->sizes.copies, end = first + bs_rows_of(run, routed->group_sizes, shard);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = first; row < end; row++) {
            for (int64_t i = 0; i < width; i++) values[row * width + i] *= routed->weights[row];
            assay_round(ctx, ASSAY_ROUND_STORAGE, width, values + row * width);
        }
    }
}

/* Rows of h; what lies beyond a shard's rows stays undefined, and nothing reads it. */
static void gate_rows(const assay_context *ctx, const bs_run *run, double *hidden, const bs_gating *gating,
                      const bs_routed *routed)
{
    const int64_t width = run->stack->config->moe.moe_mlp_dim;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * run->sizes.copies, end = first + bs_rows_of(run, routed->group_sizes, shard);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = first; row < end; row++) gate_row(ctx, run, hidden + row * width, gating, row);
    }
}

assay_status bs_compute_linear(assay_context *ctx, const bs_moe_layer *at, double *y, const bs_gating *gating,
                               const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    double *hidden = NULL;
    TRY(bs_alloc_shards(ctx, run, "hidden rows", run->sizes.copies, run->stack->config->moe.moe_mlp_dim, &hidden));
    gate_rows(ctx, run, hidden, gating, routed);
    if (!weighs_outputs(ctx)) weigh_rows(ctx, run, hidden, run->stack->config->moe.moe_mlp_dim, routed);
    const bs_gmm_args args = linear_args(at, routed, hidden);
    TRY(bs_gmm(ctx, run, y, &args));
    if (weighs_outputs(ctx)) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, row_count(run) * run->mla.emb_dim, y);
        weigh_rows(ctx, run, y, run->mla.emb_dim, routed);
    }
cleanup:
    free(hidden);
    return status;
}

/* From the gradient of each row's h to those of what it came from; 0 beyond a shard's rows. */
static void gate_rows_bwd(const assay_context *ctx, const bs_run *run, bs_gating *d_gating, const double *d_hidden,
                          const bs_gating *gating, const bs_routed *routed)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const assay_gated_mlp_config config = {.activation = {moe->activation, ASSAY_LINEAR}};
    const int64_t width = moe->moe_mlp_dim, copies = run->sizes.copies;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * copies, end = first + bs_rows_of(run, routed->group_sizes, shard);
        const size_t beyond = (size_t)((first + copies - end) * width) * sizeof(double);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = first; row < end; row++) {
            const int64_t i = row * width;
            assay_glu_backward(ctx, d_gating->layer_w0 + i, d_gating->layer_w1 + i, d_hidden + i, gating->layer_w0 + i,
                               gating->layer_w1 + i, width, &config);
        }
        memset(d_gating->layer_w0 + end * width, 0, beyond);
        memset(d_gating->layer_w1 + end * width, 0, beyond);
    }
}

/* d_weights [M,R]: each row of `values` [M,R,width] times that of its gradient; 0 beyond a shard's rows. */
static void weights_bwd(const assay_context *ctx, const bs_run *run, double *d_weights, const double *values,
                        const double *d_values, int64_t width, const bs_routed *routed)
{
    const int64_t copies = run->sizes.copies;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * copies, end = first + bs_rows_of(run, routed->group_sizes, shard);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t row = first; row < end; row++) {
            d_weights[row] = assay_dot(ctx, width, values + row * width, d_values + row * width);
        }
        memset(d_weights + end, 0, (size_t)(first + copies - end) * sizeof *d_weights);
    }
}

/* d_hidden [M,R,H], d_weights and BS_ROUTED + ASSAY_MLP_WO, rows weighed that go into wo. */
static assay_status weighed_inputs_bwd(assay_context *ctx, const bs_moe_layer *at, double *d_hidden, double *d_weights,
                                       const double *dy, const bs_gating *gating, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim;
    double *hidden = NULL;
    TRY(bs_alloc_shards(ctx, run, "hidden rows", run->sizes.copies, width, &hidden));
    const bs_gmm_args args = linear_args(at, routed, hidden);
    gate_rows(ctx, run, hidden, gating, routed);
    weigh_rows(ctx, run, hidden, width, routed);
    TRY(bs_gmm_bwd(ctx, run, d_hidden, at->g->values[BS_ROUTED + ASSAY_MLP_WO], dy, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, row_count(run) * width, d_hidden);
    gate_rows(ctx, run, hidden, gating, routed);
    weights_bwd(ctx, run, d_weights, hidden, d_hidden, width, routed);
    weigh_rows(ctx, run, d_hidden, width, routed);
cleanup:
    free(hidden);
    return status;
}

/* The same, rows weighed that come out of it. */
static assay_status weighed_outputs_bwd(assay_context *ctx, const bs_moe_layer *at, double *d_hidden, double *d_weights,
                                        const double *dy, const bs_gating *gating, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t dim = run->mla.emb_dim, width = run->stack->config->moe.moe_mlp_dim, count = row_count(run) * dim;
    double *hidden = NULL, *y = NULL;
    TRY(bs_alloc_shards(ctx, run, "hidden rows", run->sizes.copies, width, &hidden));
    const bs_gmm_args args = linear_args(at, routed, hidden);
    TRY(bs_alloc_shards(ctx, run, "rows out of wo", run->sizes.copies, dim, &y));
    gate_rows(ctx, run, hidden, gating, routed);
    TRY(bs_gmm(ctx, run, y, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, y);
    weights_bwd(ctx, run, d_weights, y, dy, dim, routed);
    memcpy(y, dy, (size_t)count * sizeof *y);
    weigh_rows(ctx, run, y, dim, routed);
    TRY(bs_gmm_bwd(ctx, run, d_hidden, at->g->values[BS_ROUTED + ASSAY_MLP_WO], y, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, row_count(run) * width, d_hidden);
cleanup:
    free(hidden);
    free(y);
    return status;
}

assay_status bs_compute_linear_bwd(assay_context *ctx, const bs_moe_layer *at, bs_gating *d_gating, double *d_weights,
                                   const double *dy, const bs_gating *gating, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim, copies = run->sizes.copies;
    double *d_hidden = NULL;
    TRY(bs_alloc_shards(ctx, run, "gradient of hidden rows", copies, width, &d_hidden));
    TRY((weighs_outputs(ctx) ? weighed_outputs_bwd : weighed_inputs_bwd)(ctx, at, d_hidden, d_weights, dy, gating,
                                                                         routed));
    gate_rows_bwd(ctx, run, d_gating, d_hidden, gating, routed);
cleanup:
    free(d_hidden);
    return status;
}
