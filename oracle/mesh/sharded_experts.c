/* The routed experts, one after the other: what an expert's weights are needed for is done while they are in memory,
 * for the rows that every shard of its place on the expert axis has for it. */
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_moe_internal.h"

/* Rows of one expert on one shard. */
static sharded_piece piece_of(const sharded_run *run, int64_t c, int64_t shard, int64_t local_expert)
{
    const assay_shard_sizes *s = &run->sizes;
    const sharded_chunk *chunk = &run->chunks[c];
    const int32_t *group_sizes = chunk->local_group_sizes + shard * s->local_experts;
    const int64_t dim = run->config->emb_dim;
    int64_t row = shard * s->buffer, first = (shard * s->chunks + c) * s->buffer;
    for (int64_t e = 0; e < local_expert; e++) {
        row += group_sizes[e];
        first += group_sizes[e];
    }
    return (sharded_piece){
        .first = first,
        .count = group_sizes[local_expert],
        .x = chunk->rows_x + row * dim,
        .y = chunk->rows_y + row * dim,
        .dy = run->need_backward ? chunk->rows_dy + row * dim : NULL,
        .dx = run->need_row_dx ? chunk->rows_dx + row * dim : NULL,
        .weights = chunk->row_weights == NULL ? NULL : chunk->row_weights + row,
        .d_weights = chunk->row_d_weights == NULL ? NULL : chunk->row_d_weights + row,
    };
}

static assay_status run_expert(assay_context *ctx, sharded_run *run, sharded_mlp *mlp, int64_t expert)
{
    assay_status status = ASSAY_OK;
    const assay_shard_sizes *s = &run->sizes;
    bool read = false;
    for (int64_t c = 0; c < s->chunks; c++) {
        for (int64_t shard = 0; shard < s->shards; shard++) {
            const int64_t index = assay_mesh_index(&run->sharding->mesh, shard, ASSAY_AXIS_EXPERT);
            if (index != expert / s->local_experts) continue;
            const sharded_piece piece = piece_of(run, c, shard, expert % s->local_experts);
            if (piece.count == 0) continue;
            if (!read) TRY(sharded_mlp_read(ctx, mlp, run->in, expert));
            read = true;
            TRY(sharded_mlp_forward(ctx, mlp, run->in, &piece));
            if (run->need_backward) TRY(sharded_mlp_backward(ctx, mlp, &piece));
        }
    }
    TRY(sharded_mlp_write(ctx, mlp, run));
cleanup:
    return status;
}

static int64_t most_rows(const sharded_run *run)
{
    int64_t most = 1;
    for (int64_t c = 0; c < run->sizes.chunks; c++) {
        for (int64_t i = 0; i < run->sizes.shards * run->sizes.local_experts; i++) {
            const int64_t count = run->chunks[c].local_group_sizes[i];
            if (count > most) most = count;
        }
    }
    return most;
}

/* As a checkpoint. */
static assay_status write_outputs(assay_context *ctx, const sharded_mlp *mlp, const sharded_run *run)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    const int64_t count = run->sizes.buffer * assay_mlp_checkpoint_path(&mlp->config, mlp->place, ASSAY_MLPWO, path);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        for (int64_t c = 0; c < run->sizes.chunks; c++)
            TRY(sharded_write(ctx, run, path, count, run->chunks[c].rows_y + shard * count));
    }
cleanup:
    return status;
}

assay_status sharded_experts_run(assay_context *ctx, sharded_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = run->config;
    const assay_shard_sizes *s = &run->sizes;
    const int64_t rows = s->shards * s->chunks * s->buffer;
    sharded_mlp mlp = {
        .config = assay_moe_expert_config(config, most_rows(run)),
        .place = ASSAY_MLP_ROUTED,
        .tensor_shards = run->sharding->tensor_shards,
        .emb_chunks = run->sharding->emb_chunks > 0 ? run->sharding->emb_chunks : 1,
    };
    TRY(sharded_mlp_alloc(ctx, &mlp, run, rows));
    for (int64_t expert = 0; expert < run->permute.experts; expert++) TRY(run_expert(ctx, run, &mlp, expert));
    TRY(sharded_write_kept(ctx, &mlp, run, rows));
    TRY(write_outputs(ctx, &mlp, run));
cleanup:
    sharded_mlp_free(&mlp);
    return status;
}
