/* Checkpoints of the experts, in the layout of the path: rows in sorted order as they come, [E,B,C,width] for dropping,
 * [T,E,width] for dense, [M,C,rows,width] over a mesh. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/quantised_spread.h"

bool moe_routed_given(const moe_block *block)
{
    const assay_gated_mlp_config config = assay_moe_expert_config(block->config, 0);
    const assay_source *in = block->in;
    char path[ASSAY_PATH_SIZE], staged[ASSAY_PATH_SIZE];
    bool given = false;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        if (assay_mlp_checkpoint_path(&config, ASSAY_MLP_ROUTED, i, path) == 0) continue;
        assay_staged_path(path, staged);
        given |= in->has(in->self, path) || in->has(in->self, staged);
    }
    return given;
}

static int64_t width_of(const moe_mlp *mlp, int checkpoint)
{
    const assay_tensor_row row = assay_mlp_checkpoint_row(&mlp->config, mlp->place, checkpoint);
    return assay_tensor_row_count(&row);
}

/* That are side by side in a row: gate and up. */
static int64_t halves_of(int checkpoint)
{
    return checkpoint == ASSAY_MLPWI ? 2 : 1;
}

void moe_take_part(double *own, const double *rows, int64_t count, int64_t width, int64_t halves, int64_t part,
                   int64_t parts)
{
    const int64_t half = width / halves, share = half / parts;
    for (int64_t i = 0; i < count * halves; i++)
        memcpy(own + i * share, rows + i * half + part * share, (size_t)share * sizeof *own);
}

/* Rows of a checkpoint that is kept whole; 0: its rows are written as they come. */
static int64_t kept_rows(const moe_block *block, const moe_mlp *mlp)
{
    return mlp->place == ASSAY_MLP_ROUTED ? block->kept_rows : 0;
}

/* Where rows lie in a checkpoint; a token's rows of all experts are neighbours when dense. */
typedef struct row_places {
    int64_t first, step;
} row_places;

static row_places places_of(const moe_block *block, const moe_mlp *mlp, const moe_rows *rows)
{
    const bool dense = block->config->path == ASSAY_MOE_DENSE && mlp->place == ASSAY_MLP_ROUTED;
    return dense ? (row_places){rows->expert, block->experts} : (row_places){rows->first, 1};
}

static bool is_written(const moe_block *block, const moe_mlp *mlp, const moe_results *r, int checkpoint)
{
    const bool elsewhere = checkpoint == ASSAY_MLPWO && mlp->place == ASSAY_MLP_ROUTED && block->keeps_outputs;
    return moe_wants(r, mlp->first_result + checkpoint) && !elsewhere;
}

/* NULL where the rows are written as they come. */
static const moe_slots *slots_of(const moe_block *block, const moe_mlp *mlp)
{
    return mlp->place == ASSAY_MLP_ROUTED && block->slots.row != NULL ? &block->slots : NULL;
}

assay_status moe_checkpoints_alloc(assay_context *ctx, moe_checkpoints *c, const moe_block *block, const moe_mlp *mlp,
                                   const moe_results *r)
{
    assay_status status = ASSAY_OK;
    const moe_slots *slots = slots_of(block, mlp);
    int64_t widest = 0;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        const int64_t width = width_of(mlp, checkpoint), count = kept_rows(block, mlp) * width;
        if (!is_written(block, mlp, r, checkpoint)) continue;
        if (width > widest) widest = width;
        if (count == 0) continue;
        /* A mesh may have room for more rows than there are. */
        TRY(assay_alloc_zeros(ctx, "whole checkpoint", count, &c->kept[checkpoint]));
    }
    if (slots != NULL && widest > 0) TRY(assay_alloc_f64(ctx, "checkpoint", slots->count * widest, &c->packed));
cleanup:
    return status;
}

void moe_checkpoints_free(moe_checkpoints *c)
{
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) free(c->kept[checkpoint]);
    free(c->packed);
    memset(c, 0, sizeof *c);
}

/* Rows of `from`, those of the slots where there are any, to where they belong among rows `to_ld` apart. */
static void copy_rows(const assay_context *ctx, const moe_slots *slots, int64_t count, double *to, int64_t to_ld,
                      const double *from, int64_t width)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = slots != NULL ? slots->row[i] : i;
        memcpy(to + i * to_ld, from + row * width, (size_t)width * sizeof *to);
    }
}

assay_status moe_checkpoints_put(assay_context *ctx, moe_checkpoints *c, const moe_block *block, const moe_mlp *mlp,
                                 const moe_results *r, const moe_rows *rows, const moe_checkpoint_values *values)
{
    const moe_slots *slots = slots_of(block, mlp);
    const int64_t count = slots != NULL ? slots->count : rows->count;
    /* Fused, a and b are the halves of one tensor. */
    const double *const from[ASSAY_MLP_CHECKPOINTS] = {[ASSAY_MLPWI_0] = values->a,
                                                       [ASSAY_MLPWI_1] = values->b,
                                                       [ASSAY_MLPWI] = values->a,
                                                       [ASSAY_MLP_INTERMEDIATE] = values->h,
                                                       [ASSAY_MLP_CODES] = values->codes,
                                                       [ASSAY_MLP_SCALE] = values->scale,
                                                       [ASSAY_MLPWO] = values->y,
                                                       [ASSAY_MLPWI_GRADIENT] = values->da,
                                                       [ASSAY_MLPWI_0_GRADIENT] = values->da,
                                                       [ASSAY_MLPWI_1_GRADIENT] = values->db,
                                                       [ASSAY_MLPWO_GRADIENT] = values->dy};
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        const int64_t width = width_of(mlp, checkpoint);
        const double *write = from[checkpoint];
        if (write == NULL || !is_written(block, mlp, r, checkpoint)) continue;
        if (c->kept[checkpoint] != NULL) {
            const row_places at = places_of(block, mlp, rows);
            copy_rows(ctx, NULL, count, c->kept[checkpoint] + at.first * width, at.step * width, write, width);
            continue;
        }
        if (slots != NULL) {
            copy_rows(ctx, slots, count, c->packed, width, write, width);
            write = c->packed;
        }
        assay_status status = moe_write(ctx, r, mlp->first_result + checkpoint, count * width, write);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

/* Of each shard its rows, part by part of their columns. */
static assay_status write_parts(assay_context *ctx, const moe_block *block, const moe_mlp *mlp, const moe_results *r,
                                int checkpoint, const double *kept)
{
    assay_status status = ASSAY_OK;
    const int64_t shards = block->split.shards, parts = block->split.hidden_shards, width = width_of(mlp, checkpoint);
    const int64_t rows = block->kept_rows / shards;
    double *own = NULL;
    TRY(assay_alloc_f64(ctx, "a shard's part of a checkpoint", rows * width / parts, &own));
    for (int64_t i = 0; i < shards * parts; i++) {
        moe_take_part(own, kept + i / parts * rows * width, rows, width, halves_of(checkpoint), i % parts, parts);
        TRY(moe_write(ctx, r, mlp->first_result + checkpoint, rows * width / parts, own));
    }
cleanup:
    free(own);
    return status;
}

/* Rows of no choice, behind those of the last expert; of one device. */
static int64_t unused_rows(const moe_block *block, const moe_mlp *mlp)
{
    int64_t unused = block->tokens * block->per_token;
    if (mlp->place != ASSAY_MLP_ROUTED || block->kept_rows > 0 || block->slots.row != NULL) return 0;
    for (int64_t e = 0; e < block->local_experts; e++) unused -= block->group_sizes[e];
    return unused;
}

static assay_status write_zeros(assay_context *ctx, const moe_mlp *mlp, const moe_results *r, int checkpoint,
                                int64_t count)
{
    assay_status status = ASSAY_OK;
    double *zeros = NULL;
    TRY(assay_alloc_zeros(ctx, "rows of no choice", count, &zeros));
    TRY(moe_write(ctx, r, mlp->first_result + checkpoint, count, zeros));
cleanup:
    free(zeros);
    return status;
}

assay_status moe_checkpoints_finish(assay_context *ctx, const moe_checkpoints *c, const moe_block *block,
                                    const moe_mlp *mlp, const moe_results *r)
{
    assay_status status = ASSAY_OK;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        const int64_t count = kept_rows(block, mlp) * width_of(mlp, checkpoint);
        const int64_t zeros = unused_rows(block, mlp) * width_of(mlp, checkpoint);
        if (zeros > 0 && is_written(block, mlp, r, checkpoint)) TRY(write_zeros(ctx, mlp, r, checkpoint, zeros));
        if (c->kept[checkpoint] == NULL) continue;
        TRY(block->split.hidden_shards > 1
                ? write_parts(ctx, block, mlp, r, checkpoint, c->kept[checkpoint])
                : moe_write(ctx, r, mlp->first_result + checkpoint, count, c->kept[checkpoint]));
    }
cleanup:
    return status;
}

/* A checkpoint in the source: where its file has it, and the numbers of a row. */
typedef struct checkpoint_place {
    char path[ASSAY_PATH_SIZE];
    int checkpoint;
    int64_t width;
} checkpoint_place;

/* One expert's slots, of which the filled ones hold its rows. */
static assay_status read_slots(assay_context *ctx, const moe_block *block, const checkpoint_place *p,
                               const moe_rows *rows, double *values)
{
    const moe_slots *slots = &block->slots;
    const assay_source *in = block->in;
    assay_status status = ASSAY_OK;
    for (int64_t slot = 0; slot < slots->count; slot++) {
        if (slots->row[slot] >= rows->size) continue;
        TRY(in->read(ctx, in->self, p->path, (rows->expert * slots->count + slot) * p->width, p->width,
                     values + slots->row[slot] * p->width));
    }
cleanup:
    return status;
}

/* What write_parts has written: rows at `first` among those of all shards. */
static assay_status read_parts(assay_context *ctx, const moe_block *block, const checkpoint_place *p,
                               const moe_rows *rows, double *values)
{
    const assay_source *in = block->in;
    const int64_t width = p->width;
    const int64_t parts = block->split.hidden_shards, of_shard = block->kept_rows / block->split.shards;
    const int64_t halves = halves_of(p->checkpoint), half = width / halves, share = half / parts;
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < rows->count * halves * parts; i++) {
        const int64_t row = rows->first + i / parts / halves, in_row = i / parts % halves, part = i % parts;
        const int64_t place = (row / of_shard * parts + part) * of_shard + row % of_shard;
        TRY(in->read(ctx, in->self, p->path, (place * halves + in_row) * share, share,
                     values + i / parts * half + part * share));
    }
cleanup:
    return status;
}

static assay_status read_rows(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, const checkpoint_place *p,
                              const moe_rows *rows, double *values)
{
    const assay_source *in = block->in;
    const row_places at = places_of(block, mlp, rows);
    const int64_t width = p->width;
    assay_status status = ASSAY_OK;
    if (slots_of(block, mlp) != NULL) return read_slots(ctx, block, p, rows, values);
    if (mlp->place == ASSAY_MLP_ROUTED && block->split.hidden_shards > 1)
        return read_parts(ctx, block, p, rows, values);
    if (at.step == 1) return in->read(ctx, in->self, p->path, at.first * width, rows->count * width, values);
    for (int64_t row = 0; row < rows->count; row++)
        TRY(in->read(ctx, in->self, p->path, (at.first + row * at.step) * width, width, values + row * width));
cleanup:
    return status;
}

assay_status moe_read_given(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, int checkpoint,
                            const moe_rows *rows, double *values)
{
    checkpoint_place p = {.checkpoint = checkpoint};
    p.width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, p.path);
    /* slots that no row fills */
    if (slots_of(block, mlp) != NULL) memset(values, 0, (size_t)(rows->count * p.width) * sizeof *values);
    return read_rows(ctx, mlp, block, &p, rows, values);
}

assay_status moe_go_on(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, int checkpoint,
                       const moe_rows *rows, double *values)
{
    char path[ASSAY_PATH_SIZE];
    checkpoint_place p = {.checkpoint = checkpoint};
    if (!mlp->staged[checkpoint]) return ASSAY_OK;
    p.width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
    assay_staged_path(path, p.path);
    return read_rows(ctx, mlp, block, &p, rows, values);
}

assay_status moe_read_spread(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, int checkpoint,
                             const moe_rows *rows, double *spread)
{
    char path[ASSAY_PATH_SIZE];
    checkpoint_place p = {.checkpoint = checkpoint};
    if (!mlp->spread[checkpoint]) return ASSAY_OK;
    p.width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
    assay_spread_path(path, p.path);
    memset(spread, 0, (size_t)(rows->count * p.width) * sizeof *spread); /* rows of no slot */
    return read_rows(ctx, mlp, block, &p, rows, spread);
}
