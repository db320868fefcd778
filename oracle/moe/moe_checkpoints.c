/* Checkpoints of the experts, in the layout of the path: rows in sorted order as they come, [E,B,C,width] for dropping,
 * [T,E,width] for dense, [M,C,rows,width] over a mesh. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

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

static int result_of(const moe_checkpoints *c, int checkpoint)
{
    return (c->routed ? MOE_ROUTED : MOE_SHARED) + checkpoint;
}

static bool is_wanted(const moe_checkpoints *c, int checkpoint)
{
    return c->width[checkpoint] > 0 && moe_wants(&c->block->results, result_of(c, checkpoint));
}

/* --- where rows lie --- */

/* Numbers next to each other, in a checkpoint and among the rows at hand. */
typedef struct piece {
    int64_t place, at, count;
} piece;

static const moe_slots *slots_of(const moe_checkpoints *c)
{
    return c->routed && c->block->slots.row != NULL ? &c->block->slots : NULL;
}

static bool is_dense(const moe_checkpoints *c)
{
    return c->routed && c->block->dense;
}

/* Of the columns of H, which shards have: each of gate and up side by side its share. */
static int64_t parts_of(const moe_checkpoints *c)
{
    return c->routed ? c->block->sizes.hidden_shards : 1;
}

static int64_t branches_of(int checkpoint)
{
    return checkpoint == ASSAY_MLPWI || checkpoint == ASSAY_MLPWI_GRADIENT ? 2 : 1;
}

static int64_t piece_count(const moe_checkpoints *c, int checkpoint)
{
    if (slots_of(c) != NULL) return slots_of(c)->count;
    if (parts_of(c) > 1) return c->rows->count * parts_of(c) * branches_of(checkpoint);
    return is_dense(c) ? c->rows->count : 1;
}

/* What shards have of H lies shard by shard: rows at `first` are among those of all shards. */
static piece part_of(const moe_checkpoints *c, int checkpoint, int64_t i)
{
    const int64_t parts = parts_of(c), branches = branches_of(checkpoint), width = c->width[checkpoint];
    const int64_t share = width / branches / parts, of_shard = c->block->kept_rows / c->block->sizes.shards;
    const int64_t local = i / parts / branches, branch = i / parts % branches, part = i % parts;
    const int64_t row = c->rows->first + local;
    const int64_t place = (row / of_shard * parts + part) * of_shard + row % of_shard;
    return (piece){(place * branches + branch) * share, local * width + (branch * parts + part) * share, share};
}

static piece piece_of(const moe_checkpoints *c, int checkpoint, int64_t i)
{
    const moe_rows *rows = c->rows;
    const moe_slots *slots = slots_of(c);
    const int64_t width = c->width[checkpoint];
    if (slots != NULL) return (piece){(rows->expert * slots->count + i) * width, slots->row[i] * width, width};
    if (parts_of(c) > 1) return part_of(c, checkpoint, i);
    if (is_dense(c)) return (piece){(i * c->block->experts + rows->expert) * width, i * width, width};
    return (piece){rows->first * width, 0, rows->count * width};
}

/* --- writing --- */

/* Rows of a checkpoint that is kept whole; 0: its rows are written as they come. */
static int64_t kept_rows(const moe_checkpoints *c)
{
    return c->routed ? c->block->kept_rows : 0;
}

assay_status moe_checkpoints_open(assay_context *ctx, moe_checkpoints *c, const moe_block *block, bool routed)
{
    const assay_gated_mlp_config mlp =
        routed ? assay_moe_expert_config(block->config, 0) : assay_moe_shared_config(block->config, 0);
    int64_t widest = 0;
    *c = (moe_checkpoints){.block = block, .routed = routed};
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        c->width[i] = assay_mlp_checkpoint_path(&mlp, routed ? ASSAY_MLP_ROUTED : ASSAY_MLP_SHARED, i, c->path[i]);
        if (!is_wanted(c, i)) continue;
        if (c->width[i] > widest) widest = c->width[i];
        /* A mesh may have room for more rows than there are. */
        if (kept_rows(c) > 0) MUST(assay_alloc_zeros(ctx, "whole checkpoint", kept_rows(c) * c->width[i], &c->kept[i]));
    }
    if (slots_of(c) != NULL && widest > 0)
        MUST(assay_alloc_f64(ctx, "checkpoint", slots_of(c)->count * widest, &c->packed));
    return ASSAY_OK;
}

void moe_checkpoints_close(moe_checkpoints *c)
{
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) free(c->kept[i]);
    free(c->packed);
    *c = (moe_checkpoints){0};
}

/* to: the whole checkpoint, or what of it begins at `first`. */
static void place_rows(const assay_context *ctx, const moe_checkpoints *c, int checkpoint, double *to, int64_t first,
                       const double *values)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < piece_count(c, checkpoint); i++) {
        const piece p = piece_of(c, checkpoint, i);
        memcpy(to + p.place - first, values + p.at, (size_t)p.count * sizeof *to);
    }
}

/* The rows at hand, where the checkpoint is wanted. */
static assay_status put(assay_context *ctx, moe_checkpoints *c, int checkpoint, const double *values)
{
    const moe_slots *slots = slots_of(c);
    const int64_t width = c->width[checkpoint];
    if (!is_wanted(c, checkpoint)) return ASSAY_OK;
    if (c->kept[checkpoint] != NULL) {
        place_rows(ctx, c, checkpoint, c->kept[checkpoint], 0, values);
        return ASSAY_OK;
    }
    if (slots == NULL)
        return moe_write(ctx, &c->block->results, result_of(c, checkpoint), c->rows->count * width, values);
    place_rows(ctx, c, checkpoint, c->packed, c->rows->expert * slots->count * width, values);
    return moe_write(ctx, &c->block->results, result_of(c, checkpoint), slots->count * width, c->packed);
}

/* Rows of no choice, behind those of the last expert; of one device. */
static int64_t unused_rows(const moe_checkpoints *c)
{
    const moe_block *block = c->block;
    int64_t unused = block->sizes.copies;
    if (!c->routed || block->kept_rows > 0 || block->slots.row != NULL) return 0;
    for (int64_t e = 0; e < block->sizes.local_experts; e++) unused -= block->local_group_sizes[e];
    return unused;
}

static assay_status write_zeros(assay_context *ctx, const moe_checkpoints *c, int checkpoint, int64_t count)
{
    OWNED double *zeros = NULL;
    MUST(assay_alloc_zeros(ctx, "rows of no choice", count, &zeros));
    return moe_write(ctx, &c->block->results, result_of(c, checkpoint), count, zeros);
}

assay_status moe_checkpoints_finish(assay_context *ctx, moe_checkpoints *c)
{
    const int64_t unused = unused_rows(c);
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        if (unused > 0 && is_wanted(c, i)) MUST(write_zeros(ctx, c, i, unused * c->width[i]));
        if (c->kept[i] != NULL)
            MUST(moe_write(ctx, &c->block->results, result_of(c, i), kept_rows(c) * c->width[i], c->kept[i]));
    }
    return ASSAY_OK;
}

/* --- as a source and a sink --- */

/* Of "checkpoints/NAME", and of what belongs to it; -1: it is another's. */
static int checkpoint_of(const moe_checkpoints *c, const char *path)
{
    const char *own = strstr(path, "checkpoints/");
    for (int i = 0; own != NULL && i < ASSAY_MLP_CHECKPOINTS; i++)
        if (c->width[i] > 0 && strcmp(own, c->path[i]) == 0) return i;
    return -1;
}

static bool has(void *self, const char *path)
{
    const moe_checkpoints *c = self;
    const assay_source *in = c->block->in;
    return checkpoint_of(c, path) >= 0 && in->has(in->self, path);
}

/* Slots that no row fills are not read. */
static assay_status read_rows(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                              double *values)
{
    const moe_checkpoints *c = self;
    const assay_source *in = c->block->in;
    const moe_slots *slots = slots_of(c);
    const int checkpoint = checkpoint_of(c, path);
    (void)first; /* the rows at hand are all there are */
    if (slots != NULL && assay_staged_of(path) == NULL) memset(values, 0, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < piece_count(c, checkpoint); i++) {
        const piece p = piece_of(c, checkpoint, i);
        if (slots != NULL && slots->row[i] >= c->rows->size) continue;
        MUST(in->read(ctx, in->self, path, p.place, p.count, values + p.at));
    }
    return ASSAY_OK;
}

static bool wants(void *self, const char *path)
{
    const moe_checkpoints *c = self;
    const int checkpoint = checkpoint_of(c, path);
    return checkpoint >= 0 && is_wanted(c, checkpoint);
}

static assay_status write_rows(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    moe_checkpoints *c = self;
    (void)count;
    return put(ctx, c, checkpoint_of(c, path), values);
}

assay_source moe_checkpoints_source(moe_checkpoints *c)
{
    return (assay_source){.self = c, .has = has, .read = read_rows};
}

assay_sink moe_checkpoints_sink(moe_checkpoints *c)
{
    return (assay_sink){.self = c, .wants = wants, .write = write_rows};
}
