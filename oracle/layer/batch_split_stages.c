/* The stages of a layer, of one microbatch on all shards: attention, route, compute, unroute. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_steps.h"

assay_status bs_mla_with_norms(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const bs_tensor made[] = {MB_MLA_OUT, MB_ATTN_OUT, MB_LSE, MB_NONE};
    return bs_steps_forward(ctx, at, BS_STEPS_ATTENTION, b, made);
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_steps_remat(ctx, at, BS_STEPS_ATTENTION, b));
    assay_remat_recomputed(at->run->stack->store, bs_mla_remat_flops(at->run));
    return ASSAY_OK;
}

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    static const bs_tensor made[] = {MB_LAYER_INPUTS, MB_NONE};
    MUST(bs_steps_backward(ctx, at, BS_STEPS_ATTENTION, b, d, made));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(at->run, MB_LAYER_INPUTS), d->values[MB_LAYER_INPUTS]);
    return ASSAY_OK;
}

/* All before attention. */
double bs_mla_remat_flops(const bs_run *run)
{
    const graph *g = &run->attention;
    const double after =
        graph_operations(g, graph_find(g, "attention_out")) + graph_operations(g, graph_find(g, "out_proj"));
    return (double)run->sizes.shards * (graph_forward_operations(g) - after);
}

static const bs_tensor x_norm[] = {MB_X_NORM, MB_NONE}, mla_out[] = {MB_MLA_OUT, MB_NONE};
static const bs_tensor shared_out[] = {MB_SHARED_OUT, MB_NONE};

/* Everything but the shared expert. */
static assay_status normalise_and_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_steps_forward(ctx, at, BS_STEPS_NORM, b, x_norm));
    MUST(bs_expert_selection(ctx, at, b));
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(at->run, MB_CHOICE_WEIGHTS), b->values[MB_CHOICE_WEIGHTS]);
    return bs_route(ctx, at, b);
}

assay_status bs_shared_expert_and_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(normalise_and_route(ctx, at, b));
    return bs_steps_forward(ctx, at, BS_STEPS_SHARED, b, shared_out);
}

/* Of a gate, which is there where the weights of a choice are not given. */
static double gate_flops(const bs_run *run)
{
    return 2 * (double)bs_count(run, MB_X_NORM) * (double)run->routing.num_experts;
}

/* Of gate and up of the shared expert. */
static double shared_flops(const bs_run *run)
{
    return 4 * (double)bs_count(run, MB_X_NORM) * (double)run->stack->config->moe.shared_mlp_dim;
}

double bs_moe_remat_flops(const bs_run *run)
{
    return gate_flops(run) + shared_flops(run);
}

assay_status bs_shared_expert_and_route_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(normalise_and_route(ctx, at, b));
    if (b->values[MB_GIVEN_WEIGHTS] == NULL) assay_remat_recomputed(at->run->stack->store, gate_flops(at->run));
    assay_remat_recomputed(at->run->stack->store, shared_flops(at->run));
    return bs_steps_remat(ctx, at, BS_STEPS_SHARED, b);
}

/* The gradient of the normalised input, from its three uses. */
static assay_status norm_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    assay_status status;
    const bs_run *run = at->run;
    const int64_t count = bs_count(run, MB_X_NORM);
    bs_microbatch other = {0}; /* with another term */
    TRY(bs_route_bwd(ctx, at, b, d));
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(run, MB_CHOICE_WEIGHTS), d->values[MB_CHOICE_WEIGHTS]);
    bs_lend(&other, MB_CHOICE_WEIGHTS, d->values[MB_CHOICE_WEIGHTS]);
    TRY(bs_expert_selection_bwd(ctx, at, b, &other));
    if (other.values[MB_X_NORM] != NULL) graph_join(ctx, count, d->values[MB_X_NORM], other.values[MB_X_NORM]);
    bs_lend(&other, MB_SHARED_OUT, d->values[MB_SHARED_OUT]);
    TRY(bs_steps_backward(ctx, at, BS_STEPS_SHARED, b, &other, x_norm));
    graph_join(ctx, count, d->values[MB_X_NORM], other.values[MB_X_NORM]);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d->values[MB_X_NORM]);
cleanup:
    bs_microbatch_free(&other, run);
    return status;
}

assay_status bs_shared_expert_and_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    MUST(norm_bwd(ctx, at, b, d));
    MUST(bs_steps_backward(ctx, at, BS_STEPS_NORM, b, d, mla_out));
    bs_drop(d, MB_X_NORM);
    return ASSAY_OK;
}

/* Rows that a shard's experts compute. */
static int64_t rows_of(const bs_run *run, const int32_t *group_sizes, int64_t shard)
{
    const int64_t experts = run->sizes.local_experts;
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; e++) rows += group_sizes[shard * experts + e];
    return rows;
}

/* A shard's rows that were kept, and 0 beyond them. */
static void take_kept(const bs_run *run, bs_microbatch *b, bs_tensor tensor, bs_tensor kept, int64_t shard)
{
    const int64_t size = bs_count(run, tensor) / run->sizes.shards, held = bs_count(run, kept) / run->sizes.shards;
    double *values = b->values[tensor] + shard * size;
    memcpy(values, b->values[kept] + shard * held, (size_t)held * sizeof *values);
    memset(values + held, 0, (size_t)(size - held) * sizeof *values);
}

assay_status bs_compute_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const bs_tensor gating[] = {MB_GATE, MB_UP, MB_NONE};
    const bs_run *run = at->run;
    const double row_flops = 4 * (double)(run->mla.emb_dim * run->stack->config->moe.moe_mlp_dim);
    MUST(bs_make(ctx, run, b, MB_GATE));
    MUST(bs_make(ctx, run, b, MB_UP));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t rows = rows_of(run, b->indices[MB_OWN_COUNTS], shard);
        if (rows > run->sizes.capacity) {
            assay_remat_recomputed(run->stack->store, row_flops * (double)rows);
            MUST(bs_steps_forward_shard(ctx, at, BS_STEPS_ROUTED, b, shard, gating));
        } else {
            take_kept(run, b, MB_GATE, MB_MLPWI_0, shard);
            take_kept(run, b, MB_UP, MB_MLPWI_1, shard);
        }
    }
    return ASSAY_OK;
}

assay_status bs_compute_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    static const bs_tensor rows[] = {MB_ROWS, MB_ROW_WEIGHTS, MB_NONE};
    MUST(bs_steps_backward(ctx, at, BS_STEPS_ROUTED, b, d, rows));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(at->run, MB_ROWS), d->values[MB_ROWS]);
    bs_drop(b, MB_GATE);
    bs_drop(b, MB_UP);
    return ASSAY_OK;
}

assay_status bs_unroute_ubatch(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const bs_tensor outputs[] = {MB_OUTPUTS, MB_NONE};
    const int64_t count = bs_count(at->run, MB_OUTPUTS);
    MUST(bs_unroute(ctx, at, b));
    double *experts = b->values[MB_EXPERTS_OUT];
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, experts);
    layer_add(ctx, experts, experts, b->values[MB_SHARED_OUT], count);
    MUST(bs_steps_forward(ctx, at, BS_STEPS_SUM, b, outputs));
    bs_drop(b, MB_EXPERTS_OUT);
    return ASSAY_OK;
}

assay_status bs_unroute_ubatch_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    static const bs_tensor terms[] = {MB_MOE_INPUTS, MB_EXPERTS_OUT, MB_NONE};
    MUST(bs_steps_backward(ctx, at, BS_STEPS_SUM, b, d, terms));
    MUST(bs_copy(ctx, at->run, d, MB_SHARED_OUT, MB_EXPERTS_OUT));
    MUST(bs_unroute_bwd(ctx, at, b, d));
    bs_drop(d, MB_EXPERTS_OUT);
    return ASSAY_OK;
}
