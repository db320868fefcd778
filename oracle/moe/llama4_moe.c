/* llama4 scales a token by the sigmoid of its one choice's weight before the experts, and combines with weight 1. The
 * router's gradient comes through that scale. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/vector_sums.h"

assay_status moe_llama4_forward(assay_context *ctx, moe_block *block)
{
    const double *weights = block->router.routing.weights;
    MUST(assay_alloc_f64(ctx, "token scale", block->tokens, &block->gate));
    MUST(assay_alloc_f64(ctx, "scaled x", block->tokens * block->emb_dim, &block->scaled_x));
    for (int64_t t = 0; t < block->tokens; t++) block->gate[t] = assay_sigmoid(weights[t]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, block->tokens, block->gate);
    moe_gather(ctx, block->scaled_x, block->x, NULL, block->gate, block->tokens, block->emb_dim);
    return ASSAY_OK;
}

/* dx[t] is that of the experts' input so far: d_weights[t] = <x[t], dx[t]> sigmoid'(weight), then dx[t] times the scale. */
void moe_llama4_unscale(const assay_context *ctx, double *d_weights, double *dx, const double *x, const double *gate,
                        const double *weights, int64_t tokens, int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < tokens; t++) {
        double *d_token = dx + t * dim;
        const double slope = assay_sigmoid_slope(ctx, weights[t], gate[t]);
        d_weights[t] = assay_dot(ctx, dim, x + t * dim, d_token) * slope;
        for (int64_t d = 0; d < dim; d++) d_token[d] *= gate[t];
    }
}
