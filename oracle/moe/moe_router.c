/* The gate of a block: its tensors and the logits of all tokens; gradients of its kernel, its bias and x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

/* The cotangent of each loss: the sum of those of its copies; 0 where it has none. */
static assay_status read_losses(assay_context *ctx, const moe_block *block, const char *path, double **d_losses)
{
    const assay_source *in = block->in;
    const int64_t losses = block->losses, copies = block->loss_copies;
    MUST(assay_alloc_zeros(ctx, path, losses * copies, d_losses));
    if (!in->has(in->self, path)) return ASSAY_OK;
    MUST(in->read(ctx, in->self, path, 0, losses * copies, *d_losses));
    for (int64_t i = 0; i < losses; i++) {
        double sum = (*d_losses)[i * copies];
        for (int64_t copy = 1; copy < copies; copy++) assay_add_scaled(ctx, 1, 1, *d_losses + i * copies + copy, &sum);
        (*d_losses)[i] = sum;
    }
    return ASSAY_OK;
}

/* The choice that a run is held at goes before the case's own. */
static assay_status read_given(assay_context *ctx, moe_block *block)
{
    static const char own[] = "inputs/selected_experts", held[] = "routing/selected_experts";
    static const char weights[] = "inputs/routing_weights";
    moe_router *router = &block->router;
    const assay_source *in = block->in;
    const int64_t choices = block->tokens * block->chosen;
    router->choice_is_input = in->has(in->self, own);
    const bool is_held = in->has(in->self, held);
    if (is_held || router->choice_is_input || in->has(in->self, weights))
        MUST(assay_read_needed_i32(ctx, in, is_held ? held : own, choices, &router->given_experts));
    return assay_read_all(ctx, in, weights, choices, &router->given_weights);
}

static assay_status read_router(assay_context *ctx, moe_block *block)
{
    moe_router *router = &block->router;
    const assay_source *in = block->in;
    const int64_t experts = block->experts, rows = block->config->routing.hash_rows;
    const int64_t chosen = block->chosen;
    MUST(read_given(ctx, block));
    MUST(read_losses(ctx, block, "cotangents/lb_loss", &router->d_lb_loss));
    MUST(read_losses(ctx, block, "cotangents/z_loss", &router->d_z_loss));
    if (router->given_weights != NULL) return ASSAY_OK;
    MUST(assay_read_needed(ctx, in, "weights/gate/kernel", block->emb_dim * experts, &router->kernel));
    MUST(assay_read_all(ctx, in, "weights/gate/bias", experts, &router->bias));
    MUST(assay_read_all(ctx, in, "weights/per_expert_scale", experts, &router->per_expert_scale));
    if (rows > 0) {
        MUST(assay_read_needed_i32(ctx, in, "weights/tid2eid", rows * chosen, &router->tid2eid));
        MUST(assay_read_needed_i32(ctx, in, "inputs/input_ids", block->tokens, &router->input_ids));
    }
    return ASSAY_OK;
}

/* The gate is no part of what is sharded by expert: the logits of all tokens are one product. */
assay_status moe_router_forward(assay_context *ctx, moe_block *block)
{
    moe_router *router = &block->router;
    MUST(read_router(ctx, block));
    if (router->given_weights == NULL) {
        MUST(assay_alloc_f64(ctx, "logits", block->tokens * block->experts, &router->logits));
        const assay_matmul_args args = assay_product_of_router(
            assay_product_ab(router->logits, block->x, router->kernel, block->tokens, block->experts, block->emb_dim));
        MUST(assay_matmul(ctx, &args));
        assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * block->experts, router->logits);
    }
    return moe_route(ctx, block);
}

assay_status moe_write_kernel_gradient(assay_context *ctx, const moe_block *block, int result, const double *d,
                                       int64_t columns, assay_product kind)
{
    const int64_t owners = block->sizes.owners, tokens = block->tokens / owners, dim = block->emb_dim;
    OWNED double *gradient = NULL, *part = NULL;
    if (!moe_wants(&block->results, result)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "gradient of a gate's kernel", dim * columns, &gradient));
    if (owners > 1) MUST(assay_alloc_f64(ctx, "gradient of a gate's kernel, of a shard", dim * columns, &part));
    for (int64_t owner = 0; owner < owners; owner++) {
        const int64_t first = owner * tokens;
        assay_matmul_args args = assay_product_atb(owner == 0 ? gradient : part, block->x + first * dim,
                                                   d + first * columns, dim, columns, tokens);
        args.kind = kind;
        MUST(assay_matmul(ctx, &args));
        if (owner > 0) graph_join(ctx, dim * columns, gradient, part);
    }
    return moe_write(ctx, &block->results, result, dim * columns, gradient);
}

static assay_status given_backward(assay_context *ctx, moe_block *block)
{
    const int64_t choices = block->tokens * block->chosen;
    OWNED double *d_weights = NULL;
    MUST(assay_alloc_f64(ctx, "gradients/inputs/routing_weights", choices, &d_weights));
    MUST(moe_given_backward(ctx, block, d_weights));
    return moe_write(ctx, &block->results, MOE_DROUTING_WEIGHTS, choices, d_weights);
}

assay_status moe_router_backward(assay_context *ctx, moe_block *block)
{
    if (block->router.given_weights != NULL) return given_backward(ctx, block);
    moe_router *router = &block->router;
    const moe_results *r = &block->results;
    const int64_t count = block->tokens * block->emb_dim;
    OWNED double *d_bias = NULL, *d_scale = NULL, *dx = NULL;
    MUST(assay_alloc_f64(ctx, "d_logits", block->tokens * block->experts, &router->d_logits));
    if (router->bias != NULL) MUST(assay_alloc_f64(ctx, "d_bias", block->experts, &d_bias));
    if (router->per_expert_scale != NULL) MUST(assay_alloc_f64(ctx, "d_per_expert_scale", block->experts, &d_scale));
    MUST(moe_route_backward(ctx, block, d_bias, d_scale));
    MUST(moe_write(ctx, r, MOE_DBIAS, block->experts, d_bias));
    MUST(moe_write(ctx, r, MOE_DSCALE, block->experts, d_scale));
    MUST(moe_write_kernel_gradient(ctx, block, MOE_DKERNEL, router->d_logits, block->experts, ASSAY_PRODUCT_ROUTER));
    if (block->need_dx) {
        MUST(assay_alloc_f64(ctx, "dx of the router", count, &dx));
        const assay_matmul_args args = assay_product_of_router(
            assay_product_abt(dx, router->d_logits, router->kernel, block->tokens, block->emb_dim, block->experts));
        MUST(assay_matmul(ctx, &args));
        graph_join(ctx, count, block->dx, dx); /* block->dx is that of the experts so far */
    }
    return ASSAY_OK;
}

void moe_router_free(moe_router *router)
{
    free(router->kernel);
    free(router->bias);
    free(router->per_expert_scale);
    free(router->logits);
    free(router->tid2eid);
    free(router->input_ids);
    free(router->given_experts);
    free(router->given_weights);
    free(router->d_lb_loss);
    free(router->d_z_loss);
    free(router->d_logits);
    memset(router, 0, sizeof *router);
}
