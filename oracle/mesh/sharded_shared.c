/* The shared expert: a gated MLP of the tokens that each shard owns, added to the routed output. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

static assay_status run_owners(assay_context *ctx, sharded_run *run, sharded_mlp *mlp, double *y, double *dx)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    const bool backward = run->need_dx || sharded_wants_any_gradient(run, ASSAY_MLP_SHARED);
    const int64_t owners = s->batch_sharded ? s->shards : 1, dim = run->config->emb_dim;
    const int64_t tokens = s->own_batch * run->config->routing.sequence;
    for (int64_t owner = 0; owner < owners; owner++) {
        const int64_t at = owner * tokens * dim;
        const sharded_piece piece = {.first = owner * tokens,
                                     .count = tokens,
                                     .x = run->x + at,
                                     .y = y + at,
                                     .dy = backward ? run->dy + at : NULL,
                                     .dx = dx == NULL ? NULL : dx + at};
        TRY(sharded_mlp_forward(ctx, mlp, run->in, &piece));
        if (backward) TRY(sharded_mlp_backward(ctx, mlp, &piece));
    }
    if (backward) TRY(sharded_mlp_write(ctx, mlp, run));
cleanup:
    return status;
}

assay_status sharded_shared_run(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = run->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence, count = tokens * config->emb_dim;
    double *y = NULL, *dx = NULL;
    char path[ASSAY_PATH_SIZE];
    const bool any = run->need_y || run->need_dx || sharded_wants_any_gradient(run, ASSAY_MLP_SHARED) ||
                     sharded_wants_any_checkpoint(run, ASSAY_MLP_SHARED);
    if (config->shared_mlp_dim == 0 || !any) return ASSAY_OK;
    sharded_mlp mlp = {
        .config = assay_moe_shared_config(config, run->sizes.own_batch * config->routing.sequence),
        .place = ASSAY_MLP_SHARED,
        .tensor_shards = 1,
        .emb_chunks = 1,
    };
    TRY(sharded_mlp_alloc(ctx, &mlp, run, tokens));
    TRY(assay_alloc_f64(ctx, "shared y", count, &y));
    if (run->need_dx) TRY(assay_alloc_f64(ctx, "shared dx", count, &dx));
    TRY(sharded_mlp_read(ctx, &mlp, run->in, 0));
    TRY(run_owners(ctx, run, &mlp, y, dx));
    TRY(sharded_write_kept(ctx, &mlp, run, tokens));
    assay_mlp_checkpoint_path(&mlp.config, mlp.place, ASSAY_MLPWO, path);
    TRY(sharded_write(ctx, run, path, count, y));
    if (run->need_y) sharded_add(ctx, count, run->y, y);
    if (run->need_dx) sharded_add(ctx, count, run->dx, dx);
cleanup:
    free(y);
    free(dx);
    sharded_mlp_free(&mlp);
    return status;
}
