/* The attention half of the schedule, shard after shard: each attends within its own rows of the batch. */
#include "oracle/layer/batch_split_mla.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/collectives.h"
#include "oracle/ops/rms_norm.h"

static double *part(const bs_run *run, const bs_weights *w, int weight, int64_t shard)
{
    double *values = w->values[weight];
    return values == NULL ? NULL : values + shard * bs_weight_count(run, weight, true);
}

static assay_mla_weights weights_of(const bs_run *run, const bs_weights *w, int64_t shard)
{
    return (assay_mla_weights){.wq_a = part(run, w, BS_WQ_A, shard),
                               .q_norm = part(run, w, BS_Q_NORM, shard),
                               .wq_b = part(run, w, BS_WQ_B, shard),
                               .wkv_a = part(run, w, BS_WKV_A, shard),
                               .kv_norm = part(run, w, BS_KV_NORM, shard),
                               .wkv_b = part(run, w, BS_WKV_B, shard),
                               .out = part(run, w, BS_OUT, shard)};
}

static int64_t row_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.emb_dim;
}

static assay_mla_inputs inputs_of(const bs_run *run, int64_t microbatch, int64_t shard, const double *x_norm)
{
    return (assay_mla_inputs){.x = x_norm, .positions = run->positions[microbatch] + shard * run->sizes.tokens};
}

static void normalise(const assay_context *ctx, const bs_run *run, double *x_norm, double *rstd, const double *x,
                      const bs_weights *w)
{
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        assay_rms_norm_forward(ctx, x_norm + shard * row_count(run), rstd + shard * run->sizes.tokens,
                               x + shard * row_count(run), part(run, w, BS_PRE_NORM, shard), run->sizes.tokens,
                               run->mla.emb_dim, run->stack->config->epsilon);
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * row_count(run), x_norm);
}

assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w)
{
    assay_status status;
    const int64_t rows = row_count(run), shards = run->sizes.shards;
    const int64_t attended = assay_mla_tensor_count(&run->mla, ASSAY_MLA_ATTENTION_OUT);
    const int64_t sums = run->sizes.tokens * run->mla.heads;
    double *x_norm = NULL, *rstd = NULL;
    assay_mla_residuals r = {0};
    TRY(assay_alloc_f64(ctx, "normalised input", shards * rows, &x_norm));
    TRY(assay_alloc_f64(ctx, "normalised input", shards * run->sizes.tokens, &rstd));
    normalise(ctx, run, x_norm, rstd, x, w);
    for (int64_t shard = 0; shard < shards; shard++) {
        const assay_mla_inputs in = inputs_of(run, microbatch, shard, x_norm + shard * rows);
        const assay_mla_weights weights = weights_of(run, w, shard);
        for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
            TRY(assay_mla_compute(ctx, &r, (assay_mla_tensor)tensor, &in, &weights, &run->mla));
        double *y = r.values[ASSAY_MLA_OUT_PROJ];
        memcpy(attn_out + shard * attended, r.values[ASSAY_MLA_ATTENTION_OUT], (size_t)attended * sizeof *y);
        memcpy(lse + shard * sums, r.lse, (size_t)sums * sizeof *y);
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, y);
        layer_add(ctx, out + shard * rows, x + shard * rows, y, rows);
        assay_mla_residuals_free(&r);
    }
cleanup:
    assay_mla_residuals_free(&r);
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

/* What was kept takes its place among what is computed again. */
static assay_status take_kept(assay_context *ctx, double **to, const double *kept, int64_t count)
{
    assay_status status = assay_alloc_f64(ctx, "kept attention", count, to);
    if (status == ASSAY_OK) memcpy(*to, kept, (size_t)count * sizeof *kept);
    return status;
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const double *attn_out, const double *lse, const bs_weights *w)
{
    assay_status status;
    const int64_t rows = row_count(run), shards = run->sizes.shards;
    const int64_t attended = assay_mla_tensor_count(&run->mla, ASSAY_MLA_ATTENTION_OUT);
    const int64_t sums = run->sizes.tokens * run->mla.heads;
    void *memory = NULL;
    *state = (bs_mla_state){0};
    TRY(assay_alloc_f64(ctx, "normalised input", shards * rows, &state->x_norm));
    TRY(assay_alloc_f64(ctx, "normalised input", shards * run->sizes.tokens, &state->rstd));
    TRY(assay_alloc(ctx, "attention of the shards", shards, sizeof *state->shards, &memory));
    state->shards = memory;
    for (int64_t shard = 0; shard < shards; shard++) state->shards[shard] = (assay_mla_residuals){0};
    normalise(ctx, run, state->x_norm, state->rstd, x, w);
    for (int64_t shard = 0; shard < shards; shard++) {
        assay_mla_residuals *r = &state->shards[shard];
        const assay_mla_inputs in = inputs_of(run, microbatch, shard, state->x_norm + shard * rows);
        const assay_mla_weights weights = weights_of(run, w, shard);
        TRY(take_kept(ctx, &r->values[ASSAY_MLA_ATTENTION_OUT], attn_out + shard * attended, attended));
        TRY(take_kept(ctx, &r->lse, lse + shard * sums, sums));
        for (int tensor = 0; tensor < ASSAY_MLA_ATTENTION_OUT; tensor++)
            TRY(assay_mla_compute(ctx, r, (assay_mla_tensor)tensor, &in, &weights, &run->mla));
    }
cleanup:
    if (status != ASSAY_OK) bs_mla_state_free(state, run);
    return status;
}

/* Of what every shard has in full, the sum over all shards, on every shard. */
static assay_status sum_over_shards(assay_context *ctx, const bs_run *run, double *values, int64_t count)
{
    assay_status status;
    double *sum = NULL;
    if (values == NULL) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "sum over shards", run->sizes.shards * count, &sum));
    for (int axis = ASSAY_MESH_AXES - 1; axis >= 0; axis--) {
        assay_psum(ctx, sum, values, count, run->mesh, (assay_mesh_axis)axis);
        memcpy(values, sum, (size_t)(run->sizes.shards * count) * sizeof *sum);
    }
cleanup:
    free(sum);
    return status;
}

static assay_status shard_bwd(assay_context *ctx, const bs_run *run, int64_t microbatch, int64_t shard, double *dx_norm,
                              const bs_weights *g, const double *dout, const bs_mla_state *state, const bs_weights *w)
{
    const assay_mla_inputs in = inputs_of(run, microbatch, shard, state->x_norm + shard * row_count(run));
    const assay_mla_weights weights = weights_of(run, w, shard);
    const assay_mla_gradients gradients = {.dx = dx_norm,
                                           .dwq_a = part(run, g, BS_WQ_A, shard),
                                           .dq_norm = part(run, g, BS_Q_NORM, shard),
                                           .dwq_b = part(run, g, BS_WQ_B, shard),
                                           .dwkv_a = part(run, g, BS_WKV_A, shard),
                                           .dkv_norm = part(run, g, BS_KV_NORM, shard),
                                           .dwkv_b = part(run, g, BS_WKV_B, shard),
                                           .dout = part(run, g, BS_OUT, shard)};
    return assay_mla_backward(ctx, &gradients, dout, &state->shards[shard], &in, &weights, &run->mla);
}

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, int64_t microbatch, double *dx,
                                   const bs_weights *g, const double *dout, const double *x,
                                   const bs_mla_state *state, const bs_weights *w)
{
    static const int summed[] = {BS_PRE_NORM, BS_Q_NORM, BS_KV_NORM};
    assay_status status = ASSAY_OK;
    const int64_t rows = row_count(run), tokens = run->sizes.tokens;
    double *dx_norm = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", rows, &dx_norm));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        double *dx_shard = dx + shard * rows;
        TRY(shard_bwd(ctx, run, microbatch, shard, dx_norm, g, dout + shard * rows, state, w));
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, dx_norm);
        assay_rms_norm_backward(ctx, dx_shard, part(run, g, BS_PRE_NORM, shard), dx_norm, x + shard * rows,
                                part(run, w, BS_PRE_NORM, shard), state->rstd + shard * tokens, tokens,
                                run->mla.emb_dim);
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, dx_shard);
        layer_add(ctx, dx_shard, dout + shard * rows, dx_shard, rows);
    }
    for (size_t i = 0; i < sizeof summed / sizeof *summed; i++)
        TRY(sum_over_shards(ctx, run, g->values[summed[i]], bs_weight_count(run, summed[i], true)));
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
