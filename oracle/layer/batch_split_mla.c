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

static int64_t sum_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.heads;
}

void bs_open_attention(graph_run *r, const graph *g, const bs_run *run, const bs_weights *w, int64_t shard,
                       const double *x, const double *angles)
{
    graph_open(r, g);
    graph_lend(r, graph_find(g, "inputs/x"), x);
    graph_lend(r, graph_find(g, "rotation angles"), angles);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) graph_lend(r, g->weights[i], bs_weight_of(run, w, BS_MLA + i, shard));
}

static void open_shard(graph_run *r, const bs_run *run, int64_t microbatch, const bs_weights *w, int64_t shard,
                       const double *x_norm)
{
    bs_open_attention(r, &run->attention, run, w, shard, x_norm + shard * row_count(run),
                      run->yarn_freqs[microbatch] + shard * freq_count(run));
}

assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w)
{
    assay_status status;
    const graph *g = &run->attention;
    const int64_t rows = row_count(run), sums = sum_count(run);
    double *x_norm = NULL, *rstd = NULL;
    graph_run r = {0};
    TRY(bs_normalise(ctx, run, &x_norm, &rstd, x, w, BS_PRE_NORM));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        double *y = out + shard * rows;
        open_shard(&r, run, microbatch, w, shard, x_norm);
        r.release = graph_let_go;
        r.room[g->result] = y;
        r.room[graph_find(g, "attention_out")] = attn_out + shard * sums * run->mla.v_head_dim;
        r.room[graph_find(g, "lse")] = lse + shard * sums;
        TRY(graph_forward(ctx, &r));
        graph_close(&r);
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows, y);
        layer_add(ctx, y, x + shard * rows, y, rows);
    }
cleanup:
    graph_close(&r);
    free(x_norm);
    free(rstd);
    return status;
}

void bs_mla_state_free(bs_mla_state *state, const bs_run *run)
{
    for (int64_t shard = 0; state->shards != NULL && shard < run->sizes.shards; shard++)
        graph_close(&state->shards[shard]);
    free(state->shards);
    free(state->x_norm);
    free(state->rstd);
    *state = (bs_mla_state){0};
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const double *attn_out, const double *lse, const bs_weights *w)
{
    static const char *const needed[] = {"query_proj", "key_proj", "value_proj"};
    assay_status status;
    const int64_t shards = run->sizes.shards;
    void *memory = NULL;
    *state = (bs_mla_state){.attn_out = attn_out, .lse = lse};
    TRY(assay_alloc(ctx, "attention of the shards", shards, sizeof *state->shards, &memory));
    state->shards = memory;
    for (int64_t shard = 0; shard < shards; shard++) state->shards[shard] = (graph_run){0};
    TRY(bs_normalise(ctx, run, &state->x_norm, &state->rstd, x, w, BS_PRE_NORM));
    for (int64_t shard = 0; shard < shards; shard++) {
        graph_run *r = &state->shards[shard];
        open_shard(r, run, microbatch, w, shard, state->x_norm);
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
            TRY(graph_require(ctx, r, graph_find(r->graph, needed[i])));
        graph_drop_within(r);
    }
cleanup:
    if (status != ASSAY_OK) bs_mla_state_free(state, run);
    return status;
}

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, double *dx, const bs_weights *g,
                                   const double *dout, const double *x, const bs_mla_state *state, const bs_weights *w)
{
    static const int summed[] = {BS_PRE_NORM, BS_MLA + ASSAY_MLA_Q_NORM, BS_MLA + ASSAY_MLA_KV_NORM};
    assay_status status;
    const graph *a = &run->attention;
    const int64_t rows = row_count(run), tokens = run->sizes.tokens, sums = sum_count(run);
    double *dx_norm = NULL;
    TRY(assay_alloc_f64(ctx, "gradient of the normalised input", rows, &dx_norm));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        graph_run *r = &state->shards[shard];
        double *dx_shard = dx + shard * rows;
        graph_lend(r, graph_find(a, "attention_out"), state->attn_out + shard * sums * run->mla.v_head_dim);
        graph_lend(r, graph_find(a, "lse"), state->lse + shard * sums);
        graph_lend_gradient(r, a->result, dout + shard * rows);
        graph_want_gradient(r, graph_find(a, "inputs/x"), dx_norm);
        for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++)
            graph_want_gradient(r, a->weights[i], bs_weight_of(run, g, BS_MLA + i, shard));
        TRY(graph_backward(ctx, r));
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

/* All before attention. */
double bs_mla_remat_flops(const bs_run *run)
{
    const graph *g = &run->attention;
    const double after = graph_operations(g, graph_find(g, "attention_out")) + graph_operations(g, g->result);
    return (double)run->sizes.shards * (graph_forward_operations(g) - after);
}
