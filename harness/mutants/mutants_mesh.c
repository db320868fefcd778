/* Mutants of expert parallelism by changed weights. A mesh changes no result, so the whole tensors say what each shard
 * would have had: experts lie shard after shard of the expert axis (docs/expert-parallelism.md). */
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/prefused.h"

int64_t assay_case_shards(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose * (c->config.fused_moe_func ? 1 : c->mesh_expert);
}

int64_t assay_rows_of_shard(const assay_case *c)
{
    const int64_t shards = assay_case_shards(c);
    return shards > 1 && c->batch % shards == 0 ? c->batch / shards : 0;
}

bool assay_has_expert_shards(const assay_case *c)
{
    return c->mesh_expert > 1 && c->config.num_experts % c->mesh_expert == 0 && !c->config.weights_on_shards;
}

bool assay_has_ring(const assay_case *c)
{
    return c->config.use_ring_of_experts && assay_has_expert_shards(c) && assay_rows_of_shard(c) > 0;
}

bool assay_has_hidden_shards(const assay_case *c)
{
    return c->mesh_mlp_tensor > 1 && c->config.sparse_matmul && !c->config.weights_on_shards;
}

/* Elements of the weights of one expert shard. */
static int64_t shard_size(const assay_mutation *m, const assay_tensor *tensor)
{
    return tensor->count / m->c->mesh_expert;
}

/* On every shard but the first a local index counts from 0, and a global one is held at the last expert. */
bool assay_edit_clamp_ids(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t local = tensor->spec.shape.dims[0] / m->c->mesh_expert;
    const int64_t size = shard_size(m, tensor), expert = size / local;
    for (int64_t shard = 1; shard < m->c->mesh_expert; shard++) {
        double *first = tensor->values + shard * size, *last = first + size - expert;
        for (double *to = first; to < last; to += expert) memcpy(to, last, (size_t)expert * sizeof *to);
    }
    return local > 1;
}

bool assay_edit_roll_expert_shards(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t local = tensor->spec.shape.dims[0] / m->c->mesh_expert;
    for (int64_t i = 0; i < local; i++) assay_roll_axis(tensor, 0);
    return true;
}

bool assay_edit_zero_last_shard(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, tensor->count - shard_size(m, tensor), 0.0);
}

bool assay_edit_zero_all_but_first_shard(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, shard_size(m, tensor), 0.0);
}

/* The experts that a shard's tokens would meet in the ring's last step. */
bool assay_edit_zero_shard_before(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t shards = m->c->mesh_expert, size = shard_size(m, tensor);
    double *before = tensor->values + (m->shard + shards - 1) % shards * size;
    for (int64_t i = 0; i < size; i++) before[i] = 0.0;
    return true;
}

bool assay_edit_double_last_shard(const assay_mutation *m, assay_tensor *tensor)
{
    for (int64_t i = tensor->count - shard_size(m, tensor); i < tensor->count; i++) tensor->values[i] *= 2;
    return true;
}

/* Up products [E,D,H]: a shard of the tensor axis has some of D. */
bool assay_edit_zero_last_tensor_shard(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_shape *shape = &tensor->spec.shape;
    const int64_t rows = shape->dims[1], left = rows - rows / m->c->mesh_tensor, width = shape->dims[2];
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i / width % rows >= left) tensor->values[i] = 0.0;
    }
    return m->c->mesh_tensor > 1;
}

bool assay_edit_times_tensor_shards(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)m->c->mesh_tensor);
}

bool assay_has_weights_on_shards(const assay_case *c)
{
    return c->config.weights_on_shards;
}

bool assay_edit_roll_fsdp_shards(const assay_mutation *m, assay_tensor *tensor)
{
    const int axis = m->c->config.weights_on_shards ? 0 : 1; /* where fsdp is outermost; else D */
    const int64_t rows = tensor->spec.shape.dims[axis], step = rows / m->c->mesh_fsdp;
    for (int64_t i = 0; i < step; i++) assay_roll_axis(tensor, axis);
    return step > 0 && m->c->mesh_fsdp > 1;
}

bool assay_edit_times_hidden_shards(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)m->c->mesh_mlp_tensor);
}

/* wo [E,H,D] */
bool assay_edit_keep_first_rows_of_h(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_shape *shape = &tensor->spec.shape;
    const int64_t rows = shape->dims[1], own = rows / m->c->mesh_mlp_tensor, width = shape->dims[2];
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i / width % rows >= own) tensor->values[i] = 0.0;
    }
    return true;
}

/* Of the shared expert, [F,D]. */
bool assay_edit_keep_first_rows_of_f(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, tensor->count / m->c->mesh_mlp_tensor, 0.0);
}

/* Gate and up may be side by side: columns of each. */
static int64_t hidden_width(const assay_tensor *tensor)
{
    return assay_tensor_width(tensor) / (assay_path_ends(tensor->spec.path, "wi") ? 2 : 1);
}

bool assay_edit_keep_first_columns_of_h(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t width = assay_tensor_width(tensor), hidden = hidden_width(tensor);
    const int64_t shards = width > hidden ? m->c->config.w13_reorder_size : 1, own = hidden / m->c->mesh_mlp_tensor;
    for (int64_t i = 0; i < tensor->count; i++) {
        const int64_t column = width > hidden ? assay_prefused_column(i % width, hidden, shards) : i % width;
        if (column % hidden >= own) tensor->values[i] = 0.0;
    }
    return true;
}

/* A shard's columns of gate meet those that the shard after has of up. */
bool assay_edit_roll_up_columns(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t width = assay_tensor_width(tensor), hidden = hidden_width(tensor);
    const int64_t own = hidden / m->c->mesh_mlp_tensor;
    if (width > hidden && m->c->config.w13_reorder_size > 1) return false; /* fused_shards_other does the like */
    for (double *up = tensor->values + width - hidden; up < tensor->values + tensor->count; up += width) {
        for (int64_t turn = 0; turn < own; turn++) {
            const double first = up[0];
            memmove(up, up + 1, (size_t)(hidden - 1) * sizeof *up);
            up[hidden - 1] = first;
        }
    }
    return true;
}

/* wi [E,D,2H] in as many pieces as there are shards, each of which takes its first half for gate: of a row g0 g1 u0 u1, of
 * which the pieces should be g0 u0 and g1 u1, that reads g0 u0 as gate and g1 u1 as up. */
bool assay_edit_split_halves_contiguously(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t width = assay_tensor_width(tensor), shards = m->c->mesh_mlp_tensor, own = width / 2 / shards;
    if (m->c->config.w13_reorder_size > 1) return false; /* they are laid out for it */
    double *row = malloc((size_t)width * sizeof *row);
    if (row == NULL) return false;
    for (double *values = tensor->values; values < tensor->values + tensor->count; values += width) {
        memcpy(row, values, (size_t)width * sizeof *row);
        for (int64_t piece = 0; piece < 2 * shards; piece++)
            memcpy(values + (piece % 2 * shards + piece / 2) * own, row + piece * own, (size_t)own * sizeof *row);
    }
    free(row);
    return true;
}

/* The shard of a replica whose place is f, t, p, n. */
static int64_t shard_at(const assay_case *c, int64_t f, int64_t t, int64_t p, int64_t n)
{
    return ((f * c->mesh_fsdp_transpose + t) * c->mesh_expert + p) * c->mesh_mlp_tensor + n;
}

/* E over expert, then fsdp, is read as over fsdp, then expert. */
bool assay_edit_exchange_expert_axes(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_case *c = m->c;
    const int64_t fsdp = c->mesh_fsdp, expert = c->mesh_expert, inner = c->mesh_mlp_tensor;
    const int64_t size = tensor->count / tensor->spec.shape.dims[0];
    double *right = NULL;
    if (!c->config.shard_exp_on_fsdp || fsdp == 1 || expert == 1) return false;
    right = malloc((size_t)tensor->count * sizeof *right);
    if (right == NULL) return false;
    memcpy(right, tensor->values, (size_t)tensor->count * sizeof *right);
    for (int64_t i = 0; i < tensor->spec.shape.dims[0]; i++) {
        const int64_t n = i % inner, p = i / inner % expert, t = i / inner / expert % c->mesh_fsdp_transpose;
        const int64_t part = p * fsdp + i / inner / expert / c->mesh_fsdp_transpose;
        const int64_t from = shard_at(c, part / expert, t, part % expert, n);
        memcpy(tensor->values + i * size, right + from * size, (size_t)size * sizeof *right);
    }
    free(right);
    return true;
}

/* Gate and up of shards g0 u0, g1 u1 are gathered as g0 u0 g1 u1, of which the first half is taken for gate. */
bool assay_edit_concatenate_halves(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_case *c = m->c;
    const int64_t parts = c->mesh_fsdp_transpose * c->mesh_mlp_tensor, own = assay_tensor_width(tensor) / 2;
    const int64_t shards = tensor->spec.shape.dims[0], size = tensor->count / shards;
    double *right = NULL;
    if (parts == 1) return false;
    right = malloc((size_t)tensor->count * sizeof *right);
    if (right == NULL) return false;
    memcpy(right, tensor->values, (size_t)tensor->count * sizeof *right);
    for (int64_t piece = 0; piece < tensor->count / own; piece++) {
        const int64_t shard = piece * own / size, n = shard % c->mesh_mlp_tensor;
        const int64_t p = shard / c->mesh_mlp_tensor % c->mesh_expert;
        const int64_t t = shard / c->mesh_mlp_tensor / c->mesh_expert % c->mesh_fsdp_transpose;
        const int64_t f = shard / c->mesh_mlp_tensor / c->mesh_expert / c->mesh_fsdp_transpose;
        const int64_t listed = piece % 2 * parts + t * c->mesh_mlp_tensor + n, part = listed / 2;
        const int64_t from = shard_at(c, f, part / c->mesh_mlp_tensor, p, part % c->mesh_mlp_tensor);
        const int64_t in_row = piece * own % size / (2 * own) * 2 * own + listed % 2 * own;
        memcpy(tensor->values + piece * own, right + from * size + in_row, (size_t)own * sizeof *right);
    }
    free(right);
    return true;
}

bool assay_edit_keep_first_columns_of_y(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (!assay_path_ends(tensor->spec.path, "cotangents/y")) continue;
        const int64_t width = assay_tensor_width(tensor), own = width / m->c->mesh_mlp_tensor;
        for (int64_t k = 0; k < tensor->count; k++) {
            if (k % width >= own) tensor->values[k] = 0.0;
        }
    }
    return true;
}
