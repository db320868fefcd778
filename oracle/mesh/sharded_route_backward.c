/* The gate's gradients, through every shard's routing to the logits of all tokens. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

/* Gradients of tensors [E]: the sum so far, and a shard's own. NULL: there is no such tensor. */
typedef struct gate_sums {
    double *bias, *bias_shard, *scale, *scale_shard;
} gate_sums;

static assay_status backward_chunk(assay_context *ctx, const sharded_run *run, int64_t c, double *d_routed,
                                   const gate_sums *sums)
{
    const sharded_chunk *chunk = &run->chunks[c];
    const assay_shard_sizes *s = &run->sizes;
    const moe_router *router = &run->block->router;
    const int64_t tokens = run->permute.tokens, experts = run->routing.num_experts;
    const int64_t losses = run->block->split.losses;
    const double parts = (double)(s->chunks * s->shards / losses); /* of a loss */
    for (int64_t shard = 0; shard < s->shards; shard++) {
        const assay_routing_inputs inputs = sharded_routing_inputs(run, chunk, shard);
        const bool first = c == 0 && shard == 0;
        double *d_weights = chunk->d_weights + shard * s->copies, *d_logits = d_routed + shard * tokens * experts;
        assay_round(ctx, ASSAY_ROUND_ROUTER, s->copies, d_weights);
        MUST(assay_routing_backward(ctx, d_logits, first ? sums->bias : sums->bias_shard,
                                    first ? sums->scale : sums->scale_shard, d_weights,
                                    router->d_lb_loss[shard % losses] / parts, router->d_z_loss[shard % losses] / parts,
                                    &chunk->routings[shard], &inputs, &run->routing));
        assay_round(ctx, ASSAY_ROUND_ROUTER, tokens * experts, d_logits);
        if (!first && sums->bias != NULL) moe_join(ctx, experts, sums->bias, sums->bias_shard);
        if (!first && sums->scale != NULL) moe_join(ctx, experts, sums->scale, sums->scale_shard);
    }
    return sharded_collect(ctx, run, c, experts, ASSAY_ROUND_ROUTER, router->d_logits, d_routed);
}

assay_status sharded_given_backward(assay_context *ctx, moe_block *block, double *d_weights)
{
    const sharded_run *run = block->placed;
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        double *d_routed = run->chunks[c].d_weights;
        assay_round(ctx, ASSAY_ROUND_ROUTER, run->sizes.shards * run->sizes.copies, d_routed);
        MUST(sharded_collect(ctx, run, c, block->per_token, ASSAY_ROUND_ROUTER, d_weights, d_routed));
    }
    return ASSAY_OK;
}

assay_status sharded_route_backward(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale)
{
    const sharded_run *run = block->placed;
    const int64_t experts = run->routing.num_experts;
    OWNED double *parts = NULL, *d_routed = NULL;
    MUST(assay_alloc_f64(ctx, "d_logits of shards", run->sizes.shards * run->permute.tokens * experts, &d_routed));
    MUST(assay_alloc_f64(ctx, "gradients of the gate", 2 * experts, &parts));
    const gate_sums sums = {d_bias, d_bias == NULL ? NULL : parts, d_scale, d_scale == NULL ? NULL : parts + experts};
    for (int64_t c = 0; c < run->sizes.chunks; c++) MUST(backward_chunk(ctx, run, c, d_routed, &sums));
    return ASSAY_OK;
}
