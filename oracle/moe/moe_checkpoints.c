/* Checkpoints of the experts, in the layout of the path: rows in sorted order as they come, [E,B,C,width] for dropping,
 * [T,E,width] for dense. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

bool moe_routed_given(const moe_block *block)
{
    const assay_gated_mlp_config config = assay_moe_expert_config(block->config, 0);
    const assay_source *in = block->in;
    char path[ASSAY_PATH_SIZE];
    bool given = false;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++)
        given |= assay_mlp_checkpoint_path(&config, ASSAY_MLP_ROUTED, i, path) > 0 && in->has(in->self, path);
    return given;
}

static int64_t width_of(const moe_mlp *mlp, int checkpoint)
{
    const assay_tensor_row row = assay_mlp_checkpoint_row(&mlp->config, mlp->place, checkpoint);
    return assay_tensor_row_count(&row);
}

assay_status moe_checkpoints_alloc(assay_context *ctx, moe_checkpoints *c, const moe_mlp *mlp, const moe_results *r)
{
    assay_status status = ASSAY_OK;
    int64_t rows = c->slots != NULL ? c->slot_count : mlp->config.rows, widest = 0;
    int kept_count = (1 + r->precision_count) * ASSAY_MLP_CHECKPOINTS;
    void *kept = NULL;
    if (c->experts > 0) {
        TRY(assay_alloc(ctx, "dense checkpoints", kept_count, sizeof *c->kept, &kept));
        c->kept = kept;
        memset(c->kept, 0, (size_t)kept_count * sizeof *c->kept);
    }
    for (int i = 0; i < kept_count; i++) {
        int checkpoint = i % ASSAY_MLP_CHECKPOINTS;
        int64_t width = width_of(mlp, checkpoint);
        if (!moe_wants(r, i / ASSAY_MLP_CHECKPOINTS - 1, mlp->first_result + checkpoint)) continue;
        if (width > widest) widest = width;
        if (c->kept == NULL) continue;
        TRY(assay_alloc_f64(ctx, "dense checkpoint", rows * c->experts * width, &c->kept[i]));
    }
    if (c->kept == NULL && widest > 0) TRY(assay_alloc_f64(ctx, "checkpoint", rows * widest, &c->packed));
cleanup:
    return status;
}

void moe_checkpoints_free(moe_checkpoints *c, const moe_results *r)
{
    for (int i = 0; c->kept != NULL && i < (1 + r->precision_count) * ASSAY_MLP_CHECKPOINTS; i++) free(c->kept[i]);
    free(c->kept);
    free(c->packed);
    free(c->slots);
    memset(c, 0, sizeof *c);
}

typedef struct copy {
    double *to;
    int64_t to_ld;
    const double *from;
    int64_t from_ld, width;
} copy;

static void copy_rows(const assay_context *ctx, const moe_checkpoints *c, int64_t count, const copy *part)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        int64_t row = c->slots != NULL ? c->slots[i] : i;
        memcpy(part->to + i * part->to_ld, part->from + row * part->from_ld, (size_t)part->width * sizeof *part->to);
    }
}

assay_status moe_checkpoints_put(assay_context *ctx, moe_checkpoints *c, const moe_mlp *mlp, const moe_results *r,
                                 int precision, const moe_rows *rows)
{
    int64_t width = mlp->config.mlp_dim, dim = mlp->config.emb_dim;
    int64_t count = c->slots != NULL ? c->slot_count : rows->count;
    int64_t ld = precision < 0 ? mlp->residuals.ld : width;
    const double *a = precision < 0 ? mlp->residuals.a : mlp->variance_a;
    const double *b = precision < 0 ? mlp->residuals.b : mlp->variance_b;
    const double *y = precision < 0 ? rows->y : mlp->variance_y;
    for (int checkpoint = 0; checkpoint < ASSAY_MLP_CHECKPOINTS; checkpoint++) {
        if (!moe_wants(r, precision, mlp->first_result + checkpoint)) continue;
        int64_t own = width_of(mlp, checkpoint);
        double *to = c->packed;
        int64_t to_ld = own;
        if (c->kept != NULL) {
            to = c->kept[(precision + 1) * ASSAY_MLP_CHECKPOINTS + checkpoint] + rows->expert * own;
            to_ld = c->experts * own;
        }
        if (checkpoint == ASSAY_MLPWO) {
            copy_rows(ctx, c, count, &(copy){to, to_ld, y, dim, dim});
        } else if (checkpoint == ASSAY_MLPWI) {
            copy_rows(ctx, c, count, &(copy){to, to_ld, a, ld, width});
            copy_rows(ctx, c, count, &(copy){to + width, to_ld, b, ld, width});
        } else {
            copy_rows(ctx, c, count, &(copy){to, to_ld, checkpoint == ASSAY_MLPWI_0 ? a : b, ld, width});
        }
        if (c->kept != NULL) continue;
        assay_status status = moe_write(ctx, r, precision, mlp->first_result + checkpoint, count * own, to);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

assay_status moe_checkpoints_finish(assay_context *ctx, moe_checkpoints *c, const moe_mlp *mlp, const moe_results *r,
                                    int64_t tokens)
{
    for (int i = 0; c->kept != NULL && i < (1 + r->precision_count) * ASSAY_MLP_CHECKPOINTS; i++) {
        int checkpoint = i % ASSAY_MLP_CHECKPOINTS;
        int64_t count = tokens * c->experts * width_of(mlp, checkpoint);
        assay_status status =
            moe_write(ctx, r, i / ASSAY_MLP_CHECKPOINTS - 1, mlp->first_result + checkpoint, count, c->kept[i]);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

/* One expert's slots, of which the filled ones hold its rows. */
static assay_status read_slots(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, int checkpoint,
                               const moe_rows *rows, double *values)
{
    const moe_checkpoints *c = &block->checkpoints;
    const assay_source *in = block->in;
    char path[ASSAY_PATH_SIZE];
    const int64_t width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
    assay_status status = ASSAY_OK;
    memset(values, 0, (size_t)(rows->count * width) * sizeof *values);
    for (int64_t slot = 0; slot < c->slot_count; slot++) {
        if (c->slots[slot] >= rows->size) continue;
        TRY(in->read(ctx, in->self, path, (rows->expert * c->slot_count + slot) * width, width,
                     values + c->slots[slot] * width));
    }
cleanup:
    return status;
}

assay_status moe_read_given(assay_context *ctx, const moe_mlp *mlp, const moe_block *block, int checkpoint,
                            const moe_rows *rows, double *values)
{
    const assay_source *in = block->in;
    char path[ASSAY_PATH_SIZE];
    const int64_t width = assay_mlp_checkpoint_path(&mlp->config, mlp->place, checkpoint, path);
    const bool routed = mlp->place == ASSAY_MLP_ROUTED;
    assay_status status = ASSAY_OK;
    if (routed && block->checkpoints.slots != NULL) return read_slots(ctx, mlp, block, checkpoint, rows, values);
    if (!routed || block->config->path != ASSAY_MOE_DENSE) {
        return in->read(ctx, in->self, path, rows->first * width, rows->count * width, values);
    }
    for (int64_t t = 0; t < rows->count; t++) {
        TRY(in->read(ctx, in->self, path, (t * block->experts + rows->expert) * width, width, values + t * width));
    }
cleanup:
    return status;
}
