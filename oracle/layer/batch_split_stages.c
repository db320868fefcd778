/* The stages of the MoE half, of one microbatch on all shards: route, compute, unroute. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

static assay_status normalise(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, dim = run->mla.emb_dim;
    MUST(bs_make(ctx, run, b, MB_X_NORM));
    MUST(bs_make(ctx, run, b, MB_RSTD));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * tokens;
        assay_rms_norm_forward(ctx, b->values[MB_X_NORM] + first * dim, b->values[MB_RSTD] + first,
                               b->values[MB_MLA_OUT] + first * dim, bs_weight_of(run, at->w, BS_POST_NORM, shard),
                               tokens, dim, run->stack->config->epsilon);
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_X_NORM), b->values[MB_X_NORM]);
    return ASSAY_OK;
}

/* Everything but the shared expert. */
static assay_status normalise_and_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(normalise(ctx, at, b));
    MUST(bs_expert_selection(ctx, at, b));
    assay_round(ctx, ASSAY_ROUND_ROUTER, bs_count(at->run, MB_CHOICE_WEIGHTS), b->values[MB_CHOICE_WEIGHTS]);
    return bs_route(ctx, at, b);
}

assay_status bs_shared_expert_and_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(normalise_and_route(ctx, at, b));
    return bs_shared_expert(ctx, at, b);
}

/* Of a gate, which is there where the weights of a choice are not given. */
static double gate_flops(const bs_run *run)
{
    return 2 * (double)bs_count(run, MB_X_NORM) * (double)run->routing.num_experts;
}

double bs_moe_remat_flops(const bs_run *run)
{
    return gate_flops(run) + bs_shared_expert_flops(run);
}

assay_status bs_shared_expert_and_route_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(normalise_and_route(ctx, at, b));
    if (b->values[MB_GIVEN_WEIGHTS] == NULL) assay_remat_recomputed(at->run->stack->store, gate_flops(at->run));
    return bs_shared_expert_remat(ctx, at, b);
}

/* The gradient of the normalised input, from its three uses; both may be stored. */
static void add_term(const assay_context *ctx, int64_t count, double *sum, double *term)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, sum);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_add(ctx, count, term, sum);
}

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
    if (other.values[MB_X_NORM] != NULL) add_term(ctx, count, d->values[MB_X_NORM], other.values[MB_X_NORM]);
    bs_lend(&other, MB_SHARED_OUT, d->values[MB_SHARED_OUT]);
    TRY(bs_shared_expert_bwd(ctx, at, b, &other));
    add_term(ctx, count, d->values[MB_X_NORM], other.values[MB_X_NORM]);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, d->values[MB_X_NORM]);
cleanup:
    bs_microbatch_free(&other, run);
    return status;
}

assay_status bs_shared_expert_and_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_run *run = at->run;
    const int64_t tokens = run->sizes.tokens, dim = run->mla.emb_dim;
    MUST(norm_bwd(ctx, at, b, d));
    MUST(bs_make(ctx, run, d, MB_MLA_OUT));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = shard * tokens;
        assay_rms_norm_backward(ctx, d->values[MB_MLA_OUT] + first * dim, bs_weight_of(run, at->g, BS_POST_NORM, shard),
                                d->values[MB_X_NORM] + first * dim, b->values[MB_MLA_OUT] + first * dim,
                                bs_weight_of(run, at->w, BS_POST_NORM, shard), b->values[MB_RSTD] + first, tokens, dim);
    }
    bs_sum_over_shards(ctx, run, at->g->values[BS_POST_NORM], dim);
    bs_drop(d, MB_X_NORM);
    return ASSAY_OK;
}

assay_status bs_compute_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t width = run->stack->config->moe.moe_mlp_dim, local = run->sizes.local_experts;
    const size_t size = (size_t)(run->sizes.copies * width), held = (size_t)(run->sizes.capacity * width);
    bs_microbatch again = {0}; /* the shards with too many rows; elsewhere gate and up become 0 */
    bs_lend(&again, MB_ROWS, b->values[MB_ROWS]);
    TRY(bs_make(ctx, run, &again, MB_OWN_COUNTS));
    int32_t *sizes = again.indices[MB_OWN_COUNTS];
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const bool too_many = bs_rows_of(run, b->indices[MB_OWN_COUNTS], shard) > run->sizes.capacity;
        for (int64_t e = shard * local; e < (shard + 1) * local; e++)
            sizes[e] = too_many ? b->indices[MB_OWN_COUNTS][e] : 0;
        const int64_t rows = bs_rows_of(run, sizes, shard);
        assay_remat_recomputed(run->stack->store, 4 * (double)rows * (double)(run->mla.emb_dim * width));
    }
    TRY(bs_compute_gating(ctx, at, &again));
    bs_move(b, &again, MB_GATE);
    bs_move(b, &again, MB_UP);
    for (size_t shard = 0; shard < (size_t)run->sizes.shards; shard++) {
        if (bs_rows_of(run, sizes, (int64_t)shard) > 0) continue;
        memcpy(b->values[MB_GATE] + shard * size, b->values[MB_MLPWI_0] + shard * held, held * sizeof(double));
        memcpy(b->values[MB_UP] + shard * size, b->values[MB_MLPWI_1] + shard * held, held * sizeof(double));
    }
cleanup:
    bs_microbatch_free(&again, run);
    return status;
}

assay_status bs_compute_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_run *run = at->run;
    MUST(bs_compute_linear_bwd(ctx, at, b, d));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_GATE), d->values[MB_GATE]);
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_UP), d->values[MB_UP]);
    MUST(bs_compute_gating_bwd(ctx, at, b, d));
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_ROWS), d->values[MB_ROWS]);
    bs_drop(b, MB_GATE);
    bs_drop(b, MB_UP);
    bs_drop(d, MB_GATE);
    bs_drop(d, MB_UP);
    return ASSAY_OK;
}

assay_status bs_unroute_ubatch(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const int64_t count = bs_count(run, MB_OUTPUTS);
    MUST(bs_unroute(ctx, at, b));
    MUST(bs_make(ctx, run, b, MB_OUTPUTS));
    double *experts = b->values[MB_EXPERTS_OUT];
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, experts);
    layer_add(ctx, experts, experts, b->values[MB_SHARED_OUT], count);
    layer_add_block(ctx, b->values[MB_OUTPUTS], b->values[MB_MOE_INPUTS], experts, count);
    bs_drop(b, MB_EXPERTS_OUT);
    return ASSAY_OK;
}

assay_status bs_unroute_ubatch_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_run *run = at->run;
    MUST(bs_copy(ctx, run, d, MB_MOE_INPUTS, d, MB_OUTPUTS));
    MUST(bs_copy(ctx, run, d, MB_SHARED_OUT, d, MB_OUTPUTS));
    bs_lend(d, MB_EXPERTS_OUT, d->values[MB_OUTPUTS]);
    MUST(bs_unroute_bwd(ctx, at, b, d));
    bs_drop(d, MB_EXPERTS_OUT);
    return ASSAY_OK;
}
