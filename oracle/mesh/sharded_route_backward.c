/* The gate's gradients: through every shard's routing to logits, from them to the kernel and to x. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

/* Gradients of tensors [E]: the sum so far, and a shard's own. */
typedef struct gate_sums {
    double *bias, *bias_part, *scale, *scale_part;
} gate_sums;

static assay_status backward_chunk(assay_context *ctx, sharded_run *run, int64_t c, double *d_routed,
                                   const gate_sums *sums)
{
    assay_status status = ASSAY_OK;
    const sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const int64_t tokens = run->permute.tokens, experts = run->permute.experts;
    for (int64_t shard = 0; shard < s->shards; shard++) {
        const assay_routing_inputs inputs = sharded_routing_inputs(run, chunk, shard);
        const bool first = c == 0 && shard == 0;
        double *d_bias = first ? sums->bias : sums->bias_part, *d_scale = first ? sums->scale : sums->scale_part;
        double *d_weights = chunk->d_weights + shard * s->copies, *d_logits = d_routed + shard * tokens * experts;
        assay_round(ctx, ASSAY_ROUND_ROUTER, s->copies, d_weights);
        TRY(assay_routing_backward(
            ctx, d_logits, run->bias == NULL ? NULL : d_bias, run->per_expert_scale == NULL ? NULL : d_scale, d_weights,
            run->d_lb_loss[shard] / (double)s->chunks, &chunk->routings[shard], &inputs, &run->routing));
        assay_round(ctx, ASSAY_ROUND_ROUTER, tokens * experts, d_logits);
        if (first) continue;
        if (run->bias != NULL) sharded_add(ctx, experts, sums->bias, sums->bias_part);
        if (run->per_expert_scale != NULL) sharded_add(ctx, experts, sums->scale, sums->scale_part);
    }
    TRY(sharded_collect(ctx, run, c, experts, ASSAY_ROUND_ROUTER, run->d_logits, d_routed));
cleanup:
    return status;
}

/* x^T d_logits of the tokens that each shard owns. */
static assay_status kernel_gradient(assay_context *ctx, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    const int64_t dim = run->config->emb_dim, experts = run->permute.experts, count = dim * experts;
    const int64_t owners = s->batch_sharded ? s->shards : 1;
    const int64_t tokens = s->own_batch * run->config->routing.sequence;
    double *d_kernel = NULL, *part = NULL;
    TRY(assay_alloc_f64(ctx, "d_kernel", count, &d_kernel));
    TRY(assay_alloc_f64(ctx, "d_kernel of a shard", count, &part));
    for (int64_t owner = 0; owner < owners; owner++) {
        const assay_matmul_args args =
            assay_product_atb(owner == 0 ? d_kernel : part, run->x + owner * tokens * dim,
                              run->d_logits + owner * tokens * experts, dim, experts, tokens);
        TRY(assay_matmul(ctx, &args));
        if (owner > 0) sharded_add(ctx, count, d_kernel, part);
    }
    TRY(sharded_write_gradient(ctx, run, "weights/gate/kernel", count, d_kernel));
cleanup:
    free(d_kernel);
    free(part);
    return status;
}

/* dx is that of the experts so far. */
static assay_status join_dx(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->config->routing.batch * run->config->routing.sequence;
    const int64_t dim = run->config->emb_dim, experts = run->permute.experts;
    double *dx = NULL;
    TRY(assay_alloc_f64(ctx, "dx of the router", tokens * dim, &dx));
    const assay_matmul_args args = assay_product_abt(dx, run->d_logits, run->kernel, tokens, dim, experts);
    TRY(assay_matmul(ctx, &args));
    sharded_add(ctx, tokens * dim, run->dx, dx);
cleanup:
    free(dx);
    return status;
}

assay_status sharded_route_backward(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = run->config->routing.batch * run->config->routing.sequence, experts = run->permute.experts;
    double *sums = NULL, *d_routed = NULL;
    TRY(assay_alloc_f64(ctx, "d_logits", tokens * experts, &run->d_logits));
    TRY(assay_alloc_f64(ctx, "d_logits of shards", run->sizes.shards * run->permute.tokens * experts, &d_routed));
    TRY(assay_alloc_f64(ctx, "gradients of the gate", 4 * experts, &sums));
    const gate_sums gate = {sums, sums + experts, sums + 2 * experts, sums + 3 * experts};
    for (int64_t c = 0; c < run->sizes.chunks; c++) TRY(backward_chunk(ctx, run, c, d_routed, &gate));
    TRY(sharded_write_gradient(ctx, run, "weights/gate/bias", experts, gate.bias));
    TRY(sharded_write_gradient(ctx, run, "weights/per_expert_scale", experts, gate.scale));
    if (sharded_wants_gradient(run, "weights/gate/kernel")) TRY(kernel_gradient(ctx, run));
    if (run->need_dx) TRY(join_dx(ctx, run));
cleanup:
    free(sums);
    free(d_routed);
    return status;
}
