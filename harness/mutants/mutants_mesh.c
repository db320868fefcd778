/* Mutants of expert parallelism by changed weights. A mesh changes no result, so the whole tensors say what each shard
 * would have had: experts lie shard after shard of the expert axis (docs/expert-parallelism.md). */
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/paths.h"

static const char *const up_weights[] = {"wi", "wi_0", "wi_1"};
static const char *const down_weights[] = {"wo", "wo_bias"};
static const char *const expert_weights[] = {"wi", "wi_0", "wi_1", "wo", "wi_0_bias", "wi_1_bias", "wo_bias"};
enum { UP = 3, DOWN = 2, ALL = 7 };

int64_t assay_case_shards(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_expert;
}

int64_t assay_rows_of_shard(const assay_case *c)
{
    const int64_t shards = assay_case_shards(c);
    return shards > 1 && c->batch % shards == 0 ? c->batch / shards : 0;
}

bool assay_has_expert_shards(const assay_case *c)
{
    return c->mesh_expert > 1 && c->config.num_experts % c->mesh_expert == 0;
}

bool assay_path_names_expert_weight(const char *path)
{
    for (int i = 0; i < ALL; i++) {
        if (assay_path_ends(path, expert_weights[i])) return true;
    }
    return false;
}

static bool change_each(const assay_mutation *m, const char *const *names, int count, assay_tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < count; i++) changed |= assay_change_given(m, names[i], change);
    return changed;
}

/* Elements of the weights of one expert shard. */
static int64_t shard_size(const assay_mutation *m, const assay_kept *tensor)
{
    return tensor->count / m->c->mesh_expert;
}

/* On every shard but the first a local index counts from 0, and a global one is held at the last expert. */
static bool clamp_ids(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t local = tensor->spec->shape.dims[0] / m->c->mesh_expert;
    const int64_t size = shard_size(m, tensor), expert = size / local;
    for (int64_t shard = 1; shard < m->c->mesh_expert; shard++) {
        double *first = tensor->values + shard * size, *last = first + size - expert;
        for (double *to = first; to < last; to += expert) memcpy(to, last, (size_t)expert * sizeof *to);
    }
    return local > 1;
}

bool assay_mutant_global_ids(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && change_each(m, expert_weights, ALL, clamp_ids);
}

static bool roll_shards(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t local = tensor->spec->shape.dims[0] / m->c->mesh_expert;
    for (int64_t i = 0; i < local; i++) assay_roll_axis(tensor, 0);
    return true;
}

bool assay_mutant_roll_expert_shards(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && change_each(m, expert_weights, ALL, roll_shards);
}

static bool zero_shard(const assay_mutation *m, assay_kept *tensor, int64_t shard)
{
    const int64_t size = shard_size(m, tensor);
    for (int64_t i = 0; i < size; i++) tensor->values[shard * size + i] = 0.0;
    return true;
}

static bool zero_last_shard(const assay_mutation *m, assay_kept *tensor)
{
    return zero_shard(m, tensor, m->c->mesh_expert - 1);
}

static bool zero_all_but_first_shard(const assay_mutation *m, assay_kept *tensor)
{
    for (int64_t shard = 1; shard < m->c->mesh_expert; shard++) zero_shard(m, tensor, shard);
    return true;
}

/* The experts that a shard's tokens would meet in the ring's last step. */
static bool zero_shard_before(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t shards = m->c->mesh_expert;
    return zero_shard(m, tensor, (m->shard + shards - 1) % shards);
}

static bool double_last_shard(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t size = shard_size(m, tensor);
    for (int64_t i = tensor->count - size; i < tensor->count; i++) tensor->values[i] *= 2;
    return true;
}

bool assay_mutant_no_last_expert_shard(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && change_each(m, expert_weights, ALL, zero_last_shard);
}

bool assay_mutant_first_expert_shard(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && change_each(m, expert_weights, ALL, zero_all_but_first_shard);
}

bool assay_mutant_double_expert_shard(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && change_each(m, down_weights, DOWN, double_last_shard);
}

bool assay_mutant_no_last_ring_step(const assay_mutation *m)
{
    return m->c->config.use_ring_of_experts && assay_has_expert_shards(m->c) && assay_rows_of_shard(m->c) > 0 &&
           change_each(m, expert_weights, ALL, zero_shard_before);
}

/* Up products [E,D,H]: a shard of the tensor axis has some of D. */
static bool zero_last_tensor_shard(const assay_mutation *m, assay_kept *tensor)
{
    const assay_shape *shape = &tensor->spec->shape;
    const int64_t rows = shape->dims[1], left = rows - rows / m->c->mesh_tensor, width = shape->dims[2];
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i / width % rows >= left) tensor->values[i] = 0.0;
    }
    return true;
}

static bool times_tensor_shards(const assay_mutation *m, assay_kept *tensor)
{
    return assay_scale_values(tensor, (double)m->c->mesh_tensor);
}

bool assay_mutant_no_last_tensor_shard(const assay_mutation *m)
{
    return m->c->mesh_tensor > 1 && change_each(m, up_weights, UP, zero_last_tensor_shard);
}

bool assay_mutant_tensor_sum_twice(const assay_mutation *m)
{
    return m->c->mesh_tensor > 1 && change_each(m, up_weights, UP, times_tensor_shards);
}

static bool roll_fsdp(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t rows = tensor->spec->shape.dims[1], step = rows / m->c->mesh_fsdp;
    for (int64_t i = 0; i < step; i++) assay_roll_axis(tensor, 1);
    return step > 0;
}

bool assay_mutant_roll_fsdp_shards(const assay_mutation *m)
{
    return m->c->mesh_fsdp > 1 && change_each(m, up_weights, UP, roll_fsdp);
}
