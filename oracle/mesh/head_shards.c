#include "oracle/mesh/head_shards.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"

int64_t assay_head_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) * assay_mesh_size(mesh, ASSAY_AXIS_MLP_TENSOR);
}

int64_t assay_head_batch_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_DATA) * assay_mesh_size(mesh, ASSAY_AXIS_FSDP);
}

int64_t assay_head_shard(const assay_mesh *mesh, int64_t shard)
{
    return assay_mesh_index(mesh, shard, ASSAY_AXIS_MLP_TENSOR) * assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) +
           assay_mesh_index(mesh, shard, ASSAY_AXIS_EXPERT);
}

int64_t assay_head_batch_shard(const assay_mesh *mesh, int64_t shard)
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
    MUST(assay_checked_count(ctx, "mesh", ASSAY_MESH_AXES, sizes, &shards));
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
    const assay_head_run *m;
    assay_tensor_table whole, own; /* of weights */
    int64_t parts, tokens, dim;    /* P N; of a shard */
    int64_t shard, part;           /* part: of the heads */
    int once;                      /* the weight that the first part alone adds (a bias of out); -1: none */
    double *memory[ASSAY_MOST_ROWS], *gradients[ASSAY_MOST_ROWS], *scratch; /* as large as the largest of `gradients` */
    double *zeros, *dx, *y;
    double *w[ASSAY_MOST_ROWS];
    graph_run run;
} shard_run;

/* Heads of one kind along an axis: all of the layer's before them, and how many. */
typedef struct section {
    int64_t first, count;
} section;

static int sections_of(const graph *g, char axis, section sections[3])
{
    const int64_t heads = graph_axis(g, axis == 'Q' ? 'N' : axis), kv_heads = graph_axis(g, 'g');
    sections[0] = (section){0, heads};
    sections[1] = (section){heads, kv_heads};
    sections[2] = (section){heads + kv_heads, kv_heads};
    return axis == 'Q' ? 3 : 1;
}

/* What a shard has of a tensor: its part of each section, for every index of the axes before. */
static void copy_shard(const graph *g, const assay_tensor_row *row, int64_t parts, int64_t part, double *own,
                       double *whole, bool back)
{
    const int axis = head_axis(row);
    int64_t outer = 1, inner = 1;
    section sections[3];
    const int count = sections_of(g, row->axes[axis], sections);
    for (int i = 0; i < axis; i++) outer *= row->shape.dims[i];
    for (int i = axis + 1; i < row->shape.rank; i++) inner *= row->shape.dims[i];
    for (int64_t i = 0; i < outer; i++) {
        for (int s = 0; s < count; s++) {
            const int64_t heads = sections[s].count / parts;
            double *at = whole + (i * row->shape.dims[axis] + sections[s].first + part * heads) * inner;
            memcpy(back ? at : own, back ? own : at, (size_t)(heads * inner) * sizeof *own);
            own += heads * inner;
        }
    }
}

static void copy_weight(const shard_run *run, int weight, double *own, double *whole, bool back)
{
    copy_shard(run->m->whole, &run->whole.rows[weight], run->parts, run->part, own, whole, back);
}

static assay_status open_weight(assay_context *ctx, shard_run *run, int i, int64_t *largest)
{
    const assay_tensor_row *whole = &run->whole.rows[i];
    const int64_t count = assay_tensor_row_count(&run->own.rows[i]);
    run->w[i] = run->m->weights[i];
    if (assay_row_has_heads(whole)) {
        MUST(assay_alloc_f64(ctx, "weights of a shard's heads", count, &run->memory[i]));
        run->w[i] = run->memory[i];
    } else if (whole->kind == ASSAY_PROJECTION_BIAS) {
        MUST(assay_alloc_zeros(ctx, "what another shard adds", count, &run->zeros));
        run->once = i;
    }
    if (run->m->dy == NULL || run->m->gradients[i] == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "a shard's gradients", count, &run->gradients[i]));
    if (count > *largest) *largest = count;
    return ASSAY_OK;
}

static assay_status open_run(assay_context *ctx, shard_run *run)
{
    int64_t largest = 0;
    for (int i = 0; i < run->whole.count; i++) {
        if (run->m->weights[i] != NULL) MUST(open_weight(ctx, run, i, &largest));
    }
    if (largest > 0) MUST(assay_alloc_f64(ctx, "a part of a gradient", largest, &run->scratch));
    MUST(assay_alloc_f64(ctx, "a part of y", run->tokens * run->dim, &run->y));
    if (run->m->dy != NULL && run->m->dx != NULL)
        MUST(assay_alloc_f64(ctx, "a shard's dx", run->tokens * run->dim, &run->dx));
    return ASSAY_OK;
}

static void close_run(shard_run *run)
{
    for (int i = 0; i < run->whole.count; i++) {
        free(run->memory[i]);
        free(run->gradients[i]);
    }
    free(run->scratch);
    free(run->zeros);
    free(run->dx);
    free(run->y);
    graph_close(&run->run);
}

static void lend_indices(graph_run *r, const char *name, const int32_t *indices)
{
    r->indices[graph_find(r->graph, name)] = indices;
}

/* Of checkpoints without heads all parts have the same, and of y each has a part. */
static assay_status open_shard(assay_context *ctx, shard_run *run, int64_t shard)
{
    const assay_head_run *m = run->m;
    const int64_t first = assay_head_batch_shard(m->mesh, shard) * run->tokens;
    graph_run *r = &run->run;
    run->shard = shard;
    run->part = assay_head_shard(m->mesh, shard);
    for (int i = 0; i < run->whole.count; i++) {
        if (run->memory[i] != NULL) copy_weight(run, i, run->memory[i], m->weights[i], false);
    }
    if (run->once >= 0) run->w[run->once] = run->part == 0 ? m->weights[run->once] : run->zeros;
    MUST(graph_open(ctx, r, m->own));
    r->out = m->out;
    for (int t = 1; t < m->own->tensor_count; t++)
        r->hidden[t] = !assay_row_has_heads(&m->own->tensors[t].row) && shard % run->parts != 0;
    r->hidden[m->own->result] = true;
    graph_lend(r, graph_find(m->own, "inputs/x"), m->x + first * run->dim);
    lend_indices(r, "inputs/positions", m->positions + first);
    lend_indices(r, "inputs/segment_ids", m->segment_ids == NULL ? NULL : m->segment_ids + first);
    graph_lend_weights(r, run->w);
    r->room[m->own->result] = run->y;
    return ASSAY_OK;
}

/* Of the first of the shards that have the same: what it has is the sum so far. */
static void join(const assay_context *ctx, bool first, int64_t count, double *sum, double *term)
{
    if (first) {
        memcpy(sum, term, (size_t)count * sizeof *sum);
    } else {
        graph_join(ctx, count, sum, term);
    }
}

static void join_gradient(const assay_context *ctx, const shard_run *run, int weight)
{
    const int64_t count = assay_tensor_row_count(&run->own.rows[weight]);
    double *whole = run->m->gradients[weight], *own = run->gradients[weight];
    if (weight == run->once && run->part > 0) return;
    if (!assay_row_has_heads(&run->whole.rows[weight])) {
        join(ctx, run->shard == 0, count, whole, own);
        return;
    }
    const bool first = run->shard < run->parts;
    if (!first) copy_weight(run, weight, run->scratch, whole, false);
    join(ctx, first, count, run->scratch, own);
    copy_weight(run, weight, run->scratch, whole, true);
}

static assay_status one_shard(assay_context *ctx, shard_run *run)
{
    assay_status status;
    const assay_head_run *m = run->m;
    graph_run *r = &run->run;
    const int64_t count = run->tokens * run->dim, first = run->shard / run->parts * count;
    const bool begins = run->shard % run->parts == 0;
    TRY(graph_forward(ctx, r));
    join(ctx, begins, count, m->y + first, run->y);
    if (m->dy == NULL) goto cleanup;
    graph_lend_gradient(r, m->own->result, m->dy + first);
    graph_want_gradient(r, graph_find(m->own, "inputs/x"), run->dx);
    graph_want_weight_gradients(r, run->gradients);
    TRY(graph_backward(ctx, r));
    if (run->dx != NULL) join(ctx, begins, count, m->dx + first, run->dx);
    for (int i = 0; i < run->whole.count; i++) {
        if (run->gradients[i] != NULL) join_gradient(ctx, run, i);
    }
cleanup:
    graph_close(r);
    return status;
}

assay_status assay_head_shards_run(assay_context *ctx, const assay_head_run *m)
{
    const graph *own = m->own;
    OWNED_BY(close_run)
    shard_run run = {.m = m,
                     .whole = graph_weight_table(m->whole),
                     .own = graph_weight_table(own),
                     .parts = assay_head_shards(m->mesh),
                     .dim = graph_last_axis(own, own->result),
                     .once = -1};
    run.tokens = graph_size(own, own->result) / run.dim;
    MUST(open_run(ctx, &run));
    for (int64_t shard = 0; shard < assay_mesh_shards(m->mesh); shard++) {
        MUST(open_shard(ctx, &run, shard));
        MUST(one_shard(ctx, &run));
    }
    return ASSAY_OK;
}

/* --- the whole layer, laid out --- */

void assay_head_shards_by_shard(graph *whole, const assay_mesh *mesh)
{
    const graph_partition columns = {.shards = assay_head_shards(mesh)}, sums = {.slices = assay_head_shards(mesh)};
    for (int i = 0; i < whole->step_count; i++) {
        const graph_step *step = &whole->steps[i];
        const assay_tensor_row *w = &whole->tensors[step->in[1]].row;
        if (w->name == NULL || w->kind != ASSAY_KERNEL || head_axis(w) < 0) continue;
        graph_partition_product(whole, step->out[0], head_axis(w) < w->inputs ? &sums : &columns);
    }
    whole->owners = assay_head_batch_shards(mesh);
}

/* The tensor of a path that shards have parts of; 0: it is laid out as it is. */
static int shared_tensor(const assay_head_layout *layout, const char *path)
{
    static const char folder[] = "checkpoints/";
    const char *name = strstr(path, folder);
    const int tensor = name == NULL ? 0 : graph_find(layout->whole, name + strlen(folder));
    return tensor > 0 && assay_row_has_heads(&layout->whole->tensors[tensor].row) ? tensor : 0;
}

static void lay_out(const assay_head_layout *layout, int tensor, double *own, double *whole, bool back)
{
    const assay_mesh *mesh = layout->mesh;
    const int64_t parts = assay_head_shards(mesh), batches = assay_head_batch_shards(mesh);
    const int64_t count = graph_size(layout->whole, tensor);
    assay_tensor_row row = layout->whole->tensors[tensor].row;
    row.shape.dims[0] /= batches; /* the batch is the first axis */
    for (int64_t shard = 0; shard < parts * batches; shard++)
        copy_shard(layout->whole, &row, parts, assay_head_shard(mesh, shard), own + shard * (count / parts / batches),
                   whole + assay_head_batch_shard(mesh, shard) * (count / batches), back);
}

static bool layout_has(void *self, const char *path)
{
    const assay_source *in = ((const assay_head_layout *)self)->in;
    return in->has(in->self, path);
}

static assay_status layout_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *values)
{
    const assay_head_layout *layout = self;
    const assay_source *in = layout->in;
    const int tensor = shared_tensor(layout, path);
    OWNED double *own = NULL;
    if (tensor == 0) return in->read(ctx, in->self, path, first, count, values);
    MUST(assay_alloc_f64(ctx, path, count, &own));
    MUST(in->read(ctx, in->self, path, 0, count, own));
    lay_out(layout, tensor, own, values, true);
    return ASSAY_OK;
}

static bool layout_wants(void *self, const char *path)
{
    return assay_wants(((const assay_head_layout *)self)->out, path);
}

static assay_status layout_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_head_layout *layout = self;
    const assay_sink *out = layout->out;
    const int tensor = shared_tensor(layout, path);
    OWNED double *own = NULL;
    if (tensor == 0) return out->write(ctx, out->self, path, count, values);
    MUST(assay_alloc_f64(ctx, path, count, &own));
    lay_out(layout, tensor, own, (double *)values, false);
    return out->write(ctx, out->self, path, count, own);
}

assay_source assay_head_layout_source(assay_head_layout *layout)
{
    return (assay_source){.self = layout, .has = layout_has, .read = layout_read};
}

assay_sink assay_head_layout_sink(assay_head_layout *layout)
{
    return (assay_sink){.self = layout, .wants = layout_wants, .write = layout_write};
}
