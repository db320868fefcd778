#include "oracle/mesh/head_shards.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

int64_t assay_head_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) * assay_mesh_size(mesh, ASSAY_AXIS_MLP_TENSOR);
}

int64_t assay_head_batch_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_DATA) * assay_mesh_size(mesh, ASSAY_AXIS_FSDP);
}

int64_t assay_head_part(const assay_mesh *mesh, int64_t shard)
{
    return assay_mesh_index(mesh, shard, ASSAY_AXIS_MLP_TENSOR) * assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) +
           assay_mesh_index(mesh, shard, ASSAY_AXIS_EXPERT);
}

int64_t assay_head_batch_part(const assay_mesh *mesh, int64_t shard)
{
    return shard / assay_head_shards(mesh);
}

static int head_axis(const assay_tensor_row *row)
{
    const size_t axis = strcspn(row->axes, "NgQ");
    return row->axes[axis] == '\0' ? -1 : (int)axis;
}

bool assay_row_has_heads(const assay_tensor_row *row)
{
    return head_axis(row) >= 0;
}

assay_status assay_head_shards_check(assay_context *ctx, const char *name, const assay_mesh *mesh, int64_t heads,
                                     int64_t kv_heads, int64_t batch)
{
    int64_t sizes[ASSAY_MESH_AXES], shards = 0;
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) sizes[axis] = assay_mesh_size(mesh, (assay_mesh_axis)axis);
    const assay_status status = assay_checked_count(ctx, "mesh", ASSAY_MESH_AXES, sizes, &shards);
    if (status != ASSAY_OK) return status;
    const struct {
        const char *what, *axes;
        int64_t size, parts;
    } divided[] = {
        {"heads (base_num_query_heads)", "mesh.expert times mesh.mlp_tensor", heads, assay_head_shards(mesh)},
        {"heads of keys (base_num_kv_heads)", "mesh.expert times mesh.mlp_tensor", kv_heads, assay_head_shards(mesh)},
        {"batch", "mesh.data times mesh.fsdp", batch, assay_head_batch_shards(mesh)},
    };
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++) {
        if (divided[i].size % divided[i].parts == 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is %" PRId64 ", expected a multiple of %s, which is %" PRId64,
                          name, divided[i].what, divided[i].size, divided[i].axes, divided[i].parts);
    }
    return ASSAY_OK;
}

/* One shard at a time. Of weights without heads `w` are the whole ones. */
typedef struct shard_run {
    const assay_head_layer *layer;
    const assay_head_run *m;
    int64_t parts;       /* P N */
    int64_t shard, part; /* part: of the heads */
    assay_head_inputs in;
    double *memory[ASSAY_MOST_ROWS], *gradients[ASSAY_MOST_ROWS], *scratch; /* as large as the largest of `gradients` */
    double *zeros, *dx;
    const double *w[ASSAY_MOST_ROWS];
} shard_run;

/* Heads of one kind along an axis: all of the layer's before them, and how many. */
typedef struct section {
    int64_t first, count;
} section;

static int sections_of(const assay_head_layer *layer, char axis, section sections[3])
{
    const int64_t n = layer->heads, g = layer->kv_heads;
    sections[0] = (section){0, axis == 'g' ? g : n};
    sections[1] = (section){n, g};
    sections[2] = (section){n + g, g};
    return axis == 'Q' ? 3 : 1;
}

/* What a shard has of a whole tensor: its part of each section, for every index of the axes before. */
static void copy_part(const shard_run *run, int weight, double *part, const double *whole, double *to_whole)
{
    const assay_tensor_row *row = &run->layer->whole.rows[weight];
    const int axis = head_axis(row);
    int64_t outer = 1, inner = 1;
    section sections[3];
    const int count = sections_of(run->layer, row->axes[axis], sections);
    for (int i = 0; i < axis; i++) outer *= row->shape.dims[i];
    for (int i = axis + 1; i < row->shape.rank; i++) inner *= row->shape.dims[i];
    for (int64_t i = 0; i < outer; i++) {
        for (int s = 0; s < count; s++) {
            const int64_t own = sections[s].count / run->parts;
            const int64_t at = (i * row->shape.dims[axis] + sections[s].first + run->part * own) * inner;
            if (to_whole != NULL) {
                memcpy(to_whole + at, part, (size_t)(own * inner) * sizeof *part);
            } else {
                memcpy(part, whole + at, (size_t)(own * inner) * sizeof *part);
            }
            part += own * inner;
        }
    }
}

static assay_status open_weight(assay_context *ctx, shard_run *run, int i, int64_t *largest)
{
    assay_status status = ASSAY_OK;
    const assay_head_layer *layer = run->layer;
    const int64_t count = assay_tensor_row_count(&layer->own.rows[i]);
    run->w[i] = run->m->w[i];
    if (assay_row_has_heads(&layer->whole.rows[i])) {
        TRY(assay_alloc_f64(ctx, "weights of a shard's heads", count, &run->memory[i]));
        run->w[i] = run->memory[i];
    }
    if (i == layer->once) TRY(assay_alloc_zeros(ctx, "what another shard adds", count, &run->zeros));
    if (run->m->dy == NULL || run->m->gradients[i] == NULL) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "a shard's gradients", count, &run->gradients[i]));
    if (count > *largest) *largest = count;
cleanup:
    return status;
}

static assay_status open_run(assay_context *ctx, shard_run *run)
{
    assay_status status = ASSAY_OK;
    int64_t largest = 0;
    for (int i = 0; i < run->layer->whole.count; i++) {
        if (run->m->w[i] != NULL) TRY(open_weight(ctx, run, i, &largest));
    }
    if (largest > 0) TRY(assay_alloc_f64(ctx, "a part of a gradient", largest, &run->scratch));
    if (run->m->dy != NULL && run->m->dx != NULL)
        TRY(assay_alloc_f64(ctx, "a shard's dx", run->layer->tokens * run->layer->emb_dim, &run->dx));
cleanup:
    return status;
}

static void close_run(shard_run *run)
{
    for (int i = 0; i < run->layer->whole.count; i++) {
        free(run->memory[i]);
        free(run->gradients[i]);
    }
    free(run->scratch);
    free(run->zeros);
    free(run->dx);
    run->layer->drop(run->layer->self);
}

static void take_shard(shard_run *run, int64_t shard)
{
    const assay_head_inputs *in = &run->m->in;
    const int64_t first = assay_head_batch_part(run->m->mesh, shard) * run->layer->tokens;
    run->shard = shard;
    run->part = assay_head_part(run->m->mesh, shard);
    run->in = (assay_head_inputs){in->x + first * run->layer->emb_dim, in->positions + first,
                                  in->segment_ids == NULL ? NULL : in->segment_ids + first};
    for (int i = 0; i < run->layer->whole.count; i++) {
        if (run->memory[i] != NULL) copy_part(run, i, run->memory[i], run->m->w[i], NULL);
    }
    if (run->zeros != NULL) run->w[run->layer->once] = run->part == 0 ? run->m->w[run->layer->once] : run->zeros;
}

/* Of the first of the shards that have the same: what it has is the sum so far. */
static void join(const assay_context *ctx, bool first, int64_t count, double *sum, double *term)
{
    if (first) {
        memcpy(sum, term, (size_t)count * sizeof *sum);
    } else {
        moe_join(ctx, count, sum, term);
    }
}

static assay_status write_checkpoint(assay_context *ctx, const shard_run *run, int tensor)
{
    const assay_sink *out = run->m->out;
    const assay_tensor_row row = run->layer->row(run->layer->self, tensor);
    char path[ASSAY_PATH_SIZE];
    if (row.name == NULL || tensor == run->layer->out_proj) return ASSAY_OK;         /* a part of it */
    if (!assay_row_has_heads(&row) && run->shard % run->parts != 0) return ASSAY_OK; /* they all have the same */
    assay_tensor_path("checkpoints/", "", &row, path);
    if (!out->wants(out->self, path)) return ASSAY_OK;
    return out->write(ctx, out->self, path, assay_tensor_row_count(&row), run->layer->value(run->layer->self, tensor));
}

static assay_status forward(assay_context *ctx, shard_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_head_layer *layer = run->layer;
    const int64_t count = layer->tokens * layer->emb_dim;
    double *part = NULL;
    for (int i = 0; i <= layer->tensors; i++) {
        if (i < layer->tensors) TRY(layer->compute(ctx, layer->self, i, &run->in, run->w));
        TRY(write_checkpoint(ctx, run, i));
    }
    TRY(assay_alloc_f64(ctx, "a part of y", count, &part));
    memcpy(part, layer->value(layer->self, layer->out_proj), (size_t)count * sizeof *part);
    join(ctx, run->shard % run->parts == 0, count, run->m->y + run->shard / run->parts * count, part);
cleanup:
    free(part);
    return status;
}

static void join_gradient(const assay_context *ctx, const shard_run *run, int weight)
{
    const int64_t count = assay_tensor_row_count(&run->layer->own.rows[weight]);
    double *whole = run->m->gradients[weight], *own = run->gradients[weight];
    if (weight == run->layer->once && run->part > 0) return;
    if (!assay_row_has_heads(&run->layer->whole.rows[weight])) {
        join(ctx, run->shard == 0, count, whole, own);
        return;
    }
    const bool first = run->shard < run->parts;
    if (!first) copy_part(run, weight, run->scratch, whole, NULL);
    join(ctx, first, count, run->scratch, own);
    copy_part(run, weight, run->scratch, NULL, whole);
}

static assay_status backward(assay_context *ctx, shard_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_head_layer *layer = run->layer;
    const int64_t count = layer->tokens * layer->emb_dim, first = run->shard / run->parts * count;
    TRY(layer->backward(ctx, layer->self, run->dx, run->gradients, run->m->dy + first, &run->in, run->w));
    if (run->dx != NULL) join(ctx, run->shard % run->parts == 0, count, run->m->dx + first, run->dx);
    for (int i = 0; i < layer->whole.count; i++) {
        if (run->gradients[i] != NULL) join_gradient(ctx, run, i);
    }
cleanup:
    return status;
}

assay_status assay_head_shards_run(assay_context *ctx, const assay_head_layer *layer, const assay_head_run *m)
{
    assay_status status = ASSAY_OK;
    shard_run run = {.layer = layer, .m = m, .parts = assay_head_shards(m->mesh)};
    TRY(open_run(ctx, &run));
    for (int64_t shard = 0; shard < assay_mesh_shards(m->mesh); shard++) {
        take_shard(&run, shard);
        TRY(forward(ctx, &run));
        if (m->dy != NULL) TRY(backward(ctx, &run));
        layer->drop(layer->self);
    }
cleanup:
    close_run(&run);
    return status;
}
