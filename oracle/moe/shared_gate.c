/* The gate of a shared expert (MaxText Qwen3NextSparseMoeBlock): its output is multiplied by sigmoid(x kernel) of the
 * token. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/activation.h"

static const char path[] = "weights/shared_expert_gate/kernel";

assay_status moe_shared_gate_forward(assay_context *ctx, moe_shared_gate *g, const moe_block *block, bool gradients)
{
    const int64_t tokens = block->tokens, dim = block->emb_dim;
    MUST(assay_read_needed(ctx, block->in, path, dim, &g->kernel));
    MUST(assay_alloc_f64(ctx, "logits of the shared expert's gate", tokens, &g->logits));
    MUST(assay_alloc_f64(ctx, "gate of the shared expert", tokens, &g->gate));
    const assay_matmul_args args = assay_product_ab(g->logits, block->x, g->kernel, tokens, 1, dim);
    MUST(assay_matmul(ctx, &args));
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens, g->logits);
    for (int64_t t = 0; t < tokens; t++) g->gate[t] = assay_sigmoid(g->logits[t]);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, tokens, g->gate);
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens, g->gate);
    if (!gradients) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "dy of the shared expert", tokens * dim, &g->dy));
    moe_gather(ctx, g->dy, block->dy, NULL, g->gate, tokens, dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * dim, g->dy);
    return ASSAY_OK;
}

void moe_shared_gate_free(moe_shared_gate *g)
{
    free(g->kernel);
    free(g->logits);
    free(g->gate);
    free(g->dy);
}

assay_status moe_shared_gate_backward(assay_context *ctx, const moe_shared_gate *g, const moe_block *block,
                                      const double *y, double *dx)
{
    const int64_t tokens = block->tokens, dim = block->emb_dim;
    OWNED double *d_logits = NULL, *dx_gate = NULL;
    MUST(assay_alloc_f64(ctx, "d_logits of the shared expert's gate", tokens, &d_logits));
    for (int64_t t = 0; t < tokens; t++) {
        double d_gate = 0;
        const assay_matmul_args dot = assay_product_ab(&d_gate, y + t * dim, block->dy + t * dim, 1, 1, dim);
        MUST(assay_matmul(ctx, &dot));
        assay_round(ctx, ASSAY_ROUND_STORAGE, 1, &d_gate);
        d_logits[t] = d_gate * assay_sigmoid_slope(ctx, g->logits[t], g->gate[t]);
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens, d_logits);
    MUST(moe_write_kernel_gradient(ctx, block, MOE_DSHARED_GATE, d_logits, 1, ASSAY_PRODUCT_OTHER));
    if (dx == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "dx of the shared expert's gate", tokens * dim, &dx_gate));
    const assay_matmul_args args = assay_product_ab(dx_gate, d_logits, g->kernel, tokens, dim, 1);
    MUST(assay_matmul(ctx, &args));
    graph_join(ctx, tokens * dim, dx, dx_gate);
    return ASSAY_OK;
}
