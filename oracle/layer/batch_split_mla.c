#include "oracle/layer/batch_split_mla.h"

#include "oracle/arithmetic/arithmetic.h"
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
