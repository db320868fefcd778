/* The gate of a block: logits, choices and their results; gradients of its kernel, its bias and x. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/moe/permute.h"

static assay_status read_f64(assay_context *ctx, const assay_source *in, const char *path, int64_t count, double **out)
{
    assay_status status = assay_alloc_f64(ctx, path, count, out);
    return status != ASSAY_OK ? status : in->read(ctx, in->self, path, 0, count, *out);
}

static assay_status read_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count, int32_t **out)
{
    assay_status status = assay_alloc_i32(ctx, path, count, out);
    return status != ASSAY_OK ? status : in->read_i32(ctx, in->self, path, 0, count, *out);
}

static assay_status read_router(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_router *router = &block->router;
    const assay_source *in = block->in;
    int64_t experts = block->experts, rows = block->config->routing.hash_rows;
    TRY(read_f64(ctx, in, "weights/gate/kernel", block->emb_dim * experts, &router->kernel));
    if (in->has(in->self, "weights/gate/bias")) {
        TRY(read_f64(ctx, in, "weights/gate/bias", experts, &router->bias));
    }
    if (in->has(in->self, "weights/per_expert_scale")) {
        TRY(read_f64(ctx, in, "weights/per_expert_scale", experts, &router->per_expert_scale));
    }
    if (rows > 0) {
        TRY(read_i32(ctx, in, "weights/tid2eid", rows * block->per_token, &router->tid2eid));
        TRY(read_i32(ctx, in, "inputs/input_ids", block->tokens, &router->input_ids));
    }
    if (in->has(in->self, "routing/selected_experts")) {
        TRY(read_i32(ctx, in, "routing/selected_experts", block->tokens * block->per_token, &router->given_experts));
    }
    if (in->has(in->self, "cotangents/lb_loss")) {
        TRY(in->read(ctx, in->self, "cotangents/lb_loss", 0, 1, &router->d_lb_loss));
    }
cleanup:
    return status;
}

static assay_status write_f64(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                              const double *values)
{
    return out->wants(out->self, path) ? out->write(ctx, out->self, path, count, values) : ASSAY_OK;
}

static assay_status write_i32(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                              const int32_t *values)
{
    return out->wants(out->self, path) ? out->write_i32(ctx, out->self, path, count, values) : ASSAY_OK;
}

/* No result of the block: what a backend's own choice is judged by. */
static assay_status write_selecting(assay_context *ctx, const moe_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = block->results.out;
    double *selecting = NULL;
    if (!out->wants(out->self, "routing/biased_scores")) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "biased scores", block->tokens * block->experts, &selecting));
    TRY(assay_routing_selecting(ctx, selecting, &block->router.inputs, 0, block->tokens, &block->config->routing));
    TRY(write_f64(ctx, out, "routing/biased_scores", block->tokens * block->experts, selecting));
cleanup:
    free(selecting);
    return status;
}

static assay_status write_routing(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = block->results.out;
    assay_routing *routing = &block->router.routing;
    int64_t choices = block->tokens * block->per_token;
    TRY(write_selecting(ctx, block));
    TRY(write_i32(ctx, out, "routing/selected_experts", choices, routing->selected_experts));
    TRY(write_f64(ctx, out, "routing/weights", choices, routing->weights));
    TRY(write_f64(ctx, out, "routing/margin", block->tokens, routing->margin));
    TRY(write_i32(ctx, out, "routing/group_sizes", block->experts, block->group_sizes));
    TRY(write_i32(ctx, out, "routing/sorted_selected_experts", choices, block->order));
    TRY(moe_write(ctx, &block->results, MOE_LB_LOSS, 1, &routing->lb_loss));
    TRY(moe_write(ctx, &block->results, MOE_BIAS_UPDATES, block->experts, routing->bias_updates));
cleanup:
    return status;
}

assay_status moe_router_forward(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_router *router = &block->router;
    const assay_routing_config *config = &block->config->routing;
    int64_t choices = block->tokens * block->per_token;
    assay_permute_dims dims = {block->tokens, block->per_token, block->experts, block->emb_dim};
    TRY(read_router(ctx, block));
    TRY(assay_alloc_f64(ctx, "logits", block->tokens * block->experts, &router->logits));
    assay_matmul_args args = moe_logits_product(block, router->logits);
    TRY(assay_matmul(ctx, &args));
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * block->experts, router->logits);
    router->inputs = (assay_routing_inputs){.logits = router->logits,
                                            .bias = router->bias,
                                            .per_expert_scale = router->per_expert_scale,
                                            .tid2eid = router->tid2eid,
                                            .input_ids = router->input_ids,
                                            .given_experts = router->given_experts};
    TRY(assay_routing_alloc(ctx, &router->routing, config));
    TRY(assay_routing_forward(ctx, &router->routing, &router->inputs, config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, choices, router->routing.weights);
    TRY(assay_alloc_i32(ctx, "order of choices", choices, &block->order));
    TRY(assay_alloc_i32(ctx, "group sizes", block->experts, &block->group_sizes));
    TRY(assay_alloc_f64(ctx, "combine weights", choices, &block->combine));
    TRY(assay_permute_order(ctx, block->order, block->group_sizes, router->routing.selected_experts, &dims));
    TRY(write_routing(ctx, block));
    if (block->llama4) TRY(moe_llama4_forward(ctx, block));
cleanup:
    return status;
}

assay_status moe_router_backward(assay_context *ctx, moe_block *block)
{
    assay_status status = ASSAY_OK;
    moe_router *router = &block->router;
    const moe_results *r = &block->results;
    const assay_routing_config *config = &block->config->routing;
    const int64_t count = block->tokens * block->emb_dim;
    double *d_kernel = NULL, *d_bias = NULL, *d_scale = NULL, *dx = NULL;
    TRY(assay_alloc_f64(ctx, "d_logits", block->tokens * block->experts, &router->d_logits));
    TRY(assay_alloc_f64(ctx, "d_bias", block->experts, &d_bias));
    TRY(assay_alloc_f64(ctx, "d_per_expert_scale", block->experts, &d_scale));
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * block->per_token, block->d_weights);
    TRY(assay_routing_backward(ctx, router->d_logits, router->bias == NULL ? NULL : d_bias,
                               router->per_expert_scale == NULL ? NULL : d_scale, block->d_weights, router->d_lb_loss,
                               &router->routing, &router->inputs, config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, block->tokens * block->experts, router->d_logits);
    TRY(moe_write(ctx, r, MOE_DBIAS, block->experts, d_bias));
    TRY(moe_write(ctx, r, MOE_DSCALE, block->experts, d_scale));
    if (moe_wants(r, MOE_DKERNEL)) {
        TRY(assay_alloc_f64(ctx, "d_kernel", block->emb_dim * block->experts, &d_kernel));
        assay_matmul_args args = moe_d_kernel_product(block, d_kernel);
        TRY(assay_matmul(ctx, &args));
        TRY(moe_write(ctx, r, MOE_DKERNEL, block->emb_dim * block->experts, d_kernel));
    }
    if (block->need_dx) {
        TRY(assay_alloc_f64(ctx, "dx of the router", count, &dx));
        assay_matmul_args args = moe_dx_product(block, dx);
        TRY(assay_matmul(ctx, &args));
    }
    if (block->observer != NULL) TRY(block->observer->router(ctx, block->observer->self, block, dx));
    if (block->need_dx) { /* block->dx is that of the experts so far */
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, dx);
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, block->dx);
        moe_accumulate(ctx, block->dx, dx, NULL, block->tokens, block->emb_dim);
    }
cleanup:
    free(d_kernel);
    free(d_bias);
    free(d_scale);
    free(dx);
    return status;
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
    free(router->d_logits);
    assay_routing_free(&router->routing);
    memset(router, 0, sizeof *router);
}
