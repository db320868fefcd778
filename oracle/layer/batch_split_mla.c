/* The attention half of the schedule, shard after shard: each attends within its own rows of the batch. */
#include "oracle/layer/batch_split_mla.h"

#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"

/* Sizes of one shard's part. */
static int64_t row_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.emb_dim;
}

static int64_t freq_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.rope.dim / 2;
}

static bs_mla_shard shard_of(const bs_run *run, const bs_weights *w, int64_t shard, const double *x_norm,
                             const double *yarn_freqs)
{
    bs_mla_shard at = {
        .config = &run->mla, .x = x_norm + shard * row_count(run), .yarn_freqs = yarn_freqs + shard * freq_count(run)};
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) at.w.w[i] = bs_weight_of(run, w, BS_MLA + i, shard);
    return at;
}

static assay_mla_gradients gradients_of(const bs_run *run, const bs_weights *g, int64_t shard, double *dx)
{
    assay_mla_gradients gradients = {.dx = dx};
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) gradients.g[i] = bs_weight_of(run, g, BS_MLA + i, shard);
    return gradients;
}

assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w)
{
    assay_status status;
    const int64_t rows = row_count(run), sums = run->sizes.tokens * run->mla.heads;
    double *x_norm = NULL, *rstd = NULL;
    TRY(bs_normalise(ctx, run, &x_norm, &rstd, x, w, BS_PRE_NORM));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const bs_mla_shard at = shard_of(run, w, shard, x_norm, run->yarn_freqs[microbatch]);
        double *y = out + shard * rows;
        TRY(bs_mla(ctx, &at, y, attn_out + shard * sums * run->mla.v_head_dim, lse + shard * sums));
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, y);
        layer_add(ctx, y, x + shard * rows, y, rows);
    }
cleanup:
    free(x_norm);
    free(rstd);
    return status;
}

void bs_mla_state_free(bs_mla_state *state, const bs_run *run)
{
    for (int64_t shard = 0; state->shards != NULL && shard < run->sizes.shards; shard++)
        assay_mla_residuals_free(&state->shards[shard]);
    free(state->shards);
    free(state->x_norm);
    free(state->rstd);
    *state = (bs_mla_state){0};
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const double *attn_out, const double *lse, const bs_weights *w)
{
    assay_status status;
    const int64_t shards = run->sizes.shards;
    void *memory = NULL;
    *state = (bs_mla_state){.attn_out = attn_out, .lse = lse};
    TRY(assay_alloc(ctx, "attention of the shards", shards, sizeof *state->shards, &memory));
    state->shards = memory;
    for (int64_t shard = 0; shard < shards; shard++) state->shards[shard] = (assay_mla_residuals){0};
    TRY(bs_normalise(ctx, run, &state->x_norm, &state->rstd, x, w, BS_PRE_NORM));
    for (int64_t shard = 0; shard < shards; shard++) {
        const bs_mla_shard at = shard_of(run, w, shard, state->x_norm, run->yarn_freqs[microbatch]);
        TRY(bs_mla_remat(ctx, &at, &state->shards[shard]));
    }
cleanup:
    if (status != ASSAY_OK) bs_mla_state_free(state, run);
    return status;
}

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, int64_t microbatch, double *dx,
                                   const bs_weights *g, const double *dout, const double *x, const bs_mla_state *state,
                                   const bs_weights *w)
{
    static const int summed[] = {BS_PRE_NORM, BS_MLA + ASSAY_MLA_Q_NORM, BS_MLA + ASSAY_MLA_KV_NORM};
    assay_status status;
    const int64_t rows = row_count(run), tokens = run->sizes.tokens, sums = tokens * run->mla.heads;
    double *dx_norm = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", rows, &dx_norm));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const assay_mla_gradients gradients = gradients_of(run, g, shard, dx_norm);
        double *dx_shard = dx + shard * rows;
        bs_mla_shard at = shard_of(run, w, shard, state->x_norm, run->yarn_freqs[microbatch]);
        at.attn_out = state->attn_out + shard * sums * run->mla.v_head_dim;
        at.lse = state->lse + shard * sums;
        TRY(bs_mla_bwd(ctx, &at, &gradients, dout + shard * rows, &state->shards[shard]));
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, dx_norm);
        assay_rms_norm_backward(ctx, dx_shard, bs_weight_of(run, g, BS_PRE_NORM, shard), dx_norm, x + shard * rows,
                                bs_weight_of(run, w, BS_PRE_NORM, shard), state->rstd + shard * tokens, tokens,
                                run->mla.emb_dim);
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, dx_shard);
        layer_add(ctx, dx_shard, dout + shard * rows, dx_shard, rows);
    }
    for (size_t i = 0; i < sizeof summed / sizeof *summed; i++)
        bs_sum_over_shards(ctx, run, g->values[summed[i]], bs_weight_count(run, summed[i], true));
cleanup:
    free(dx_norm);
    return status;
}

double bs_mla_remat_flops(const bs_run *run)
{
    double sum = 0;
    for (int tensor = 0; tensor < ASSAY_MLA_ATTENTION_OUT; tensor++)
        sum += assay_mla_tensor_flops(&run->mla, (assay_mla_tensor)tensor);
    return (double)run->sizes.shards * sum;
}
