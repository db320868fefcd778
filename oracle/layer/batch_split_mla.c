#include "oracle/layer/batch_split_mla.h"

#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static int64_t axis_size(const void *self, char axis)
{
    const assay_mla_config *mla = self;
    return axis == 'B' ? mla->batch : axis == 'S' ? mla->sequence : mla->emb_dim;
}

void bs_attention_graph(graph *g, const bs_run *run, const assay_recipe_config *recipe)
{
    const assay_stack_config *config = run->stack->config;
    assay_mla_config mla = run->mla;
    int w[ASSAY_MLA_WEIGHTS];
    if (recipe != NULL) mla.recipe = *recipe;
    graph_begin(g, &mla, axis_size);
    assay_attention_givens in = assay_attention_inputs_of(g);
    const int x = in.x, scale = graph_weight(g, layer_norm_row(config, LAYER_PRE_NORM));
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) w[i] = graph_weight(g, assay_mla_weight_row(&mla, i));
    in.x = graph_called(g, BS_X_NORM, graph_rms_norm(g, x, scale, config->epsilon));
    const int attended = graph_fused(g, assay_mla_steps(g, &mla, &in, w)); /* the sum stores it */
    graph_end(g, graph_called(g, LAYER_H, graph_add(g, x, attended)));
    g->tensors[g->result].stored = true;
}

void bs_open_attention(graph_run *r, const graph *g, const bs_run *run, int64_t microbatch, const bs_weights *w,
                       int64_t shard)
{
    const double *angles = run->yarn_freqs[microbatch];
    graph_open(r, g);
    if (angles != NULL)
        graph_lend(r, graph_find(g, "rotation angles"), angles + shard * run->sizes.tokens * run->mla.rope.dim / 2);
    for (int i = 0; i < g->weight_count; i++)
        graph_lend(r, g->weights[i], bs_weight_of(run, w, BS_PRE_NORM + i, shard));
}

/* A shard's rows of an activation [M,b,S,D], of heads' values and of lse. */
static int64_t row_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.emb_dim;
}

static int64_t value_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.heads * run->mla.v_head_dim;
}

static int64_t sum_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.heads;
}

assay_status bs_mla_with_norms(assay_context *ctx, const bs_run *run, int64_t microbatch, double *out, double *attn_out,
                               double *lse, const double *x, const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    const graph *g = &run->attention;
    graph_run r = {0};
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        bs_open_attention(&r, g, run, microbatch, w, shard);
        graph_lend(&r, graph_find(g, "inputs/x"), x + shard * row_count(run));
        r.release = graph_let_go;
        r.room[g->result] = out + shard * row_count(run);
        r.room[graph_find(g, "attention_out")] = attn_out + shard * value_count(run);
        r.room[graph_find(g, "lse")] = lse + shard * sum_count(run);
        TRY(graph_forward(ctx, &r));
        graph_close(&r);
    }
cleanup:
    graph_close(&r);
    return status;
}

void bs_mla_state_free(bs_mla_state *state, const bs_run *run)
{
    for (int64_t shard = 0; state->shards != NULL && shard < run->sizes.shards; shard++)
        graph_close(&state->shards[shard]);
    free(state->shards);
    *state = (bs_mla_state){0};
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_run *run, int64_t microbatch, bs_mla_state *state,
                                     const double *x, const bs_weights *w)
{
    static const char *const needed[] = {"query_proj", "key_proj", "value_proj"};
    assay_status status;
    const int64_t shards = run->sizes.shards;
    void *memory = NULL;
    *state = (bs_mla_state){0};
    TRY(assay_alloc(ctx, "attention of the shards", shards, sizeof *state->shards, &memory));
    state->shards = memory;
    for (int64_t shard = 0; shard < shards; shard++) state->shards[shard] = (graph_run){0};
    for (int64_t shard = 0; shard < shards; shard++) {
        graph_run *r = &state->shards[shard];
        bs_open_attention(r, &run->attention, run, microbatch, w, shard);
        graph_lend(r, graph_find(r->graph, "inputs/x"), x + shard * row_count(run));
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
            TRY(graph_require(ctx, r, graph_find(r->graph, needed[i])));
        graph_drop_within(r);
    }
cleanup:
    if (status != ASSAY_OK) bs_mla_state_free(state, run);
    return status;
}

void bs_want_attention_gradients(graph_run *r, const bs_run *run, const bs_weights *g, int64_t shard)
{
    for (int i = 0; i < r->graph->weight_count; i++)
        graph_want_gradient(r, r->graph->weights[i], bs_weight_of(run, g, BS_PRE_NORM + i, shard));
}

void bs_sum_attention_gradients(const assay_context *ctx, const bs_run *run, const bs_weights *g)
{
    static const int scales[] = {BS_PRE_NORM, BS_MLA + ASSAY_MLA_Q_NORM, BS_MLA + ASSAY_MLA_KV_NORM};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        bs_sum_over_shards(ctx, run, g->values[scales[i]], bs_weight_count(run, scales[i], true));
}

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_run *run, double *dx, const bs_weights *g,
                                   const double *dout, const double *attn_out, const double *lse,
                                   const bs_mla_state *state)
{
    assay_status status = ASSAY_OK;
    const graph *a = &run->attention;
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        graph_run *r = &state->shards[shard];
        graph_lend(r, graph_find(a, "attention_out"), attn_out + shard * value_count(run));
        graph_lend(r, graph_find(a, "lse"), lse + shard * sum_count(run));
        graph_lend_gradient(r, a->result, dout + shard * row_count(run));
        graph_want_gradient(r, graph_find(a, "inputs/x"), dx + shard * row_count(run));
        bs_want_attention_gradients(r, run, g, shard);
        TRY(graph_backward(ctx, r));
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * row_count(run), dx);
    bs_sum_attention_gradients(ctx, run, g);
cleanup:
    return status;
}

/* All before attention. */
double bs_mla_remat_flops(const bs_run *run)
{
    const graph *g = &run->attention;
    const double after =
        graph_operations(g, graph_find(g, "attention_out")) + graph_operations(g, graph_find(g, "out_proj"));
    return (double)run->sizes.shards * (graph_forward_operations(g) - after);
}
