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

static int64_t batch_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_DATA) * assay_mesh_size(mesh, ASSAY_AXIS_FSDP);
}

/* Which part of the heads a shard has. */
static int64_t head_shard(const assay_mesh *mesh, int64_t shard)
{
    return assay_mesh_index(mesh, shard, ASSAY_AXIS_MLP_TENSOR) * assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) +
           assay_mesh_index(mesh, shard, ASSAY_AXIS_EXPERT);
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

assay_tensor_row assay_head_row(const assay_mesh *mesh, assay_tensor_row row)
{
    const int64_t shards = assay_mesh_shards(mesh);
    row.shape.dims[0] /= batch_shards(mesh); /* the batch is the first axis */
    row.shape.dims[head_axis(&row)] /= assay_head_shards(mesh);
    return assay_tensor_row_below("m", &shards, row);
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
        {"batch", "mesh.data times mesh.fsdp", batch, batch_shards(mesh)},
    };
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++) {
        if (divided[i].size % divided[i].parts == 0) continue;
        return assay_refuse(ctx, "%s: %s is %" PRId64 ", expected a multiple of %s, which is %" PRId64, name,
                            divided[i].what, divided[i].size, divided[i].axes, divided[i].parts);
    }
    return ASSAY_OK;
}

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

void assay_head_shards_by_shard(graph *whole, const assay_mesh *mesh)
{
    const graph_partition columns = {.shards = assay_head_shards(mesh)}, sums = {.slices = assay_head_shards(mesh)};
    for (int i = 0; i < whole->step_count; i++) {
        const graph_step *step = &whole->steps[i];
        const assay_tensor_row *w = &whole->tensors[step->in[1]].row;
        if (w->name == NULL || w->kind != ASSAY_KERNEL || head_axis(w) < 0) continue;
        graph_partition_product(whole, step->out[0], head_axis(w) < w->inputs ? &sums : &columns);
    }
    whole->owners = batch_shards(mesh);
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
    const int64_t parts = assay_head_shards(mesh), batches = batch_shards(mesh);
    const int64_t count = graph_size(layout->whole, tensor);
    assay_tensor_row row = layout->whole->tensors[tensor].row;
    row.shape.dims[0] /= batches; /* the batch is the first axis */
    for (int64_t shard = 0; shard < parts * batches; shard++)
        copy_shard(layout->whole, &row, parts, head_shard(mesh, shard), own + shard * (count / parts / batches),
                   whole + shard / parts * (count / batches), back);
}

static assay_status layout_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *values)
{
    const assay_head_layout *layout = self;
    const assay_source *in = layout->wrapped.in;
    const int tensor = shared_tensor(layout, path);
    OWNED double *own = NULL;
    if (tensor == 0) return in->read(ctx, in->self, path, first, count, values);
    MUST(assay_alloc_f64(ctx, path, count, &own));
    MUST(in->read(ctx, in->self, path, 0, count, own));
    lay_out(layout, tensor, own, values, true);
    return ASSAY_OK;
}

static assay_status layout_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_head_layout *layout = self;
    const assay_sink *out = layout->wrapped.out;
    const int tensor = shared_tensor(layout, path);
    OWNED double *own = NULL;
    if (tensor == 0) return out->write(ctx, out->self, path, count, values);
    MUST(assay_alloc_f64(ctx, path, count, &own));
    lay_out(layout, tensor, own, (double *)values, false);
    return out->write(ctx, out->self, path, count, own);
}

assay_source assay_head_layout_source(assay_head_layout *layout)
{
    return (assay_source){.self = layout, .has = assay_wrapped_has, .read = layout_read};
}

assay_sink assay_head_layout_sink(assay_head_layout *layout)
{
    return (assay_sink){.self = layout, .wants = assay_wrapped_wants, .write = layout_write};
}
