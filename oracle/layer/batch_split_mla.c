#include "oracle/layer/batch_split_mla.h"

#include "oracle/arithmetic/arithmetic.h"

void bs_attention_graph(graph *g, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    assay_stack_config config = *run->stack->config;
    config.mla = run->mla;
    if (recipe != NULL) config.mla.recipe = *recipe;
    assay_layer_graph(g, &config, config.dense_layers);
}

int bs_normalised_input(const graph *g)
{
    return g->steps[0].out[0];
}

assay_status bs_open_attention(assay_context *ctx, graph_run *r, const graph *g, const bs_run *run,
                               const double *angles, const bs_weights *w, int64_t shard)
{
    MUST(graph_open(ctx, r, g));
    if (angles != NULL)
        graph_lend(r, graph_find(g, "rotation angles"), angles + shard * run->sizes.tokens * run->mla.rope.dim / 2);
    for (int i = 0; i < g->weight_count; i++)
        graph_lend(r, g->weights[i], bs_weight_of(run, w, BS_PRE_NORM + i, shard));
    return ASSAY_OK;
}

/* A shard's part. */
static double *part_of(const bs_run *run, const bs_microbatch *b, bs_tensor tensor, int64_t shard)
{
    return b->values[tensor] + shard * (bs_count(run, tensor) / run->sizes.shards);
}

assay_status bs_mla_with_norms(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_run *run = at->run;
    const graph *g = &run->attention;
    OWNED_BY(graph_close) graph_run r = {0};
    MUST(bs_make(ctx, run, b, MB_MLA_OUT));
    MUST(bs_make(ctx, run, b, MB_ATTN_OUT));
    MUST(bs_make(ctx, run, b, MB_LSE));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        MUST(bs_open_attention(ctx, &r, g, run, b->angles, at->w, shard));
        graph_lend(&r, graph_find(g, "inputs/x"), part_of(run, b, MB_LAYER_INPUTS, shard));
        r.hidden[graph_find(g, "attention_out")] = r.hidden[graph_find(g, "lse")] = true; /* shown of all at once */
        MUST(bs_show_run(ctx, &r, at, b, shard));
        r.release = graph_let_go;
        r.room[graph_find(g, LAYER_H)] = part_of(run, b, MB_MLA_OUT, shard);
        r.room[graph_find(g, "attention_out")] = part_of(run, b, MB_ATTN_OUT, shard);
        r.room[graph_find(g, "lse")] = part_of(run, b, MB_LSE, shard);
        MUST(graph_forward(ctx, &r));
        graph_close(&r);
    }
    return ASSAY_OK;
}

assay_status bs_mla_with_norms_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const char *const needed[] = {"query_proj", "key_proj", "value_proj"};
    const bs_run *run = at->run;
    MUST(bs_make_runs(ctx, run, &b->attention));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        graph_run *r = &b->attention[shard];
        MUST(bs_open_attention(ctx, r, &run->attention, run, b->angles, at->w, shard));
        graph_lend(r, graph_find(r->graph, "inputs/x"), part_of(run, b, MB_LAYER_INPUTS, shard));
        MUST(bs_show_run(ctx, r, at, b, shard));
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
            MUST(graph_require(ctx, r, graph_find(r->graph, needed[i])));
        graph_drop_within(r);
    }
    assay_remat_recomputed(run->stack->store, bs_mla_remat_flops(run));
    return ASSAY_OK;
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

assay_status bs_mla_with_norms_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_run *run = at->run;
    const graph *a = &run->attention;
    MUST(bs_make(ctx, run, d, MB_LAYER_INPUTS));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        graph_run *r = &b->attention[shard];
        graph_lend(r, graph_find(a, "attention_out"), part_of(run, b, MB_ATTN_OUT, shard));
        graph_lend(r, graph_find(a, "lse"), part_of(run, b, MB_LSE, shard));
        graph_lend_gradient(r, graph_find(a, LAYER_H), part_of(run, d, MB_MLA_OUT, shard));
        graph_want_gradient(r, graph_find(a, "inputs/x"), part_of(run, d, MB_LAYER_INPUTS, shard));
        bs_want_attention_gradients(r, run, at->g, shard);
        MUST(graph_backward(ctx, r));
        graph_close(r);
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, bs_count(run, MB_LAYER_INPUTS), d->values[MB_LAYER_INPUTS]);
    bs_sum_attention_gradients(ctx, run, at->g);
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
