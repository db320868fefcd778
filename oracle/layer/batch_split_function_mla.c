/* Tables of rotations, as rows of the table of functions call them. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"

static int64_t tokens_of(const bs_call *c)
{
    return c->run.sizes.shards * c->run.sizes.tokens;
}

/* mask [Dr,Dr]: x mask has the two numbers of each pair swapped, and the first of them negated. */
assay_status bs_call_initialize_yarn_mask(assay_context *ctx, bs_call *c)
{
    const int64_t dims = c->run.mla.rope.dim;
    double *mask = c->b->values[MB_OTHER_OUT];
    (void)ctx;
    memset(mask, 0, (size_t)(dims * dims) * sizeof *mask);
    for (int64_t first = 0; first < dims; first += 2) {
        mask[first * dims + first + 1] = 1;
        mask[(first + 1) * dims + first] = -1;
    }
    return ASSAY_OK;
}

/* Whole turns stay: the module multiplies positions by frequencies. */
assay_status bs_call_initialize_yarn_freqs(assay_context *ctx, bs_call *c)
{
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t half = rope->dim / 2, tokens = tokens_of(c);
    OWNED double *frequencies = NULL;
    MUST(assay_rope_check_positions(ctx, c->b->indices[MB_OTHER_IN], tokens, rope));
    MUST(assay_alloc_f64(ctx, "frequencies", half, &frequencies));
    assay_rope_frequencies(frequencies, rope);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, frequencies);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < rope->dim; i++)
            c->b->values[MB_OTHER_OUT][t * rope->dim + i] = c->b->indices[MB_OTHER_IN][t] * frequencies[i / 2];
    }
    return ASSAY_OK;
}

/* y = x cos(yarn_freqs) + (x mask) sin(yarn_freqs), which is a pairwise rotation; or its gradient. */
assay_status bs_call_yarn(assay_context *ctx, bs_call *c)
{
    const bool back = assay_function_forward(c->config.function) != NULL;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t heads = c->run.mla.heads, dim = rope->dim;
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    const assay_rope_rows rows = {.y = back ? c->d->values[MB_OTHER_IN] : c->b->values[MB_OTHER_OUT],
                                  .y_token_stride = heads * dim,
                                  .y_head_stride = dim,
                                  .x = back ? c->d->values[MB_OTHER_OUT] : c->b->values[MB_OTHER_IN],
                                  .x_token_stride = heads * dim,
                                  .x_head_stride = dim,
                                  .heads = heads};
    MUST(assay_rope_table_of_angles(ctx, &table, c->b->values[MB_ANGLES], tokens_of(c), rope));
    (back ? assay_rope_backward : assay_rope_forward)(ctx, &rows, &table, rope);
    return ASSAY_OK;
}
